//! `lockstep generate`.

use std::path::PathBuf;

/// Completes a prompt.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face model directory.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The prompt. With a chat template it is one user message, unless --raw is given.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// A system message before it.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Take the prompt as it is: no chat template.
    #[arg(long)]
    pub raw: bool,
    /// Completions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub n: usize,
    /// The most tokens of a completion.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new_tokens: usize,
    /// 0: the likeliest token each time.
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub temperature: f64,
    /// Sample from the likeliest tokens whose probabilities reach this sum.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// Sample from this many likeliest tokens; 0: all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Leave out tokens less likely than this times the likeliest.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Makes tokens that stand in the text so far less likely (> 1).
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repetition_penalty: f64,
    /// A text that ends a completion; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// The seed.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// One JSON object for each completion: text, token ids, log-probabilities, why it ended.
    #[arg(long)]
    pub json: bool,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("generate is not built yet")
}
