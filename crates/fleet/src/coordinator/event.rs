//! What the coordinator is told, and what it asks for.

use crate::job::{Answer, BatchDigest, JobName, Lineage, WorkerName};
use std::collections::BTreeMap;

/// Something that happened. Messages may be late, repeated or lost: the order of events from workers is not relied on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// What survived an earlier learner was told: jobs may be offered now.
    Begin,
    /// A worker waits for jobs.
    Joined(WorkerName),
    /// A worker ended.
    Ended {
        /// Who.
        worker: WorkerName,
        /// How.
        how: HowEnded,
    },
    /// A result of this worker is not what its job gives: it gets no job any more, and these results of its are made
    /// again. None of them is of a batch whose slot is being written.
    Expelled(WorkerName, Vec<JobName>),
    /// A worker's progress counter has moved.
    Progress(WorkerName),
    /// So many ms passed, on a clock that only goes forward.
    Tick(u64),
    /// A worker has taken a job.
    Claimed(WorkerName, JobName),
    /// A worker has given a job back undone; `faulty` if it could not do it.
    Returned {
        /// Who.
        worker: WorkerName,
        /// Which job.
        job: JobName,
        /// The work failed.
        faulty: bool,
    },
    /// A job that was offered is nowhere any more, or its result cannot be read.
    Lost(JobName),
    /// A result.
    Result {
        /// Who made it.
        worker: WorkerName,
        /// Which job.
        job: JobName,
        /// Of the weights that sampled it.
        lineage: Lineage,
        /// What of it decides something.
        answer: Answer,
    },
    /// A batch file is on the disk, and stays there whatever dies.
    Synced(u64, BatchDigest),
    /// A slot is locked and will be overwritten: one of [`super::Coordinator::writable`] that no reader pins.
    Writing(usize),
    /// The batch's last optimizer step is done. Not `written`: it was skipped (not finite), and the old weights stay.
    Trained {
        /// The slot holds new weights.
        written: bool,
    },
    /// A checkpoint of the weights of now is being written.
    Checkpoint,
    /// Evaluate the weights of now, in so many jobs.
    Evaluate(u32),
    /// Take no further step: a checkpoint of the weights of now, then the end.
    Stop,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HowEnded {
    /// It was asked to, or the run had ended.
    Asked,
    /// It could not work on, and said why.
    Failed,
    /// Without a word: it was killed, by somebody or because memory was short.
    Vanished,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Put a job where a worker finds it. Done twice it is there once.
    Offer {
        /// Which.
        job: JobName,
        /// The weights that sample it.
        version: u64,
        /// Where they come from.
        lineage: Lineage,
        /// Of a later chunk: the fingerprint of the answer to the chunk before.
        continues: Option<u64>,
        /// Its worker does no other job beside it.
        alone: bool,
    },
    /// A job of a worker that ended is no longer its.
    Release(WorkerName, JobName),
    /// Nobody needs to work on this job any more; who does may stop.
    Withdraw(JobName),
    /// Keep this worker's result of the job; others are not needed.
    Accept(WorkerName, JobName),
    /// Delete this worker's result of the job.
    Drop(WorkerName, JobName, Dropped),
    /// End a worker that stands still. It is asked for again for as long as it stands still.
    Kill(WorkerName),
    /// Write the batch file with these results, sync file and directory, and answer [`Event::Synced`].
    SyncBatch(u64, Vec<JobName>),
    /// Results that are in a synced file, or were used: whoever keeps them may delete them.
    Acknowledge(Vec<JobName>),
    /// Train on a batch.
    Train(u64),
    /// The weights of a version lie in this slot: tell the workers.
    Publish {
        /// Its number.
        version: u64,
        /// Where it lies.
        slot: usize,
        /// Where it comes from.
        lineage: Lineage,
    },
    /// Whatever the weights before this checkpoint had to sample is there: write it into the checkpoint and rename it.
    CommitCheckpoint(Saved),
    /// All results of an evaluation are there, in the order of their indices.
    Evaluated(u64, Vec<JobName>),
    /// The run cannot proceed: so many workers ended on this job, one after another, and in this way.
    Fail(JobName, u32, HowEnded),
    /// All is done: workers may end.
    End,
}

/// Why a result was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// The job was done, with the same bits.
    Twice,
    /// The job was done, with **other** bits: an alarm. Hardware, or somebody lies.
    Differs,
    /// Of other weights than this run's.
    Lineage,
    /// Nobody asked for it, or its batch is long past.
    NotAsked,
    /// Whoever made it was expelled.
    Expelled,
}

/// The part of a checkpoint that is the fleet's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saved {
    /// Batches that the weights have learned from.
    pub step: u64,
    /// Of this version and of older ones that results may still come from.
    pub lineages: BTreeMap<u64, Lineage>,
    /// Results that only older weights could make, which will be gone. Their bytes must be in the checkpoint.
    pub frontier: BTreeMap<JobName, Answer>,
}

/// A batch file that is there at a restart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SyncedBatch {
    /// Its hash.
    pub digest: BatchDigest,
    /// Its results.
    pub answers: BTreeMap<JobName, Answer>,
}
