//! What a way to train is to the run that drives it.

use super::learner::Learner;
use super::training::TrainingRun;
use crate::models::WriteFiles;
use serde_json::Value;

/// Whether there is something to learn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextBatch {
    /// The task holds a batch for the next optimizer step.
    Ready,
    /// Not yet: ask again.
    #[cfg_attr(not(test), expect(dead_code, reason = "of tasks that learn while others generate"))]
    Wait,
    /// There will be no more, though steps are left.
    #[cfg_attr(not(test), expect(dead_code, reason = "of tasks that read streams"))]
    End,
}

/// A way to train: GRPO, PPO, supervised, preference pairs, reward models. The run that drives it counts steps, logs,
/// evaluates, saves and stops; the task knows what is learned from what.
pub trait TrainingTask {
    /// The metrics that progress shows.
    fn shown_metrics(&self) -> &'static [&'static str];

    /// Makes the next batch ready.
    fn next_batch(&mut self, run: &mut TrainingRun) -> anyhow::Result<NextBatch>;

    /// One optimizer step on it.
    fn step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()>;

    /// The step that was begun is given up, before its optimizer step: takes back what [`next_batch`](Self::next_batch)
    /// and [`step`](Self::step) changed of [`state`](Self::state). The run takes back its own.
    fn give_up_step(&mut self) {}

    /// The metrics of held-out data; `None` where there is none.
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>>;

    /// Whether the last step is evaluated even if no evaluation is due.
    fn evaluates_at_end(&self) -> bool {
        false
    }

    /// What the next step depends on beside what every run saves, floats as their bits. Opaque to the checkpoint.
    fn state(&self) -> anyhow::Result<Value> {
        Ok(Value::Null)
    }

    /// What writes the tensors of that state into the checkpoint's directory, while the next batch is made.
    /// [`TrainingRun::finish_checkpoint`] is called before they change.
    fn write_tensors(&self, _learner: &Learner) -> Vec<WriteFiles> {
        Vec::new()
    }
}
