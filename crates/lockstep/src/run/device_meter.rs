//! Measures a GPU's work in each stage of a run: kernel launches, copies and waits counted by the device queue, seconds
//! between device events, and ranges for profilers.

use super::reporter::Reporter;
use kernels::{Context, Copies, DeviceEvent, Range};
use std::collections::HashMap;
use std::fmt;
use telemetry::{DeviceMeter, DeviceWork, StageTotal, Stages};

/// The stage timers of a run on `ctx`, with a device meter on a GPU.
pub fn stages(reporter: &Reporter, ctx: &Context) -> Stages {
    let stages = Stages::new(reporter.sinks().clone());
    match ContextMeter::of(ctx) {
        Some(meter) => stages.with_device(meter),
        None => stages,
    }
}

/// Adds to a step's metrics the peak memory of the process since planning, and the device's work in each stage:
/// `device/<stage>/time_s`, `launches`, `copies_in`, `copies_out`, `waits`, and `device/peak_bytes`.
pub fn report(reporter: &mut Reporter, stages: &[StageTotal], ctx: &Context) {
    if let Some(peak) = telemetry::system::peak_rss_bytes() {
        reporter.set("peak_bytes", peak as f64);
    }
    for stage in stages.iter().filter(|stage| stage.device.is_any()) {
        let DeviceWork { launches, copies_in, copies_out, waits, seconds } = stage.device;
        let counts = [("launches", launches), ("copies_in", copies_in), ("copies_out", copies_out), ("waits", waits)];
        reporter.add(&format!("device/{}/time_s", stage.path), seconds);
        for (name, count) in counts {
            reporter.add(&format!("device/{}/{name}", stage.path), count as f64);
        }
    }
    if let Ok(Some(memory)) = ctx.device_memory() {
        reporter.set("device/peak_bytes", memory.peak as f64);
    }
}

/// Measures the work of a context's device from the start to the end of a stage.
struct ContextMeter {
    ctx: Context,
    open: HashMap<u64, Open>,
    closed: Vec<(u64, DeviceEvent, DeviceEvent)>,
}

struct Open {
    copies: Copies,
    begin: Option<DeviceEvent>,
    _range: Option<Range>,
}

impl ContextMeter {
    /// `None` for a device without its own memory and clock, such as the CPU.
    fn of(ctx: &Context) -> Option<ContextMeter> {
        let ctx = ctx.memory().device().is_cuda().then(|| ctx.clone())?;
        Some(ContextMeter { ctx, open: HashMap::new(), closed: Vec::new() })
    }

    /// Records a device event. `None` if the device has failed; the next operation on it then reports the error.
    fn mark(&self) -> Option<DeviceEvent> {
        self.ctx.record_event().ok().flatten()
    }
}

impl fmt::Debug for ContextMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextMeter").field("device", &self.ctx.describe()).finish_non_exhaustive()
    }
}

impl DeviceMeter for ContextMeter {
    fn open(&mut self, span: u64, name: &str) {
        let range = self.ctx.range(name);
        let open = Open { copies: self.ctx.memory().copies(), begin: self.mark(), _range: range };
        self.open.insert(span, open);
    }

    fn close(&mut self, span: u64) -> DeviceWork {
        let Some(open) = self.open.remove(&span) else { return DeviceWork::default() };
        if let (Some(begin), Some(end)) = (open.begin, self.mark()) {
            self.closed.push((span, begin, end));
        }
        let Copies { to_device, to_host, launches, waits, .. } = self.ctx.memory().copies() - open.copies;
        DeviceWork { launches, copies_in: to_device, copies_out: to_host, waits, seconds: 0.0 }
    }

    fn seconds(&mut self) -> Vec<(u64, f64)> {
        let closed = std::mem::take(&mut self.closed);
        closed.into_iter().filter_map(|(span, begin, end)| Some((span, end.seconds_since(&begin).ok()?))).collect()
    }
}
