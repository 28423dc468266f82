//! A worker's loop: take jobs, proceed with all of them, hand results over. It owns nothing that lasts.

use crate::error::Result;
use crate::exchange::{LearnerState, WorkerExchange, WorkerStatus};
use crate::job::{Answer, Job, JobName, JobResult, WorkerName};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often a worker that waits looks around, and one that works reports that it does.
const LOOK: Duration = Duration::from_millis(200);
/// How often it looks whether its jobs are still wanted.
const GLANCE: Duration = Duration::from_millis(50);
/// The longest that it sleeps while its work waits for something.
const NAP: Duration = Duration::from_millis(5);
/// How long it waits before it tries once more to hand a result over.
const RETRY: Duration = Duration::from_millis(500);

/// What a worker does, as its caller implements it: several jobs at once.
pub trait Work {
    /// Whether it can begin one more job.
    fn has_room(&self) -> bool;
    /// Begins a job.
    fn begin(&mut self, job: Job);
    /// Nobody needs this job any more.
    fn forget(&mut self, job: JobName);
    /// Proceeds for some milliseconds with the jobs that it has begun: with weights of their versions, which it waits
    /// for and pins.
    fn proceed(&mut self) -> Proceeded;
    /// What it does with each job: sampling, scoring.
    fn stages(&self) -> Vec<(JobName, String)>;
    /// Tokens per second and the like, for `status`.
    fn share(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// What came of some milliseconds of work.
#[derive(Default)]
pub struct Proceeded {
    /// What has ended. A job that cannot be done, with the reason, ends the worker; workers that end on one job, one
    /// after another, end the run.
    pub ended: Vec<(JobName, std::result::Result<Done, String>)>,
    /// There was nothing to compute: all jobs wait for weights or rewards.
    pub waits: bool,
}

/// What a job gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Tokens, log-probabilities, scores. Opaque here.
    pub bytes: Vec<u8>,
    /// The hash of those of them that must be the same whoever does the job, and whether a chunk follows.
    pub answer: Answer,
}

/// Why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run has ended.
    RunEnded,
    /// It was asked to.
    Stopped,
    /// The learner found that a result of its is not what its job gives.
    Expelled,
}

/// A worker: its exchange, what it takes, what it did.
pub struct Worker<E> {
    exchange: E,
    name: WorkerName,
    status: WorkerStatus,
}

/// The exchange and the status, shared with the thread that reports.
struct Desk<'a> {
    exchange: &'a mut (dyn WorkerExchange + Send),
    status: &'a mut WorkerStatus,
    reported: Instant,
}

impl Desk<'_> {
    /// The worker has moved. Cheap: files are written a few times in a second. A status that cannot be written (the
    /// disk is full) is reported later.
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
    /// A worker that takes jobs of these profiles; of any, if there are none.
    pub fn new(exchange: E, name: WorkerName, profiles: Vec<String>) -> Worker<E> {
        let status = WorkerStatus { pid: std::process::id(), profiles, ..WorkerStatus::default() };
        Worker { exchange, name, status }
    }

    /// Its exchange: to ask for the learner's state before the first job.
    pub fn exchange(&mut self) -> &mut E {
        &mut self.exchange
    }

    /// Works until the run ends or `stop` says so. Jobs that are being done then are given back. An error of the work
    /// is the worker's; a disk that is full is waited for.
    pub fn run(&mut self, work: &mut dyn Work, stop: &(dyn Fn() -> bool + Sync)) -> Result<End> {
        let Worker { exchange, name, status } = self;
        let desk = Mutex::new(Desk { exchange, status, reported: Instant::now() });
        let ended = AtomicBool::new(false);
        let end = std::thread::scope(|scope| {
            // A long step of the work, a pass over a long prompt, is no standstill.
            let reporter = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::thread::park_timeout(LOOK);
                    lock(&desk).report(false);
                }
            });
            // Also when the work panics: the scope waits for the thread.
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

/// The jobs that a worker has, from their claim to the hand-over.
struct Shift<'s, 'a> {
    desk: &'s Mutex<Desk<'a>>,
    name: &'s WorkerName,
    held: BTreeMap<JobName, Job>,
    /// Results for which there was no room on the disk.
    unwritten: VecDeque<JobResult>,
    tried: Instant,
    /// A job that is to be done alone waits until all others have ended.
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
                let end = learner.as_ref().and_then(|learner| match learner.expelled.contains(self.name) {
                    true => Some(End::Expelled),
                    false => learner.ended.then_some(End::RunEnded),
                });
                if let Some(end) = end {
                    drop(desk);
                    return self.give_back(work, None).map(|()| end);
                }
                self.forget_unwanted(&mut desk, work)?;
            }
            if let Some(learner) = &learner {
                self.claim(&mut desk, work, learner.workers > 1)?;
            }
            if self.held.is_empty() {
                desk.report(true);
                desk.exchange.wait(LOOK);
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
                        // The others are not to blame.
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
        let unwritten = self.unwritten.iter().map(|result| (result.job, "waiting for room on the disk".to_owned()));
        work.stages().into_iter().chain(unwritten).collect()
    }

    /// Takes jobs as long as there is room. Beside others it takes one at a time, so that all get their share.
    fn claim(&mut self, desk: &mut Desk<'_>, work: &mut dyn Work, shares: bool) -> Result<()> {
        let is_taken = |held: &BTreeMap<JobName, Job>, drains| !held.is_empty() && drains;
        while work.has_room() && !is_taken(&self.held, self.drains) {
            let Some(job) = desk.exchange.claim(&desk.status.profiles)? else { break };
            if job.alone && !self.held.is_empty() {
                desk.exchange.give_back(job.name)?;
                self.drains = true;
                break;
            }
            // Nothing is taken beside it either.
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

    /// Gives back all jobs but one.
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
        let lineage = lineage.of_result(*continues);
        let result = JobResult { job: *name, lineage, worker: self.name.clone(), answer, bytes };
        if self.unwritten.is_empty() {
            self.tried = Instant::now().checked_sub(RETRY).unwrap_or(self.tried);
        }
        self.unwritten.push_back(result);
        self.write()
    }

    /// A result is held until there is room for it.
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
