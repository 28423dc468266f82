//! `train`, `sft` and `reward` from flags to result: which run, which configuration, and what is said at the end.

use crate::options::{ConfigArgs, LogArgs};
use kernels::Context;
use lockstep::config::{Layers, Purpose, Resolved, changes_on_resume};
use lockstep::run::course::{Beginning, Ended, Finished, find_run};
use lockstep::run::run_dir::RunDir;
use lockstep::run::signals::StopRequest;
use lockstep::run::{context, provenance};
use lockstep::trainers::execute;
use std::path::PathBuf;
use std::time::Duration;
use telemetry::{Ceilings, Console};

/// How long the machine's ceilings are measured for when a run has ended.
const CEILINGS_TIME: Duration = Duration::from_millis(400);

/// A shorter run says nothing about the machine, and is not kept waiting for it.
const WORTH_JUDGING_S: f64 = 10.0;

/// A run ready to begin.
struct Session {
    resolved: Resolved,
    run: RunDir,
    beginning: Beginning,
}

/// Runs `train`, `sft` or `reward` as the command line asks.
pub fn run(purpose: Purpose, args: &ConfigArgs, resume: Option<&str>, log: &LogArgs) -> anyhow::Result<()> {
    let console = Console::new(log.console()?)?;
    let session = match resume {
        None => fresh(purpose, args)?,
        Some(resume) => resumed(purpose, args, resume, &console)?,
    };
    for note in &session.resolved.notes {
        console.info(note);
    }
    let ctx = context(session.resolved.config.threads)?;
    let finished =
        execute(purpose, session.resolved, session.run, session.beginning, &ctx, &console, StopRequest::listen()?)?;
    summarize(&finished, &ctx, &console);
    Ok(())
}

fn fresh(purpose: Purpose, args: &ConfigArgs) -> anyhow::Result<Session> {
    let resolved = args.resolve(purpose)?;
    let out = resolved.config.output_dir.clone().unwrap_or_else(|| PathBuf::from("runs").join(new_name()));
    Ok(Session { run: RunDir::fresh(&out)?, resolved, beginning: Beginning::Fresh })
}

/// A name that sorts by time.
fn new_name() -> String {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("run-{seconds}")
}

/// A run that goes on: its own configuration, over it what the command line says, if that may change.
fn resumed(purpose: Purpose, args: &ConfigArgs, resume: &str, console: &Console) -> anyhow::Result<Session> {
    let output_dir = match (&args.out, &args.file) {
        (Some(out), _) => Some(out.clone()),
        (None, Some(_)) => args.resolve(purpose)?.config.output_dir,
        (None, None) => None,
    };
    let (run, beginning) = find_run(resume, output_dir.as_deref())?;
    if !run.config().exists() {
        // Killed before it had written anything: the command line must say all there is to know.
        return Ok(Session { resolved: args.resolve(purpose)?, run, beginning });
    }
    provenance::check_command(&run, purpose.command())?;
    let layers = |file: PathBuf| Layers { purpose, file: Some(file), ..Layers::default() };
    let began = layers(run.config()).resolve()?;
    let now = match &args.file {
        Some(_) => args.layers(purpose)?,
        None => Layers { file: Some(run.config()), ..args.layers(purpose)? },
    };
    let now = now.resolve()?;
    for change in changes_on_resume(&began.config, &now.config)? {
        console.warn(&format!("changed on resume: {change}"));
    }
    Ok(Session { resolved: now, run, beginning })
}

/// The last words of a run.
fn summarize(finished: &Finished, ctx: &Context, console: &Console) {
    console.print(&finished.summary.table().render(console.width()));
    let ceilings = if finished.summary.wall_s < WORTH_JUDGING_S {
        Ceilings::default()
    } else {
        let measured = kernels::ceilings::measure(ctx, CEILINGS_TIME).of_dtype(finished.policy.config().compute);
        Ceilings { flops_per_s: Some(measured.flops_per_s), bytes_per_s: Some(measured.read_bytes_per_s) }
    };
    console.info(&finished.summary.bottleneck(&ceilings));
    let root = finished.run.root().display();
    let end = match finished.ended {
        Ended::Done => format!("done: {} steps; the model is in {}", finished.step, finished.run.model().display()),
        Ended::Early => {
            format!("stopped early after step {}; the model is in {}", finished.step, finished.run.model().display())
        }
        Ended::Asked => format!("stopped as asked after step {}; go on with --resume {root}", finished.step),
    };
    console.info(&end);
}
