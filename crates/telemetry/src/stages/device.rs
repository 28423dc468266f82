//! The work of a separate device (such as a GPU) during a span: launches, copies and seconds.

use std::fmt::Debug;

/// The work of a separate device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceWork {
    /// Number of kernels launched.
    pub launches: u64,
    /// Number of copies from the host to the device.
    pub copies_in: u64,
    /// Number of copies from the device to the host.
    pub copies_out: u64,
    /// The number of times that the host waited for the device.
    pub waits: u64,
    /// Seconds between the beginning and the end of the launched work, by the device's clock.
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

    /// Whether the device did any work.
    pub fn is_any(&self) -> bool {
        self.launches + self.copies_in + self.copies_out + self.waits > 0
    }
}

/// Measures a device's work in each span.
pub trait DeviceMeter: Debug + Send {
    /// Called when the span with index `span` opens.
    fn open(&mut self, span: u64, name: &str);
    /// Called when a span closes. Returns the work launched on the device during the span. Its seconds are not known
    /// yet.
    fn close(&mut self, span: u64) -> DeviceWork;
    /// Returns the seconds on the device of each span that has closed since the last call. Waits for the device.
    fn seconds(&mut self) -> Vec<(u64, f64)>;
}
