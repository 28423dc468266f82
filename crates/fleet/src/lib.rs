//! Distributed training: the protocol, the learner, the workers and the supervisor. Rollouts are produced by worker
//! processes, which may join, leave and die at any time without changing a bit of the run. The protocol is a pure state
//! machine, and the transport between processes is a trait.
//!
//! **One formula.** Chunk c of batch b is sampled with version V(b, c) = clamp(b − k + c, 0, b) of the weights
//! ([`Plan::version`]; k = `max_staleness`, and version b is the weights after b batches). So a job's tokens follow
//! from its name: any worker can redo a lost job with the same bits, and queued jobs need not be saved. Only two things
//! must be saved. *Batch files* contain scores, which are computed outside and may differ the second time; the files
//! are synced before the update. The *frontier* of each checkpoint contains results whose weights will be gone.
//!
//! For a learner: call [`learner::Learner::open`], then [`learner::LearnerHandle::start`], and then repeatedly
//! [`learner::LearnerHandle::next_notice`], which waits for a limited time. A [`learner::Feed`] supplies the content of
//! jobs. A [`learner::Notice`] tells the caller what to do:
//!
//! ```text
//! Train(b, results)    → training_began(); optimizer steps; trained(lineage of the weights)
//! Warning, Refused     → tell the user
//! ```
//!
//! For a checkpoint: call [`learner::Learner::frontier`] until it returns the results, write them into the checkpoint,
//! and call [`learner::Learner::committed`] when the checkpoint is complete.
//!
//! For a worker: call [`worker::Worker::run`] with a [`worker::Work`], which turns a payload into a result. The work
//! waits for the job's version of the weights and pins it. This crate handles no weights, and reads neither payloads
//! nor results. Two results of a job must have the same fingerprint in their [`Answer`]; everything else, such as an
//! external score, may differ, and the first result counts.
//!
//! Read first: [`coordinator`] (the rules), [`exchange`] and [`exchange::spool`] (files), [`learner`], [`worker`],
//! [`supervisor`], [`status`].

#[cfg(unix)]
pub mod batches;
pub mod blobs;
pub mod coordinator;
mod error;
pub mod exchange;
mod format;
mod ids;
mod job;
#[cfg(unix)]
pub mod learner;
#[cfg(unix)]
pub mod lock;
mod plan;
#[cfg(unix)]
pub mod status;
#[cfg(unix)]
pub mod supervisor;
pub mod worker;

#[cfg(test)]
mod search;
#[cfg(test)]
mod testing;

pub use error::{Error, Result};
pub use format::{batch_from_bytes, batch_to_bytes};
pub use ids::{BatchId, GroupId, Version};
pub use job::{Answer, Job, JobName, JobResult, Lineage, WorkerName, takes};
pub use plan::{Continued, Plan};
