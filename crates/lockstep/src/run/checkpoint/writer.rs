//! A checkpoint that is written by a thread of its own, while the run goes on up to its next optimizer step.

use super::write;
use crate::models::WriteFiles;
use crate::run::RunDir;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Instant;

/// A checkpoint while it is written. Dropped, it waits for the end: a run that fails meanwhile keeps the checkpoint.
pub struct CheckpointWriter {
    /// The step that it is of.
    pub step: u64,
    /// When it was begun.
    pub started: Instant,
    thread: Option<JoinHandle<anyhow::Result<PathBuf>>>,
}

impl CheckpointWriter {
    /// Begins to write the checkpoint of `step`: what `writes` hold stays as it is until they have been called.
    pub fn start(run: &RunDir, step: u64, writes: Vec<WriteFiles>) -> anyhow::Result<CheckpointWriter> {
        let run = run.clone();
        let fill = move || write(&run, step, |dir| writes.into_iter().try_for_each(|write| write(dir)));
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(fill)?;
        Ok(CheckpointWriter { step, started: Instant::now(), thread: Some(thread) })
    }

    /// Waits for its end: where it lies.
    pub fn finish(mut self) -> anyhow::Result<PathBuf> {
        let thread = self.thread.take().expect("only this takes it");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        // Whoever drops it has an error to tell already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
