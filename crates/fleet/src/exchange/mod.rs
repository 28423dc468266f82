//! How learner and workers reach each other: through memory, a spool directory, or NATS. An exchange may lose,
//! repeat and delay messages; it never decides anything.
//!
//! With JetStream in mind: `offer` publishes to a work-queue stream, `claim` pulls, `report` is `InProgress`,
//! `complete` publishes the result, and the learner acknowledges it after the batch file is synced (`acknowledge`).

mod memory;
#[cfg(all(unix, feature = "nats"))]
pub mod nats;
mod observer;
#[cfg(unix)]
pub mod spool;

#[cfg(test)]
pub(crate) use memory::Queue;
pub use memory::{Memory, MemoryLearner, MemoryWorker};
pub(crate) use observer::{Observer, Scan, Seen};

use crate::coordinator::Event;
use crate::error::Result;
use crate::job::{Job, JobName, JobResult, Lineage, WorkerName};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Sleeps until something may have happened in an exchange.
pub type Waiter = Box<dyn FnMut(Duration) + Send>;

/// The learner's side.
pub trait Exchange {
    /// Tells workers where the weights are.
    fn announce(&mut self, state: &LearnerState) -> Result<()>;
    /// Puts a job where a worker finds it.
    fn offer(&mut self, job: &Job) -> Result<()>;
    /// A job of a worker that ended is no longer its.
    fn release(&mut self, worker: &WorkerName, job: JobName) -> Result<()>;
    /// Nobody needs to work on this job any more.
    fn withdraw(&mut self, job: JobName) -> Result<()>;
    /// The result that an [`Event::Result`] told of. It stays where it is until [`Exchange::acknowledge`].
    fn take(&mut self, worker: &WorkerName, job: JobName) -> Option<JobResult>;
    /// Deletes a result that is not used.
    fn discard(&mut self, worker: &WorkerName, job: JobName) -> Result<()>;
    /// Deletes results that are in a synced batch file.
    fn acknowledge(&mut self, jobs: &[JobName]) -> Result<()>;
    /// Ends a worker that stands still.
    fn kill(&mut self, worker: &WorkerName) -> Result<()>;
    /// What happened since the last call.
    fn poll(&mut self) -> Result<Vec<Event>>;
    /// What sleeps until something may have happened, at the latest for the time that it is given.
    fn waiter(&self) -> Result<Waiter>;
    /// Results that could not be read since the last call, each with the reason.
    fn take_problems(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl Exchange for Box<dyn Exchange + Send> {
    fn announce(&mut self, state: &LearnerState) -> Result<()> {
        (**self).announce(state)
    }
    fn offer(&mut self, job: &Job) -> Result<()> {
        (**self).offer(job)
    }
    fn release(&mut self, worker: &WorkerName, job: JobName) -> Result<()> {
        (**self).release(worker, job)
    }
    fn withdraw(&mut self, job: JobName) -> Result<()> {
        (**self).withdraw(job)
    }
    fn take(&mut self, worker: &WorkerName, job: JobName) -> Option<JobResult> {
        (**self).take(worker, job)
    }
    fn discard(&mut self, worker: &WorkerName, job: JobName) -> Result<()> {
        (**self).discard(worker, job)
    }
    fn acknowledge(&mut self, jobs: &[JobName]) -> Result<()> {
        (**self).acknowledge(jobs)
    }
    fn kill(&mut self, worker: &WorkerName) -> Result<()> {
        (**self).kill(worker)
    }
    fn poll(&mut self) -> Result<Vec<Event>> {
        (**self).poll()
    }
    fn waiter(&self) -> Result<Waiter> {
        (**self).waiter()
    }
    fn take_problems(&mut self) -> Vec<String> {
        (**self).take_problems()
    }
}

/// A worker's side.
pub trait WorkerExchange {
    /// The learner, if one is there.
    fn learner(&mut self) -> Result<Option<LearnerState>>;
    /// A job of one of these profiles (any, if there are none), now this worker's.
    fn claim(&mut self, profiles: &[String]) -> Result<Option<Job>>;
    /// The job is still this worker's: nobody else was faster, and the learner has not withdrawn it.
    fn is_wanted(&mut self, job: JobName) -> bool;
    /// What this worker does, with a progress counter that moves as long as it works.
    fn report(&mut self, status: &WorkerStatus) -> Result<()>;
    /// Hands a result over. After an error it may be called again.
    fn complete(&mut self, result: &JobResult) -> Result<()>;
    /// Gives a job back undone.
    fn give_back(&mut self, job: JobName) -> Result<()>;
    /// Returns when there may be a job, at the latest after this time.
    fn wait(&mut self, at_most: Duration);
}

impl WorkerExchange for Box<dyn WorkerExchange + Send> {
    fn learner(&mut self) -> Result<Option<LearnerState>> {
        (**self).learner()
    }
    fn claim(&mut self, profiles: &[String]) -> Result<Option<Job>> {
        (**self).claim(profiles)
    }
    fn is_wanted(&mut self, job: JobName) -> bool {
        (**self).is_wanted(job)
    }
    fn report(&mut self, status: &WorkerStatus) -> Result<()> {
        (**self).report(status)
    }
    fn complete(&mut self, result: &JobResult) -> Result<()> {
        (**self).complete(result)
    }
    fn give_back(&mut self, job: JobName) -> Result<()> {
        (**self).give_back(job)
    }
    fn wait(&mut self, at_most: Duration) {
        (**self).wait(at_most)
    }
}

/// What the learner tells everybody (`learner.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnerState {
    /// Of its process.
    pub pid: u32,
    /// Batches trained on.
    pub step: u64,
    /// Of the whole run.
    pub batches: u64,
    /// Groups of a batch.
    pub groups: u64,
    /// k.
    pub max_staleness: u64,
    /// Of the published version.
    pub lineage: Lineage,
    /// What the slots hold; the published version is the newest.
    pub slots: Vec<SlotState>,
    /// The run has ended: workers may end.
    pub ended: bool,
    /// The last checkpoint, and those that wait for their frontier.
    pub checkpoints: CheckpointStates,
    /// Workers that it knows of.
    #[serde(default)]
    pub workers: u64,
    /// Workers whose results it takes no more.
    #[serde(default)]
    pub expelled: Vec<WorkerName>,
    /// Counted since this learner started.
    pub counts: Counts,
    /// What else the caller tells its workers: where slots are mapped, which model and arithmetic. Opaque here.
    #[serde(default)]
    pub shared: serde_json::Value,
}

/// A slot of weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotState {
    /// Its first and last version (equal weights where steps were skipped); none while it is written.
    pub versions: Option<(u64, u64)>,
}

/// Checkpoints, as `status` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStates {
    /// The step of the last one that is complete.
    pub last: Option<u64>,
    /// Step, results that are there, results that it needs at least.
    pub waiting: Vec<(u64, usize, usize)>,
}

/// What happened to jobs, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Jobs offered once more after a worker ended, or a file was lost.
    pub remade: u64,
    /// Results of a job that was done, with the same bits.
    pub twice: u64,
    /// Results of a job that was done, with **other** bits.
    pub differing: u64,
    /// Results of other weights, or that nobody asked for.
    pub refused: u64,
    /// Files that could not be read.
    pub corrupt: u64,
    /// Workers killed because they stood still.
    pub killed: u64,
    /// Workers that ended without being asked to.
    pub died: u64,
    /// Workers that were expelled.
    #[serde(default)]
    pub expelled: u64,
}

/// What a worker tells about itself (`status.json`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Of its process.
    pub pid: u32,
    /// Counts the processes that had this name.
    pub incarnation: u64,
    /// Moves as long as it works or waits.
    pub progress: u64,
    /// The kinds of jobs that it takes; none: all.
    pub profiles: Vec<String>,
    /// What it works on, and what it does with each: sampling, scoring.
    #[serde(default)]
    pub jobs: Vec<(JobName, String)>,
    /// Jobs done.
    pub done: u64,
    /// Seconds that it worked, and that it waited for jobs.
    pub busy_s: f64,
    /// Seconds that it waited for jobs.
    pub idle_s: f64,
    /// It ended by itself.
    pub ended: bool,
    /// Processes of this name that could not work on, and said why in their log.
    #[serde(default)]
    pub failures: u64,
    /// The machine of a worker that has no files here, as its learner writes it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What else the caller reports: tokens per second. Opaque here.
    #[serde(default)]
    pub shared: serde_json::Value,
}
