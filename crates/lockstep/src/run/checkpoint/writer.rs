//! Writes a checkpoint on its own thread, while the training run continues up to its next optimizer step.
//!
//! Generation is limited by memory bandwidth and consists of short parallel regions. A concurrent thread that copies,
//! hashes and writes gigabytes slows generation several times as much as the update. Therefore the writer may wait for
//! the end of a rollout, if the previous checkpoint showed that it will still finish in time.

use super::{Kept, prune, write};
use crate::models::WriteFiles;
use crate::run::RunDir;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telemetry::Step;

/// The longest wait of a checkpoint for the end of a rollout: the additional time that a killed process may lose.
const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// A checkpoint that is being written. Dropping this value waits until the checkpoint is complete, so that a run that
/// fails meanwhile keeps the checkpoint.
pub struct CheckpointWriter {
    /// The step of the checkpoint.
    pub step: Step,
    started: Instant,
    /// The sender that keeps the writer waiting; dropping it starts the write.
    hold: Option<Sender<()>>,
    /// The writing thread, which returns the checkpoint's directory, the start and the duration of writing.
    thread: Option<JoinHandle<anyhow::Result<(PathBuf, Instant, Duration)>>>,
}

/// A checkpoint that has been written.
pub struct Written {
    /// The directory of the checkpoint.
    pub path: PathBuf,
    /// The time when writing began.
    pub began: Instant,
    /// Seconds of writing that overlapped other work of the run.
    pub hidden_s: f64,
    /// How long the next checkpoint may wait.
    pub hold_next: Duration,
}

impl CheckpointWriter {
    /// Starts a thread that writes the checkpoint of `step` and then deletes the checkpoints that it replaces. Writing
    /// begins when [`release`](Self::release) is called, or after `hold`. The data read by `writes` must not change
    /// until then.
    pub fn start(
        run: &RunDir,
        step: Step,
        writes: Vec<WriteFiles>,
        kept: Kept,
        hold: Duration,
    ) -> anyhow::Result<CheckpointWriter> {
        let (run, (release, held)) = (run.clone(), channel::<()>());
        let work = move || {
            // The sender sends nothing. The wait ends after this time, or when the sender is dropped.
            let _ = held.recv_timeout(hold);
            let began = Instant::now();
            let path = write(&run, step, |dir| writes.into_iter().try_for_each(|write| write(dir)))?;
            prune(&run, kept)?;
            Ok((path, began, began.elapsed()))
        };
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(work)?;
        Ok(CheckpointWriter { step, started: Instant::now(), hold: Some(release), thread: Some(thread) })
    }

    /// Starts the write now.
    pub fn release(&mut self) {
        self.hold = None;
    }

    /// Waits until the checkpoint is written.
    pub fn finish(mut self) -> anyhow::Result<Written> {
        let now = Instant::now();
        self.release();
        let thread = self.thread.take().expect("only this takes it");
        let (path, began, took) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let hidden_s = took.min(now.saturating_duration_since(began)).as_secs_f64();
        Ok(Written { path, began, hidden_s, hold_next: hold_next(now - self.started, took) })
    }
}

/// How long the next checkpoint may wait, if the last one took `took` to write, and the run needed it only after
/// `room`. The wait leaves 1.5 times `took` for writing.
fn hold_next(room: Duration, took: Duration) -> Duration {
    room.saturating_sub(took * 3 / 2).min(LONGEST_HOLD)
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        self.release();
        // The code that drops this value already has an error to report.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Duration = Duration::from_secs(1000);

    fn run() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::fresh(dir.path()).unwrap();
        run.create("").unwrap();
        (dir, run)
    }

    fn start(run: &RunDir, step: u64, hold: Duration) -> CheckpointWriter {
        let write: WriteFiles = Box::new(|dir| Ok(std::fs::write(dir.join("x"), "x")?));
        CheckpointWriter::start(run, Step(step), vec![write], Kept { limit: Some(1), best: None }, hold).unwrap()
    }

    #[test]
    fn a_held_checkpoint_is_written_once_released_awaited_or_dropped() {
        let (_dir, run) = run();
        let mut released = start(&run, 1, FOREVER);
        assert!(!run.checkpoint(Step(1)).exists());
        released.release();
        while !run.checkpoint(Step(1)).exists() {
            std::thread::yield_now();
        }
        let written = released.finish().unwrap();
        assert_eq!(written.path, run.checkpoint(Step(1)));
        assert!(written.hidden_s > 0.0, "everything except the deletion of older checkpoints overlapped");
        let waited_for = start(&run, 2, FOREVER).finish().unwrap();
        assert_eq!(waited_for.hidden_s, 0.0, "writing began when the run waited for it");
        drop(start(&run, 3, FOREVER));
        assert_eq!(
            super::super::all(&run),
            [(Step(3), run.checkpoint(Step(3)))],
            "each checkpoint replaces the previous one"
        );
    }

    #[test]
    fn the_writer_starts_after_the_longest_hold() {
        let (_dir, run) = run();
        let _writer = start(&run, 1, Duration::from_millis(1));
        while !run.checkpoint(Step(1)).exists() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_next_hold_leaves_enough_time_to_write() {
        let s = Duration::from_secs;
        assert_eq!(hold_next(s(20), s(12)), s(2));
        assert_eq!(hold_next(s(20), s(14)), s(0), "on a slow disk, writing starts at once");
        assert_eq!(hold_next(s(0), s(4)), s(0));
        assert_eq!(hold_next(s(1000), s(4)), LONGEST_HOLD);
    }
}
