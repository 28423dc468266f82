//! A worker's loop: take a job, do it, hand its result over. It owns nothing that lasts.

use crate::error::Result;
use crate::exchange::{WorkerExchange, WorkerStatus};
use crate::job::{Answer, Job, JobName, JobResult, WorkerName};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often a worker that waits looks around, and one that works tells that it does.
const LOOK: Duration = Duration::from_millis(200);
/// How long it waits before it tries once more to hand a result over.
const RETRY: Duration = Duration::from_millis(500);

/// What a worker does, as its caller implements it.
pub trait Work {
    /// Does a job, with the weights of its version: the caller waits for them and pins them. Calls
    /// [`Progress::advance`] often, and returns [`NotDone::Stopped`] once [`Progress::must_stop`].
    fn run(&mut self, job: &Job, progress: &Progress<'_>) -> std::result::Result<Done, NotDone>;
}

/// What a job gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Tokens, log-probabilities, scores. Opaque here.
    pub bytes: Vec<u8>,
    /// The hash of those of them that must be the same whoever does the job, and whether a chunk follows.
    pub answer: Answer,
}

/// Why a job is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// It was not wanted any more, or the worker is to stop.
    Stopped,
    /// It cannot be done, for this reason: the worker ends. Three workers that end on one job end the run.
    Failed(String),
}

/// Why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run has ended.
    RunEnded,
    /// It was asked to.
    Stopped,
}

/// How the work tells that it proceeds, from any of its threads.
pub struct Progress<'a> {
    inner: Mutex<Inner<'a>>,
    job: JobName,
    stop: &'a (dyn Fn() -> bool + Sync),
}

struct Inner<'a> {
    exchange: &'a mut (dyn WorkerExchange + Send),
    status: &'a mut WorkerStatus,
    looked: Instant,
    is_wanted: bool,
}

impl<'a> Progress<'a> {
    /// The work proceeds; `stage` says with what: sampling, scoring. Cheap: files are written a few times in a second.
    pub fn advance(&self, stage: &str) {
        let mut inner = self.lock();
        inner.status.progress += 1;
        if inner.status.job.as_ref().is_none_or(|(_, now)| now != stage) {
            inner.status.job = Some((self.job, stage.to_owned()));
        }
        self.look(&mut inner);
    }

    /// Tokens per second and the like, for `status`.
    pub fn share(&self, value: serde_json::Value) {
        self.lock().status.shared = value;
    }

    /// Nobody needs the result any more, or the worker is to stop.
    pub fn must_stop(&self) -> bool {
        let mut inner = self.lock();
        self.look(&mut inner);
        !inner.is_wanted || (self.stop)()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<'a>> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn look(&self, inner: &mut Inner<'a>) {
        if inner.looked.elapsed() >= LOOK / 4 {
            inner.looked = Instant::now();
            inner.is_wanted = inner.exchange.is_wanted(self.job);
            // A status that cannot be written (the disk is full) is told later.
            let _ = inner.exchange.report(inner.status);
        }
    }
}

/// A worker: its exchange, what it takes, what it did.
pub struct Worker<E> {
    exchange: E,
    name: WorkerName,
    status: WorkerStatus,
}

impl<E: WorkerExchange + Send> Worker<E> {
    /// A worker that takes jobs of these profiles; of any, if there are none.
    pub fn new(exchange: E, name: WorkerName, profiles: Vec<String>) -> Worker<E> {
        let status = WorkerStatus { pid: std::process::id(), profiles, ..WorkerStatus::default() };
        Worker { exchange, name, status }
    }

    /// Its exchange: to ask for the learner's state before the first job.
    pub fn exchange(&mut self) -> &mut E {
        &mut self.exchange
    }

    /// Works until the run ends or `stop` says so. A job that is being done then is given back. An error of the work is
    /// the worker's; a disk that is full is waited for.
    pub fn run(&mut self, work: &mut dyn Work, stop: &(dyn Fn() -> bool + Sync)) -> Result<End> {
        loop {
            if stop() {
                return self.end(End::Stopped);
            }
            let idle = Instant::now();
            self.status.progress += 1;
            let _ = self.exchange.report(&self.status);
            let job = match self.exchange.learner()? {
                Some(learner) if learner.ended => return self.end(End::RunEnded),
                Some(_) => self.exchange.claim(&self.status.profiles)?,
                None => None,
            };
            let Some(job) = job else {
                self.exchange.wait(LOOK);
                self.status.idle_s += idle.elapsed().as_secs_f64();
                continue;
            };
            let busy = Instant::now();
            self.status.job = Some((job.name, "starting".to_owned()));
            let _ = self.exchange.report(&self.status);
            let progress = Progress {
                inner: Mutex::new(Inner {
                    exchange: &mut self.exchange,
                    status: &mut self.status,
                    looked: Instant::now(),
                    is_wanted: true,
                }),
                job: job.name,
                stop,
            };
            let done = work.run(&job, &progress);
            match done {
                Ok(done) => self.hand_over(&job, done, stop)?,
                Err(NotDone::Stopped) => self.exchange.give_back(job.name)?,
                Err(NotDone::Failed(why)) => {
                    return Err(crate::Error::Failed(format!("job {}: {why}", job.name)));
                }
            }
            self.status.job = None;
            self.status.busy_s += busy.elapsed().as_secs_f64();
        }
    }

    /// A result is held until there is room for it.
    fn hand_over(&mut self, job: &Job, done: Done, stop: &dyn Fn() -> bool) -> Result<()> {
        let Done { bytes, answer } = done;
        let result = JobResult { job: job.name, lineage: job.lineage, worker: self.name.clone(), answer, bytes };
        loop {
            match self.exchange.complete(&result) {
                Ok(()) => {
                    self.status.done += 1;
                    return Ok(());
                }
                Err(error) if error.is_disk_full() => {
                    if stop() || !self.exchange.is_wanted(job.name) {
                        return self.exchange.give_back(job.name);
                    }
                    self.status.progress += 1;
                    self.status.job = Some((job.name, "waiting for room on the disk".to_owned()));
                    let _ = self.exchange.report(&self.status);
                    std::thread::sleep(RETRY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn end(&mut self, end: End) -> Result<End> {
        self.status.ended = true;
        self.status.job = None;
        self.exchange.report(&self.status)?;
        Ok(end)
    }
}
