//! `status` and `queue` on a directory that a real learner and real workers write.

use crate::support::runs::good;
use crate::support::{RunOutput, command, listing, lockstep, refused};
use fleet::batches::BatchFiles;
use fleet::exchange::spool::{SpoolLearner, SpoolWorker};
use fleet::exchange::{CheckpointStates, Counts, Exchange, LearnerState, WorkerExchange, WorkerStatus};
use fleet::{Answer, BatchId, Continued, GroupId, Job, JobName, JobResult, Lineage, Version, WorkerName};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

const LINEAGE: Lineage = Lineage([0xab; 16]);

fn state() -> LearnerState {
    LearnerState {
        pid: std::process::id(),
        batch: BatchId(3),
        batches: 8,
        groups: 2,
        max_staleness: 1,
        continued: Continued::default(),
        incarnation: 0,
        lineage: LINEAGE,
        ended: false,
        checkpoints: CheckpointStates { last: Some(Version(2)), waiting: vec![(Version(3), 1, 2)] },
        expelled: Vec::new(),
        workers: 2,
        counts: Counts { remade: 3, twice: 1, ..Counts::default() },
        shared: Value::Null,
    }
}

fn job(group: u64) -> Job {
    let name = JobName::first(GroupId(group));
    let (profile, payload) = ("fast".to_owned(), b"prompt".to_vec());
    Job { name, version: Version(3), lineage: LINEAGE, continues: None, profile, alone: false, payload }
}

fn result(number: u64, worker: &str) -> JobResult {
    let bytes = vec![number as u8; 100];
    let worker = WorkerName::new(worker).unwrap();
    JobResult { job: job(number).name, lineage: LINEAGE, worker, answer: Answer::of(&bytes), bytes }
}

fn join(out: &Path, name: &str) -> SpoolWorker {
    SpoolWorker::join(out, WorkerName::new(name).unwrap()).unwrap()
}

/// A run at batch 3 of 8, with two groups per batch. Batch 3 is being trained on. For batch 4, dev1 has finished job 8
/// and is sampling job 9, and job 10 is pending. dev2 was killed with job 11, and dev3 has ended.
struct Run {
    dir: tempfile::TempDir,
    learner: SpoolLearner,
    _dev1: SpoolWorker,
}

impl Run {
    fn root(&self) -> &Path {
        self.dir.path()
    }
}

fn run() -> Run {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut learner = SpoolLearner::open(&out).unwrap();
    learner.announce(&state()).unwrap();
    let files = BatchFiles::open(&out).unwrap();
    for batch in [2, 3] {
        files.save(BatchId(batch), &[result(2 * batch, "dev1"), result(2 * batch + 1, "dev2")]).unwrap();
    }
    let mut dev2 = join(&out, "dev2");
    learner.offer(&job(11)).unwrap();
    dev2.claim(&[]).unwrap().unwrap();
    dev2.report(&WorkerStatus { profiles: vec!["quality".to_owned()], ..WorkerStatus::default() }).unwrap();
    drop(dev2);
    let mut dev3 = join(&out, "dev3");
    dev3.report(&WorkerStatus { ended: true, done: 5, ..WorkerStatus::default() }).unwrap();
    let mut dev1 = join(&out, "dev1");
    for number in [8, 9, 10] {
        learner.offer(&job(number)).unwrap();
    }
    dev1.claim(&[]).unwrap().unwrap();
    dev1.complete(&result(8, "dev1")).unwrap();
    let doing = dev1.claim(&[]).unwrap().unwrap().name;
    let status = WorkerStatus {
        profiles: vec!["fast".to_owned()],
        jobs: vec![(doing, "sampling".to_owned())],
        done: 7,
        busy_s: 9.6,
        idle_s: 0.4,
        shared: json!({"tokens_per_s": 2310.4}),
        ..WorkerStatus::default()
    };
    dev1.report(&status).unwrap();
    Run { dir, learner, _dev1: dev1 }
}

fn parsed(output: &RunOutput) -> Value {
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn status_lists_the_learner_batches_and_workers() {
    let run = run();
    let before = listing(run.root());
    let output = good(run.root(), &["status", "run"]);
    let pid = std::process::id();
    let lines: Vec<&str> = output.out.lines().collect();
    let silent = |line: &str| line.split("  silent").next().unwrap().to_owned();
    assert_eq!(lines[0], format!("learner  step 3/8  version 3  pid {pid}  checkpoint 2 (3: frontier 1/2)"));
    assert_eq!(lines[1], "batches  of 2 groups, max_staleness 1   3 training   4: 1 complete, 1 processing");
    assert_eq!(
        lines[2],
        "counts   remade 3   twice 1   differing 0   refused 0   corrupt 0   died 0   expelled 0   killed 0"
    );
    assert_eq!(silent(lines[3]), format!("dev1  fast     sampling 000009.0   done 7  2310 tok/s  idle 4 %  pid {pid}"));
    assert_eq!(lines[4], "dev2  quality  DEAD, had 000011.0  done 0");
    assert_eq!(lines[5], "dev3  any      ended               done 5");
    assert_eq!(lines.len(), 6, "{}", output.out);

    let status = parsed(&good(run.root(), &["status", "run", "--json"]));
    assert_eq!((&status["learner"]["step"], &status["learner_alive"]), (&json!(3), &json!(true)));
    assert_eq!(status["pending"], json!(["000010.0"]));
    assert_eq!(status["synced"], json!([2, 3]));
    assert_eq!(status["workers"][0]["status"]["shared"]["tokens_per_s"], json!(2310.4));
    assert_eq!(status["workers"][0]["complete"], json!(["000008.0"]));
    assert_eq!(status["workers"][1]["alive"], Value::Null);
    assert_eq!(listing(run.root()), before, "the command must not write");
}

#[test]
fn status_shows_a_stopped_dead_or_missing_learner() {
    let mut run = run();
    let first = |run: &Run| good(run.root(), &["status", "run"]).out.lines().next().unwrap().to_owned();
    run.learner.announce(&LearnerState { ended: true, ..state() }).unwrap();
    assert!(first(&run).contains("  ending  pid "), "{}", first(&run));
    run.learner.announce(&state()).unwrap();
    let Run { dir, learner, _dev1 } = run;
    let mut learner = learner;
    let first = || good(dir.path(), &["status", "run"]).out.lines().next().unwrap().to_owned();
    let counts = Counts { differing: 1, ..Counts::default() };
    learner.announce(&LearnerState { ended: true, counts, ..state() }).unwrap();
    drop(learner);
    assert!(first().contains("version 3  stopped  checkpoint 2"), "{}", first());
    let output = good(dir.path(), &["status", "run"]);
    assert!(output.out.contains("differing 1 ") && output.out.contains("a machine is faulty"), "{}", output.out);
    let write = |state: &LearnerState| {
        std::fs::write(dir.path().join("run/fleet/learner.json"), serde_json::to_vec(state).unwrap()).unwrap();
    };
    write(&LearnerState { ended: true, batch: BatchId(8), ..state() });
    assert!(first().contains("step 8/8  version 8  ended"), "{}", first());
    write(&LearnerState { checkpoints: CheckpointStates::default(), ..state() });
    let gone = format!("DEAD (was pid {})  checkpoint none yet", std::process::id());
    assert!(first().ends_with(&gone), "{}", first());
    std::fs::write(dir.path().join("run/fleet/learner.json"), "{}").unwrap();
    assert!(first().contains("learner.json cannot be read"), "{}", first());
    std::fs::remove_file(dir.path().join("run/fleet/learner.json")).unwrap();
    assert_eq!(first(), "learner  not started: workers are waiting for it");
}

#[test]
fn status_watch_exits_when_the_run_ends() {
    let mut run = run();
    let mut watch =
        command(run.root(), &["status", "run", "--watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || lines.next().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    assert_eq!(next().unwrap()["learner"]["step"], 3);
    run.learner.announce(&LearnerState { ended: true, batch: BatchId(8), ..state() }).unwrap();
    // A learner that still holds its lock has not ended.
    while next().unwrap()["learner"]["ended"] == false {}
    let Run { dir, learner, _dev1 } = run;
    drop(learner);
    while next().is_some() {}
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    let output = good(dir.path(), &["status", "run", "--watch"]);
    assert!(output.out.starts_with("learner  step 8/8") && output.out.ends_with("\n\n"), "{}", output.out);
    assert!(!output.out.contains('\u{1b}'), "escape sequences are only for terminals");
}

#[test]
fn queue_lists_jobs_by_state() {
    let run = run();
    let before = listing(run.root());
    let output = good(run.root(), &["queue", "run", "ls"]);
    let expected = "\
pending     000010.0
processing  000009.0  by dev1 (sampling)
processing  000011.0  by dev2 (dead)
complete    000008.0  from dev1
synced      batch 2   trained on, not yet in a checkpoint
synced      batch 3
";
    assert_eq!(output.out, expected);
    let listed = parsed(&good(run.root(), &["queue", "run", "ls", "--json"]));
    let processing = json!([
        {"job": "000009.0", "worker": "dev1", "alive": true, "stage": "sampling"},
        {"job": "000011.0", "worker": "dev2", "alive": false, "stage": null},
    ]);
    assert_eq!(listed["pending"], json!(["000010.0"]));
    assert_eq!(listed["processing"], processing);
    assert_eq!(listed["complete"], json!([{"job": "000008.0", "worker": "dev1"}]));
    assert_eq!(listed["synced"], json!([2, 3]));
    assert_eq!(listing(run.root()), before, "the command must not write");

    std::fs::create_dir_all(run.root().join("empty/fleet")).unwrap();
    assert_eq!(good(run.root(), &["queue", "empty", "ls"]).out, "no jobs\n");
}

#[test]
fn queue_shows_a_job_in_any_state() {
    let run = run();
    let show = |job: &str| good(run.root(), &["queue", "run", "show", job]).out;
    let lineage = "ab".repeat(16);
    let expected = format!(
        "job      000009.0: group 9, chunk 0\nstate    processing by dev1 (sampling)\nversion  3\n\
         lineage  {lineage}\nprofile  fast\npayload  6 bytes\n"
    );
    assert_eq!(show("000009.0"), expected);
    let fingerprint = format!("{:016x}", result(8, "dev1").answer.fingerprint);
    let shown = show("000008.0");
    assert!(shown.contains(&format!("result   from dev1: fingerprint {fingerprint}, 100 bytes\n")), "{shown}");
    assert!(shown.contains("state    complete from dev1\nversion  3\n"), "{shown}");
    let shown = show("000007.0");
    assert!(shown.contains("state    synced in batch 3\nversion  2\n"), "{shown}");
    assert!(shown.contains("result   from dev2: "), "{shown}");

    let shown = parsed(&good(run.root(), &["queue", "run", "show", "000010.0", "--json"]));
    assert_eq!(shown["states"], json!([{"state": "pending", "worker": null, "stage": null}]));
    assert_eq!((&shown["profile"], &shown["payload_bytes"]), (&json!("fast"), &json!(6)));
    assert_eq!((&shown["synced"], &shown["results"]), (&Value::Null, &json!([])));
    let shown = parsed(&good(run.root(), &["queue", "run", "show", "000008.0", "--json"]));
    assert_eq!(shown["results"][0]["fingerprint"], json!(fingerprint));
    assert_eq!((&shown["version"], &shown["lineage"]), (&json!(3), &json!(lineage)));

    // An incomplete result is reported, but the command succeeds.
    let path = run.root().join("run/fleet/complete_from_dev1/000008.0");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let shown = show("000008.0");
    assert!(shown.contains("unreadable") && shown.contains("wrong checksum"), "{shown}");
}

#[test]
fn other_directories_and_unknown_jobs_are_refused() {
    let run = run();
    let root = run.root();
    std::fs::create_dir(root.join("other")).unwrap();
    std::fs::write(root.join("file"), "").unwrap();
    for more in [&[][..], &["--watch"], &["--json"]] {
        let all = [&["status", "other"][..], more].concat();
        let words = "other is not a distributed run: it has no fleet/ directory; start one with \
                     `lockstep train CONFIG --distributed --workers N`";
        refused(root, &all, &[words]);
    }
    refused(root, &["queue", "other", "ls"], &["other is not a distributed run"]);
    refused(root, &["status", "none"], &["none: no such directory"]);
    refused(root, &["status", "file"], &["file is not a directory"]);
    refused(root, &["status", "run/fleet"], &["give the run's directory"]);

    let show = |job: &str, words: &[&str]| refused(root, &["queue", "run", "show", job], words);
    show("9", &["job names look like 000123.0", "did you mean 000009.0?"]);
    show("nine", &["\"nine\" is not a job: job names look like 000123.0"]);
    show("000001.0", &["its batch, 0, was trained on", "`lockstep queue run ls`"]);
    show("000012.0", &["belongs to batch 6 and is not in the queue; the run is at batch 3"]);
    show("000016.0", &["the last group of the run is 000015"]);
    show("eval-000003.0", &["\"eval-000003.0\" is not a job"]);
    assert_eq!(lockstep(root, &["queue", "run"]).code, Some(2));
}
