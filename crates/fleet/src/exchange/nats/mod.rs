//! An exchange over a NATS server with JetStream, for workers on other machines.
//!
//! ```text
//! LOCKSTEP_NAME_JOBS      lockstep.NAME.jobs.000123.0            offered; a work queue, one message for each job
//! LOCKSTEP_NAME_RESULTS   lockstep.NAME.results.dev1.000123.0    acknowledged once the batch file is synced
//! (no stream)             lockstep.NAME.state                    what the learner tells everybody, twice a second
//! (no stream)             lockstep.NAME.workers.dev1             what a worker does, with its progress counter
//! (no stream)             lockstep.NAME.control.dev1             jobs that are not wanted any more; a refused name
//! ```
//!
//! The server is never the truth. It acknowledges before it syncs, may be restarted, lose its store or be out of reach,
//! and all of that costs time alone: the learner compares what it has offered with what the server lists, and offers
//! again what is nowhere. Workers keep what they have made until the server has it. Every message names the run.
//!
//! Nobody sees whether a process of another machine lives. Who is not heard for [`SILENCE`] is taken for gone, without
//! blame: its jobs are offered again, and if it comes back its results are the same bits. The time in which the learner
//! itself has no server does not count.

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

/// Which server, and how it is reached.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Of the server, and the run's name there.
    pub address: Address,
    /// What the server asks for.
    pub token: Option<String>,
    /// The certificate of whoever signed the server's, for `tls://`; none: those of the system.
    pub certificates: Option<PathBuf>,
}

/// A worker that was not heard for so long is taken for gone.
pub const SILENCE: Duration = Duration::from_secs(10);
/// A message that was delivered, and of which nothing was heard for so long, is delivered again.
const ACK_WAIT: Duration = Duration::from_secs(15);
/// How often learner and workers say that they are there.
const BEAT: Duration = Duration::from_millis(400);
/// A worker's status is sent no more often.
const STATUS: Duration = Duration::from_millis(50);
/// An answer of the server that has not come by now does not come.
const ANSWER: Duration = Duration::from_secs(5);
/// Before something that failed is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// The run that a message belongs to.
const RUN: &str = "Lockstep-Run";
/// Which part of how many a message is, and the hash of the whole.
const PART: &str = "Lockstep-Part";
/// Unacknowledged messages of a consumer.
const MOST_PENDING: i64 = 1 << 20;

/// What the learner says on the subject `state`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Announced {
    /// Of the run, as long as it has its directory.
    run: String,
    /// Of this learner's process.
    learner: u64,
    host: String,
    /// The processes that have the workers' names.
    workers: BTreeMap<WorkerName, u64>,
    state: LearnerState,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Beat {
    /// Of its process.
    id: u64,
    host: String,
    status: WorkerStatus,
}

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Control {
    /// Nobody needs these jobs any more.
    Withdrawn(Vec<JobName>),
    /// Another process has the name: the process with this id must end.
    Refused(u64, String),
}

/// Names on the server.
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

    /// The job of a subject.
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

/// Whether the server is there and takes the token.
pub fn check(options: &NatsOptions) -> Result<()> {
    link::Link::connect(options, "lockstep").map(drop)
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "another machine".to_owned() } else { name.trim().to_owned() }
}

/// A number that no other process has.
fn number_of_process() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The hasher's keys are random; never 0, which stands for nobody.
    RandomState::new().hash_one(std::process::id()) | 1
}
