//! Tests of the coordinator, one event at a time: the actions and their order, and each limit at, below and above it.

use super::*;
use crate::testing::{chunk, job, name};

const ORIGIN: Lineage = Lineage([7; 16]);
/// The lineage of a version.
fn lineage(version: Version) -> Lineage {
    if version == Version(0) { ORIGIN } else { Lineage([version.0 as u8; 16]) }
}

fn plan(batches: u64, groups: u64, k: u64) -> Plan {
    Plan { straggler_after_ms: None, ..Plan::new(batches, groups, k) }
}

fn jobs(jobs: &[JobName]) -> String {
    let one = |JobName { group, chunk }: &JobName| match chunk {
        0 => group.to_string(),
        chunk => format!("{group}.{chunk}"),
    };
    jobs.iter().map(one).collect::<Vec<_>>().join(",")
}

fn describe(action: &Action) -> String {
    match action {
        Action::Offer { job, version, lineage: of, continues, alone } => {
            assert_eq!(*of, lineage(*version), "the lineage of version {version}");
            let continues = continues.map_or(String::new(), |before| format!("~{before}"));
            format!("offer {}@{version}{continues}{}", jobs(&[*job]), if *alone { "!" } else { "" })
        }
        Action::Release(worker, job) => format!("release {} of {worker}", jobs(&[*job])),
        Action::Withdraw(job) => format!("withdraw {}", jobs(&[*job])),
        Action::Accept(worker, job) => format!("accept {} of {worker}", jobs(&[*job])),
        Action::Drop(worker, job, why) => format!("drop {} of {worker}: {why:?}", jobs(&[*job])),
        Action::Kill(worker) => format!("kill {worker}"),
        Action::SyncBatch(batch, all) => format!("sync {batch}: {}", jobs(all)),
        Action::Acknowledge(all) => format!("acknowledge {}", jobs(all)),
        Action::Train(batch) => format!("train {batch}"),
        Action::Publish(version) => format!("publish {version}"),
        Action::Gone(job, version) => format!("{} needs {version}, which is gone", jobs(&[*job])),
        Action::Fail(job, count, how) => format!("fail {} after {count} {how:?}", jobs(&[*job])),
        Action::End => "end".to_owned(),
    }
}

struct Run(Coordinator);

impl Run {
    fn start(plan: Plan) -> Run {
        Run(Coordinator::start(plan, ORIGIN).unwrap())
    }

    fn tell(&mut self, event: Event) -> String {
        self.0.handle(event).iter().map(describe).collect::<Vec<_>>().join("; ")
    }

    /// Reports a result of the job by dev1, sampled with the right weights.
    fn result(&mut self, job: JobName) -> String {
        self.result_of(job, lineage(self.0.plan.version_of(job)), Answer { fingerprint: 5, more: false })
    }

    fn result_of(&mut self, job: JobName, lineage: Lineage, answer: Answer) -> String {
        self.tell(Event::Result { worker: name("dev1"), job, lineage, answer })
    }

    fn claim(&mut self, worker: &str, job: JobName) -> String {
        self.tell(Event::Claimed(name(worker), job))
    }

    fn ended(&mut self, worker: &str, how: HowEnded) -> String {
        self.tell(Event::Ended { worker: name(worker), how })
    }

    /// Trains on the batch, which must be complete.
    fn train(&mut self) -> String {
        let batch = self.0.batch();
        let trains = self.tell(Event::Synced(batch));
        assert!(trains.contains(&format!("train {batch}")), "{trains}");
        self.trained()
    }

    fn trained(&mut self) -> String {
        self.tell(Event::TrainingBegan);
        self.tell(Event::Trained(lineage(self.0.batch().next().version())))
    }

    /// The jobs of the frontier before a version: those with a result, and those without.
    fn frontier(&self, version: u64) -> (String, String) {
        let (there, missing) = self.0.frontier(Version(version));
        (jobs(&there.into_keys().collect::<Vec<_>>()), jobs(&missing))
    }
}

fn both(there: &str, missing: &str) -> (String, String) {
    (there.to_owned(), missing.to_owned())
}

#[test]
fn a_frontier_contains_the_results_of_older_weights() {
    let mut run = Run::start(plan(5, 1, 2));
    assert_eq!(run.tell(Event::Recovered), "offer 0@0; offer 1@0; offer 2@0");
    assert_eq!(run.frontier(0), both("", ""), "no older weights exist");
    run.result(job(0));
    // In the middle of batch 0, the weights of version 0 are gone, too.
    assert_eq!(run.frontier(1), both("", "1,2"));
    assert_eq!(run.train(), "publish 1; offer 3@1");
    assert_eq!(run.frontier(1), both("", "1,2"), "version 1 samples job 3");
    assert_eq!(run.frontier(2), both("", "2,3"));
    run.result(job(2));
    assert_eq!(run.frontier(1), both("2", "1"));
    assert_eq!(run.result(job(1)), "accept 1 of dev1; withdraw 1; sync 1: 1");
    assert_eq!(run.frontier(1), both("1,2", ""));
    run.train();
    run.train();
    assert_eq!(run.0.batch(), BatchId(3));
    assert_eq!(run.frontier(3), both("", "3,4"), "the run has no batch 5");
    assert_eq!(run.frontier(4), both("", "4"));
    assert_eq!(run.0.lineages().keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3].map(Version));
}

#[test]
fn a_run_ends_after_its_last_batch() {
    let mut run = Run::start(plan(1, 1, 1));
    run.tell(Event::Recovered);
    run.result(job(0));
    run.tell(Event::Synced(BatchId(0)));
    assert_eq!((run.0.open_batch(), run.tell(Event::TrainingBegan)), (BatchId(0), String::new()));
    assert_eq!(run.0.open_batch(), BatchId(1), "results that were trained on are kept");
    assert_eq!(run.trained(), "publish 1; end");
    assert!(run.0.has_ended());
    assert_eq!(run.frontier(1), both("", ""));
}

#[test]
fn a_job_is_blamed_only_for_workers_that_did_nothing_else() {
    let start = || {
        let mut run = Run::start(Plan { failures_per_job: 2, kills_per_job: 3, ..plan(1, 2, 0) });
        for worker in ["dev1", "dev2", "dev3"] {
            run.tell(Event::Joined(name(worker)));
        }
        run.tell(Event::Recovered);
        run
    };
    for (how, most) in [(HowEnded::Failed, 2), (HowEnded::Vanished, 3)] {
        let mut run = start();
        for time in 1..=most {
            run.tell(Event::Joined(name("dev1")));
            assert_eq!(run.claim("dev1", job(1)), "");
            let actions = run.ended("dev1", how);
            let fails = format!("release 1 of dev1; fail 1 after {most} {how:?}");
            assert!(
                if time < most { actions == "release 1 of dev1; offer 1@0" } else { actions.starts_with(&fails) },
                "{actions}"
            );
            assert_eq!(run.0.has_ended(), time == most);
        }
    }
    // A job is not blamed if its worker was told to end or returned it. It is blamed if the worker cannot do it.
    let mut run = start();
    for _ in 0..4 {
        run.tell(Event::Joined(name("dev1")));
        run.claim("dev1", job(0));
        assert_eq!(run.ended("dev1", HowEnded::Asked), "release 0 of dev1; offer 0@0");
        run.claim("dev2", job(0));
        let returned = |faulty| Event::Returned { worker: name("dev2"), job: job(0), faulty };
        assert_eq!(run.tell(returned(false)), "offer 0@0");
    }
    for actions in ["offer 0@0", "fail 0 after 2 Failed"] {
        run.claim("dev2", job(0));
        let faulty = run.tell(Event::Returned { worker: name("dev2"), job: job(0), faulty: true });
        assert!(faulty.starts_with(actions), "{faulty}");
    }
    // If a worker with several jobs ends, no job is blamed. After the second time each job is done alone.
    let mut run = start();
    for actions in
        ["offer 0@0; offer 1@0", "offer 0@0!; offer 1@0!", "offer 0@0!; offer 1@0!", "offer 0@0!; offer 1@0!"]
    {
        run.tell(Event::Joined(name("dev3")));
        run.claim("dev3", job(0));
        run.claim("dev3", job(1));
        assert_eq!(run.ended("dev3", HowEnded::Vanished), format!("release 0 of dev3; release 1 of dev3; {actions}"));
    }
    // A job that another worker has completed is not offered again.
    run.claim("dev1", job(0));
    run.claim("dev2", job(0));
    assert_eq!(run.result(job(0)), "accept 0 of dev1; withdraw 0");
    assert_eq!(run.claim("dev2", job(0)), "withdraw 0");
    assert_eq!(run.ended("dev2", HowEnded::Failed), "", "the worker has no jobs left");
}

#[test]
fn a_stalled_worker_is_killed_at_the_limit_and_not_before() {
    let mut run = Run::start(Plan { stale_after_ms: 400, ..plan(1, 1, 0) });
    run.tell(Event::Joined(name("dev1")));
    run.tell(Event::Joined(name("dev2")));
    run.tell(Event::Recovered);
    // A pause of the learner advances the clock by at most a quarter of the limit, however long the pause was.
    assert_eq!(run.tell(Event::Tick(1 << 40)), "");
    assert_eq!(run.tell(Event::Tick(101)), "");
    assert_eq!(run.tell(Event::Tick(100)), "");
    assert_eq!(run.tell(Event::Tick(99)), "");
    run.tell(Event::Progress(name("dev2")));
    assert_eq!(run.tell(Event::Tick(1)), "kill dev1");
    assert_eq!(run.0.workers().count(), 2, "a killed worker is listed until its end is reported");
    let ticks = [100, 100, 100, 99, 1].map(|ms| run.tell(Event::Tick(ms)));
    assert_eq!(ticks, ["", "", "", "kill dev2", "kill dev1"]);
    let mut run = Run::start(Plan { stale_after_ms: 3, ..plan(1, 1, 0) });
    run.tell(Event::Joined(name("dev1")));
    assert_eq!([9, 9, 9].map(|ms| run.tell(Event::Tick(ms))), ["", "", "kill dev1"]);
}

#[test]
fn jobs_of_a_worker_that_cannot_be_killed_are_offered_to_others() {
    let mut run = Run::start(Plan { stale_after_ms: 4, ..plan(2, 2, 1) });
    for worker in ["dev1", "dev2"] {
        run.tell(Event::Joined(name(worker)));
    }
    run.tell(Event::Recovered);
    run.claim("dev1", job(0));
    run.claim("dev2", job(1));
    let unreachable = |run: &mut Run, worker: &str| run.tell(Event::Unreachable(name(worker)));
    assert_eq!(unreachable(&mut run, "dev1"), "offer 0@0", "only jobs that no other worker does are offered");
    assert_eq!(unreachable(&mut run, "dev1"), "", "job 0 is already offered");
    run.claim("dev2", job(0));
    assert_eq!(unreachable(&mut run, "dev1"), "", "another worker does job 0");
    assert_eq!(unreachable(&mut run, "nobody"), "");
    // The worker resumes after all, and the first result is used.
    assert_eq!(run.result(job(0)), "accept 0 of dev1; withdraw 0");
    assert_eq!(unreachable(&mut run, "dev1"), "", "the worker has no jobs left");
}

#[test]
fn a_slow_job_is_offered_to_an_idle_worker_and_later_to_all() {
    let mut run = Run::start(Plan { straggler_after_ms: Some(100), ..plan(1, 1, 0) });
    run.tell(Event::Joined(name("dev1")));
    run.tell(Event::Recovered);
    assert_eq!(
        [99, 1].map(|ms| run.tell(Event::Tick(ms))),
        ["", "offer 0@0"],
        "dev1 is idle, and may have missed the offer"
    );
    run.claim("dev1", job(0));
    assert_eq!([100, 299, 1].map(|ms| run.tell(Event::Tick(ms))), ["", "", "offer 0@0"], "no worker is idle");
    run.tell(Event::Joined(name("dev2")));
    assert_eq!([99, 1, 99, 1].map(|ms| run.tell(Event::Tick(ms))), ["", "offer 0@0", "", "offer 0@0"]);
    run.claim("dev2", job(0));
    assert_eq!(run.result(job(0)), "accept 0 of dev1; withdraw 0; sync 0: 0");
    assert_eq!(run.tell(Event::Tick(1000)), "");
    let mut run = Run::start(plan(1, 1, 0));
    run.tell(Event::Joined(name("dev1")));
    run.tell(Event::Recovered);
    assert_eq!(run.tell(Event::Tick(10_000)), "", "never");
}

#[test]
fn the_number_of_offered_jobs_is_limited_per_worker() {
    let mut run = Run::start(Plan { max_inflight_tasks: 2, ..plan(9, 9, 0) });
    assert_eq!(run.tell(Event::Recovered), "offer 0@0; offer 1@0", "without workers, as many as for one");
    assert_eq!(run.tell(Event::Joined(name("dev1"))), "");
    assert_eq!(run.tell(Event::Joined(name("dev2"))), "offer 2@0; offer 3@0");
    run.claim("dev1", job(0));
    assert_eq!(run.result(job(0)), "accept 0 of dev1; offer 4@0");
    // Results of later batches count towards the limit, but jobs of the current batch are never held back.
    let mut run = Run::start(Plan { queue_maxsize: 2, ..plan(9, 1, 4) });
    assert_eq!(run.tell(Event::Recovered), "offer 0@0; offer 1@0");
    assert_eq!(run.result(job(1)), "accept 1 of dev1; withdraw 1");
    assert_eq!(run.result(job(0)), "accept 0 of dev1; withdraw 0; sync 0: 0; offer 2@0");
    run.tell(Event::Synced(BatchId(0)));
    run.tell(Event::TrainingBegan);
    assert_eq!(run.trained(), "publish 1; sync 1: 1; offer 3@0");
}

mod continued;
mod recovery;
