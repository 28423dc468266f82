//! Tests of runs that continue beyond their planned end, of jobs whose weights are gone, and of results that do not
//! answer their jobs.

use super::*;
use crate::plan::Continued;

fn answer(fingerprint: u64, more: bool) -> Answer {
    Answer { fingerprint, more }
}

fn saved(version: u64, frontier: &[JobName]) -> Saved {
    let lineages = (0..=version).map(Version).map(|version| (version, lineage(version))).collect();
    Saved {
        version: Version(version),
        in_batch: false,
        lineages,
        frontier: frontier.iter().map(|job| (*job, answer(5, false))).collect(),
    }
}

fn file(jobs: &[JobName]) -> SyncedBatch {
    jobs.iter().map(|job| (*job, answer(5, false))).collect()
}

/// The checkpoint is from the middle of batch 4 and has the results of batches 4 and 5. The weights of version 4 are
/// gone.
#[test]
fn a_start_in_mid_batch_has_no_weights_until_the_batch_ends() {
    let start = |frontier: &[JobName]| {
        let saved = Saved { in_batch: true, ..saved(4, frontier) };
        let mut run = Run(Coordinator::resume(plan(9, 1, 1), saved, BTreeMap::new()).unwrap());
        (run.tell(Event::Recovered), run)
    };
    let (begun, mut run) = start(&[job(4), job(5)]);
    assert_eq!(begun, "sync 4: 4", "batch 6 needs version 5");
    assert!(!run.0.can_remake(job(5)));
    assert_eq!(run.tell(Event::Synced(BatchId(4))), "acknowledge 4; train 4");
    assert_eq!(run.0.open_batch(), BatchId(5));
    assert_eq!(run.trained(), "publish 5; sync 5: 5; offer 6@5");
    assert_eq!(start(&[job(4)]).0, "sync 4: 4; 5 needs 4, which is gone");
}

/// A run continues at batch 4, and the checkpoint has the groups of `there` batches. Each case is
/// (k, chunks, `there`, the first offers).
#[test]
fn a_run_extended_beyond_its_end_samples_with_its_final_weights() {
    let cases: [(u64, bool, u64, &str); 9] = [
        (0, false, 0, "offer 4@4"),
        (1, false, 0, "offer 4@4; offer 5@4"),
        (1, false, 1, "sync 4: 4; offer 5@4"),
        (2, false, 0, "offer 4@4; offer 5@4; offer 6@4"),
        (2, false, 1, "sync 4: 4; offer 5@4; offer 6@4"),
        (2, false, 2, "sync 4: 4; offer 6@4"),
        (4, false, 0, "offer 4@4; offer 5@4; offer 6@4; offer 7@4; offer 8@4"),
        (2, true, 0, "offer 4@4; offer 5@4; offer 6@4"),
        (2, true, 1, "sync 4: 4; offer 5@4; offer 6@4"),
    ];
    for (k, chunks, there, offers) in cases {
        let case = format!("k = {k}, chunks: {chunks}, {there} batches in the checkpoint");
        let plan = |continued| Plan { chunks, continued, ..plan(9, 1, k) };
        let frontier: Vec<JobName> = (4..4 + there).map(job).collect();
        let start = |continued| {
            let mut run = Run(Coordinator::resume(plan(continued), saved(4, &frontier), BTreeMap::new()).unwrap());
            (run.tell(Event::Recovered), run)
        };
        let (begun, mut run) = start(Continued { batch: BatchId(4 + there), version: Version(4) });
        assert_eq!(begun, offers, "{case}");
        if there == 0 {
            run.result(job(4));
        }
        let next = run.train();
        let expected = if 5 + k < 9 { format!("; offer {}@5", 5 + k) } else { String::new() };
        assert!(next.starts_with("publish 5") && (next.ends_with(&expected) || there > 1), "{case}: {next}");
        // Without `continued`, a job would need older weights, which are gone.
        let (begun, run) = start(Continued::default());
        if there == k {
            assert_eq!(begun, offers, "{case}")
        } else {
            assert!(begun.ends_with("which is gone") && run.0.has_ended(), "{case}: {begun}")
        }
    }
}

#[test]
fn a_job_without_weights_ends_the_run_unless_a_worker_is_doing_it() {
    let start = || Run(Coordinator::resume(plan(9, 1, 1), saved(4, &[]), BTreeMap::new()).unwrap());
    assert_eq!(start().tell(Event::Recovered), "4 needs 3, which is gone");
    // An earlier learner offered the job, and a worker that has the weights is still doing it.
    let mut run = start();
    run.tell(Event::Joined(name("dev1")));
    assert_eq!(run.claim("dev1", job(4)), "");
    assert_eq!(run.tell(Event::Recovered), "offer 5@4");
    assert_eq!(run.ended("dev1", HowEnded::Vanished), "release 4 of dev1; 4 needs 3, which is gone");
    assert_eq!(run.tell(Event::Joined(name("dev2"))), "", "the run has ended");
    let mut run = start();
    run.tell(Event::Joined(name("dev1")));
    run.claim("dev1", job(4));
    run.tell(Event::Recovered);
    assert_eq!(run.result(job(4)), "accept 4 of dev1; sync 4: 4");
}

#[test]
fn a_job_is_offered_again_after_its_result_was_refused() {
    let mut run = Run::start(plan(3, 2, 1));
    run.tell(Event::Joined(name("dev1")));
    run.tell(Event::Joined(name("dev2")));
    run.tell(Event::Recovered);
    let refused = |run: &mut Run, worker: &str, number| run.tell(Event::Refused(name(worker), job(number)));
    let accepts = |run: &Run, worker: &str, number, of| run.0.accepts(&name(worker), job(number), of, answer(5, false));
    assert!(accepts(&run, "dev1", 0, ORIGIN) && !accepts(&run, "dev1", 0, lineage(Version(1))));
    assert!(!accepts(&run, "dev1", 4, ORIGIN) && !accepts(&run, "dev1", 9, ORIGIN));
    run.claim("dev1", job(0));
    assert_eq!(refused(&mut run, "dev1", 0), "offer 0@0");
    // The coordinator was not told that the worker took the job.
    assert_eq!(refused(&mut run, "dev1", 1), "offer 1@0");
    // Another worker does the job, too.
    run.claim("dev1", job(0));
    run.claim("dev2", job(0));
    assert_eq!(refused(&mut run, "dev1", 0), "");
    assert_eq!(run.result(job(0)), "accept 0 of dev1; withdraw 0");
    assert!(!accepts(&run, "dev2", 0, ORIGIN), "job 0 has a result");
    run.tell(Event::Expelled(name("dev2"), Vec::new()));
    assert!(!accepts(&run, "dev2", 1, ORIGIN) && accepts(&run, "dev1", 1, ORIGIN));
}

/// An earlier learner was killed after batch 4. The checkpoint is from batch 2, and contains the group of batch 3 that
/// version 1 sampled.
#[test]
fn taking_back_results_drops_the_results_that_depend_on_them() {
    let files = || BTreeMap::from([2, 3, 4].map(|batch| (BatchId(batch), file(&[job(batch)]))));
    let start = || {
        let plan = plan(9, 1, 2);
        let mut run = Run(Coordinator::resume(plan, saved(2, &[job(2), job(3)]), files()).unwrap());
        // This result was sampled with the weights after batch 4, which this learner has not trained yet.
        let left = run.result(job(7));
        assert_eq!(left, "drop 7 of dev1: Lineage");
        assert_eq!(run.tell(Event::Recovered), "train 2");
        run
    };
    let back = |run: &mut Run, batch, jobs: &[JobName], there: &[JobName]| {
        let saved = there.iter().map(|job| (*job, answer(5, false))).collect();
        run.tell(Event::TakenBack { batch: BatchId(batch), jobs: jobs.to_vec(), saved })
    };
    // The checkpoint contains the taken-back group itself.
    let mut run = start();
    assert_eq!(back(&mut run, 2, &[job(2)], &[job(2)]), "sync 2: 2");
    assert_eq!(run.train(), "publish 3; sync 3: 3; offer 5@3", "batch 3 is in the checkpoint, too");
    assert_eq!(run.train(), "publish 4; sync 4: 4; offer 6@4", "batch 4 has a file, sampled by version 2");
    // Batch 4 is taken back while its sampling weights exist.
    let mut run = start();
    run.tell(Event::TrainingBegan);
    assert_eq!(run.trained(), "publish 3; train 3; offer 5@3");
    run.tell(Event::TrainingBegan);
    assert_eq!(run.trained(), "publish 4; train 4; offer 6@4");
    assert_eq!(back(&mut run, 4, &[job(4)], &[]), "offer 4@2");
    assert_eq!(run.result(job(4)), "accept 4 of dev1; withdraw 4; sync 4: 4");
    assert!(run.0.can_remake(job(4)), "no learner has trained on this result");
    assert_eq!(run.train(), "publish 5; offer 7@5");
    // A later batch is taken back: the batch in training continues.
    let mut run = start();
    assert_eq!(back(&mut run, 4, &[job(4)], &[]), "offer 4@2");
    run.tell(Event::TrainingBegan);
    assert_eq!(back(&mut run, 4, &[job(4)], &[]), "offer 4@2");
    assert_eq!(back(&mut run, 2, &[job(2)], &[]), "", "batch 2 is being trained on");
    assert_eq!(run.trained(), "publish 3; train 3; offer 5@3");
    assert_eq!(back(&mut run, 2, &[job(2)], &[]), "", "batch 2 was trained on");
}
