//! The interface between a training task (GRPO, SFT, DPO, ...) and the run that drives it.

use super::learner::Learner;
use super::training::TrainingRun;
use crate::models::WriteFiles;
use serde_json::Value;

/// A training task: GRPO, PPO, SFT, DPO or reward models. The run that drives it counts steps, logs, evaluates, saves
/// and stops; the task decides what is learned from which data.
pub trait TrainingTask: Task {
    /// The data of one optimizer step, with the changes from making it: in the run
    /// ([`PreparedStep`](super::prepared::PreparedStep)) and in the task's own [`state`](Task::state).
    type Batch;

    /// Makes the batch of the next optimizer step. A task that waits for data checks for stop requests. If the batch is
    /// dropped, neither the run nor the task's state has changed, and another call makes the same batch, bit for bit.
    fn next_batch(&mut self, run: &TrainingRun) -> anyhow::Result<Self::Batch>;

    /// Takes one optimizer step on `batch`. A stop request can interrupt the gradient; then the batch is dropped. After
    /// the gradient, the batch is [committed](TrainingRun::commit), and the step is always completed.
    fn step(&mut self, run: &mut TrainingRun, batch: Self::Batch) -> anyhow::Result<()>;
}

/// Methods that a run calls between two steps.
pub trait Task {
    /// Names of the metrics that the progress line shows.
    fn shown_metrics(&self) -> &'static [&'static str];

    /// The metrics of held-out data; `None` without such data.
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>>;

    /// Whether the last step is evaluated even if no evaluation is due.
    fn evaluates_at_end(&self) -> bool {
        false
    }

    /// Returns an error with the reason if an epoch cannot end before its last step.
    fn check_ends_epochs(&self, _run: &TrainingRun) -> anyhow::Result<()> {
        Ok(())
    }

    /// Waits for results of other processes that a checkpoint at this step must contain.
    fn complete_state(&mut self, _run: &TrainingRun) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether a checkpoint can be saved after a reward has failed.
    fn saves_on_failure(&self) -> bool {
        true
    }

    /// Called after a checkpoint is complete and no step follows for now: at the end, and at a stop.
    fn checkpoint_written(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called after the run has ended and takes no further step.
    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// The task's own state on which the next step depends, with floats as their bits. The checkpoint saves it as an
    /// opaque value.
    fn state(&self) -> anyhow::Result<Value> {
        Ok(Value::Null)
    }

    /// Functions that write the tensors of the task's state to the checkpoint's directory while the next batch is made.
    /// These tensors do not change before the step on that batch is committed.
    fn write_tensors(&self, _learner: &Learner) -> Vec<WriteFiles> {
        Vec::new()
    }
}

/// A [`TrainingTask`] without its batch type, so that a run can hold any task.
pub trait TakeStep: Task {
    /// Makes the next batch and takes the optimizer step on it. After an error before the commit, nothing has changed.
    fn take_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()>;
}

impl<T: TrainingTask> TakeStep for T {
    fn take_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        let batch = self.next_batch(run)?;
        run.checkpoints.release();
        self.step(run, batch)
    }
}
