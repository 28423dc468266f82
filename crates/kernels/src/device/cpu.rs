//! The CPU backend: an instruction set and a pool of threads.

use super::Device;
use crate::cores::Lease;
use crate::pool::{Pool, Tasks};
use crate::{Error, Isa, Result};
use std::sync::Arc;

/// The backend for operations on the CPU. Accessing a tensor's elements requires the backend as an argument.
#[derive(Clone)]
pub(crate) struct Cpu {
    isa: Isa,
    pool: Arc<Pool>,
    device: Device,
}

impl Cpu {
    /// A backend with the instruction set `isa` and `threads` threads (including the caller's), for memory of `device`.
    pub(crate) fn new(isa: Isa, threads: usize, device: Device) -> Result<Cpu> {
        let pool = Pool::new(threads).map_err(|e| Error::Value {
            op: "threads",
            message: format!("cannot start {threads} threads: {e}; use fewer threads"),
        })?;
        Ok(Cpu { isa, pool: Arc::new(pool), device })
    }
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }
    /// Limits the backend to the cores that `lease` can reserve.
    pub(crate) fn share_cores(&self, lease: Lease) {
        self.pool.share(lease);
    }
    /// Releases the reserved cores; the next operation reserves cores again.
    pub(crate) fn release_cores(&self) {
        self.pool.release_cores();
    }
    /// Number of threads, including the caller's.
    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }
    /// The device whose memory this backend computes on.
    pub(crate) fn device(&self) -> Device {
        self.device
    }
    /// Runs tasks `0..count` of `tasks` on all threads and returns when all are done. Any thread may run any task.
    /// Tasks write disjoint outputs, and no sum runs across tasks, so the assignment does not change a bit.
    pub(crate) fn run<T: Tasks>(&self, count: usize, tasks: &T) {
        self.pool.run(self.isa, count, tasks);
    }
}
