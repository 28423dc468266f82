//! An exchange over a NATS server with JetStream, for workers on other machines.
//!
//! ```text
//! LOCKSTEP_NAME_JOBS      lockstep.NAME.jobs.000123.0            offered; a work queue, one message for each job
//! LOCKSTEP_NAME_RESULTS   lockstep.NAME.results.dev1.000123.0    acknowledged once the batch file is synced
//! (no stream)             lockstep.NAME.state                    the learner's state, twice a second
//! (no stream)             lockstep.NAME.workers.dev1             a worker's status, with its progress counter
//! (no stream)             lockstep.NAME.control.dev1             jobs to withdraw; a refused name
//! ```
//!
//! The run does not depend on the server's data. The server acknowledges before it syncs, and it may be restarted, lose
//! its data or become unreachable; all of that costs only time. The learner compares its offered jobs with the server's
//! list, and offers missing jobs again. Workers keep their results until the server has them. A stream that does not
//! answer is deleted, so that the learner recreates it. Every message carries the run's identifier.
//!
//! Whether a process on another machine is alive cannot be observed directly. A worker that has been silent for
//! [`SILENCE`] is considered gone, but not failed: its jobs are offered again, and if it comes back, its results have
//! the same bits. Time during which the learner itself is disconnected is ignored.

mod address;
mod inbox;
mod learner;
mod link;
mod worker;

pub use address::Address;
pub use learner::NatsLearner;
pub use worker::{LearnerWatch, NatsWorker};

use super::{LearnerState, WorkerStatus};
use crate::error::Result;
use crate::job::{JobName, WorkerName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The address and credentials of a NATS server.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// The address of the server, with the name of the run.
    pub address: Address,
    /// The token that the server requires.
    pub token: Option<String>,
    /// A file with the certificate authority that signed the server's certificate, for `tls://`; `None` uses the
    /// system's certificates.
    pub certificates: Option<PathBuf>,
}

/// A worker that has been silent for this long is considered gone.
pub const SILENCE: Duration = Duration::from_secs(10);
/// The server delivers a message again if its receiver has not responded for this long.
const ACK_WAIT: Duration = Duration::from_secs(15);
/// The interval between heartbeats of learner and workers.
const BEAT: Duration = Duration::from_millis(400);
/// The minimum time between two status messages of a worker.
const STATUS: Duration = Duration::from_millis(50);
/// The timeout of a request to the server.
const ANSWER: Duration = Duration::from_secs(5);
/// The pause before a failed operation is retried.
const PAUSE: Duration = Duration::from_millis(200);
/// A stream that does not answer this many requests in a row is deleted, and the learner creates the stream again.
/// nats-server 2.9.10, restarted on an emptied store, sometimes has a stream that accepts messages but never delivers
/// any.
const UNANSWERED: usize = 10;
/// The message header with the run's identifier.
const RUN: &str = "Lockstep-Run";
/// The message header for a result that was split into several messages: index and number of the part, and the hash of
/// the whole result.
const PART: &str = "Lockstep-Part";
/// The maximum number of unacknowledged messages of a consumer.
const MOST_PENDING: i64 = 1 << 20;

/// The learner's message on the subject `state`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Announced {
    /// The run's identifier, which stays the same as long as the run's directory exists.
    run: String,
    /// The identifier of the learner's process.
    learner: u64,
    host: String,
    /// For each worker name, the identifier of the process that uses it.
    workers: BTreeMap<WorkerName, u64>,
    state: LearnerState,
}

/// A worker's heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Beat {
    /// The identifier of the worker's process.
    id: u64,
    host: String,
    status: WorkerStatus,
}

/// A learner's message to one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Control {
    /// These jobs are not needed any more.
    Withdrawn(Vec<JobName>),
    /// Another process uses the worker's name. The process with this identifier must end, for the given reason.
    Refused(u64, String),
}

/// The names of a run's streams and subjects on the server.
#[derive(Clone, Debug)]
struct Names {
    prefix: String,
    jobs: String,
    results: String,
}

impl Names {
    fn of(address: &Address) -> Names {
        let name = address.name();
        Names {
            prefix: format!("lockstep.{name}"),
            jobs: format!("LOCKSTEP_{name}_JOBS"),
            results: format!("LOCKSTEP_{name}_RESULTS"),
        }
    }

    fn state(&self) -> String {
        format!("{}.state", self.prefix)
    }

    fn all_jobs(&self) -> String {
        format!("{}.jobs.>", self.prefix)
    }

    fn job(&self, job: JobName) -> String {
        format!("{}.jobs.{job}", self.prefix)
    }

    /// The job to which a subject belongs.
    fn job_of(&self, subject: &str) -> Option<JobName> {
        subject.strip_prefix(&self.prefix)?.strip_prefix(".jobs.")?.parse().ok()
    }

    fn all_results(&self) -> String {
        format!("{}.results.>", self.prefix)
    }

    fn result(&self, worker: &WorkerName, job: JobName) -> String {
        format!("{}.results.{worker}.{job}", self.prefix)
    }

    fn worker(&self, worker: &str) -> String {
        format!("{}.workers.{worker}", self.prefix)
    }

    fn control(&self, worker: &WorkerName) -> String {
        format!("{}.control.{worker}", self.prefix)
    }
}

/// Checks that the server can be reached and accepts the token.
pub fn check(options: &NatsOptions) -> Result<()> {
    link::Link::connect(options, "lockstep").map(drop)
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "another machine".to_owned() } else { name.trim().to_owned() }
}

/// A random number that identifies this process.
fn number_of_process() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The hasher's keys are random. The identifier is never 0, which means no process.
    RandomState::new().hash_one(std::process::id()) | 1
}

#[cfg(test)]
mod tests;
