//! Tests of chunks, expelled workers, claims left by an earlier learner, and starts from a checkpoint.

use super::*;

fn chunked(batches: u64, k: u64) -> Plan {
    Plan { chunks: true, ..plan(batches, 1, k) }
}

fn answer(fingerprint: u64, more: bool) -> Answer {
    Answer { fingerprint, more }
}

#[test]
fn a_chunk_must_continue_the_accepted_answer_with_the_right_weights() {
    let mut run = Run::start(chunked(3, 1));
    assert_eq!(run.tell(Event::Recovered), "offer 0@0; offer 1@0");
    let accepted = "accept 0 of dev1; withdraw 0; offer 0.1@0~5";
    assert_eq!(run.result_of(job(0), ORIGIN, answer(5, true)), accepted);
    assert_eq!(run.0.complete_groups(BatchId(0)), 0);
    for of in [ORIGIN, ORIGIN.for_result(Some(6)), lineage(Version(1)).for_result(Some(5))] {
        assert_eq!(run.result_of(chunk(0, 1), of, answer(1, false)), "drop 0.1 of dev1: Lineage");
    }
    // The second chunk of batch 1 is sampled with the weights after batch 0.
    assert_eq!(run.result_of(job(1), ORIGIN, answer(8, true)), "accept 1 of dev1; withdraw 1");
    // The last chunk ends a group even if its answer has `more`.
    let accepted = "accept 0.1 of dev1; withdraw 0.1; sync 0: 0,0.1";
    assert_eq!(run.result_of(chunk(0, 1), ORIGIN.for_result(Some(5)), answer(1, true)), accepted);
    assert_eq!(run.train(), "publish 1; offer 1.1@1~8; offer 2@1");
    let accepted = "accept 1.1 of dev1; withdraw 1.1; sync 1: 1,1.1";
    assert_eq!(run.result_of(chunk(1, 1), lineage(Version(1)).for_result(Some(8)), answer(1, false)), accepted);
    assert_eq!(run.result_of(chunk(2, 2), lineage(Version(2)), answer(1, false)), "drop 2.2 of dev1: NotAsked");
}

#[test]
fn a_frontier_contains_only_chunks_of_older_weights() {
    let mut run = Run::start(chunked(4, 2));
    assert_eq!(run.tell(Event::Recovered), "offer 0@0; offer 1@0; offer 2@0");
    run.result_of(job(0), ORIGIN, answer(1, false));
    assert_eq!(run.train(), "publish 1; offer 3@1");
    assert_eq!(run.frontier(1), both("", "1,2"));
    // Group 1 continues in its second chunk with version 0 and in its third with version 1; group 2 with version 1.
    run.result_of(job(1), ORIGIN, answer(2, true));
    assert_eq!(run.frontier(1), both("1", "1.1,2"));
    run.result_of(job(2), ORIGIN, answer(3, true));
    assert_eq!(run.frontier(1), both("1,2", "1.1"));
    run.result_of(chunk(1, 1), ORIGIN.for_result(Some(2)), answer(4, true));
    assert_eq!(run.frontier(1), both("1,1.1,2", ""));
    assert_eq!(run.frontier(2), both("2", "2.1,3"));
}

#[test]
fn an_early_chunk_is_kept_if_it_continues_the_accepted_answer() {
    for (fingerprint, then) in [(5, "sync 0: 0,0.1"), (6, "offer 0.1@0~6")] {
        let mut run = Run::start(chunked(2, 1));
        let early = run.result_of(chunk(0, 1), ORIGIN.for_result(Some(5)), answer(1, false));
        assert_eq!(early, "accept 0.1 of dev1", "an earlier learner had offered this job");
        run.tell(Event::Recovered);
        let actions = run.result_of(job(0), ORIGIN, answer(fingerprint, true));
        assert_eq!(actions, format!("accept 0 of dev1; withdraw 0; {then}"));
    }
}

#[test]
fn unexpected_claims_are_released_or_withdrawn() {
    let mut run = Run::start(plan(3, 1, 1));
    assert_eq!(run.claim("dev9", job(0)), "release 0 of dev9", "dev9 has not joined");
    run.tell(Event::Joined(name("dev1")));
    // Job 1 may be claimed at the start, since an earlier learner offered it. The weights of job 2 are unknown, and
    // batch 3 does not exist.
    assert_eq!([1, 2, 3].map(|number| run.claim("dev1", job(number))), ["", "withdraw 2", "withdraw 3"]);
    assert_eq!(run.claim("dev1", chunk(0, 1)), "withdraw 0.1", "the plan has no chunks");
    assert_eq!(run.tell(Event::Recovered), "offer 0@0", "job 1 is being done");
    assert_eq!(run.tell(Event::Lost(job(0))), "offer 0@0");
    assert_eq!(run.tell(Event::Lost(job(2))), "");
    assert_eq!(run.claim("dev9", job(0)), "release 0 of dev9; offer 0@0", "dev9 took the job and ended");
    assert_eq!(run.result(job(0)), "accept 0 of dev1; withdraw 0; sync 0: 0");
    run.train();
    assert_eq!(run.claim("dev1", job(0)), "withdraw 0", "the job's batch was trained on");
}

#[test]
fn results_of_an_expelled_worker_are_recomputed_until_training_begins() {
    let start = || {
        let mut run = Run::start(chunked(4, 1));
        run.tell(Event::Joined(name("dev1")));
        run.tell(Event::Joined(name("dev2")));
        run.tell(Event::Recovered);
        run.result_of(job(0), ORIGIN, answer(5, true));
        run.result_of(chunk(0, 1), ORIGIN.for_result(Some(5)), answer(6, false));
        run.result_of(job(1), ORIGIN, answer(7, false));
        run
    };
    let expel = |run: &mut Run, jobs: &[JobName]| run.tell(Event::Expelled(name("dev1"), jobs.to_vec()));
    let mut run = start();
    run.tell(Event::Synced(BatchId(0)));
    // The second chunk continues the first. The batch is not ready for training any more.
    assert_eq!(expel(&mut run, &[job(0)]), "kill dev1; offer 0@0");
    assert_eq!(run.0.expelled().collect::<Vec<_>>(), [&name("dev1")]);
    assert_eq!(run.0.workers().collect::<Vec<_>>(), [&name("dev2")]);
    assert_eq!(run.tell(Event::Joined(name("dev1"))) + &run.tell(Event::Progress(name("dev1"))), "");
    assert_eq!(run.0.workers().count(), 1, "an expelled worker may not rejoin");
    assert_eq!(run.result_of(job(0), ORIGIN, answer(5, false)), "drop 0 of dev1: Expelled; offer 0@0");
    assert_eq!(run.claim("dev1", job(0)), "kill dev1; release 0 of dev1; offer 0@0");
    let fresh = Event::Result { worker: name("dev2"), job: job(0), lineage: ORIGIN, answer: answer(5, false) };
    assert_eq!(run.tell(fresh), "accept 0 of dev2; withdraw 0; sync 0: 0");
    // Only results of a later batch are listed: the batch in training continues.
    let mut run = start();
    run.tell(Event::Synced(BatchId(0)));
    assert_eq!(expel(&mut run, &[job(1)]), "kill dev1; offer 1@0");
    // Only a second chunk is listed: the first chunk is kept.
    let mut run = start();
    assert_eq!(expel(&mut run, &[chunk(0, 1)]), "kill dev1; offer 0.1@0~5");
    // Results of the batch in training are not recomputed.
    let mut run = start();
    run.tell(Event::Synced(BatchId(0)));
    run.tell(Event::TrainingBegan);
    assert_eq!(expel(&mut run, &[job(0), job(1)]), "kill dev1; offer 1@0");
    assert_eq!(run.trained(), "publish 1; offer 2@1");
    assert_eq!(expel(&mut run, &[job(0)]), "kill dev1");
}

#[test]
fn a_result_can_be_recomputed_while_the_weights_of_its_group_exist() {
    let mut run = Run::start(chunked(5, 1));
    run.tell(Event::Recovered);
    let can = |run: &Run, job| run.0.can_remake(job);
    assert!(can(&run, job(0)) && can(&run, job(1)));
    run.result_of(job(0), ORIGIN, answer(5, false));
    run.result_of(job(1), ORIGIN, answer(5, false));
    run.train();
    assert!(!can(&run, job(0)), "job 0 was trained on");
    assert!(can(&run, job(1)) && can(&run, chunk(1, 1)));
    run.train();
    assert!(!can(&run, job(1)), "version 0 is gone");
    assert!(can(&run, job(2)) && can(&run, job(3)) && can(&run, chunk(4, 1)));
}

#[test]
fn a_resumed_run_trains_on_batch_files_again_and_uses_the_frontier() {
    let file = |jobs: &[JobName]| jobs.iter().map(|job| (*job, answer(5, false))).collect();
    let lineages: BTreeMap<Version, Lineage> = [1, 2].map(Version).map(|version| (version, lineage(version))).into();
    let frontier = BTreeMap::from([(job(3), answer(5, false))]);
    let saved = Saved { version: Version(2), in_batch: false, lineages, frontier };
    // Batch 4 has no file, so the file of batch 5 is not used.
    let files = BTreeMap::from([2, 3, 5].map(|batch| (BatchId(batch), file(&[job(batch)]))));
    let without = Saved { lineages: BTreeMap::from([(Version(1), ORIGIN)]), ..saved.clone() };
    let why = Coordinator::resume(plan(9, 1, 1), without, BTreeMap::new()).unwrap_err();
    assert_eq!(why, "the checkpoint of version 2 lacks the lineage of its own weights");
    let why = Coordinator::resume(plan(9, 0, 1), saved.clone(), BTreeMap::new()).unwrap_err();
    assert_eq!(why, "the number of groups per batch must be at least 1, got 0");
    let mut run = Run(Coordinator::resume(plan(9, 1, 1), saved, files).unwrap());
    let two = Version(2);
    assert_eq!((run.0.batch(), run.0.version(), run.0.lineage()), (BatchId(2), two, lineage(two)));
    assert_eq!(run.0.lineages().keys().copied().collect::<Vec<_>>(), [1, 2].map(Version));
    assert!(!run.0.can_remake(job(3)), "an earlier learner has trained on job 3");
    assert!(run.0.can_remake(job(4)));
    assert_eq!(run.tell(Event::Joined(name("dev1"))), "");
    assert_eq!(run.tell(Event::Recovered), "train 2");
    run.tell(Event::TrainingBegan);
    assert_eq!(run.trained(), "publish 3; train 3; offer 4@3");
    assert_eq!(run.result(job(4)), "accept 4 of dev1; withdraw 4");
    run.tell(Event::TrainingBegan);
    assert_eq!(run.trained(), "publish 4; sync 4: 4; offer 5@4");
}
