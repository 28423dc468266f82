//! Tests of learner and workers as threads of one process.

use crate::fake::{FakeWork, check_log, learn, sequential, slots};
use fleet::exchange::spool::{SpoolLearner, SpoolWorker};
use fleet::exchange::{Memory, WorkerExchange};
use fleet::worker::{End, Worker};
use fleet::{Plan, WorkerName};
use std::path::Path;
use std::time::Duration;

fn plan(k: u64, chunks: bool) -> Plan {
    Plan { chunks, straggler_after_ms: Some(50), ..Plan::new(8, 3, k) }
}

fn work<E: WorkerExchange + Send>(out: &Path, exchange: E, name: &str, slots: usize) -> End {
    let takes = Duration::from_millis(2);
    let mut fake = FakeWork::new(out, slots, takes, false);
    Worker::new(exchange, WorkerName::new(name).unwrap(), Vec::new()).run(&mut fake, &|| false).unwrap()
}

#[test]
fn any_number_of_workers_reproduces_the_sequential_run() {
    for (k, chunks, workers) in [(0, false, 1), (0, false, 3), (1, false, 2), (2, true, 1), (2, true, 3)] {
        let out = tempfile::tempdir().unwrap();
        let plan = plan(k, chunks);
        let memory = Memory::new();
        std::thread::scope(|scope| {
            for i in 0..workers {
                let exchange = memory.worker(WorkerName::new(&format!("w{i}")).unwrap());
                let (out, slots) = (out.path(), slots(&plan));
                scope.spawn(move || work(out, exchange, &format!("w{i}"), slots));
            }
            let end = learn(out.path(), plan.clone(), memory.learner(), 3, &|| false).unwrap();
            assert_eq!(end, Some(sequential(&plan)), "k = {k}, chunks: {chunks}, {workers} workers");
        });
        let mut plain = plan.clone();
        plain.max_staleness += 1;
        assert_ne!(sequential(&plan), sequential(&plain), "the weights must depend on k");
    }
}

#[test]
fn start_order_and_stops_do_not_change_a_run_over_a_spool() {
    let out = tempfile::tempdir().unwrap();
    let plan = plan(2, true);
    std::thread::scope(|scope| {
        for name in ["dev1", "dev2"] {
            let (out, slots) = (out.path(), slots(&plan));
            let exchange = SpoolWorker::join(out, WorkerName::new(name).unwrap()).unwrap();
            scope.spawn(move || assert_eq!(work(out, exchange, name, slots), End::RunEnded));
        }
        std::thread::sleep(Duration::from_millis(30));
        let log = out.path().join("trained.log");
        let stop = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() >= 3);
        let exchange = SpoolLearner::open(out.path()).unwrap();
        let first = learn(out.path(), plan.clone(), exchange, 100, &stop).unwrap();
        assert_eq!(first, None, "the first learner was stopped");
        // The earlier workers were told that the run had ended, so a new worker joins.
        let third = SpoolWorker::join(out.path(), WorkerName::new("dev3").unwrap()).unwrap();
        let exchange = SpoolLearner::open(out.path()).unwrap();
        let (path, slots) = (out.path(), slots(&plan));
        std::thread::scope(|scope| {
            let learner = scope.spawn(|| learn(path, plan.clone(), exchange, 3, &|| false).unwrap());
            work(path, third, "dev3", slots);
            assert_eq!(learner.join().unwrap(), Some(sequential(&plan)));
        });
    });
    assert!(check_log(out.path()).unwrap() >= 8, "every batch must be trained on");
    let status = fleet::status::read(out.path()).unwrap();
    let learner = status.learner.unwrap();
    assert!(learner.ended && learner.batch == plan.end() && learner.counts.differing == 0, "{learner:?}");
    assert!(status.workers.len() == 3 && status.pending.is_empty(), "{:?}", status.workers);
    assert!(status.complete.is_empty(), "results in batch files must be deleted: {:?}", status.complete);
}
