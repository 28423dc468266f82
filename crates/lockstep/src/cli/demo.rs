//! `lockstep demo`.

use super::options::LogArgs;
use std::path::PathBuf;

/// Trains a small model from nothing, then with GRPO; no network, no files needed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The run directory; must not exist.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// GRPO steps.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub steps: u64,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// How it talks.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    crate::demo::run(args)
}
