//! `lockstep train`.

use crate::options::{RewardArgs, RunArgs, utf8};
use lockstep::config::Purpose;

/// Trains a model by reinforcement learning: GRPO, or another `algorithm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub rewards: RewardArgs,
    /// Trains on the rollouts of a file instead of generating (replay); no dataset, no reward.
    #[arg(long, value_name = "FILE.jsonl")]
    pub replay: Option<std::path::PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut run = args.run;
    let replay = args.replay.as_deref().map(|path| utf8("--replay", path)).transpose()?;
    args.rewards.give(&mut run.config.more)?;
    run.config.more.given("--replay", "replay", replay);
    crate::session::run(Purpose::Grpo, &run)
}
