//! `lockstep sft`.

use super::options::{ConfigArgs, LogArgs};

/// Trains a model on given completions (supervised fine-tuning; the loss is on the completion only).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Continues a run: its directory, or `latest` for the newest checkpoint under the output directory.
    #[arg(long, value_name = "DIR|latest")]
    pub resume: Option<String>,
    /// How it talks.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("sft is not built yet")
}
