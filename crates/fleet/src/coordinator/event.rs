//! The coordinator's input and output: the events that it receives and the actions that it requests.

use crate::ids::{BatchId, Version};
use crate::job::{Answer, JobName, Lineage, WorkerName};
use std::collections::BTreeMap;

/// An event that the coordinator receives. Events from workers may be late, repeated or lost, and may come in any
/// order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// All state that survived an earlier learner has been reported. The coordinator may now offer jobs.
    Recovered,
    /// A worker has joined and is ready for jobs.
    Joined(WorkerName),
    /// A worker has ended.
    Ended {
        /// The worker.
        worker: WorkerName,
        /// The way in which the worker ended.
        how: HowEnded,
    },
    /// A worker is expelled because one of its results was wrong. It gets no further jobs, and the listed results are
    /// recomputed. They must not belong to a batch that the learner has begun to train on.
    Expelled(WorkerName, Vec<JobName>),
    /// A worker's progress counter has changed.
    Progress(WorkerName),
    /// This many milliseconds have passed, on a monotonic clock.
    Tick(u64),
    /// A worker has taken a job.
    Claimed(WorkerName, JobName),
    /// A worker has returned a job without a result.
    Returned {
        /// The worker.
        worker: WorkerName,
        /// The job.
        job: JobName,
        /// True if the worker failed to do the job.
        faulty: bool,
    },
    /// An offered job has disappeared, or its result cannot be read.
    Lost(JobName),
    /// A result has arrived.
    Result {
        /// The worker that produced it.
        worker: WorkerName,
        /// The job.
        job: JobName,
        /// The lineage of the weights that sampled it.
        lineage: Lineage,
        /// The part of the result that the protocol depends on.
        answer: Answer,
    },
    /// This worker's result does not answer its job, although the coordinator [would
    /// accept](super::Coordinator::accepts) it. The job is done again.
    Refused(WorkerName, JobName),
    /// The learner cannot train on this batch: some results do not answer their jobs, or are missing. They are
    /// recomputed, and so are all results sampled with weights trained on the batch.
    TakenBack {
        /// The batch. It must not have been trained on yet.
        batch: BatchId,
        /// The results to recompute. Later chunks of their groups are recomputed, too.
        jobs: Vec<JobName>,
        /// Results that the checkpoint contains because their weights are gone.
        saved: BTreeMap<JobName, Answer>,
    },
    /// The file of a batch has been written and synced to disk.
    Synced(BatchId),
    /// The learner begins to train on the batch of [`Action::Train`]. From now on its results cannot be taken back.
    TrainingBegan,
    /// The batch's last optimizer step is done, and weights of this lineage are published.
    Trained(Lineage),
    /// A stalled worker cannot be killed.
    Unreachable(WorkerName),
}

/// The way in which a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HowEnded {
    /// The worker was told to end, or the run was over.
    Asked,
    /// The worker could not continue, and gave a reason.
    Failed,
    /// The worker gave no reason: a user or the out-of-memory killer killed it.
    Vanished,
}

/// An action that the coordinator requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Put a job where workers find it. Repeating this must not create a second copy of the job.
    Offer {
        /// The job.
        job: JobName,
        /// The version of the weights that must sample it.
        version: Version,
        /// The lineage of these weights.
        lineage: Lineage,
        /// For a later chunk: the fingerprint of the answer to the previous chunk.
        continues: Option<u64>,
        /// True if the worker must not do other jobs at the same time.
        alone: bool,
    },
    /// Take a job away from a worker that has ended.
    Release(WorkerName, JobName),
    /// A job is not needed any more. A worker that is doing the job may stop.
    Withdraw(JobName),
    /// Keep this worker's result. Other results of the job are not needed.
    Accept(WorkerName, JobName),
    /// Delete this worker's result of the job.
    Drop(WorkerName, JobName, Dropped),
    /// Kill a stalled worker. The request is repeated until the worker makes progress.
    Kill(WorkerName),
    /// Write a batch file with these results, sync file and directory, and answer with [`Event::Synced`].
    SyncBatch(BatchId, Vec<JobName>),
    /// These results are in a synced file or have been used, so they may be deleted.
    Acknowledge(Vec<JobName>),
    /// Train on this batch.
    Train(BatchId),
    /// Tell the workers about this version of the weights.
    Publish(Version),
    /// The run cannot continue: it needs this job, but the weights for it are gone.
    Gone(JobName, Version),
    /// The run cannot continue: this many workers in a row ended while doing this job, in this way.
    Fail(JobName, u32, HowEnded),
    /// The run has ended; workers may end.
    End,
}

/// The reason why a result was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// The job was already done, with the same bits.
    Twice,
    /// The job was already done, with **different** bits. The hardware is faulty, or a worker returns wrong results.
    Differs,
    /// The result was sampled with weights of a different lineage.
    Lineage,
    /// The job was not offered, or its batch is too old to be tracked.
    NotAsked,
    /// The worker that produced it was expelled.
    Expelled,
}

/// The fleet's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saved {
    /// The version of the weights in the checkpoint. For a checkpoint in the middle of a batch, this is the version at
    /// the start of that batch, and the batch's results are in the frontier.
    pub version: Version,
    /// Whether the checkpoint was taken in the middle of a batch. Then all versions in `lineages` are gone, and the
    /// next published version is the one after the batch.
    pub in_batch: bool,
    /// The lineages of this version and of older versions; results sampled with them may still arrive.
    pub lineages: BTreeMap<Version, Lineage>,
    /// Results sampled with weights that will be gone after a resume. The checkpoint must contain their bytes.
    pub frontier: BTreeMap<JobName, Answer>,
}

/// The answers in a batch file that existed when the learner started, by job.
pub type SyncedBatch = BTreeMap<JobName, Answer>;
