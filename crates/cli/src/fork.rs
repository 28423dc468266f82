//! `lockstep fork`: creates a run that equals another run up to a step.

use crate::options::{ConfigArgs, RunArgs, RunLogArgs, utf8};
use crate::session::run_on;
use crate::signals::{Promise, stop_on_signals};
use lockstep::Step;
use lockstep::config::Purpose;
use lockstep::replay::{ForkOptions, fork};
use std::path::PathBuf;

/// Creates a counterfactual of a run: the new run equals the old one bit for bit up to a step, and continues with a
/// change. docs/verify.md
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's directory. The run needs record_rollouts = true, or a checkpoint of that step.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// The last step that the two runs have in common.
    #[arg(long, value_name = "STEP")]
    pub at: u64,
    /// The directory of the new run.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The number of a group (`lockstep rollouts RUN --index`) whose advantages are set to 0 in the new run; may be
    /// repeated (without_groups).
    #[arg(long, value_name = "ID")]
    pub without_group: Vec<u64>,
    /// Sets a key, with the rules of resuming; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub log: RunLogArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let console = args.log.open()?;
    let stop = stop_on_signals(&console, Promise::Run)?;
    let say = |text: &str| console.info(text);
    let options = ForkOptions { at: Step(args.at), out: &args.out, stop: stop.clone(), say: &say };
    let from = fork(&args.run, &options)?;
    let mut config = ConfigArgs { set: args.set, ..ConfigArgs::default() };
    let groups = (!args.without_group.is_empty()).then(|| format!("{:?}", args.without_group));
    config.more.given("--without-group", "without_groups", groups);
    let resume = Some(utf8("--out", &from)?);
    run_on(Purpose::Grpo, &RunArgs { config, resume, ranks: None, dashboard: None, log: args.log }, console, stop, None)
}
