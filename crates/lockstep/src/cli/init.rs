//! `lockstep init`.

use std::path::PathBuf;

/// Makes a model directory with random weights of a shape.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shape: a Hugging Face config.json.
    #[arg(long, value_name = "config.json")]
    pub config: PathBuf,
    /// Copies the tokenizer from this directory.
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// The seed of the weights.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// The directory to write; must not exist.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("init is not built yet")
}
