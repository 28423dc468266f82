//! `lockstep eval`.

use std::path::PathBuf;

/// Scores a model on a task.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face model directory.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The task: gsm8k or prompt_answer.
    #[arg(long, value_name = "TASK", default_value = "gsm8k")]
    pub task: String,
    /// JSONL or Parquet.
    #[arg(long, value_name = "FILE")]
    pub dataset: PathBuf,
    /// Completions of each prompt; with more than one, pass@k too. One is greedy unless --temperature is given.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub n: usize,
    /// The sampling temperature; not given: greedy with --n 1, else 1.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// The first rows only.
    #[arg(long, value_name = "N")]
    pub max_samples: Option<usize>,
    /// The most tokens of a completion.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_completion_length: usize,
    /// The seed.
    #[arg(long, value_name = "S", default_value_t = 42)]
    pub seed: u64,
    /// Sets any other key (prompt_column, system_prompt, …).
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Writes each prompt, completion and score as JSON lines.
    #[arg(long, value_name = "FILE.jsonl")]
    pub output: Option<PathBuf>,
    /// The result as JSON on standard output.
    #[arg(long)]
    pub json: bool,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("eval is not built yet")
}
