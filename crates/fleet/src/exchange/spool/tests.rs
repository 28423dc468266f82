//! Tests of the spool directory: file modes, claims, corrupt files, a full disk, and wake-ups by new jobs.

use super::{Layout, SpoolLearner, SpoolWorker, write_by};
use crate::batches::BatchFiles;
use crate::coordinator::{Event, HowEnded};
use crate::exchange::{Exchange, WorkerExchange, WorkerStatus};
use crate::ids::{BatchId, Version};
use crate::job::{Answer, Job, JobResult, Lineage};
use crate::testing::name;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn job(group: u64, profile: &str) -> Job {
    let name = crate::testing::job(group);
    Job {
        continues: None,
        name,
        version: Version(0),
        lineage: Lineage([1; 16]),
        alone: false,
        profile: profile.to_owned(),
        payload: b"prompt".to_vec(),
    }
}

fn result(job: &Job, worker: &str) -> JobResult {
    let bytes = vec![5; 1000];
    JobResult { job: job.name, lineage: job.lineage, worker: name(worker), answer: Answer::of(&bytes), bytes }
}

fn everything(directory: &Path, check: &mut impl FnMut(&Path, u32)) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        check(&entry.path(), entry.metadata().unwrap().permissions().mode() & 0o777);
        if entry.file_type().unwrap().is_dir() {
            everything(&entry.path(), check);
        }
    }
}

#[test]
fn jobs_and_results_pass_through_the_spool_and_only_this_user_can_read_them() {
    let out = tempfile::tempdir().unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let files = BatchFiles::open(out.path()).unwrap();
    worker.report(&WorkerStatus::default()).unwrap();
    assert_eq!(learner.poll().unwrap(), [Event::Joined(name("dev1"))]);
    let jobs = [job(0, "fast"), job(1, "quality"), job(2, "fast")];
    for job in &jobs {
        learner.offer(job).unwrap();
    }
    assert_eq!(worker.claim(&["quality".to_owned()]).unwrap().as_ref(), Some(&jobs[1]));
    assert_eq!(worker.claim(&["quality".to_owned()]).unwrap(), None);
    assert_eq!(learner.poll().unwrap(), [Event::Claimed(name("dev1"), jobs[1].name)]);
    let result = result(&jobs[1], "dev1");
    worker.complete(&result).unwrap();
    files.save(BatchId(0), std::slice::from_ref(&result)).unwrap();
    let mut seen = 0;
    everything(&out.path().join("fleet"), &mut |path, mode| {
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        seen += 1;
    });
    assert!(seen >= 12, "{seen} files and directories");
    let (worker_name, of, answer) = (name("dev1"), result.lineage, result.answer);
    let event = Event::Result { worker: worker_name.clone(), job: result.job, lineage: of, answer };
    assert_eq!(learner.poll().unwrap(), std::slice::from_ref(&event));
    assert_eq!(learner.poll().unwrap(), [], "a result is reported once");
    assert_eq!(learner.take(&worker_name, result.job), Some(result.clone()));
    // The next learner sees results that the earlier learner did not acknowledge. Acknowledged results are gone.
    drop(learner);
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let events = learner.poll().unwrap();
    assert!(events.contains(&event) && events.contains(&Event::Joined(worker_name)), "{events:?}");
    assert_eq!(worker.claim(&[]).unwrap(), None, "the old offers were deleted");
    learner.acknowledge(&[result.job]).unwrap();
    drop(learner);
    assert!(!SpoolLearner::open(out.path()).unwrap().poll().unwrap().contains(&event));
}

#[test]
fn a_corrupt_or_misnamed_result_is_deleted() {
    let out = tempfile::tempdir().unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let whole = result(&job(0, ""), "dev1").to_bytes();
    let mut flipped = whole.clone();
    flipped[60] ^= 1;
    let complete = Layout::in_run(out.path()).complete(&name("dev1"));
    for (number, bytes) in [(0, &whole[..40]), (1, &flipped[..]), (2, &whole[..])] {
        learner.offer(&job(number, "")).unwrap();
        worker.claim(&[]).unwrap().unwrap();
        learner.poll().unwrap();
        std::fs::write(complete.join(job(number, "").name.to_string()), bytes).unwrap();
        std::fs::remove_file(Layout::in_run(out.path()).processing(&name("dev1")).join(format!("00000{number}.0")))
            .unwrap();
        let returned = Event::Returned { worker: name("dev1"), job: job(number, "").name, faulty: false };
        assert_eq!(learner.poll().unwrap(), [returned], "{number}");
        let problems = learner.take_problems();
        let expected = ["checksum", "checksum", "the file contains job 000000.0 by dev1"][number as usize];
        assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
        assert_eq!(std::fs::read_dir(&complete).unwrap().count(), 0, "the file must be deleted");
    }
    // A corrupt job file is neither pending nor claimed, and the second scan reports the job as lost.
    learner.offer(&job(3, "")).unwrap();
    std::fs::write(out.path().join("fleet/pending/000003.0"), b"half").unwrap();
    assert_eq!(worker.claim(&[]).unwrap(), None);
    assert_eq!(learner.poll().unwrap(), []);
    assert_eq!(learner.poll().unwrap(), [Event::Lost(job(3, "").name)]);
}

#[test]
fn jobs_of_a_dead_worker_are_returned_and_its_partial_files_deleted() {
    let out = tempfile::tempdir().unwrap();
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    learner.offer(&job(0, "")).unwrap();
    worker.claim(&[]).unwrap().unwrap();
    assert_eq!(learner.poll().unwrap().len(), 2);
    let half = Layout::in_run(out.path()).complete(&name("dev1")).join(".000000.0");
    std::fs::write(&half, b"half").unwrap();
    drop(worker);
    assert_eq!(learner.poll().unwrap()[0], Event::Ended { worker: name("dev1"), how: HowEnded::Vanished });
    assert!(!half.exists());
    // Withdrawing a job deletes its file.
    learner.offer(&job(7, "")).unwrap();
    learner.withdraw(job(7, "").name).unwrap();
    assert!(!out.path().join("fleet/pending/000007.0").exists());
    learner.release(&name("dev1"), job(0, "").name).unwrap();
    learner.offer(&job(0, "")).unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    assert!(worker.claim(&[]).unwrap().is_some());
    // A worker that rejoins immediately is a new process, without the jobs of the old one.
    learner.poll().unwrap();
    drop(worker);
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    let events = learner.poll().unwrap();
    assert_eq!(
        events[..2],
        [Event::Ended { worker: name("dev1"), how: HowEnded::Vanished }, Event::Joined(name("dev1"))]
    );
    assert!(worker.claim(&[]).unwrap().is_some(), "the job of the dead worker is pending again");
    learner.poll().unwrap();
    // A worker that reported its end did not die while doing its job.
    worker.report(&WorkerStatus { ended: true, ..WorkerStatus::default() }).unwrap();
    drop(worker);
    let events = learner.poll().unwrap();
    assert_eq!(events[0], Event::Ended { worker: name("dev1"), how: HowEnded::Asked });
    // A failed worker reports its failure, and the failure is noticed even if the next process has already started.
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    learner.poll().unwrap();
    worker.report(&WorkerStatus { failures: 1, ..WorkerStatus::default() }).unwrap();
    drop(worker);
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    worker.report(&WorkerStatus::default()).unwrap();
    let events = learner.poll().unwrap();
    assert_eq!(events[0], Event::Ended { worker: name("dev1"), how: HowEnded::Failed });
}

#[test]
fn a_full_disk_is_reported_and_partial_files_are_deleted() {
    let out = tempfile::tempdir().unwrap();
    let files = BatchFiles::open(out.path()).unwrap();
    let full = |file: &mut File| {
        file.write_all(b"half of it")?;
        Err(ErrorKind::StorageFull.into())
    };
    for sync in [false, true] {
        let error = write_by(&files.path(BatchId(0)), sync, full).unwrap_err();
        let text = error.to_string();
        assert!(error.is_disk_full() && text.contains("cannot write") && text.contains("batches/000000"), "{text}");
        assert_eq!(std::fs::read_dir(out.path().join("fleet/batches")).unwrap().count(), 0);
    }
}

#[test]
fn a_new_job_wakes_a_waiting_worker() {
    let out = tempfile::tempdir().unwrap();
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("dev1")).unwrap();
    let rounds = 50;
    std::thread::scope(|scope| {
        let claims = scope.spawn(move || {
            let mut claims = 0;
            while claims < rounds {
                let since = Instant::now();
                worker.wait(testing::HANG);
                assert!(since.elapsed() < testing::HANG, "the new job did not wake the worker");
                claims += worker.claim(&[]).unwrap().iter().count() as u64;
            }
        });
        for number in 0..rounds {
            std::thread::sleep(Duration::from_millis(5));
            learner.offer(&job(number, "")).unwrap();
        }
        claims.join().unwrap();
    });
}

mod kills;
mod sides;
mod strangers;
