//! What a device with memory and time of its own was asked for in a span, and the seconds that it took.

use std::fmt::Debug;

/// What a device did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceWork {
    /// Kernels that were launched.
    pub launches: u64,
    /// Copies to it.
    pub copies_in: u64,
    /// Copies from it.
    pub copies_out: u64,
    /// How often the host waited for it.
    pub waits: u64,
    /// Seconds on the device, from the beginning to the end of what was launched.
    pub seconds: f64,
}

impl DeviceWork {
    pub(super) fn add(&mut self, other: DeviceWork) {
        self.launches += other.launches;
        self.copies_in += other.copies_in;
        self.copies_out += other.copies_out;
        self.waits += other.waits;
        self.seconds += other.seconds;
    }

    /// Whether there was any.
    pub fn is_any(&self) -> bool {
        self.launches + self.copies_in + self.copies_out + self.waits > 0
    }
}

/// Reads a device where spans open and close.
pub trait DeviceMeter: Debug + Send {
    /// The span of this number opens.
    fn open(&mut self, span: u64, name: &str);
    /// Ends the span: what was launched on the device during it. The seconds are not known yet.
    fn close(&mut self, span: u64) -> DeviceWork;
    /// The seconds of the spans that have closed since this was last asked. Waits for the device.
    fn seconds(&mut self) -> Vec<(u64, f64)>;
}
