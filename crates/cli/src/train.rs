//! `lockstep train`: trains a model by reinforcement learning.

use crate::options::{RewardArgs, RunArgs, SharingArgs, utf8};
use lockstep::config::Purpose;

/// Trains a model by reinforcement learning: GRPO, or another `algorithm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub rewards: RewardArgs,
    /// Trains on recorded rollouts instead of generating (replay); needs no dataset and no reward.
    #[arg(long, value_name = "FILE.jsonl")]
    pub replay: Option<std::path::PathBuf>,
    /// Generates completions in worker processes, which read the learner's weights without a copy. Starts a learner and
    /// --workers workers on this machine, restarts any that are killed, and leaves nothing running. The run has the
    /// same bits with any number of workers. docs/distributed.md
    #[arg(long)]
    pub distributed: bool,
    /// Number of equal workers of a distributed run; if not given, the configuration's [[workers]], or one.
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
