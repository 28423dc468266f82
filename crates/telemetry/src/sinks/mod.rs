//! Sinks, which receive the [`Event`]s of a training run. Each file of this folder is one sink; applications can add
//! their own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::{Error, Event, EventKind, Level, Record, Result, Step};

mod appended;
pub mod completions;
pub mod console;
pub mod metrics;
pub mod tensorboard;
pub mod trace;

/// Receives every event of a training run in order, and ignores the kinds that it does not support.
pub trait Sink: Send {
    /// Receives an event. An error ends the run. Implementations must not emit events.
    fn receive(&mut self, event: &Event) -> Result<()>;

    /// Called before a checkpoint is written. Syncs everything received so far to disk. A sink that appends to a file
    /// stores the file's length in the map.
    fn checkpoint(&mut self, _lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        Ok(())
    }

    /// Called when the run continues after `step`, with the lengths that [`checkpoint`](Self::checkpoint) stored (none
    /// in a new run). The sink discards its events after `step`, because it will receive them again. Returns a message
    /// for people, if any. A file that has changed since the checkpoint must not end the run.
    fn resume(&mut self, _step: Step, _lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        Ok(None)
    }

    /// Checks whether the sink's file still exists, and writes it again if it was deleted or replaced. Returns a
    /// message for people, if any.
    fn check(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Called before [`finish`](Self::finish). Waits up to a few seconds until everything has been sent to other
    /// processes. Returns a message for people, if any.
    fn flush(&mut self) -> Option<String> {
        None
    }

    /// Called at the end of the run.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The sinks of a training run. A clone is another handle to the same sinks.
#[derive(Clone, Default)]
pub struct Sinks {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    sinks: Vec<Box<dyn Sink>>,
    /// The first error of an event that was emitted without error handling. The next `emit` returns this error.
    failed: Option<Error>,
}

impl std::fmt::Debug for Sinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sinks", self.lock().sinks.len())
    }
}

impl Sinks {
    /// An empty list of sinks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sink, which receives all events from now on.
    pub fn add(&self, sink: impl Sink + 'static) {
        self.lock().sinks.push(Box::new(sink));
    }

    /// [`add`](Self::add) for a boxed sink.
    pub fn add_boxed(&self, sink: Box<dyn Sink>) {
        self.lock().sinks.push(sink);
    }

    /// Passes an event to every sink, even if one of them fails. Returns the first error.
    pub fn emit(&self, kind: EventKind) -> Result<()> {
        let mut inner = self.lock();
        inner.receive(kind);
        inner.failed.take().map_or(Ok(()), Err)
    }

    /// Like [`emit`](Self::emit), for callers that cannot handle errors. The next call of `emit` returns the error.
    pub(crate) fn emit_unchecked(&self, kind: EventKind) {
        self.lock().receive(kind);
    }

    /// Emits a message without fields. If this fails, the next `emit` returns the error.
    pub fn message(&self, level: Level, text: &str) {
        self.emit_unchecked(EventKind::Message { level, text: text.to_owned(), fields: Record::new() });
    }

    /// Emits a message of level info.
    pub fn info(&self, text: &str) {
        self.message(Level::Info, text);
    }

    /// Emits a message of level warn.
    pub fn warn(&self, text: &str) {
        self.message(Level::Warn, text);
    }

    /// Syncs the files of all sinks to disk, and returns the lengths of append-only files for a checkpoint.
    pub fn checkpoint(&self) -> Result<BTreeMap<String, u64>> {
        let mut lengths = BTreeMap::new();
        self.lock().sinks.iter_mut().try_for_each(|sink| sink.checkpoint(&mut lengths))?;
        Ok(lengths)
    }

    /// Resets every sink to a checkpoint, or to the beginning with step 0 and no lengths. Returns the sinks' messages
    /// for people.
    pub fn resume(&self, step: Step, lengths: &BTreeMap<String, u64>) -> Result<Vec<String>> {
        self.lock().sinks.iter_mut().filter_map(|sink| sink.resume(step, lengths).transpose()).collect()
    }

    /// Makes every sink check whether its file still exists. Returns the sinks' messages for people.
    pub fn check(&self) -> Result<Vec<String>> {
        self.lock().sinks.iter_mut().filter_map(|sink| sink.check().transpose()).collect()
    }

    /// Calls `flush` of every sink before the end of the run, and returns the sinks' messages for people.
    pub fn flush(&self) -> Vec<String> {
        self.lock().sinks.iter_mut().filter_map(|sink| sink.flush()).collect()
    }

    /// Calls `finish` of every sink at the end of the run, and returns the first error.
    pub fn finish(&self) -> Result<()> {
        let mut inner = self.lock();
        let Inner { sinks, failed } = &mut *inner;
        for sink in sinks {
            if let Err(error) = sink.finish() {
                failed.get_or_insert(error);
            }
        }
        failed.take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Inner {
    fn receive(&mut self, kind: EventKind) {
        let event = Event::from(kind);
        for sink in &mut self.sinks {
            if let Err(error) = sink.receive(&event) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

#[cfg(test)]
mod tests;
