//! Tests of a worker's loop over a scripted exchange: the jobs it takes, the results it returns, and how it ends.

use super::*;
use crate::error::Error;
use crate::ids::Version;
use crate::job::Lineage;
use crate::testing::job as job_name;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

fn name() -> WorkerName {
    WorkerName::new("dev1").unwrap()
}

fn job(group: u64) -> Job {
    let (lineage, profile) = (Lineage([group as u8; 16]), "fast".to_owned());
    let (name, version) = (job_name(group), Version(0));
    Job { name, version, lineage, continues: None, alone: false, profile, payload: Vec::new() }
}

fn state(workers: u64) -> LearnerState {
    serde_json::from_value(serde_json::json!({
        "pid": 1, "step": 0, "batches": 1, "groups": 1, "max_staleness": 0,
        "lineage": "00000000000000000000000000000000", "ended": false,
        "checkpoints": {"last": null, "waiting": []}, "counts": crate::exchange::Counts::default(),
        "workers": workers,
    }))
    .unwrap()
}

#[derive(Default)]
struct Inner {
    state: Option<LearnerState>,
    jobs: VecDeque<Job>,
    unwanted: BTreeSet<JobName>,
    /// The calls so far, in order.
    calls: Vec<String>,
    results: Vec<JobResult>,
    status: WorkerStatus,
    /// The number of times that writing a result fails because the disk is full.
    full: usize,
    profiles: Vec<String>,
}

/// An exchange that ends the run when its jobs run out.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Inner>>);

impl Script {
    fn new(workers: u64, jobs: impl IntoIterator<Item = Job>) -> Script {
        let inner = Inner { state: Some(state(workers)), jobs: jobs.into_iter().collect(), ..Inner::default() };
        Script(Arc::new(Mutex::new(inner)))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    fn record(&self, text: String) {
        self.inner().calls.push(text);
    }

    fn calls(&self) -> String {
        self.inner().calls.join(" ")
    }
}

fn short(job: JobName) -> String {
    job.group.to_string()
}

impl WorkerExchange for Script {
    fn learner(&mut self) -> Result<Option<LearnerState>> {
        Ok(self.inner().state.clone())
    }

    fn claim(&mut self, profiles: &[String]) -> Result<Option<Job>> {
        let mut inner = self.inner();
        inner.profiles = profiles.to_vec();
        Ok(inner.jobs.pop_front())
    }

    fn is_wanted(&mut self, job: JobName) -> bool {
        !self.inner().unwanted.contains(&job)
    }

    fn report(&mut self, status: &WorkerStatus) -> Result<()> {
        self.inner().status = status.clone();
        Ok(())
    }

    fn complete(&mut self, result: &JobResult) -> Result<()> {
        let mut inner = self.inner();
        if inner.full > 0 {
            inner.full -= 1;
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(Error::Io { doing: "write", path: PathBuf::from("it"), source });
        }
        inner.calls.push(format!("done:{}", short(result.job)));
        inner.results.push(result.clone());
        Ok(())
    }

    fn give_back(&mut self, job: JobName) -> Result<()> {
        self.record(format!("back:{}", short(job)));
        Ok(())
    }

    fn wait(&mut self, _: Duration) {
        let mut inner = self.inner();
        if inner.jobs.is_empty() && inner.status.jobs.is_empty() {
            inner.state.as_mut().unwrap().ended = true;
        }
    }
}

/// Work that does `room` jobs concurrently; `does` returns the outcome of each.
struct Tasks<'a> {
    script: Script,
    room: usize,
    begun: Vec<JobName>,
    does: &'a mut dyn FnMut(JobName) -> Option<std::result::Result<Done, String>>,
}

impl Work for Tasks<'_> {
    fn has_room(&self) -> bool {
        self.begun.len() < self.room
    }

    fn begin(&mut self, job: Job) {
        self.script.record(format!("begin:{}", short(job.name)));
        self.begun.push(job.name);
    }

    fn forget(&mut self, job: JobName) {
        self.script.record(format!("forget:{}", short(job)));
        self.begun.retain(|begun| *begun != job);
    }

    fn proceed(&mut self) -> Proceeded {
        let ended: Vec<_> = self.begun.iter().filter_map(|job| Some((*job, (self.does)(*job)?))).collect();
        self.begun.retain(|begun| ended.iter().all(|(job, _)| job != begun));
        Proceeded { ended, waits: true }
    }

    fn stages(&self) -> Vec<(JobName, String)> {
        self.begun.iter().map(|job| (*job, "sampling".to_owned())).collect()
    }

    fn share(&self) -> serde_json::Value {
        "speed".into()
    }
}

fn done(job: JobName) -> Done {
    let bytes = job.to_string().into_bytes();
    Done { answer: Answer::of(&bytes), bytes }
}

fn run_until(
    script: &Script,
    room: usize,
    does: &mut dyn FnMut(JobName) -> Option<std::result::Result<Done, String>>,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<End> {
    let mut work = Tasks { script: script.clone(), room, begun: Vec::new(), does };
    Worker::new(script.clone(), name(), vec!["fast".to_owned()]).run(&mut work, stop)
}

fn run(script: &Script, room: usize) -> Result<End> {
    run_until(script, room, &mut |job| Some(Ok(done(job))), &|| false)
}

#[test]
fn a_worker_takes_as_many_jobs_as_fit_and_leaves_some_to_others() {
    let four = || (0..4).map(job);
    let script = Script::new(1, four());
    assert_eq!(run(&script, 2).unwrap(), End::RunEnded);
    assert_eq!(script.calls(), "begin:0 begin:1 done:0 done:1 begin:2 begin:3 done:2 done:3");
    let inner = script.inner();
    let WorkerStatus { pid, progress, profiles, jobs, done, ended, failures, shared, .. } = inner.status.clone();
    assert_eq!((pid, done, ended, failures), (std::process::id(), 4, true, 0));
    assert_eq!((profiles, &inner.profiles, jobs.len()), (vec!["fast".to_owned()], &vec!["fast".to_owned()], 0));
    assert!(progress >= 5 && shared == "speed", "{progress} {shared}");
    assert!(inner.status.busy_s > 0.0 && inner.status.idle_s > 0.0);
    drop(inner);
    let script = Script::new(2, four());
    assert_eq!(run(&script, 2).unwrap(), End::RunEnded);
    assert_eq!(
        script.calls(),
        "begin:0 done:0 begin:1 done:1 begin:2 done:2 begin:3 done:3",
        "jobs are taken one at a time"
    );
}

#[test]
fn the_lineage_of_a_result_depends_on_weights_and_previous_answer() {
    let continued = Job { continues: Some(7), ..job(1) };
    let script = Script::new(1, [job(0), continued]);
    run(&script, 1).unwrap();
    let [first, second] = &script.inner().results[..] else { panic!("two results") };
    let Done { bytes, answer } = done(job_name(0));
    let expected = JobResult { job: job_name(0), lineage: Lineage([0; 16]), worker: name(), answer, bytes };
    assert_eq!((first, second.lineage), (&expected, Lineage([1; 16]).for_result(Some(7))));
}

#[test]
fn a_job_that_must_be_alone_is_done_without_other_jobs() {
    let alone = || Job { alone: true, ..job(1) };
    // The job is given back and offered again. The worker takes no job until it has finished its other jobs.
    let script = Script::new(1, [job(0), alone(), alone(), job(2)]);
    assert_eq!(run(&script, 3).unwrap(), End::RunEnded);
    assert_eq!(script.calls(), "begin:0 back:1 done:0 begin:1 done:1 begin:2 done:2");
}

#[test]
fn a_withdrawn_job_is_dropped() {
    let script = Script::new(1, [job(0), job(1)]);
    let mut times = 0;
    let withdraws = script.clone();
    let mut does = |job: JobName| {
        times += 1;
        withdraws.inner().unwanted.insert(job_name(0));
        // The second job ends only after the first was dropped.
        let is_gone = withdraws.inner().calls.iter().any(|call| call == "forget:0");
        (job == job_name(1) && is_gone).then(|| Ok(done(job)))
    };
    assert_eq!(run_until(&script, 2, &mut does, &|| false).unwrap(), End::RunEnded);
    assert_eq!(script.calls(), "begin:0 begin:1 forget:0 back:0 done:1");
    assert!(times > 1);
}

#[test]
fn unfinished_jobs_are_returned_however_the_worker_ends() {
    let never = &mut |_: JobName| None;
    let script = Script::new(1, [job(0), job(1)]);
    let began = script.clone();
    let stop = move || began.inner().calls.len() == 2;
    assert_eq!(run_until(&script, 2, never, &stop).unwrap(), End::Stopped);
    assert_eq!(script.calls(), "begin:0 begin:1 forget:0 back:0 forget:1 back:1");
    assert!(script.inner().status.ended);
    for (expelled, end) in [(true, End::Expelled), (false, End::RunEnded)] {
        let script = Script::new(1, [job(0)]);
        let tells = script.clone();
        let mut does = |_: JobName| {
            let mut inner = tells.inner();
            let state = inner.state.as_mut().unwrap();
            state.ended = true;
            state.expelled = if expelled { vec![name()] } else { vec![WorkerName::new("dev2").unwrap()] };
            None
        };
        assert_eq!(run_until(&script, 1, &mut does, &|| false).unwrap(), end);
        assert_eq!(script.calls(), "begin:0 forget:0 back:0");
    }
    // A worker that failed on a job does not give that job back.
    let script = Script::new(1, [job(0), job(1), job(2)]);
    let mut fails = |job: JobName| (job == job_name(1)).then(|| Err("no memory".to_owned()));
    let why = run_until(&script, 3, &mut fails, &|| false).unwrap_err();
    assert!(matches!(&why, Error::Failed(why) if why == "job 000001.0: no memory"), "{why}");
    assert_eq!(script.calls(), "begin:0 begin:1 begin:2 forget:0 back:0 forget:2 back:2");
    let status = script.inner().status.clone();
    assert_eq!((status.ended, status.failures, status.jobs.len()), (false, 1, 0));
    // A worker that was told to stop is not treated as failed.
    let script = Script::new(1, [job(0)]);
    let asked = AtomicBool::new(false);
    let mut fails = |_: JobName| {
        asked.store(true, Ordering::Relaxed);
        Some(Err("stopped".to_owned()))
    };
    assert_eq!(run_until(&script, 1, &mut fails, &|| asked.load(Ordering::Relaxed)).unwrap(), End::Stopped);
    assert_eq!(script.calls(), "begin:0 forget:0 back:0");
}

#[test]
fn results_wait_while_the_disk_is_full() {
    let script = Script::new(1, []);
    script.inner().full = 1;
    let (mut exchange, mut status, name) = (script.clone(), WorkerStatus::default(), name());
    let desk = Mutex::new(Desk { exchange: &mut exchange, status: &mut status, reported: Instant::now() });
    let mut shift = Shift::new(&desk, &name);
    shift.finish(job_name(9), done(job_name(9))).unwrap();
    assert!(shift.unwritten.is_empty(), "the worker does not have this job");
    shift.held.extend([0, 1].map(|group| (job_name(group), job(group))));
    shift.finish(job_name(0), done(job_name(0))).unwrap();
    shift.finish(job_name(1), done(job_name(1))).unwrap();
    assert_eq!((shift.unwritten.len(), shift.held.len(), script.calls().as_str()), (2, 2, ""));
    let mut nothing = |_: JobName| None;
    let work = Tasks { script: script.clone(), room: 1, begun: vec![job_name(5)], does: &mut nothing };
    let waits = "waiting for disk space".to_owned();
    let stages = [(job_name(5), "sampling".to_owned()), (job_name(0), waits.clone()), (job_name(1), waits)];
    assert_eq!(shift.stages(&work), stages);
    shift.write().unwrap();
    assert_eq!(script.calls(), "", "the write must not be retried at once");
    shift.tried = Instant::now().checked_sub(RETRY).unwrap();
    shift.write().unwrap();
    assert_eq!((script.calls().as_str(), shift.held.len(), shift.unwritten.len()), ("done:0 done:1", 0, 0));
    // A waiting result is dropped if its job is withdrawn.
    script.inner().full = 1;
    shift.held.insert(job_name(2), job(2));
    shift.finish(job_name(2), done(job_name(2))).unwrap();
    script.inner().unwanted.insert(job_name(2));
    let mut work = work;
    shift.forget_unwanted(&mut lock(&desk), &mut work).unwrap();
    assert_eq!((shift.held.len(), shift.unwritten.len()), (0, 0));
    drop(shift);
    let Desk { status, .. } = desk.into_inner().unwrap();
    assert_eq!(status.done, 2);
}

#[test]
fn a_status_is_written_at_most_every_fifty_milliseconds_unless_forced() {
    let script = Script::new(1, []);
    let (mut exchange, mut status) = (script.clone(), WorkerStatus::default());
    let mut desk = Desk { exchange: &mut exchange, status: &mut status, reported: Instant::now() };
    desk.report(false);
    assert_eq!(script.inner().status.progress, 0, "the status must not be written yet");
    desk.report(true);
    assert_eq!(script.inner().status.progress, 2, "each report must advance the counter");
    desk.reported = Instant::now().checked_sub(GLANCE).unwrap();
    desk.report(false);
    assert_eq!(script.inner().status.progress, 3);
    desk.report(false);
    assert_eq!(script.inner().status.progress, 3);
}
