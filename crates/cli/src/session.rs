//! Runs `train`, `sft`, `reward` and `dpo`: resolves the configuration, starts or resumes the training run, and prints
//! the summary at the end.

use crate::dashboard::beside;
use crate::options::{ConfigArgs, RunArgs};
use crate::program;
use crate::ranks;
use crate::signals::{Promise, run_begins, steps_done, stop_on_signals};
use crate::time_spent::{self, Whose};
use dashboard::Verdict;
use kernels::Context;
use lockstep::config::{Config, Layers, Purpose, Resolved};
use lockstep::directory::{check_command, find_run, resolve_resumed};
use lockstep::workers::Network;
use lockstep::{
    Flow, ResumeFrom, Run, RunDir, RunOptions, RunResult, StopReason, StopSignal, Stopped, context, is_stopped,
};
use std::path::PathBuf;
use telemetry::{Alarm, Console, Level, Painted, Record, Step, Tone, Weight, counted};

/// A training run that is ready to start.
struct Session {
    resolved: Resolved,
    run: RunDir,
    resume_from: ResumeFrom,
}

/// Runs a training command with the flags of the command line.
pub fn run(purpose: Purpose, args: &RunArgs) -> anyhow::Result<()> {
    let console = args.log.open()?;
    let stop = stop_on_signals(&console, Promise::Run)?;
    run_on(purpose, args, console, stop, None)
}

/// The way in which the learner of a distributed run shares its weights.
pub struct Distribution {
    /// The directory of the weight files; `None` for memfds.
    pub weights_dir: Option<PathBuf>,
    /// How workers on other machines connect; `None` if they cannot.
    pub network: Option<Network>,
}

/// Runs a training command until it ends or `stop` is set; with `distribution`, this process is the learner of a
/// distributed run.
pub fn run_on(
    purpose: Purpose,
    args: &RunArgs,
    console: Console,
    stop: StopSignal,
    distribution: Option<Distribution>,
) -> anyhow::Result<()> {
    let session = match &args.resume {
        None => fresh(purpose, &args.config, distribution.is_some())?,
        Some(resume) => resumed(purpose, &args.config, resume, &console)?,
    };
    let config = &session.resolved.config;
    let ctx = context(config.device, config.threads, config.dtype)?;
    let count = |step: Step| {
        steps_done(step.0);
        Flow::Continue(())
    };
    let options = RunOptions::new().context(ctx.clone()).console(console.clone()).stop_signal(stop).on_step(count);
    let whose = if distribution.is_some() { Whose::Learner } else { Whose::Run };
    let options = match distribution {
        Some(Distribution { weights_dir, network }) => {
            let options = options.distributed(weights_dir);
            match network {
                Some(network) => options.over_network(network),
                None => options,
            }
        }
        None => options,
    };
    let options = match ranks::rendezvous() {
        Some(rendezvous) => options.launched_ranks(rendezvous),
        None => options.ranks(args.ranks.unwrap_or(1), program::rank),
    };
    let run =
        Run::resolved(purpose, session.resolved, session.run, session.resume_from, options).inspect_err(|error| {
            if is_stopped(error) {
                console.info("stopped as asked, before the first step")
            }
        })?;
    if let Some(port) = args.dashboard {
        beside(run.dir().root(), port, &console);
    }
    run_begins(run.last_step().0);
    let finished = run.run()?;
    summarize(&finished, whose, &ctx, &console);
    if finished.stop_reason == StopReason::Interrupted { Err(Stopped.into()) } else { Ok(()) }
}

fn fresh(purpose: Purpose, args: &ConfigArgs, is_distributed: bool) -> anyhow::Result<Session> {
    let resolved = if is_distributed { resolve_distributed(args)? } else { args.resolve(purpose)? };
    let out = resolved.config.output_dir.clone().unwrap_or_else(new_directory);
    Ok(Session { run: RunDir::fresh(&out)?, resolved, resume_from: ResumeFrom::Nothing })
}

/// The configuration of a distributed run. By default, completions are sampled with weights that are one batch old.
pub fn resolve_distributed(args: &ConfigArgs) -> anyhow::Result<Resolved> {
    let defaults = Config { max_staleness: 1, ..Config::default() };
    Layers { config: Some(defaults), ..args.layers(Purpose::Grpo)? }.resolve()
}

/// The default run directory.
pub fn new_directory() -> PathBuf {
    PathBuf::from("runs").join(new_name())
}

/// A directory name that sorts by time and is unique even among runs that start in the same second.
fn new_name() -> String {
    let now = telemetry::system::since_1970();
    format!("run-{}-{:06}-{}", now.as_secs(), now.subsec_micros(), std::process::id())
}

/// Prepares to resume a run with its recorded configuration, and with the changes on the command line that resuming
/// allows.
fn resumed(purpose: Purpose, args: &ConfigArgs, resume: &str, console: &Console) -> anyhow::Result<Session> {
    let output_dir = match (&args.out, &args.file) {
        (Some(out), _) => Some(out.clone()),
        (None, Some(_)) => args.resolve(purpose)?.config.output_dir,
        (None, None) => None,
    };
    let (run, resume_from) = find_run(resume, output_dir.as_deref())?;
    if !run.config().exists() {
        // The run was killed before it wrote its configuration, so the command line must have the whole configuration.
        return Ok(Session { resolved: args.resolve(purpose)?, run, resume_from });
    }
    check_command(&run, purpose.command())?;
    let (resolved, changes) = resolve_resumed(&run, args.layers(purpose)?)?;
    for change in changes {
        console.warn(&format!("changed on resume: {change}"));
    }
    Ok(Session { resolved, run, resume_from })
}

/// The alarms of a run as text, in their order. Alarms that still hold are coloured by severity.
fn alarms(raised: &[Alarm], has_learned: bool) -> Painted {
    let line = |alarm: &Alarm| {
        let of = if alarm.subject.is_empty() { String::new() } else { format!(" ({})", alarm.subject) };
        let until = alarm.until.map_or_else(|| "to the end".to_owned(), |step| format!("to step {step}"));
        let first = alarm.evidence.lines().next().unwrap_or_default();
        format!("\n  {}{of}, from step {} {until}: {first}", alarm.id, alarm.since)
    };
    let tone = |alarm: &Alarm| if alarm.until.is_some() { Tone::Dim } else { alarm.weight(has_learned).into() };
    let head = format!("{} raised (docs/alarms.md):", counted(raised.len(), "alarm"));
    let head = Painted::new(raised.first().map_or(Tone::OfLevel, tone), head);
    raised.iter().fold(head, |text, alarm| text.and(tone(alarm), line(alarm)))
}

/// The verdict, coloured by its state.
fn painted(verdict: &Verdict) -> Painted {
    let tone = match verdict.state {
        "learning" | "level" | "learned" => Tone::BoldGreen,
        "worse" | "gamed" | "broken" => Tone::BoldRed,
        "nothing" => Tone::Bold,
        _ => Tone::BoldYellow,
    };
    Painted::new(tone, &verdict.says)
}

/// The alarms without notes, sorted by [`Alarm::place`].
fn by_weight(all: &[Alarm], has_learned: bool) -> Vec<Alarm> {
    let mut raised: Vec<Alarm> =
        all.iter().filter(|alarm| alarm.weight(has_learned) != Weight::Note).cloned().collect();
    raised.sort_by_key(|alarm| alarm.place(has_learned));
    raised
}

/// Prints the final summary of a run.
fn summarize(finished: &RunResult, whose: Whose, ctx: &Context, console: &Console) {
    let device = ctx.device_memory().ok().flatten().map(|memory| (ctx.describe(), memory.peak));
    time_spent::print(console, finished, whose, device);
    let verdict = dashboard::verdict_of(finished.dir.root());
    let raised = by_weight(&finished.alarms, verdict.has_learned());
    if !raised.is_empty() {
        let message = format!("{} raised", counted(raised.len(), "alarm"));
        let text = alarms(&raised, verdict.has_learned());
        console.report(Level::Warn, text, &message, &field("alarms", &raised));
    }
    console.report(Level::Info, painted(&verdict), &verdict.says, &field("verdict", &verdict.to_json()));
    let root = finished.dir.root().display();
    let end = match finished.stop_reason {
        StopReason::Completed | StopReason::Requested => {
            let steps = counted(finished.step.0 as usize, "step");
            format!("done: {steps}; the model is in {}", finished.dir.model().display())
        }
        StopReason::EarlyStopping => {
            format!("stopped early after step {}; the model is in {}", finished.step, finished.dir.model().display())
        }
        StopReason::Interrupted => {
            format!("stopped as asked after step {}; resume with --resume {root}", finished.step)
        }
    };
    let mut fields = field("stop_reason", &finished.stop_reason.name());
    fields.set("step", finished.step).set("directory", root.to_string());
    if finished.stop_reason != StopReason::Interrupted {
        fields.set("model", finished.dir.model().display().to_string());
    }
    console.report(Level::Info, &end, &end, &fields);
}

/// A value as a field of a log line.
fn field(name: &str, value: &impl serde::Serialize) -> Record {
    let mut fields = Record::new();
    fields.set(name, serde_json::to_value(value).unwrap_or_default());
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_alarms_come_first_and_are_sorted_by_severity() {
        let alarm = |id: &str, subject: &str, until: Option<u64>| Alarm {
            id: id.to_owned(),
            subject: subject.to_owned(),
            since: Step(3),
            until: until.map(Step),
            evidence: "first\nsecond".to_owned(),
            examples: Vec::new(),
            remedy: String::new(),
            quiet: false,
        };
        let all = [
            alarm("over", "", Some(9)),
            alarm("zero_variance", "", None),
            alarm("open", "a reward", None),
            alarm("repetition_wins", "", None),
        ];
        let text = alarms(&by_weight(&all, true), true).to_string();
        assert_eq!(
            text,
            "3 alarms raised (docs/alarms.md):\n  repetition_wins, from step 3 to the end: first\n  \
             open (a reward), from step 3 to the end: first\n  over, from step 3 to step 9: first"
        );
        assert_eq!(by_weight(&all, false).len(), 4);
        assert!(alarms(&[alarm("x", "", None)], true).to_string().starts_with("1 alarm raised"));
    }

    #[test]
    fn a_new_run_has_a_unique_directory_below_runs() {
        let path = new_directory();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let parts: Vec<&str> = name.split('-').collect();
        assert_eq!((path.parent().unwrap().to_str(), parts[0], parts.len()), (Some("runs"), "run", 4));
        assert!(parts[1].parse::<u64>().unwrap() > 1_700_000_000 && parts[2].len() == 6, "{name}");
        assert_eq!(parts[3], std::process::id().to_string());
    }
}
