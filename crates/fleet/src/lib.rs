//! Learner, workers and supervisor: rollouts are made by other processes, which come, go and die, and the run has the
//! same bits. The protocol is a pure state machine, and how processes reach each other is behind a trait.
//!
//! **One formula.** Chunk c of batch b is sampled by the weights of version V(b, c) = clamp(b − k + c, 0, b)
//! ([`Plan::version`]; k = `max_staleness`, version b = the weights after b batches). So a job is a pure function of
//! its name: a lost one is made again to the same bits, whoever does it, and what is queued need not be kept. Only what
//! could have been otherwise is: the *batch files* (scores come from outside), synced before the update, and each
//! checkpoint's *frontier*, results of weights that are gone.
//!
//! For a learner: [`learner::Learner::open`], then [`learner::LearnerHandle::start`] and
//! [`learner::LearnerHandle::next_step`], which never waits longer than it is told. A [`learner::Feed`] says what a job
//! is; a [`learner::Step`] says what there is to do:
//!
//! ```text
//! Train(b, results)    → gradients; lock one of writable() that no reader pins; writing(slot);
//!                        optimizer; trained(true)
//! CommitCheckpoint(f)  → write f into the checkpoint that checkpoint() began, rename it,
//!                        committed(step)
//! Evaluated(v, results)  of evaluate(jobs), which samples with the weights of now
//! Warning, End
//! ```
//!
//! For a worker: [`worker::Worker::run`] with a [`worker::Work`]: payload in, bytes out. The work waits for the job's
//! version and pins it; weights are not this crate's. Payloads and results are opaque here. What must be equal in two
//! results of a job is the fingerprint in its [`Answer`]; the rest (a judge's score) may differ, and the first result
//! counts.
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
mod job;
#[cfg(unix)]
pub mod learner;
mod plan;
#[cfg(unix)]
pub mod status;
#[cfg(unix)]
pub mod supervisor;
pub mod worker;

#[cfg(test)]
mod search;

pub use error::{Error, Result};
pub use format::{batch_from_bytes, batch_to_bytes};
pub use job::{Answer, BatchDigest, Job, JobName, JobResult, Lineage, WorkerName, takes};
pub use plan::Plan;
