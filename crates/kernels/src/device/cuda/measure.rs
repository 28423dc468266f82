//! Measurements on a device: free memory, elapsed time, and named ranges for profilers.

use super::driver::Event;
use super::nvtx::Nvtx;
use super::{Cuda, CudaStream};
use crate::Result;
use std::sync::Arc;

/// The memory of a device that has its own memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Total and free bytes of the device; `None` for a device that computes in the host's memory.
    pub total_and_free: Option<[u64; 2]>,
    /// The peak number of bytes that this process has allocated.
    pub peak: u64,
}

/// An event recorded in a device's stream. The event occurs when all previously enqueued work is done.
pub struct DeviceEvent {
    stream: Arc<CudaStream>,
    event: Event,
}

impl DeviceEvent {
    /// Seconds on the device from an `earlier` event to this one. Waits for this event.
    pub fn seconds_since(&self, earlier: &DeviceEvent) -> Result<f64> {
        self.stream.seconds(earlier.event, self.event)
    }
}

impl Drop for DeviceEvent {
    fn drop(&mut self) {
        self.stream.destroy_event(self.event);
    }
}

/// A named range of time that profilers show next to the device's work, until it is dropped.
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
    /// Begins a range named `name`; `None` if the profiler's library is missing.
    pub(crate) fn range(&self, name: &str) -> Option<Range> {
        let nvtx = Nvtx::get()?;
        Some(Range { id: nvtx.start(name), nvtx })
    }
}
