//! Where the time of a run goes: nested spans with wall seconds, FLOPs and bytes.

use crate::{Table, TraceWriter};

/// Timers of a run; a clone is another handle to the same timers.
#[derive(Clone, Debug, Default)]
pub struct Stages {}

/// An open span; it ends when dropped.
#[derive(Debug)]
pub struct Span {}

impl Span {
    /// Adds work done inside.
    pub fn work(&mut self, _flops: f64, _bytes: f64) {
        unimplemented!()
    }
}

/// What this machine can do, measured: floating-point operations and bytes of memory traffic per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ceilings {
    /// FLOP/s.
    pub flops_per_s: Option<f64>,
    /// B/s.
    pub bytes_per_s: Option<f64>,
}

/// Totals of one stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTotal {
    /// Names from the outermost span to this one, joined by `/`.
    pub path: String,
    /// How many spans.
    pub count: u64,
    /// Wall seconds, nested spans included.
    pub seconds: f64,
    /// Floating-point operations, nested spans included.
    pub flops: f64,
    /// Bytes of memory traffic, nested spans included.
    pub bytes: f64,
}

impl Stages {
    /// Timers that start now; spans also go to `trace` if there is one.
    pub fn new(_trace: Option<TraceWriter>) -> Self {
        unimplemented!()
    }
    /// Opens a span inside the innermost open span of this thread.
    pub fn span(&self, _name: &'static str) -> Span {
        unimplemented!()
    }
    /// The totals since the last call (of one step), in the order of first appearance; the run's totals go on.
    pub fn take_step(&self) -> Vec<StageTotal> {
        unimplemented!()
    }
    /// The run so far.
    pub fn summary(&self) -> Summary {
        unimplemented!()
    }
}

/// The totals of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Wall seconds since the timers started.
    pub wall_s: f64,
    /// Totals in the order of first appearance.
    pub stages: Vec<StageTotal>,
}

impl Summary {
    /// Stage, seconds, share, GFLOP/s, GB/s.
    pub fn table(&self) -> Table {
        unimplemented!()
    }
    /// Which stage takes most, and what limits it, in words.
    pub fn bottleneck(&self, _ceilings: &Ceilings) -> String {
        unimplemented!()
    }
}
