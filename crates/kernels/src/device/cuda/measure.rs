//! Measurements on a device: free memory, elapsed time, and named ranges for profilers.

use super::driver::Event;
use super::nvtx::Nvtx;
use super::{Cuda, CudaStream};
use crate::Result;
use std::sync::Arc;

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device's memory, and how much of it nobody has allocated; none for a device that computes in the host's
    /// memory.
    pub total_and_free: Option<[u64; 2]>,
    /// The most that this process's allocations have held together.
    pub peak: u64,
}

/// A place in what a device does, which happens when all that was asked for before it has.
pub struct DeviceEvent {
    stream: Arc<CudaStream>,
    event: Event,
}

impl DeviceEvent {
    /// The device's seconds from an earlier event to this one, which is waited for.
    pub fn seconds_since(&self, earlier: &DeviceEvent) -> Result<f64> {
        self.stream.seconds(earlier.event, self.event)
    }
}

impl Drop for DeviceEvent {
    fn drop(&mut self) {
        self.stream.destroy_event(self.event);
    }
}

/// A range that profilers show beside what the device does, until it is dropped.
pub struct Range {
    nvtx: &'static Nvtx,
    id: u64,
}

impl Drop for Range {
    fn drop(&mut self) {
        self.nvtx.end(self.id);
    }
}

impl Cuda {
    pub(crate) fn memory(&self) -> Result<DeviceMemory> {
        Ok(DeviceMemory { total_and_free: self.stream.memory()?, peak: self.stream.peak()? })
    }
    pub(crate) fn record_event(&self) -> Result<DeviceEvent> {
        Ok(DeviceEvent { event: self.stream.event()?, stream: self.stream.clone() })
    }
    /// None where no profiler's library is.
    pub(crate) fn range(&self, name: &str) -> Option<Range> {
        let nvtx = Nvtx::get()?;
        Some(Range { id: nvtx.start(name), nvtx })
    }
}
