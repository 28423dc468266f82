//! `lockstep train`: trains a model by reinforcement learning.

use crate::options::{RewardArgs, RunArgs, SharingArgs, utf8};
use lockstep::config::Purpose;

/// Trains a model with reinforcement learning: GRPO, or another `algorithm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub rewards: RewardArgs,
    /// Trains on recorded rollouts instead of generating (replay); requires no dataset and no reward.
    #[arg(long, value_name = "FILE.jsonl")]
    pub replay: Option<std::path::PathBuf>,
    /// Generates completions in worker processes, which map the learner's weights without a copy. Starts a learner and
    /// --workers workers on this machine, restarts processes that are killed, and stops all of them at the end. The
    /// results are bit-identical for any number of workers. docs/distributed.md
    #[arg(long)]
    pub distributed: bool,
    /// Number of identical workers of a distributed run; by default the configuration's [[workers]], or one.
    #[arg(long, value_name = "N", requires = "distributed")]
    pub workers: Option<u32>,
    #[command(flatten)]
    pub sharing: SharingArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut run = args.run;
    let replay = args.replay.as_deref().map(|path| utf8("--replay", path)).transpose()?;
    args.rewards.give(&mut run.config.more)?;
    run.config.more.given("--replay", "replay", replay);
    if args.distributed {
        crate::distributed::supervise(&run, args.workers, &args.sharing)
    } else {
        crate::session::run(Purpose::Grpo, &run)
    }
}
