//! `lockstep status`: shows a distributed run.

use crate::output::{self, columns};
use fleet::Version;
use fleet::exchange::LearnerState;
use fleet::exchange::spool::Layout;
use fleet::status::{BatchStatus, Status, WorkerLine};
use lockstep::bad_input;
use lockstep::error::OrBadInput;
use std::collections::BTreeMap;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A worker without a report for this many seconds is shown as silent. A live worker reports several times per second.
const SILENT_S: f64 = 3.0;

/// Shows the current state of a distributed run: learner, batches and workers. Only reads the run's files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's directory.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Repeats every second until the run ends or Ctrl-C is pressed.
    #[arg(long)]
    pub watch: bool,
    /// Prints JSON: one document, or one line per second with --watch.
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    loop {
        let status = read(&args.run)?;
        if args.json {
            output::json(&status)?;
        } else if args.watch {
            output::frame(&text(&args.run, &status))?;
        } else {
            output::text(&text(&args.run, &status))?;
        }
        // A learner that resumes a stopped run takes the lock before it records that the run is active.
        let has_ended = !status.learner_alive && status.learner.is_some_and(|learner| learner.ended);
        if !args.watch || has_ended {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The status of the run directory `run`; an error if the run is not distributed.
pub(crate) fn read(run: &Path) -> anyhow::Result<Status> {
    let layout = Layout::in_run(run);
    let shown = run.display();
    match std::fs::metadata(layout.root()) {
        Ok(found) if found.is_dir() => return fleet::status::read(run).or_bad_input(),
        Err(error) if !matches!(error.kind(), NotFound | NotADirectory) => {
            bad_input!("{}: {error}", layout.root().display())
        }
        _ => {}
    }
    if !run.exists() {
        bad_input!("{shown}: no such directory; give a run's directory");
    }
    if !run.is_dir() {
        bad_input!("{shown} is not a directory; give a run's directory");
    }
    if run.join("learner.lock").exists() {
        bad_input!("{shown} is the fleet/ directory of a run; give the run's directory");
    }
    bad_input!(
        "{shown} is not a distributed run: it has no fleet/ directory; start one with \
         `lockstep train CONFIG --distributed --workers N`"
    );
}

fn text(run: &Path, status: &Status) -> String {
    let mut rows = vec![["learner".to_owned(), learner(run, status)]];
    if let Some(learner) = &status.learner {
        rows.push(["batches".to_owned(), batches(status, learner)]);
        rows.push(["counts".to_owned(), counts(learner)]);
    }
    let workers = if status.workers.is_empty() {
        "no worker has joined\n".to_owned()
    } else {
        columns(&status.workers.iter().map(worker).collect::<Vec<_>>())
    };
    columns(&rows) + &workers
}

fn learner(run: &Path, status: &Status) -> String {
    let Some(learner) = &status.learner else {
        let path = Layout::in_run(run).learner();
        return match (path.exists(), status.learner_alive) {
            (true, _) => format!("{} cannot be read; it may be from another version of lockstep", path.display()),
            (false, true) => "starting".to_owned(),
            (false, false) => "not started: workers are waiting for it".to_owned(),
        };
    };
    let pid = learner.pid;
    let process = match (status.learner_alive, learner.ended) {
        (true, false) => format!("pid {pid}"),
        (true, true) => format!("ending  pid {pid}"),
        (false, true) if learner.batch.0 < learner.batches => "stopped".to_owned(),
        (false, true) => "ended".to_owned(),
        (false, false) => format!("DEAD (was pid {pid})"),
    };
    let last = learner.checkpoints.last.map_or("none yet".to_owned(), |version| version.to_string());
    let waiting = learner.checkpoints.waiting.iter();
    let one = |(version, there, least): &(Version, usize, usize)| format!("{version}: frontier {there}/{least}");
    let waiting: Vec<_> = waiting.map(one).collect();
    let waiting = if waiting.is_empty() { String::new() } else { format!(" ({})", waiting.join(", ")) };
    let (batch, version) = (learner.batch, learner.batch.version());
    format!("step {batch}/{}  version {version}  {process}  checkpoint {last}{waiting}", learner.batches)
}

fn batches(status: &Status, learner: &LearnerState) -> String {
    let one = |batch: &BatchStatus| {
        let number = batch.batch;
        if batch.synced {
            let trains = number == learner.batch && status.learner_alive && !learner.ended;
            return format!("{number} {}", if trains { "training" } else { "synced" });
        }
        match in_words(batch.complete, batch.processing, batch.pending) {
            Some(jobs) => format!("{number}: {jobs}"),
            None => format!("{number}: nothing yet"),
        }
    };
    let (groups, staleness) = (learner.groups, learner.max_staleness);
    let head = format!("of {groups} group{}, max_staleness {staleness}", if groups == 1 { "" } else { "s" });
    std::iter::once(head).chain(status.batches.iter().map(one)).collect::<Vec<_>>().join("   ")
}

/// The nonzero counts of jobs as text; `None` if all are 0.
fn in_words(complete: u64, processing: u64, pending: u64) -> Option<String> {
    let all = [(complete, "complete"), (processing, "processing"), (pending, "pending")];
    let some: Vec<_> = all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    (!some.is_empty()).then(|| some.join(", "))
}

fn counts(learner: &LearnerState) -> String {
    let counts = learner.counts;
    let all = [
        ("remade", counts.remade),
        ("twice", counts.twice),
        ("differing", counts.differing),
        ("refused", counts.refused),
        ("corrupt", counts.corrupt),
        ("died", counts.died),
        ("expelled", counts.expelled),
        ("killed", counts.killed),
    ];
    let mut text = all.map(|(name, count)| format!("{name} {count}")).join("   ");
    if counts.differing > 0 {
        text += "   (results differ: a machine is faulty or runs another build)";
    }
    text
}

/// The row of a worker: name, profiles, current work, jobs done, tokens per second, idle time, process.
fn worker(worker: &WorkerLine) -> [String; 7] {
    let status = worker.status.clone().unwrap_or_default();
    // The report may come from an earlier process of the same name.
    let reported = worker.alive.is_none_or(|pid| pid == status.pid);
    let does = match (worker.alive, &status.jobs[..]) {
        (None, _) if status.ended => "ended".to_owned(),
        (None, _) => match worker.processing.first() {
            Some(job) => format!("DEAD, had {job}"),
            None => "DEAD".to_owned(),
        },
        (Some(_), _) if !reported => "joining".to_owned(),
        (Some(_), _) if status.ended => "ending".to_owned(),
        (Some(_), []) => "waiting for a job".to_owned(),
        (Some(_), [(job, stage)]) => format!("{stage} {job}"),
        (Some(_), jobs) => {
            let mut stages: BTreeMap<&str, usize> = BTreeMap::new();
            for (_, stage) in jobs {
                *stages.entry(stage).or_default() += 1;
            }
            let stages: Vec<String> = stages.into_iter().map(|(stage, count)| format!("{stage} {count}")).collect();
            stages.join(", ")
        }
    };
    let is_working = worker.alive.is_some() && reported;
    let speed = status.shared.get("tokens_per_s").and_then(serde_json::Value::as_f64).filter(|_| is_working);
    let spent = status.busy_s + status.idle_s;
    let idle = (spent > 0.0).then(|| format!("idle {:.0} %", 100.0 * status.idle_s / spent));
    let silent = worker.silent_s.filter(|seconds| *seconds >= SILENT_S && is_working && !status.ended);
    let silent = silent.map_or(String::new(), |seconds| format!("  silent {seconds:.0} s"));
    [
        worker.name.to_string(),
        if status.profiles.is_empty() { "any".to_owned() } else { status.profiles.join(",") },
        does,
        format!("done {}", status.done),
        speed.map_or(String::new(), |speed| format!("{speed:.0} tok/s")),
        idle.unwrap_or_default(),
        // A process that has just taken its lock has not written its PID yet.
        worker.alive.filter(|pid| *pid > 0).map_or(String::new(), |pid| format!("pid {pid}")) + &silent,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet::exchange::WorkerStatus;
    use fleet::{GroupId, JobName, WorkerName};

    fn line(alive: Option<u32>, status: WorkerStatus) -> WorkerLine {
        let name = WorkerName::new("dev1").unwrap();
        WorkerLine { name, alive, status: Some(status), processing: Vec::new(), complete: Vec::new(), silent_s: None }
    }

    fn job(group: u64) -> JobName {
        JobName::first(GroupId(group))
    }

    #[test]
    fn a_worker_row_shows_the_reported_work() {
        let status = || WorkerStatus { pid: 7, ..WorkerStatus::default() };
        let does = |line: &WorkerLine| worker(line)[2].clone();
        let doing = |jobs: &[(u64, &str)]| WorkerStatus {
            jobs: jobs.iter().map(|(number, stage)| (job(*number), (*stage).to_owned())).collect(),
            ..status()
        };
        for (line, expected) in [
            (line(Some(7), status()), "waiting for a job"),
            (line(Some(7), doing(&[(3, "sampling")])), "sampling 000003.0"),
            (line(Some(7), doing(&[(3, "sampling"), (4, "scoring"), (5, "sampling")])), "sampling 2, scoring 1"),
            (line(Some(8), doing(&[(3, "sampling")])), "joining"),
            (line(Some(7), WorkerStatus { ended: true, ..status() }), "ending"),
            (line(None, WorkerStatus { ended: true, ..status() }), "ended"),
            (line(None, status()), "DEAD"),
            (WorkerLine { processing: vec![job(9), job(10)], ..line(None, status()) }, "DEAD, had 000009.0"),
        ] {
            assert_eq!(does(&line), expected);
        }
        let busy = WorkerStatus {
            profiles: vec!["a".to_owned(), "b".to_owned()],
            done: 4,
            busy_s: 3.0,
            idle_s: 1.0,
            shared: serde_json::json!({"tokens_per_s": 99.6}),
            ..status()
        };
        let silent = |seconds: f64| WorkerLine { silent_s: Some(seconds), ..line(Some(7), busy.clone()) };
        let row = ["dev1", "a,b", "waiting for a job", "done 4", "100 tok/s", "idle 25 %", "pid 7  silent 3 s"];
        assert_eq!(worker(&silent(3.0)), row);
        assert_eq!(worker(&silent(2.9))[6], "pid 7");
        let ended = WorkerStatus { ended: true, ..busy.clone() };
        assert_eq!(worker(&WorkerLine { silent_s: Some(9.0), ..line(Some(7), ended) })[6], "pid 7");
        let dead = worker(&WorkerLine { silent_s: Some(9.0), ..line(None, busy.clone()) });
        assert_eq!((dead[4].as_str(), dead[5].as_str(), dead[6].as_str()), ("", "idle 25 %", ""));
        assert_eq!(worker(&line(Some(0), busy))[4..], ["", "idle 25 %", ""], "the PID is not yet known");
        let unknown = WorkerLine { status: None, ..line(Some(7), status()) };
        assert_eq!(worker(&unknown), ["dev1", "any", "joining", "done 0", "", "", "pid 7"]);
    }

    #[test]
    fn a_path_that_is_not_a_distributed_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let why = |path: &Path| read(path).unwrap_err().to_string();
        let long = dir.path().join("x".repeat(300));
        assert!(why(&long).starts_with(&format!("{}/fleet: ", long.display())), "{}", why(&long));
        let none = dir.path().join("none");
        assert_eq!(why(&none), format!("{}: no such directory; give a run's directory", none.display()));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(why(&file), format!("{} is not a directory; give a run's directory", file.display()));
        std::fs::write(dir.path().join("learner.lock"), "").unwrap();
        assert!(why(dir.path()).ends_with(" is the fleet/ directory of a run; give the run's directory"));
    }
}
