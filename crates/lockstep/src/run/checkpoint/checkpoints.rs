//! The checkpoints of a training run: which step is saved, and which checkpoint is being written.

use super::{CheckpointWriter, Kept, link_model};
use crate::error::paragraph;
use crate::models::{Policy, WriteFiles};
use crate::run::RunDir;
use crate::run::learner::Learner;
use crate::run::log::RunLog;
use model::FileDType;
use std::time::Duration;
use telemetry::{EventKind, Step};

/// Saves the checkpoints and the final model of a run.
pub struct Checkpoints {
    /// The directory of the run.
    pub dir: RunDir,
    /// The last step whose checkpoint was saved or is being written.
    saved_at: Option<Step>,
    writing: Option<CheckpointWriter>,
    /// How long the next checkpoint may wait for the end of a rollout.
    hold: Duration,
}

impl Checkpoints {
    /// The checkpoints in `dir`. The last checkpoint is of step `saved_at`.
    pub fn new(dir: RunDir, saved_at: Option<Step>) -> Checkpoints {
        Checkpoints { dir, saved_at, writing: None, hold: Duration::ZERO }
    }

    /// Whether the checkpoint of `step` is saved or being written.
    pub fn has(&self, step: Step) -> bool {
        self.saved_at == Some(step)
    }

    /// Starts to write the checkpoint of `step` on another thread, while the run continues. [`finish`](Self::finish)
    /// waits for it, and must have been called for the previous checkpoint.
    pub fn start(&mut self, step: Step, writes: Vec<WriteFiles>, kept: Kept) -> anyhow::Result<()> {
        self.writing = Some(CheckpointWriter::start(&self.dir, step, writes, kept, self.hold)?);
        self.saved_at = Some(step);
        Ok(())
    }

    /// Starts a waiting write now: the batch of the next step is complete, and the following work needs less memory
    /// bandwidth than generation.
    pub fn release(&mut self) {
        self.writing.iter_mut().for_each(CheckpointWriter::release);
    }

    /// Waits for a checkpoint that is being written. Must be called before anything changes that the checkpoint saves.
    pub fn finish(&mut self, log: &mut RunLog, learner: &Learner) -> anyhow::Result<()> {
        let Some(writer) = self.writing.take() else { return Ok(()) };
        let (span, step) = (log.stages.span("checkpoint"), writer.step);
        let written = writer.finish().inspect_err(|_| self.saved_at = None)?;
        self.hold = written.hold_next;
        log.stages.record_overlapped("checkpoint", written.began, written.hidden_s);
        let path = written.path.display().to_string();
        log.sinks().emit(EventKind::Checkpoint { step, path })?;
        span.end();
        let _span = log.stages.span("callbacks");
        log.callbacks.checkpoint(step, &written.path, &learner.policy);
        Ok(())
    }

    /// Writes the run's result: a copy of the model in the last step's checkpoint, in the configured dtype. (If a
    /// weight is too large for f16, the dtype is f32, with a warning.) If `best` names another step, the model of that
    /// checkpoint is copied, and `learner` loads its weights. Without a checkpoint, the weights of `learner` are
    /// written.
    pub fn write_result(&self, best: Option<Step>, learner: &mut Learner, log: &RunLog) -> anyhow::Result<()> {
        let mut saved = self.dir.checkpoint(learner.step);
        if let Some(step) = best.filter(|&step| step != learner.step) {
            let best_path = self.dir.checkpoint(step);
            if best_path.is_dir() {
                saved = best_path;
                learner.policy.restore(&saved)?;
                log.sinks().info(&format!("the result is the best checkpoint, of step {step}"));
            } else {
                log.warn(&format!("the best checkpoint, of step {step}, is missing: the result is the last weights"));
            }
        }
        let target = self.dir.model();
        let temporary = self.dir.root().join(".unfinished-model");
        let write = |policy: &Policy| {
            let _ = disk::remove_dir_all(&temporary);
            if saved.is_dir() { link_model(&saved, &temporary, policy.rounds_to()) } else { policy.export(&temporary) }
        };
        if let Err(error) = write(&learner.policy) {
            if learner.policy.exported != FileDType::F16 {
                return Err(error);
            }
            log.warn(&format!("the result is f32: {}", paragraph(&error)));
            learner.policy.exported = FileDType::F32;
            write(&learner.policy)?;
        }
        let _ = disk::remove_dir_all(&target);
        Ok(disk::rename(&temporary, &target)?)
    }
}
