//! What a way to train is to the run that drives it.

use super::learner::Learner;
use super::training::TrainingRun;
use crate::models::WriteFiles;
use serde_json::Value;

/// A way to train: GRPO, PPO, supervised, preference pairs, reward models. The run that drives it counts steps, logs,
/// evaluates, saves and stops; the task knows what is learned from what.
pub trait TrainingTask {
    /// What an optimizer step learns from, with all that making it changes: of the run
    /// ([`PreparedStep`](super::prepared::PreparedStep)), and of the task's [`state`](Self::state).
    type Batch;

    /// The metrics that progress shows.
    fn shown_metrics(&self) -> &'static [&'static str];

    /// The batch of the next optimizer step. A task that waits for one looks whether the run is to stop. If the batch
    /// is dropped, neither the run nor the task's state has changed: another call gives the same one again, bit for
    /// bit.
    fn next_batch(&mut self, run: &TrainingRun) -> anyhow::Result<Self::Batch>;

    /// One optimizer step on it. A stop request can end its gradient, and the batch is dropped; then it is
    /// [committed](TrainingRun::commit), and from there on the step is taken.
    fn step(&mut self, run: &mut TrainingRun, batch: Self::Batch) -> anyhow::Result<()>;

    /// The metrics of held-out data; `None` where there is none.
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>>;

    /// Whether the last step is evaluated even if no evaluation is due.
    fn evaluates_at_end(&self) -> bool {
        false
    }

    /// Waits for what a checkpoint of now must have and is still being made elsewhere.
    fn complete_state(&mut self, _run: &TrainingRun) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether a checkpoint of now can be had after a reward has failed.
    fn saves_on_failure(&self) -> bool {
        true
    }

    /// What the next step depends on beside what every run saves, floats as their bits. Opaque to the checkpoint.
    fn state(&self) -> anyhow::Result<Value> {
        Ok(Value::Null)
    }

    /// What writes the tensors of that state into the checkpoint's directory, while the next batch is made. They do not
    /// change before that step is committed.
    fn write_tensors(&self, _learner: &Learner) -> Vec<WriteFiles> {
        Vec::new()
    }
}

/// A [`TrainingTask`], whatever its batches are.
pub trait Task {
    /// As [`TrainingTask::shown_metrics`].
    fn shown_metrics(&self) -> &'static [&'static str];

    /// The next optimizer step. If it fails before the step is committed, nothing has changed.
    fn take_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()>;

    /// As [`TrainingTask::evaluate`].
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>>;

    /// As [`TrainingTask::evaluates_at_end`].
    fn evaluates_at_end(&self) -> bool;

    /// As [`TrainingTask::complete_state`].
    fn complete_state(&mut self, _run: &TrainingRun) -> anyhow::Result<()> {
        Ok(())
    }

    /// As [`TrainingTask::saves_on_failure`].
    fn saves_on_failure(&self) -> bool {
        true
    }

    /// As [`TrainingTask::state`].
    fn state(&self) -> anyhow::Result<Value>;

    /// As [`TrainingTask::write_tensors`].
    fn write_tensors(&self, learner: &Learner) -> Vec<WriteFiles>;
}

impl<T: TrainingTask> Task for T {
    fn shown_metrics(&self) -> &'static [&'static str] {
        TrainingTask::shown_metrics(self)
    }

    fn take_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        let batch = self.next_batch(run)?;
        run.checkpoints.release();
        self.step(run, batch)
    }

    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        TrainingTask::evaluate(self, run)
    }

    fn evaluates_at_end(&self) -> bool {
        TrainingTask::evaluates_at_end(self)
    }

    fn complete_state(&mut self, run: &TrainingRun) -> anyhow::Result<()> {
        TrainingTask::complete_state(self, run)
    }

    fn saves_on_failure(&self) -> bool {
        TrainingTask::saves_on_failure(self)
    }

    fn state(&self) -> anyhow::Result<Value> {
        TrainingTask::state(self)
    }

    fn write_tensors(&self, learner: &Learner) -> Vec<WriteFiles> {
        TrainingTask::write_tensors(self, learner)
    }
}
