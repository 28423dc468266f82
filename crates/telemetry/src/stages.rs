//! Profiles a training run: nested spans with wall seconds, FLOPs and bytes of memory traffic.
//!
//! [`Stages::span`] opens a span, which ends when it is dropped. Spans that the same thread opens meanwhile are nested
//! in it, and their numbers are included in the outer span's. Totals are kept for each path of names
//! (`step/rollout/prefill`), for the current step and for the whole run. This file does not depend on kernels: callers
//! count FLOPs and bytes, and a stage without counts shows a dash. [`Summary::bottleneck`] describes in words which
//! stage takes the most time, and what limits it.

mod device;
mod summary;

pub use device::{DeviceMeter, DeviceWork};
pub use summary::Summary;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Instant;

use crate::{EventKind, Sinks, Step};
use serde::{Deserialize, Serialize};

/// The timers of a training run. A clone is another handle to the same timers.
#[derive(Clone, Debug)]
pub struct Stages {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    start: Instant,
    run: Totals,
    step: Totals,
    /// The current step, for events.
    number: Step,
    /// Named counts of the current step.
    counts: BTreeMap<String, f64>,
    /// The stack of open spans of each thread, as keys of `open`.
    stacks: HashMap<ThreadId, Vec<u64>>,
    open: HashMap<u64, Open>,
    next: u64,
    /// The trace row of each thread, in the order in which threads first opened a span.
    threads: HashMap<ThreadId, u64>,
    /// The trace row for each name passed to [`Stages::record_overlapped`].
    overlapped: HashMap<String, u64>,
    /// The sinks that receive an event for each span that ends.
    sinks: Sinks,
    device: Option<Box<dyn DeviceMeter>>,
    /// The paths of closed spans whose device seconds are not known yet.
    timed: HashMap<u64, String>,
}

#[derive(Debug)]
struct Open {
    path: String,
    parent: Option<u64>,
    thread: ThreadId,
    start: Instant,
    flops: f64,
    bytes: f64,
}

/// An open span of a stage; it ends when dropped.
#[derive(Debug)]
#[must_use = "a span measures until it is dropped"]
pub struct Span {
    inner: Arc<Mutex<Inner>>,
    id: u64,
}

/// The measured peaks of this machine: floating-point operations and bytes of memory traffic per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Floating-point operations per second; `None` if not measured.
    pub flops_per_s: Option<f64>,
    /// Bytes of memory traffic per second; `None` if not measured.
    pub bytes_per_s: Option<f64>,
}

/// The totals of all spans of one stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTotal {
    /// The stage's path: the names of the spans from the outermost to this one, joined by `/`.
    pub path: String,
    /// Number of spans.
    pub count: u64,
    /// Wall seconds of the stage's spans, nested spans included.
    pub seconds: f64,
    /// Floating-point operations in the stage's spans, nested spans included.
    pub flops: f64,
    /// Bytes of memory traffic in the stage's spans, nested spans included.
    pub bytes: f64,
    /// Work of a separate device such as a GPU, nested spans included.
    pub device: DeviceWork,
}

/// The totals of the spans that ended during a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTotals {
    /// The totals of each stage, in the order of first appearance.
    pub stages: Vec<StageTotal>,
    /// The counts by name.
    pub counts: BTreeMap<String, f64>,
}

/// Totals by path of names, in the order of first appearance.
#[derive(Debug, Default)]
struct Totals {
    index: HashMap<String, usize>,
    list: Vec<StageTotal>,
}

impl Totals {
    fn at(&mut self, path: &str) -> &mut StageTotal {
        let index = *self.index.entry(path.to_owned()).or_insert_with(|| {
            self.list.push(StageTotal { path: path.to_owned(), ..StageTotal::default() });
            self.list.len() - 1
        });
        &mut self.list[index]
    }
}

impl Default for Stages {
    fn default() -> Self {
        Stages::new(Sinks::new())
    }
}

impl Stages {
    /// Timers that start now. Every span that ends also emits an event to `sinks`.
    pub fn new(sinks: Sinks) -> Self {
        Stages {
            inner: Arc::new(Mutex::new(Inner {
                start: Instant::now(),
                run: Totals::default(),
                step: Totals::default(),
                number: Step::START,
                counts: Default::default(),
                stacks: HashMap::new(),
                open: HashMap::new(),
                next: 0,
                threads: HashMap::new(),
                overlapped: HashMap::new(),
                sinks,
                device: None,
                timed: HashMap::new(),
            })),
        }
    }

    /// Also measures a separate device with `meter`.
    pub fn with_device(self, meter: impl DeviceMeter + 'static) -> Self {
        lock(&self.inner).device = Some(Box::new(meter));
        self
    }

    /// Opens a span inside the innermost open span of this thread. `name` must not contain `/`.
    pub fn span(&self, name: &str) -> Span {
        let thread = std::thread::current().id();
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let id = inner.next;
        inner.next += 1;
        let row = inner.next_row();
        inner.threads.entry(thread).or_insert(row);
        let stack = inner.stacks.entry(thread).or_default();
        let parent = stack.last().copied();
        let path = match parent.and_then(|parent| inner.open.get(&parent)) {
            Some(parent) => format!("{}/{name}", parent.path),
            None => name.to_owned(),
        };
        stack.push(id);
        // Creating the entries when a span opens makes an outer stage precede its inner stages in both tables.
        inner.run.at(&path);
        inner.step.at(&path);
        if let Some(device) = &mut inner.device {
            device.open(id, name);
        }
        inner.open.insert(id, Open { path, parent, thread, start: Instant::now(), flops: 0.0, bytes: 0.0 });
        Span { inner: Arc::clone(&self.inner), id }
    }

    /// Sets the optimizer step of the spans that end from now on.
    pub fn begin_step(&self, step: Step) {
        lock(&self.inner).number = step;
    }

    /// Adds `n` to the count `name`.
    pub fn count(&self, name: &str, n: f64) {
        *lock(&self.inner).counts.entry(name.to_owned()).or_default() += n;
    }

    /// Returns the totals of the spans that ended since the last call, and the counts since then. It is called once per
    /// step. The totals of the whole run are kept.
    pub fn take_step(&self) -> StepTotals {
        let mut inner = lock(&self.inner);
        inner.time_device();
        let mut stages = std::mem::take(&mut inner.step).list;
        stages.retain(|total| total.count > 0);
        StepTotals { stages, counts: std::mem::take(&mut inner.counts) }
    }

    /// The totals of the run so far.
    pub fn summary(&self) -> Summary {
        let mut inner = lock(&self.inner);
        inner.time_device();
        let stages = inner.run.list.iter().filter(|total| total.count > 0).cloned().collect();
        Summary { wall_s: inner.start.elapsed().as_secs_f64(), stages }
    }

    /// Reports a span of this thread that began at `start`, took `seconds`, and encloses the spans that ended in that
    /// time. The span is not added to any total.
    pub fn record_around(&self, name: &str, start: Instant, seconds: f64) {
        let thread = std::thread::current().id();
        let inner = lock(&self.inner);
        let row = inner.threads.get(&thread).copied().unwrap_or(0);
        let start_us = start.saturating_duration_since(inner.start).as_secs_f64() * 1e6;
        inner.emit(name, row, start_us, seconds * 1e6, (0.0, 0.0));
    }

    /// Reports a span of another thread that began at `start` and took `seconds`, in its own row of the trace. The span
    /// is not added to any total, since the stage that it overlapped already includes its time.
    pub fn record_overlapped(&self, name: &str, start: Instant, seconds: f64) {
        let mut inner = lock(&self.inner);
        let next = inner.next_row();
        let row = *inner.overlapped.entry(name.to_owned()).or_insert(next);
        let start_us = start.saturating_duration_since(inner.start).as_secs_f64() * 1e6;
        inner.emit(name, row, start_us, seconds * 1e6, (0.0, 0.0));
    }
}

impl Inner {
    /// The next unused row of the trace.
    fn next_row(&self) -> u64 {
        (self.threads.len() + self.overlapped.len()) as u64
    }

    /// Adds the device's seconds to the stages of closed spans.
    fn time_device(&mut self) {
        let Some(device) = &mut self.device else { return };
        for (span, seconds) in device.seconds() {
            let Some(path) = self.timed.remove(&span) else { continue };
            for totals in [&mut self.run, &mut self.step] {
                totals.at(&path).device.seconds += seconds;
            }
        }
        self.timed.clear();
    }

    fn emit(&self, name: &str, track: u64, start_us: f64, duration_us: f64, (flops, bytes): (f64, f64)) {
        let (name, step) = (name.to_owned(), self.number);
        self.sinks.emit_unchecked(EventKind::Span { name, step, track, start_us, duration_us, flops, bytes });
    }
}

impl Span {
    /// Adds the floating-point operations and bytes of memory traffic of work done inside this span.
    pub fn work(&self, flops: f64, bytes: f64) {
        if let Some(open) = lock(&self.inner).open.get_mut(&self.id) {
            open.flops += flops;
            open.bytes += bytes;
        }
    }

    /// Attributes `seconds` of this span to a nested stage `name`, for work that is too short for separate spans.
    pub fn part(&self, name: &str, seconds: f64) {
        let inner = &mut *lock(&self.inner);
        let Some(open) = inner.open.get(&self.id) else { return };
        let path = format!("{}/{name}", open.path);
        for totals in [&mut inner.run, &mut inner.step] {
            let total = totals.at(&path);
            total.count += 1;
            total.seconds += seconds;
        }
    }

    /// Seconds since the span was opened.
    pub fn seconds(&self) -> f64 {
        lock(&self.inner).open.get(&self.id).map_or(0.0, |open| open.start.elapsed().as_secs_f64())
    }

    /// Ends the span and returns its wall seconds, exactly as added to the totals.
    pub fn end(self) -> f64 {
        let id = self.id;
        close(&mut lock(&self.inner), id)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        close(&mut lock(&self.inner), self.id);
    }
}

/// Ends a span and adds it to the totals and to its parent. A second call for the same span has no effect.
fn close(inner: &mut Inner, id: u64) -> f64 {
    let Some(open) = inner.open.remove(&id) else { return 0.0 };
    let seconds = open.start.elapsed().as_secs_f64();
    if let Some(stack) = inner.stacks.get_mut(&open.thread) {
        stack.retain(|&other| other != id);
        if stack.is_empty() {
            inner.stacks.remove(&open.thread);
        }
    }
    if let Some(parent) = open.parent.and_then(|parent| inner.open.get_mut(&parent)) {
        parent.flops += open.flops;
        parent.bytes += open.bytes;
    }
    let device = inner.device.as_mut().map(|device| device.close(id)).unwrap_or_default();
    if inner.device.is_some() {
        inner.timed.insert(id, open.path.clone());
    }
    for totals in [&mut inner.run, &mut inner.step] {
        let total = totals.at(&open.path);
        total.device.add(device);
        total.count += 1;
        total.seconds += seconds;
        total.flops += open.flops;
        total.bytes += open.bytes;
    }
    let name = open.path.rsplit('/').next().unwrap_or_default();
    let start_us = open.start.duration_since(inner.start).as_secs_f64() * 1e6;
    let thread = inner.threads.get(&open.thread).copied().unwrap_or(0);
    inner.emit(name, thread, start_us, seconds * 1e6, (open.flops, open.bytes));
    seconds
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests;
