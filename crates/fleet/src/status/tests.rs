//! Tests of the status of spool directories, which real learners and workers write.

use super::*;
use crate::batches::BatchFiles;
use crate::exchange::spool::{SpoolLearner, SpoolWorker};
use crate::exchange::{Exchange, WorkerExchange};
use crate::ids::Version;
use crate::job::{Answer, Lineage};
use crate::testing::name;
use std::time::Duration;

fn job(group: u64) -> Job {
    let (name, profile) = (crate::testing::job(group), "fast".to_owned());
    let (version, lineage) = (Version(1), Lineage([1; 16]));
    Job { name, version, lineage, continues: None, alone: false, profile, payload: Vec::new() }
}

fn result(number: u64, worker: &str) -> JobResult {
    let bytes = vec![number as u8];
    let (job, lineage) = (job(number).name, Lineage([1; 16]));
    JobResult { job, lineage, worker: name(worker), answer: Answer::of(&bytes), bytes }
}

fn state(step: u64) -> LearnerState {
    serde_json::from_value(serde_json::json!({
        "pid": 1, "step": step, "batches": 4, "groups": 2, "max_staleness": 1,
        "lineage": "00000000000000000000000000000000", "ended": false,
        "checkpoints": {"last": null, "waiting": []}, "counts": crate::exchange::Counts::default(),
    }))
    .unwrap()
}

fn batch(batch: u64, synced: bool, complete: u64, processing: u64, pending: u64) -> BatchStatus {
    BatchStatus { batch: BatchId(batch), synced, complete, processing, pending, groups: 2 }
}

#[test]
fn only_unfinished_batches_are_counted() {
    let out = tempfile::tempdir().unwrap();
    assert_eq!(read(out.path()).unwrap().learner, None);
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let mut dev1 = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    let mut dev2 = SpoolWorker::join(out.path(), name("dev2")).unwrap();
    learner.announce(&state(1)).unwrap();
    for number in 2..8 {
        learner.offer(&job(number)).unwrap();
    }
    let files = BatchFiles::open(out.path()).unwrap();
    files.save(BatchId(1), &[result(2, "dev1")]).unwrap();
    for _ in 0..3 {
        dev1.claim(&[]).unwrap().unwrap();
    }
    dev2.complete(&result(4, "dev2")).unwrap();
    dev1.complete(&result(4, "dev1")).unwrap();
    let status = read(out.path()).unwrap();
    assert_eq!(status.batches, [batch(1, true, 2, 2, 0), batch(2, false, 1, 0, 1)]);
    assert_eq!((status.learner_alive, &status.synced), (true, &vec![BatchId(1)]));
    assert_eq!(status.complete, [job(4).name], "job 4 is listed once, although two workers did it");
    assert_eq!(status.pending, [5, 6, 7].map(|number| job(number).name));
    let [first, second] = &status.workers[..] else { panic!("{:?}", status.workers) };
    assert_eq!((first.alive, &first.processing), (Some(std::process::id()), &vec![job(2).name, job(3).name]));
    assert_eq!((&second.complete, second.status.is_none(), second.silent_s), (&vec![job(4).name], true, None));
    drop((learner, dev2));
    std::fs::write(out.path().join("fleet/batches/.000009"), b"half").unwrap();
    let status = read(out.path()).unwrap();
    assert_eq!((status.learner_alive, status.workers[1].alive, status.synced), (false, None, vec![BatchId(1)]));
    // The range of batches ends with the last batch of the run.
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    for (step, expected) in [(3, vec![3]), (4, vec![])] {
        learner.announce(&state(step)).unwrap();
        let batches: Vec<u64> = read(out.path()).unwrap().batches.iter().map(|batch| batch.batch.0).collect();
        assert_eq!(batches, expected);
    }
}

#[test]
fn the_status_of_a_remote_worker_is_its_last_report() {
    let out = tempfile::tempdir().unwrap();
    let learner = SpoolLearner::open(out.path()).unwrap();
    let layout = Layout::in_run(out.path());
    spool::create_dir(&layout.workers().join("far")).unwrap();
    let status = WorkerStatus {
        pid: 42,
        host: Some("box".to_owned()),
        jobs: vec![(job(3).name, "sampling".to_owned())],
        ..WorkerStatus::default()
    };
    let line = |status: &WorkerStatus| {
        spool::write(&layout.status(&name("far")), &serde_json::to_vec(status).unwrap(), false).unwrap();
        let line = read(out.path()).unwrap().workers.remove(0);
        assert!(line.silent_s.is_some_and(|silent| (0.0..HEARD_S).contains(&silent)));
        (line.alive, line.processing)
    };
    assert_eq!(line(&status), (Some(42), vec![job(3).name]));
    assert_eq!(line(&WorkerStatus { ended: true, ..status.clone() }), (None, vec![]));
    assert_eq!(
        line(&WorkerStatus { host: None, ..status.clone() }),
        (None, vec![]),
        "a local worker without a lock is not alive"
    );
    line(&status);
    let file = std::fs::File::options().write(true).open(layout.status(&name("far"))).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(11)).unwrap();
    assert_eq!(read(out.path()).unwrap().workers[0].alive, None, "the last report is too old");
    line(&status);
    drop(learner);
    assert_eq!(read(out.path()).unwrap().workers[0].alive, None, "no learner is running");
}

#[test]
fn all_files_of_a_job_are_found() {
    let out = tempfile::tempdir().unwrap();
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let mut dev1 = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    learner.announce(&state(1)).unwrap();
    let found = |number| find(out.path(), job(number).name).unwrap();
    assert_eq!(found(2), JobFiles::default());
    learner.offer(&job(2)).unwrap();
    assert_eq!(found(2).job, Some((job(2), None)));
    dev1.claim(&[]).unwrap().unwrap();
    assert_eq!(found(2).job, Some((job(2), Some(name("dev1")))));
    dev1.complete(&result(2, "dev1")).unwrap();
    let files = BatchFiles::open(out.path()).unwrap();
    files.save(BatchId(1), &[result(2, "dev1"), result(3, "dev2")]).unwrap();
    let done = JobFiles { results: vec![result(2, "dev1")], synced: Some(BatchId(1)), ..JobFiles::default() };
    assert_eq!(found(2), done, "the two copies count as one result");
    let done = JobFiles { results: vec![result(3, "dev2")], synced: Some(BatchId(1)), ..JobFiles::default() };
    assert_eq!(found(3), done);
    assert_eq!(found(4), JobFiles::default());
    std::fs::write(files.path(BatchId(1)), b"half").unwrap();
    std::fs::write(out.path().join("fleet/pending/000003.0"), b"torn").unwrap();
    let torn = found(3);
    assert_eq!((torn.job, torn.results.len(), torn.synced, torn.unreadable.len()), (None, 0, None, 2));
    assert!(torn.unreadable[0].ends_with("/pending/000003.0: truncated: 4 bytes"), "{:?}", torn.unreadable);
}
