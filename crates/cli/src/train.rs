//! `lockstep train`.

use crate::options::{ConfigArgs, LogArgs};
use lockstep::config::Purpose;

/// Trains a model by reinforcement learning: GRPO, or another `algorithm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Trains on the rollouts of a file instead of generating (replay); no dataset, no reward.
    #[arg(long, value_name = "FILE.jsonl")]
    pub replay: Option<std::path::PathBuf>,
    /// Continues a run: its directory, or `latest` for the newest checkpoint under the output directory.
    #[arg(long, value_name = "DIR|latest")]
    pub resume: Option<String>,
    /// How it talks.
    #[command(flatten)]
    pub log: LogArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut config = args.config;
    config.set.extend(args.replay.map(|file| format!("replay={}", file.display())));
    crate::session::run(Purpose::Grpo, &config, args.resume.as_deref(), &args.log)
}
