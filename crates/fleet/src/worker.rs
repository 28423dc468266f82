//! A worker's loop: it takes jobs, works on all of them concurrently, and returns their results. It saves nothing.

use crate::error::Result;
use crate::exchange::{LearnerState, WorkerExchange, WorkerStatus};
use crate::job::{Answer, Job, JobName, JobResult, WorkerName};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The interval at which an idle worker looks for jobs and a busy worker reports progress.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The interval at which a worker checks whether its jobs are still needed.
const GLANCE: Duration = Duration::from_millis(50);
/// The maximum sleep while the work waits for something.
const NAP: Duration = Duration::from_millis(5);
/// The pause before a failed write of a result is retried.
const RETRY: Duration = Duration::from_millis(500);

/// The computation that a worker runs, implemented by the worker's caller. It does several jobs concurrently.
pub trait Work {
    /// Whether the work can begin one more job.
    fn has_room(&self) -> bool;
    /// Checks whether this work can serve the learner. An error is the reason for refusing the learner, and ends the
    /// worker. A later learner may differ from the first.
    fn check(&mut self, _learner: &LearnerState) -> std::result::Result<(), String> {
        Ok(())
    }
    /// Begins a job.
    fn begin(&mut self, job: Job);
    /// Drops a job that is not needed any more.
    fn forget(&mut self, job: JobName);
    /// Advances all jobs that have begun, for some milliseconds. Each job waits for the weights of its version, and
    /// pins them.
    fn proceed(&mut self) -> Proceeded;
    /// The current stage of each job, such as sampling or scoring.
    fn stages(&self) -> Vec<(JobName, String)>;
    /// Further values for `lockstep status`, such as tokens per second.
    fn share(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// The outcome of one call of [`Work::proceed`].
#[derive(Default)]
pub struct Proceeded {
    /// Jobs that have ended, each with its result or with the reason why it cannot be done. A job that cannot be done
    /// ends the worker. If several workers in a row end because of the same job, the run ends.
    pub ended: Vec<(JobName, std::result::Result<Done, String>)>,
    /// True if there was nothing to compute, because all jobs wait for weights or rewards.
    pub waits: bool,
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Tokens, log-probabilities and scores. The fleet does not read them.
    pub bytes: Vec<u8>,
    /// The hash of the values that must be equal on every worker, and whether another chunk follows.
    pub answer: Answer,
}

/// The reason why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run has ended.
    RunEnded,
    /// The worker was told to stop.
    Stopped,
    /// The learner detected a wrong result of this worker.
    Expelled,
}

/// A worker: its connection, its name and its status.
pub struct Worker<E> {
    exchange: E,
    name: WorkerName,
    status: WorkerStatus,
}

/// Connection and status of a worker, shared with the thread that reports progress.
struct Desk<'a> {
    exchange: &'a mut (dyn WorkerExchange + Send),
    status: &'a mut WorkerStatus,
    reported: Instant,
}

impl Desk<'_> {
    /// Reports that the worker is making progress. The status is written only a few times per second. If the disk is
    /// full, it is written later.
    fn report(&mut self, at_once: bool) {
        self.status.progress += 1;
        if at_once || self.reported.elapsed() >= GLANCE {
            self.reported = Instant::now();
            let _ = self.exchange.report(self.status);
        }
    }
}

fn lock<'m, 'a>(desk: &'m Mutex<Desk<'a>>) -> MutexGuard<'m, Desk<'a>> {
    desk.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl<E: WorkerExchange + Send> Worker<E> {
    /// A worker that takes jobs of these profiles, or of all profiles if the list is empty.
    pub fn new(exchange: E, name: WorkerName, profiles: Vec<String>) -> Worker<E> {
        let status = WorkerStatus { pid: std::process::id(), profiles, ..WorkerStatus::default() };
        Worker { exchange, name, status }
    }

    /// The worker's connection, to read the learner's state before the first job.
    pub fn exchange(&mut self) -> &mut E {
        &mut self.exchange
    }

    /// Works until the run ends or `stop` returns true, and then returns unfinished jobs. An error of the work ends the
    /// worker; a full disk makes it wait.
    pub fn run(&mut self, work: &mut dyn Work, stop: &(dyn Fn() -> bool + Sync)) -> Result<End> {
        let Worker { exchange, name, status } = self;
        let desk = Mutex::new(Desk { exchange, status, reported: Instant::now() });
        let ended = AtomicBool::new(false);
        let end = std::thread::scope(|scope| {
            // A long step of the work, such as a forward pass over a long prompt, must not look like a stall.
            let reporter = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::thread::park_timeout(POLL_INTERVAL);
                    lock(&desk).report(false);
                }
            });
            // This ends the reporter even if the work panics, because the scope waits for the reporter.
            let _ended = Ended(&ended, reporter.thread().clone());
            Shift::new(&desk, name).work(work, stop)
        });
        let Desk { exchange, status, .. } = desk.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        status.jobs.clear();
        match &end {
            Ok(_) => status.ended = true,
            Err(_) => status.failures = 1,
        }
        let reported = exchange.report(status);
        end.and_then(|end| reported.map(|()| end))
    }
}

struct Ended<'a>(&'a AtomicBool, std::thread::Thread);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}

/// The jobs that a worker has taken and whose results it has not returned yet.
struct Shift<'s, 'a> {
    desk: &'s Mutex<Desk<'a>>,
    name: &'s WorkerName,
    held: BTreeMap<JobName, Job>,
    /// Results that could not be written because the disk is full.
    unwritten: VecDeque<JobResult>,
    tried: Instant,
    /// True while the worker finishes its other jobs before it begins one that must be done alone.
    drains: bool,
}

impl<'s, 'a> Shift<'s, 'a> {
    fn new(desk: &'s Mutex<Desk<'a>>, name: &'s WorkerName) -> Self {
        let (held, unwritten) = (BTreeMap::new(), VecDeque::new());
        Shift { desk, name, held, unwritten, tried: Instant::now(), drains: false }
    }

    fn work(mut self, work: &mut dyn Work, stop: &(dyn Fn() -> bool + Sync)) -> Result<End> {
        let (mut looked, mut learner): (Option<Instant>, Option<LearnerState>) = (None, None);
        loop {
            if stop() {
                return self.give_back(work, None).map(|()| End::Stopped);
            }
            let since = Instant::now();
            let mut desk = lock(self.desk);
            if self.held.is_empty() || looked.is_none_or(|looked| looked.elapsed() >= GLANCE) {
                looked = Some(since);
                learner = desk.exchange.learner()?;
                let end = learner.as_ref().and_then(|learner| {
                    if learner.expelled.contains(self.name) {
                        Some(End::Expelled)
                    } else {
                        learner.ended.then_some(End::RunEnded)
                    }
                });
                if let Some(end) = end {
                    drop(desk);
                    return self.give_back(work, None).map(|()| end);
                }
                if let Some(Err(why)) = learner.as_ref().map(|learner| work.check(learner)) {
                    drop(desk);
                    self.give_back(work, None)?;
                    return Err(crate::Error::Refused(why));
                }
                self.forget_unwanted(&mut desk, work)?;
            }
            if let Some(learner) = &learner {
                self.claim(&mut desk, work, learner.workers > 1)?;
            }
            if self.held.is_empty() {
                desk.report(true);
                desk.exchange.wait(POLL_INTERVAL);
                desk.status.idle_s += since.elapsed().as_secs_f64();
                continue;
            }
            drop(desk);
            let Proceeded { ended, waits } = work.proceed();
            let waits = waits && ended.is_empty();
            for (job, outcome) in ended {
                match outcome {
                    Ok(done) => self.finish(job, done)?,
                    Err(why) => {
                        if stop() {
                            continue;
                        }
                        // The other jobs are not the cause of the failure.
                        self.give_back(work, Some(job))?;
                        return Err(crate::Error::Failed(format!("job {job}: {why}")));
                    }
                }
            }
            self.write()?;
            let mut desk = lock(self.desk);
            desk.status.jobs = self.stages(work);
            desk.status.shared = work.share();
            desk.report(false);
            if waits {
                desk.exchange.wait(NAP);
            }
            desk.status.busy_s += since.elapsed().as_secs_f64();
        }
    }

    fn stages(&self, work: &dyn Work) -> Vec<(JobName, String)> {
        let unwritten = self.unwritten.iter().map(|result| (result.job, "waiting for disk space".to_owned()));
        work.stages().into_iter().chain(unwritten).collect()
    }

    /// Takes jobs while there is room. If there are other workers, it takes one job per call, so that all get their
    /// share.
    fn claim(&mut self, desk: &mut Desk<'_>, work: &mut dyn Work, shares: bool) -> Result<()> {
        let is_taken = |held: &BTreeMap<JobName, Job>, drains| !held.is_empty() && drains;
        while work.has_room() && !is_taken(&self.held, self.drains) {
            let Some(job) = desk.exchange.claim(&desk.status.profiles)? else { break };
            if job.alone && !self.held.is_empty() {
                desk.exchange.give_back(job.name)?;
                self.drains = true;
                break;
            }
            // While the worker does a job alone, it takes no other job either.
            self.drains = job.alone;
            self.held.insert(job.name, job.clone());
            work.begin(job);
            desk.status.jobs = self.stages(work);
            desk.report(true);
            if shares {
                break;
            }
        }
        Ok(())
    }

    fn forget_unwanted(&mut self, desk: &mut Desk<'_>, work: &mut dyn Work) -> Result<()> {
        let unwanted: Vec<JobName> = self.held.keys().filter(|job| !desk.exchange.is_wanted(**job)).copied().collect();
        for job in unwanted {
            work.forget(job);
            self.held.remove(&job);
            self.unwritten.retain(|result| result.job != job);
            desk.exchange.give_back(job)?;
        }
        Ok(())
    }

    /// Returns all unfinished jobs except `but`.
    fn give_back(&mut self, work: &mut dyn Work, but: Option<JobName>) -> Result<()> {
        let mut desk = lock(self.desk);
        for job in std::mem::take(&mut self.held).into_keys().filter(|job| Some(*job) != but) {
            work.forget(job);
            desk.exchange.give_back(job)?;
        }
        Ok(())
    }

    fn finish(&mut self, job: JobName, done: Done) -> Result<()> {
        let Some(Job { name, lineage, continues, .. }) = self.held.get(&job) else { return Ok(()) };
        let Done { bytes, answer } = done;
        let lineage = lineage.for_result(*continues);
        let result = JobResult { job: *name, lineage, worker: self.name.clone(), answer, bytes };
        if self.unwritten.is_empty() {
            self.tried = Instant::now().checked_sub(RETRY).unwrap_or(self.tried);
        }
        self.unwritten.push_back(result);
        self.write()
    }

    /// Writes the waiting results, or keeps them if the disk is full.
    fn write(&mut self) -> Result<()> {
        while let Some(result) = self.unwritten.front().filter(|_| self.tried.elapsed() >= RETRY) {
            let mut desk = lock(self.desk);
            match desk.exchange.complete(result) {
                Ok(()) => {
                    desk.status.done += 1;
                    self.held.remove(&result.job);
                    self.unwritten.pop_front();
                }
                Err(error) if error.is_disk_full() => self.tried = Instant::now(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
