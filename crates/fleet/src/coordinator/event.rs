//! The coordinator's input and output: the events that it receives, and the actions that it requests.

use crate::ids::{BatchId, Version};
use crate::job::{Answer, JobName, Lineage, WorkerName};
use std::collections::BTreeMap;

/// An event that the coordinator receives. Events from workers may be late, repeated or lost, and may come in any
/// order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The coordinator has been told everything that survived an earlier learner. It may offer jobs from now on.
    Recovered,
    /// A worker has joined and waits for jobs.
    Joined(WorkerName),
    /// A worker has ended.
    Ended {
        /// The worker.
        worker: WorkerName,
        /// How it ended.
        how: HowEnded,
    },
    /// A worker is expelled because one of its results was wrong. It does not get further jobs, and the listed results
    /// are made again. None of them belongs to a batch that the learner has begun to train on.
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
        /// True if the worker could not do it.
        faulty: bool,
    },
    /// A job that was offered cannot be found any more, or its result cannot be read.
    Lost(JobName),
    /// A result has arrived.
    Result {
        /// The worker that made it.
        worker: WorkerName,
        /// The job.
        job: JobName,
        /// The lineage of the weights that sampled it.
        lineage: Lineage,
        /// The part of the result on which decisions depend.
        answer: Answer,
    },
    /// A result of this worker that the coordinator [would accept](super::Coordinator::accepts) is not an answer to the
    /// job, which is done again.
    Refused(WorkerName, JobName),
    /// The learner cannot train on this batch: these results are not answers to their jobs, or results are missing.
    /// They are made again, and so are all results sampled with weights trained on the batch.
    TakenBack {
        /// The batch, which is not trained on yet.
        batch: BatchId,
        /// The results that are made again; later chunks of their groups are, too.
        jobs: Vec<JobName>,
        /// Results in the checkpoint, since their weights are gone.
        saved: BTreeMap<JobName, Answer>,
    },
    /// The file of a batch has been written and synced to disk.
    Synced(BatchId),
    /// The learner begins to train on the batch that [`Action::Train`] named: its results can no longer be taken back.
    TrainingBegan,
    /// The batch's last optimizer step is done, and weights of this lineage are published.
    Trained(Lineage),
    /// A stalled worker cannot be killed.
    Unreachable(WorkerName),
}

/// The way in which a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HowEnded {
    /// The worker was told to end, or the run had ended.
    Asked,
    /// The worker could not continue, and gave a reason.
    Failed,
    /// The worker gave no reason: it was killed, by a user or because memory was short.
    Vanished,
}

/// An action that the coordinator requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Put a job where workers find it. If this is repeated, the job is still there only once.
    Offer {
        /// The job.
        job: JobName,
        /// The version of the weights that must sample it.
        version: Version,
        /// The lineage of these weights.
        lineage: Lineage,
        /// For a later chunk: the fingerprint of the answer to the previous chunk.
        continues: Option<u64>,
        /// True if the worker must do no other job at the same time.
        alone: bool,
    },
    /// Take a job away from a worker that has ended.
    Release(WorkerName, JobName),
    /// A job is no longer needed; a worker that is doing it may stop.
    Withdraw(JobName),
    /// Keep this worker's result of the job. Other results of the job are not needed.
    Accept(WorkerName, JobName),
    /// Delete this worker's result of the job.
    Drop(WorkerName, JobName, Dropped),
    /// Kill a stalled worker. The request is repeated until the worker makes progress.
    Kill(WorkerName),
    /// Write a batch file with these results, sync file and directory, and answer with [`Event::Synced`].
    SyncBatch(BatchId, Vec<JobName>),
    /// These results are in a synced file or were used, so they may be deleted.
    Acknowledge(Vec<JobName>),
    /// Train on this batch.
    Train(BatchId),
    /// Tell the workers of this version of the weights.
    Publish(Version),
    /// The run cannot continue: it needs this job, and the job's version of the weights is gone.
    Gone(JobName, Version),
    /// The run cannot continue: this many workers in a row ended on this job, in this way.
    Fail(JobName, u32, HowEnded),
    /// The run has ended; workers may end.
    End,
}

/// The reason why a result was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// The job was already done, with the same bits.
    Twice,
    /// The job was already done, with **different** bits. Hardware is faulty, or a worker lies.
    Differs,
    /// The result was made with weights of another lineage.
    Lineage,
    /// The job was not offered, or its batch is long past.
    NotAsked,
    /// The worker that made it was expelled.
    Expelled,
}

/// The fleet's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saved {
    /// The version of the weights in the checkpoint. If the checkpoint was taken in the middle of a batch: the version
    /// at the start of that batch; the batch's results are in the frontier.
    pub version: Version,
    /// Whether the checkpoint was taken in the middle of a batch. Then the versions that it names are all gone, and the
    /// next published version is the one after the batch.
    pub in_batch: bool,
    /// The lineages of this version, and of older ones from which results may still come.
    pub lineages: BTreeMap<Version, Lineage>,
    /// Results that only older weights could make, which will be gone. Their bytes must be in the checkpoint.
    pub frontier: BTreeMap<JobName, Answer>,
}

/// The answers in a batch file that exists when a learner starts, by job.
pub type SyncedBatch = BTreeMap<JobName, Answer>;
