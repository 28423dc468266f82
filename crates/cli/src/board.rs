//! `lockstep board`: writes TensorBoard event files for existing training runs.

use crate::output;
use lockstep::directory::write_board;
use lockstep::{RunDir, bad_input};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Writes TensorBoard event files for runs that were trained without them: all metrics, hyperparameters, and recorded
/// histograms and completions.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directories.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Writes to DIR/NAME, where NAME is the run's directory name, instead of the run's `tensorboard` directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let runs = args.runs.iter().map(|root| RunDir::open(root)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut taken = BTreeSet::new();
    let mut into = Vec::new();
    for run in &runs {
        let directory = match &args.out {
            Some(out) => out.join(run.root().file_name().unwrap_or_default()),
            None => run.tensorboard(),
        };
        if !taken.insert(directory.clone()) {
            bad_input!("two runs have the same output directory {}: convert them one at a time", directory.display());
        }
        into.push(directory);
    }
    for (run, directory) in runs.iter().zip(&into) {
        let events = write_board(run, directory)?;
        output::mention(format_args!("{}: {events} events", directory.display()));
    }
    let show = args.out.as_ref().or(into.first()).map(|path| path.display().to_string()).unwrap_or_default();
    output::note(format_args!("tensorboard --logdir {show}"));
    Ok(())
}
