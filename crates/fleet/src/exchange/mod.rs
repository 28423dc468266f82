//! The transport between learner and workers: memory, a spool directory, or NATS. An exchange may lose, repeat and
//! delay messages. All decisions are made by the coordinator.
//!
//! With NATS JetStream, `offer` publishes to a work-queue stream, `claim` pulls from it, `report` sends `InProgress`,
//! `complete` publishes the result, and the learner acknowledges a result after its batch file is synced
//! (`acknowledge`).

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
use crate::ids::{BatchId, GroupId, Version};
use crate::job::{Job, JobName, JobResult, Lineage, WorkerName};
use crate::plan::Continued;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Sleeps until something may have happened in an exchange, or until the given time has passed.
pub type Waiter = Box<dyn FnMut(Duration) + Send>;

/// The learner's side of an exchange.
pub trait Exchange {
    /// Publishes the learner's state to the workers.
    fn announce(&mut self, state: &LearnerState) -> Result<()>;
    /// Puts a job where workers find it.
    fn offer(&mut self, job: &Job) -> Result<()>;
    /// Takes a job away from a worker that has ended.
    fn release(&mut self, worker: &WorkerName, job: JobName) -> Result<()>;
    /// Withdraws a job that is not needed any more.
    fn withdraw(&mut self, job: JobName) -> Result<()>;
    /// Returns the result that an [`Event::Result`] reported. The exchange keeps it until [`Exchange::acknowledge`].
    fn take(&mut self, worker: &WorkerName, job: JobName) -> Option<JobResult>;
    /// Deletes a result that will not be used.
    fn discard(&mut self, worker: &WorkerName, job: JobName) -> Result<()>;
    /// Deletes results that are in a synced batch file.
    fn acknowledge(&mut self, jobs: &[JobName]) -> Result<()>;
    /// Kills a stalled worker. Returns false if the worker cannot be killed; then
    /// [`take_problems`](Self::take_problems) returns the reason.
    fn kill(&mut self, worker: &WorkerName) -> Result<bool>;
    /// The events since the last call.
    fn poll(&mut self) -> Result<Vec<Event>>;
    /// A function that sleeps until something may have happened, or until the given time has passed.
    fn waiter(&self) -> Result<Waiter>;
    /// The problems since the last call, such as results that could not be read, with the reasons.
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
    fn kill(&mut self, worker: &WorkerName) -> Result<bool> {
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

/// A worker's side of an exchange.
pub trait WorkerExchange {
    /// The state of the learner, if there is one.
    fn learner(&mut self) -> Result<Option<LearnerState>>;
    /// Takes a job with one of these profiles (any profile if the list is empty).
    fn claim(&mut self, profiles: &[String]) -> Result<Option<Job>>;
    /// Whether this worker still has the job: no other worker took it, and the learner did not withdraw it.
    fn is_wanted(&mut self, job: JobName) -> bool;
    /// Reports the worker's status. Its progress counter must change as long as the worker runs.
    fn report(&mut self, status: &WorkerStatus) -> Result<()>;
    /// Returns a result to the learner. After an error it may be called again.
    fn complete(&mut self, result: &JobResult) -> Result<()>;
    /// Returns a job without a result.
    fn give_back(&mut self, job: JobName) -> Result<()>;
    /// Waits until there may be a job, or until the given time has passed.
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

/// The learner's state that it publishes to all workers (`learner.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnerState {
    /// The process number of the learner.
    pub pid: u32,
    /// The number of learner processes that the run has had, if the exchange counts them.
    #[serde(default)]
    pub incarnation: u64,
    /// The current batch: it is trained on now or next. All earlier batches have been trained on.
    #[serde(rename = "step")]
    pub batch: BatchId,
    /// Batches in the whole run.
    pub batches: u64,
    /// Groups in each batch.
    pub groups: u64,
    /// k, the maximum age of the sampling weights in batches.
    pub max_staleness: u64,
    /// The point from which the run continues.
    #[serde(default)]
    pub continued: Continued,
    /// The lineage of the published version.
    pub lineage: Lineage,
    /// True if the run has ended. Workers may then end, too.
    pub ended: bool,
    /// The last checkpoint, and the checkpoint that waits for its frontier.
    pub checkpoints: CheckpointStates,
    /// The number of workers that the learner knows.
    #[serde(default)]
    pub workers: u64,
    /// Expelled workers. Their results are refused.
    #[serde(default)]
    pub expelled: Vec<WorkerName>,
    /// Counts of events since this learner started.
    pub counts: Counts,
    /// Further information for workers, such as the paths of the weight slots, the model and the arithmetic. The fleet
    /// does not read it.
    #[serde(default)]
    pub shared: serde_json::Value,
}

impl LearnerState {
    /// The batch to which a group belongs. Works for a corrupt state with 0 groups, too.
    pub fn batch_of(&self, group: GroupId) -> BatchId {
        BatchId(group.0 / self.groups.max(1))
    }
}

/// Checkpoints, as `lockstep status` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStates {
    /// The version of the weights in the last complete checkpoint.
    pub last: Option<Version>,
    /// The checkpoint that waits for its frontier, if any: its version, the number of results that have arrived, and
    /// the minimum number that it needs.
    pub waiting: Vec<(Version, usize, usize)>,
}

/// Counts of events related to jobs and workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Jobs that were offered again after a worker ended or a file was lost.
    pub remade: u64,
    /// Duplicate results of a job with the same bits.
    pub twice: u64,
    /// Duplicate results of a job with **different** bits.
    pub differing: u64,
    /// Results that were refused: sampled with the wrong weights, for jobs that were not offered, or by expelled
    /// workers.
    pub refused: u64,
    /// Job and result files that could not be read.
    pub corrupt: u64,
    /// Stalled workers that were killed.
    pub killed: u64,
    /// Workers that ended without being told to.
    pub died: u64,
    /// Workers that were expelled.
    #[serde(default)]
    pub expelled: u64,
}

/// The status that a worker reports (`status.json`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The process number of the worker.
    pub pid: u32,
    /// The number of processes that have used this worker name, including this one.
    pub incarnation: u64,
    /// A counter that changes as long as the worker works or waits.
    pub progress: u64,
    /// The sampling profiles whose jobs the worker takes; empty for all.
    pub profiles: Vec<String>,
    /// The worker's jobs, each with its current activity, such as sampling or scoring.
    #[serde(default)]
    pub jobs: Vec<(JobName, String)>,
    /// The number of completed jobs.
    pub done: u64,
    /// Seconds spent working.
    pub busy_s: f64,
    /// Seconds spent waiting for jobs.
    pub idle_s: f64,
    /// True if the worker reported its end.
    pub ended: bool,
    /// The number of processes with this name that failed and logged a reason.
    #[serde(default)]
    pub failures: u64,
    /// The machine of a worker on another host. The learner fills this in, since a worker on another host does not have
    /// files here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Further values, such as tokens per second. The fleet does not read them.
    #[serde(default)]
    pub shared: serde_json::Value,
}
