//! Tests of the jobs that a worker takes and returns and of the learners that it accepts, without a server: the
//! worker's tasks are not started.

use super::*;
use crate::ids::Version;
use crate::job::{Answer, Lineage};

fn job(group: u64) -> Job {
    let (name, profile) = (crate::testing::job(group), "fast".to_owned());
    let (version, lineage) = (Version(0), Lineage([1; 16]));
    Job { name, version, lineage, continues: None, alone: false, profile, payload: Vec::new() }
}

fn state(ended: bool) -> LearnerState {
    serde_json::from_value(serde_json::json!({
        "pid": 1, "step": 0, "batches": 1, "groups": 1, "max_staleness": 0,
        "lineage": "00000000000000000000000000000000", "slots": [], "ended": ended,
        "checkpoints": {"last": null, "waiting": []}, "counts": crate::exchange::Counts::default(),
    }))
    .unwrap()
}

fn worker(joined: Instant) -> NatsWorker {
    let shared = Shared {
        names: Names::of(&super::super::Address::parse("nats://a/x").unwrap()),
        name: WorkerName::new("dev1").unwrap(),
        id: 5,
        host: "box".to_owned(),
        joined,
        desk: Mutex::default(),
        changed: Condvar::new(),
        pull: Notify::new(),
        report: Notify::new(),
        send: Notify::new(),
    };
    NatsWorker { link: Link::nowhere(), shared: Arc::new(shared) }
}

fn announced(ids: &[(&str, u64)], run: &str, ended: bool) -> Announced {
    let workers = ids.iter().map(|(name, id)| (WorkerName::new(name).unwrap(), *id)).collect();
    Announced { run: run.to_owned(), learner: 1, host: "box".to_owned(), workers, state: state(ended) }
}

impl NatsWorker {
    fn offer(&self, run: &str, job: Job) {
        let mut headers = HeaderMap::new();
        headers.insert(RUN, run);
        let message = async_nats::Message {
            subject: "s".into(),
            reply: None,
            length: 0,
            payload: job.to_bytes().into(),
            headers: Some(headers),
            status: None,
            description: None,
        };
        self.shared.desk().ready = Some((job, Message { message, context: self.link.jetstream.clone() }));
    }
}

#[test]
fn a_worker_ignores_a_learner_that_knows_another_process_by_its_name() {
    let mut worker = worker(Instant::now());
    assert_eq!((worker.learner().unwrap(), worker.watch().learner()), (None, None));
    for (ids, ended, expected) in [
        (&[("dev1", 5)][..], false, Some(state(false))),
        (&[("dev1", 6)], false, None),
        (&[("dev2", 5)], false, None),
        (&[("dev1", 6)], true, Some(state(true))),
    ] {
        worker.shared.desk().learner = Some(announced(ids, "run", ended));
        assert_eq!(worker.learner().unwrap(), expected, "{ids:?}");
        assert_eq!(worker.watch().learner(), Some(state(ended)));
    }
    // A refusal takes effect after some seconds, unless the learner has accepted this process in the meantime.
    let refuse = |worker: &NatsWorker| worker.shared.desk().refused = Some("why".to_owned());
    refuse(&worker);
    assert!(worker.learner().is_ok(), "the other process may just have been killed");
    worker.shared.desk().learner = Some(announced(&[("dev1", 5)], "run", false));
    worker.learner().unwrap();
    assert_eq!(worker.shared.desk().refused, None);
    let mut late = self::worker(Instant::now().checked_sub(JOIN_TIMEOUT + Duration::from_secs(1)).unwrap());
    refuse(&late);
    assert!(matches!(late.learner(), Err(Error::Refused(why)) if why == "why"));
}

#[test]
fn a_worker_claims_only_jobs_of_its_run_and_profile() {
    let mut worker = worker(Instant::now());
    let fast = ["fast".to_owned()];
    assert_eq!(worker.claim(&fast).unwrap(), None);
    assert!(worker.shared.desk().wanted.is_some(), "a job must be requested");
    worker.shared.desk().learner = Some(announced(&[("dev1", 5)], "run", false));
    worker.offer("other", job(1));
    assert_eq!(worker.claim(&fast).unwrap(), None, "the job belongs to another run");
    worker.offer("run", job(1));
    assert_eq!(worker.claim(&["slow".to_owned()]).unwrap(), None, "the job has another profile");
    {
        let desk = worker.shared.desk();
        assert!(desk.ready.is_none() && desk.held.is_empty());
    }
    let name = job(1).name;
    worker.shared.desk().withdrawn.insert(name);
    worker.shared.desk().sent.extend([(name, Instant::now()), (job(2).name, Instant::now())]);
    assert!(!worker.is_wanted(name) && worker.is_wanted(job(2).name));
    worker.offer("run", job(1));
    assert_eq!(worker.claim(&fast).unwrap(), Some(job(1)));
    assert!(worker.is_wanted(name), "the job was offered again");
    {
        let desk = worker.shared.desk();
        assert_eq!((desk.held.len(), desk.sent.len()), (1, 1));
    }
    worker.give_back(job(2).name).unwrap();
    assert_eq!(worker.shared.desk().held.len(), 1);
    worker.give_back(name).unwrap();
    assert!(worker.shared.desk().held.is_empty());
    worker.offer("run", job(3));
    assert_eq!(worker.claim(&[]).unwrap(), Some(job(3)), "no profiles means any profile");
    let bytes = b"done".to_vec();
    let (lineage, answer) = (Lineage([1; 16]), Answer::of(&bytes));
    let result = JobResult { job: job(3).name, lineage, worker: WorkerName::new("dev1").unwrap(), answer, bytes };
    worker.complete(&result).unwrap();
    {
        let desk = worker.shared.desk();
        assert!(desk.held.is_empty() && desk.unsent.len() == 1);
        let Unsent { job, bytes, run, message } = &desk.unsent[0];
        assert_eq!((*job, &**bytes, run.as_str(), message.is_some()), (result.job, &result.to_bytes(), "run", true));
    }
    let status = WorkerStatus { done: 7, ..WorkerStatus::default() };
    worker.report(&status).unwrap();
    assert_eq!(worker.shared.desk().status, Some(status));
}
