//! Where a run's [`Event`]s go. Each file beside this one is one sink; an application can add its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::{Error, Event, EventKind, Level, Record, Result};

mod appended;
pub mod completions;
pub mod console;
pub mod metrics;
pub mod tensorboard;
pub mod trace;

/// Receives every event of a run, in order, and does something with the kinds that it knows.
pub trait Sink: Send {
    /// An event happened. An error ends the run. Must not emit events itself.
    fn receive(&mut self, event: &Event) -> Result<()>;

    /// A checkpoint is about to be written: puts everything received on the disk, and enters the length of the file
    /// that it appends to, if it does, under its name.
    fn checkpoint(&mut self, _lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        Ok(())
    }

    /// The run continues after `step`, with the lengths that [`checkpoint`](Self::checkpoint) had entered; a run that
    /// begins has none. What came later is forgotten: it will be received again. Returns what a person should know: a
    /// file that is no longer what it was at the checkpoint ends no run.
    fn resume(&mut self, _step: u64, _lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        Ok(None)
    }

    /// Looks whether the file that it appends to is still there: one that was deleted or replaced is written again.
    /// Returns what a person should know.
    fn check(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// The run ended.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The sinks of a run; a clone is another handle to the same ones.
#[derive(Clone, Default)]
pub struct Sinks {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    sinks: Vec<Box<dyn Sink>>,
    /// The first failure where nobody could be told; whoever emits next is.
    failed: Option<Error>,
}

impl std::fmt::Debug for Sinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sinks", self.lock().sinks.len())
    }
}

impl Sinks {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sink, which receives what comes from now on.
    pub fn add(&self, sink: impl Sink + 'static) {
        self.lock().sinks.push(Box::new(sink));
    }

    /// [`add`](Self::add) of a sink whose kind is not known.
    pub fn add_boxed(&self, sink: Box<dyn Sink>) {
        self.lock().sinks.push(sink);
    }

    /// Hands an event to every sink, also after one failed; the first failure is the result.
    pub fn emit(&self, kind: EventKind) -> Result<()> {
        let mut inner = self.lock();
        inner.receive(kind);
        inner.failed.take().map_or(Ok(()), Err)
    }

    /// [`emit`](Self::emit) where no failure can be handled: the next call reports it.
    pub(crate) fn emit_unchecked(&self, kind: EventKind) {
        self.lock().receive(kind);
    }

    /// A message without fields. A failure is reported by the next event.
    pub fn message(&self, level: Level, text: &str) {
        self.emit_unchecked(EventKind::Message { level, text: text.to_owned(), fields: Record::new() });
    }

    /// A message of level info.
    pub fn info(&self, text: &str) {
        self.message(Level::Info, text);
    }

    /// A message of level warn.
    pub fn warn(&self, text: &str) {
        self.message(Level::Warn, text);
    }

    /// The lengths of the files that sinks append to, everything in them on the disk: for a checkpoint.
    pub fn checkpoint(&self) -> Result<BTreeMap<String, u64>> {
        let mut lengths = BTreeMap::new();
        self.lock().sinks.iter_mut().try_for_each(|sink| sink.checkpoint(&mut lengths))?;
        Ok(lengths)
    }

    /// Takes every sink back to a checkpoint, or to the beginning with step 0 and no lengths. Returns what they have to
    /// say about it.
    pub fn resume(&self, step: u64, lengths: &BTreeMap<String, u64>) -> Result<Vec<String>> {
        self.lock().sinks.iter_mut().filter_map(|sink| sink.resume(step, lengths).transpose()).collect()
    }

    /// Lets every sink look whether its file is still there. Returns what they have to say about it.
    pub fn check(&self) -> Result<Vec<String>> {
        self.lock().sinks.iter_mut().filter_map(|sink| sink.check().transpose()).collect()
    }

    /// Tells every sink that the run ended; the first failure is the result.
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
