//! `lockstep report` writes a page about existing runs (time, memory, curves of rewards and metrics, samples).
//! `lockstep profile` trains a few steps and prints where their time goes.

use crate::options::LogArgs;
use crate::output;
use crate::plan::Planned;
use crate::signals::{Promise, stop_on_signals};
use dashboard::report::{Report, html, markdown, time};
use lockstep::config::{Purpose, Resolved};
use lockstep::directory::write_atomically;
use lockstep::error::OrBadInput;
use lockstep::{ResumeFrom, Run, RunDir, RunOptions, StopReason, Stopped, bad_input, context};
use std::path::{Path, PathBuf};
use telemetry::{Console, Record};

/// Writes a report of a run as an HTML and a Markdown file: what the run learned, where its time went, and findings.
/// For two runs, the report has the differences of their configurations, and everything else side by side.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// The run; with two runs, the first is the baseline.
    #[arg(value_name = "RUN", required = true, num_args = 1..=2)]
    pub runs: Vec<PathBuf>,
    /// The directory for report.html and report.md, created if needed; by default the (second) run's directory. Files
    /// of an earlier report are overwritten.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Prints the Markdown report and writes no files.
    #[arg(long)]
    pub print: bool,
}

pub(crate) fn report(args: ReportArgs) -> anyhow::Result<()> {
    let read = |root: &PathBuf| Report::read(root).or_bad_input();
    let reports = args.runs.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    if args.print {
        return Ok(output::text(&markdown(&reports))?);
    }
    let into = args.out.as_ref().or(args.runs.last()).expect("clap requires at least one run");
    if into.exists() && !into.is_dir() {
        bad_input!("--out {} is a file, not a directory", into.display());
    }
    std::fs::create_dir_all(into).or_bad_input_in(format_args!("--out {}", into.display()))?;
    for (name, text) in [("report.html", html(&reports)), ("report.md", markdown(&reports))] {
        let path = into.join(name);
        write_atomically(&path, text.as_bytes())?;
        output::mention(path.display());
    }
    Ok(())
}

/// Trains a few steps without saving, and reports where the time goes and what would help.
#[derive(Debug, clap::Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub planned: Planned,
    #[command(flatten)]
    pub log: LogArgs,
}

/// The number of optimizer steps if `--steps` is not given.
const STEPS: u64 = 10;

pub(crate) fn profile(ProfileArgs { planned, log }: ProfileArgs) -> anyhow::Result<()> {
    let Planned { mut config, rewards, command } = planned;
    rewards.give(&mut config.more)?;
    config.steps.get_or_insert(STEPS);
    config.more.implied("save_strategy", Some("no".to_owned()));
    let purpose = command.purpose();
    let resolved = config.resolve(purpose)?;
    let console = log.open()?;
    match resolved.config.output_dir.clone() {
        Some(out) => run(purpose, resolved, &out, &console),
        None => {
            let scratch = std::env::temp_dir().join(format!("lockstep-profile-{}", std::process::id()));
            let outcome = run(purpose, resolved, &scratch, &console);
            // Leftover files are harmless.
            let _ = std::fs::remove_dir_all(&scratch);
            outcome
        }
    }
}

fn run(purpose: Purpose, resolved: Resolved, out: &Path, console: &Console) -> anyhow::Result<()> {
    let stop = stop_on_signals(console, Promise::Ends("nothing is written"))?;
    let ctx = context(resolved.config.device, resolved.config.threads, resolved.config.dtype)?;
    let options = RunOptions::new().context(ctx).console(console.clone()).stop_signal(stop).profiled();
    let run = Run::resolved(purpose, resolved, RunDir::fresh(out)?, ResumeFrom::Nothing, options)?;
    let finished = run.run()?;
    if finished.stop_reason == StopReason::Interrupted {
        return Err(Stopped.into());
    }
    let report = Report { name: "profile".to_owned(), ..Report::read(finished.dir.root())? };
    let mut fields = Record::new();
    fields.set("profile", serde_json::to_value(&report.profile)?);
    console.table(&time(&[report]), "where the time went", &fields);
    Ok(())
}
