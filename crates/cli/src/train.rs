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
    /// Trains on the rollouts of a file instead of generating (replay); no dataset, no reward.
    #[arg(long, value_name = "FILE.jsonl")]
    pub replay: Option<std::path::PathBuf>,
    /// Has the completions made by workers, processes of this machine that read the weights where they lie: starts a
    /// learner and --workers of them, starts again what is killed, and leaves nothing running. The run has the same
    /// bits with any number of workers. docs/distributed.md
    #[arg(long)]
    pub distributed: bool,
    /// Workers of a distributed run, all alike; without it the configuration's [[workers]], or one.
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
