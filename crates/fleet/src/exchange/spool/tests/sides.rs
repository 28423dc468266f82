//! Tests of locks and of the files that learner and worker read, keep or refuse.

use super::super::*;
use super::{job, name, result};
use crate::coordinator::Event;
use crate::exchange::{Exchange, LearnerState, WorkerExchange, WorkerStatus};

fn state(ended: bool, step: u64) -> LearnerState {
    serde_json::from_value(serde_json::json!({
        "pid": 1, "step": step, "batches": 4, "groups": 2, "max_staleness": 1,
        "lineage": "00000000000000000000000000000000", "slots": [], "ended": ended,
        "checkpoints": {"last": null, "waiting": []}, "counts": crate::exchange::Counts::default(),
    }))
    .unwrap()
}

#[test]
fn a_lock_counts_its_holders_and_is_released_on_drop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    assert_eq!(holder(&path).unwrap(), None, "the file does not exist");
    std::fs::write(&path, "4294967295 1234567 and more than this\n").unwrap();
    let me = |incarnation| Holder { pid: std::process::id(), incarnation };
    let (lock, first) = take_lock(&path, "it", "go").unwrap();
    assert_eq!((first, holder(&path).unwrap()), (me(1), Some(me(1))), "the old content has no valid holder");
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().next(), Some(&*format!("{} 1", std::process::id())));
    drop(lock);
    assert_eq!(holder(&path).unwrap(), None);
    let (_lock, second) = take_lock(&path, "it", "go").unwrap();
    assert_eq!(second, me(2));
    let taken = take_lock(&path, "a worker", "Go away").map(drop).unwrap_err().to_string();
    assert_eq!(taken, format!("a worker is already running: process {}. Go away", std::process::id()));
    let of = |text: &str| Holder::parse(text.as_bytes());
    assert_eq!(of("7 8\n"), Some(Holder { pid: 7, incarnation: 8 }));
    assert_eq!(["", "7", "7 8 9", "x 8", "7 x", "-7 8"].map(of), [None; 6]);
}

/// On a file system without locks, the second line of the lock file names the process to check.
#[test]
fn a_running_holder_keeps_its_file_without_file_locks() {
    fn none(_: &File) -> std::result::Result<(), std::fs::TryLockError> {
        Err(std::fs::TryLockError::Error(std::io::Error::from_raw_os_error(38)))
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let locks = crate::lock::Locks { lock: none, shared: none, ..crate::lock::Locks::system() };
    let take = || take_lock_with(&locks, &path, "a worker", "Go away");
    let held = || holder_with(&locks, &path).unwrap();
    let (lock, first) = take().unwrap();
    assert!(lock.warning.as_ref().is_some_and(|text| text.contains("does not lock files")));
    assert_eq!((first.incarnation, held()), (1, Some(first)));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with(&format!("{} 1\n{{", std::process::id())) && text.lines().count() == 2, "{text}");
    let refused = take().map(drop).unwrap_err().to_string();
    assert!(
        refused.starts_with("a worker is already running: process ") && refused.ends_with(". Go away"),
        "{refused}"
    );
    assert!(refused.contains("it is running on this machine"), "{refused}");
    drop(lock);
    assert_eq!(held(), None);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{} 1\n", std::process::id()));
    let (_lock, second) = take().unwrap();
    assert_eq!(second.incarnation, 2, "holders are counted without locks, too");
}

#[test]
fn files_are_written_read_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["b", "000002.0", ".000003.0", "000001.0"] {
        write(&at(name), name.as_bytes(), name == "b").unwrap();
    }
    assert_eq!(names(dir.path()).unwrap(), [".000003.0", "000001.0", "000002.0", "b"]);
    assert_eq!(jobs(dir.path()).unwrap(), [job(1, "").name, job(2, "").name]);
    assert_eq!((names(&at("none")).unwrap().len(), read(&at("none")).unwrap()), (0, None));
    assert_eq!(read(&at("b")).unwrap().unwrap(), b"b");
    sweep(dir.path()).unwrap();
    assert_eq!(names(dir.path()).unwrap(), ["000001.0", "000002.0", "b"]);
    remove(&at("b")).unwrap();
    remove(&at("b")).unwrap();
    assert!(!at("b").exists());
    let huge = File::create(at("huge")).unwrap();
    huge.set_len(disk::most::GROUPS + 1).unwrap();
    let why = read(&at("huge")).unwrap_err().to_string();
    assert!(why.ends_with("huge: the file is 4294967297 bytes, more than the limit of 4294967296"), "{why}");
    assert_eq!(write(Path::new("/"), b"", false).unwrap_err().to_string(), "/ is not the path of a file");
    std::fs::write(at("json"), "{\"pid\": 3}").unwrap();
    assert_eq!(read_json::<std::collections::BTreeMap<String, u32>>(&at("json")).unwrap()["pid"], 3);
    assert_eq!(read_json::<u32>(&at("json")), None);
    std::fs::create_dir(at("dir")).unwrap();
    assert!(remove(&at("dir")).unwrap_err().to_string().starts_with("cannot delete "));
    assert!(names(&at("json")).unwrap_err().to_string().starts_with("cannot read "));
}

#[test]
fn a_starting_learner_deletes_old_offers_or_fails() {
    let out = tempfile::tempdir().unwrap();
    let layout = Layout::in_run(out.path());
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    assert_eq!(learner.layout().root(), layout.root());
    learner.offer(&job(0, "")).unwrap();
    std::fs::write(layout.pending().join(".000001.0"), b"half").unwrap();
    std::fs::write(layout.root().join(".learner.json"), b"half").unwrap();
    drop(learner);
    drop(SpoolLearner::open(out.path()).unwrap());
    assert_eq!((names(&layout.pending()).unwrap().len(), layout.root().join(".learner.json").exists()), (0, false));
    std::fs::create_dir(layout.pending().join("000002.0")).unwrap();
    let why = SpoolLearner::open(out.path()).map(drop).unwrap_err().to_string();
    assert!(why.starts_with("cannot delete ") && why.contains("pending/000002.0"), "{why}");
}

/// A state from an earlier learner must be ignored: a worker would compare its configuration with an outdated one.
#[test]
fn a_learners_state_is_used_only_while_the_learner_runs() {
    let out = tempfile::tempdir().unwrap();
    let layout = Layout::in_run(out.path());
    let read = || read_json::<LearnerState>(&layout.learner()).unwrap();
    assert!(!layout.is_of_learner(&state(false, 0)).unwrap(), "no learner is running");
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    learner.announce(&state(false, 3)).unwrap();
    let first = read();
    assert!(first.incarnation == 1 && layout.is_of_learner(&first).unwrap());
    drop(learner);
    assert!(!layout.is_of_learner(&read()).unwrap(), "the learner was killed");
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    assert!(!layout.is_of_learner(&read()).unwrap(), "the next learner has not announced itself");
    learner.announce(&state(false, 3)).unwrap();
    assert!(layout.is_of_learner(&read()).unwrap() && !layout.is_of_learner(&first).unwrap());
    // A learner of an older version does not write its incarnation.
    let old = LearnerState { incarnation: 0, ..read() };
    assert!(layout.is_of_learner(&old).unwrap());
    drop(learner);
    assert!(!layout.is_of_learner(&old).unwrap());
}

#[test]
fn a_worker_claims_valid_jobs_in_order() {
    let out = tempfile::tempdir().unwrap();
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    let layout = Layout::in_run(out.path());
    for job in [&job(3, ""), &job(1, "")] {
        learner.offer(job).unwrap();
    }
    // The file's name does not match the job in it.
    std::fs::write(layout.pending().join("000002.0"), job(7, "").to_bytes()).unwrap();
    let claimed: Vec<_> = std::iter::from_fn(|| worker.claim(&[]).unwrap()).map(|job| job.name.to_string()).collect();
    assert_eq!(claimed, ["000001.0", "000003.0"]);
    assert_eq!(names(&layout.processing(&name("dev1"))).unwrap(), ["000001.0", "000003.0"]);
    assert!(worker.is_wanted(job(1, "").name) && !worker.is_wanted(job(2, "").name));
    learner.poll().unwrap();
    learner.withdraw(job(1, "").name).unwrap();
    assert!(!worker.is_wanted(job(1, "").name) && worker.is_wanted(job(3, "").name));
    worker.give_back(job(1, "").name).unwrap();
    worker.give_back(job(3, "").name).unwrap();
    assert_eq!(jobs(&layout.pending()).unwrap(), [job(3, "").name]);
    // Jobs left by an earlier process of the same name become available to all workers.
    drop(worker);
    let worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    assert_eq!(jobs(&layout.pending()).unwrap().len(), 1);
    assert_eq!(worker.name(), &name("dev1"));
}

#[test]
fn a_worker_identifies_itself_and_ignores_an_earlier_learner() {
    let out = tempfile::tempdir().unwrap();
    let layout = Layout::in_run(out.path());
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    learner.announce(&state(true, 3)).unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    assert_eq!(worker.learner().unwrap(), None, "that learner had ended before the worker joined");
    learner.announce(&state(false, 3)).unwrap();
    let announced = |ended, step| LearnerState { incarnation: 1, ..state(ended, step) };
    assert_eq!(worker.learner().unwrap(), Some(announced(false, 3)));
    learner.announce(&state(true, 4)).unwrap();
    assert_eq!(worker.learner().unwrap(), Some(announced(true, 4)), "the worker saw this learner running");
    std::fs::write(layout.learner(), b"{").unwrap();
    let why = worker.learner().unwrap_err().to_string();
    assert!(why.contains("learner.json: EOF while parsing"), "{why}");
    worker.report(&WorkerStatus { failures: 1, progress: 5, pid: 1, ..WorkerStatus::default() }).unwrap();
    let read = || read_json::<WorkerStatus>(&layout.status(&name("dev1"))).unwrap();
    assert_eq!((read().pid, read().incarnation, read().failures, read().progress), (std::process::id(), 1, 1, 5));
    drop(worker);
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    worker.report(&WorkerStatus { failures: 1, ..WorkerStatus::default() }).unwrap();
    assert_eq!((read().incarnation, read().failures), (2, 2), "failures are counted per name");
}

#[test]
fn acknowledged_results_of_all_workers_are_deleted() {
    let out = tempfile::tempdir().unwrap();
    let layout = Layout::in_run(out.path());
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let mut workers = ["dev1", "dev2"].map(|worker| SpoolWorker::join(out.path(), name(worker)).unwrap());
    for (worker, called) in workers.iter_mut().zip(["dev1", "dev2"]) {
        (0..3).for_each(|number| worker.complete(&result(&job(number, ""), called)).unwrap());
        worker.report(&WorkerStatus { progress: 4, ..WorkerStatus::default() }).unwrap();
    }
    let events = learner.poll().unwrap();
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Result { .. })).count(), 6);
    learner.acknowledge(&[job(0, "").name, job(2, "").name]).unwrap();
    let left = |worker: &str| names(&layout.complete(&name(worker))).unwrap();
    assert_eq!((left("dev1"), left("dev2")), (vec!["000001.0".to_owned()], vec!["000001.0".to_owned()]));
    learner.discard(&name("dev2"), job(1, "").name).unwrap();
    assert_eq!((left("dev1").len(), left("dev2").len()), (1, 0));
    assert_eq!(learner.take(&name("dev2"), job(1, "").name), None);
    assert!(learner.take(&name("dev1"), job(1, "").name).is_some());
    assert!(learner.take(&name("dev1"), job(1, "").name).is_none(), "once");
    learner.kill(&name("dev1")).unwrap();
    learner.kill(&name("nobody")).unwrap();
    assert!(learner.take_problems().is_empty());
    std::fs::write(layout.batches().join("000001"), b"batch").unwrap();
    layout.forget_results().unwrap();
    assert_eq!((left("dev1").len(), names(&layout.batches()).unwrap().len()), (0, 0));
    workers[0].report(&WorkerStatus { progress: 5, ..WorkerStatus::default() }).unwrap();
    assert_eq!(learner.poll().unwrap(), [Event::Progress(name("dev1"))]);
}
