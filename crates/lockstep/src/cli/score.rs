//! `lockstep score`.

use std::path::PathBuf;

/// Log-probabilities of given token ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face model directory.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Lines {"prompt_ids": […], "completion_ids": […]}; `-` for standard input.
    #[arg(long, value_name = "FILE.jsonl")]
    pub input: PathBuf,
    /// What is computed in. This build has f32.
    #[arg(long, value_name = "f32|bf16", default_value = "f32")]
    pub dtype: String,
    /// Logits are divided by it.
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub temperature: f64,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("score is not built yet")
}
