//! `lockstep fork`: creates a run that equals another run up to a step.

use crate::options::{ConfigArgs, RunArgs, RunLogArgs, utf8};
use crate::session::run_on;
use crate::signals::{Promise, stop_on_signals};
use lockstep::config::Purpose;
use lockstep::replay::{ForkOptions, fork};
use std::path::PathBuf;

/// Makes an exact counterfactual: a run that equals another one, bit for bit, up to a step, and continues with a
/// change. docs/verify.md
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's directory; the run needs record_rollouts = true, unless it has a checkpoint of that step.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// The last step that both runs have in common.
    #[arg(long, value_name = "STEP")]
    pub at: u64,
    /// The directory of the new run.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// A group whose advantages are 0 in the new run, by its number (`lockstep rollouts RUN --index`); may be
    /// repeated (without_groups).
    #[arg(long, value_name = "ID")]
    pub without_group: Vec<u64>,
    /// Sets a key, as on resume; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub log: RunLogArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let console = args.log.open()?;
    let stop = stop_on_signals(&console, Promise::Run)?;
    let say = |text: &str| console.info(text);
    let options = ForkOptions { at: args.at, out: &args.out, stop: stop.clone(), say: &say };
    let from = fork(&args.run, &options)?;
    let mut config = ConfigArgs { set: args.set, ..ConfigArgs::default() };
    let groups = (!args.without_group.is_empty()).then(|| format!("{:?}", args.without_group));
    config.more.given("--without-group", "without_groups", groups);
    let resume = Some(utf8("--out", &from)?);
    run_on(Purpose::Grpo, &RunArgs { config, resume, dashboard: None, log: args.log }, console, stop, None)
}
