//! The state of a training run between two steps, shared by all training tasks.
//!
//! The source of samples belongs to the [`TrainingTask`](super::task::TrainingTask). The task's state is saved in the
//! same checkpoint as an opaque value.

use super::StopReason;
use super::checkpoint::Checkpoints;
use super::data_position::DataPosition;
use super::evaluations::Evaluations;
use super::inputs::Follow;
use super::learner::Learner;
use super::log::RunLog;
use crate::config::{Config, Strategy};
use crate::stop::StopSignal;
use model::chat::PromptTime;
use train::{Samples, UpdateMetrics};

/// The parts of a training run between two steps.
pub struct TrainingRun {
    /// The resolved configuration.
    pub config: Config,
    /// The time that chat templates use as the current time.
    pub prompt_time: PromptTime,
    /// The policy with its trainer and optimizer.
    pub learner: Learner,
    /// The position in the training data.
    pub data: DataPosition,
    /// Metrics, alarms, timers and callbacks.
    pub log: RunLog,
    /// The state of the evaluations so far.
    pub evaluations: Evaluations,
    /// Saves checkpoints, and knows which steps are saved.
    pub checkpoints: Checkpoints,
    /// Tells the run to stop.
    pub stop: StopSignal,
}

impl TrainingRun {
    /// The reason why a resumed run takes no steps, which is also logged; `None` if there are steps left.
    pub(crate) fn ended_before(&self) -> Option<StopReason> {
        let (step, total) = (self.learner.step, self.learner.schedule.total_steps);
        let (reason, why) = match self.checkpoints.has(step) {
            true if self.learner.is_done() => (StopReason::Completed, format!("it has done {step} of {total} steps")),
            true if self.evaluations.out_of_patience(&self.config) => (
                StopReason::EarlyStopping,
                format!(
                    "it stopped early after step {step} of {total}: {} evaluations in a row without improvement (raise \
                     early_stopping_patience to continue)",
                    self.evaluations.without_improvement
                ),
            ),
            _ => return None,
        };
        self.log.sinks().info(&format!("the run has already ended: {why}"));
        Some(reason)
    }

    /// Computes the gradient of the policy's loss on `samples`, which the next [`step_policy`](Self::step_policy)
    /// applies. A stop request interrupts the computation and leaves the run unchanged.
    pub fn policy_gradient<'a>(&mut self, samples: impl Into<Samples<'a>>) -> anyhow::Result<()> {
        self.learner.gradient(&self.log.stages, samples)
    }

    /// Takes the optimizer step with the gradient, after the batch's changes are [committed](Self::commit).
    pub fn step_policy(&mut self) -> anyhow::Result<UpdateMetrics> {
        let update = self.learner.step(&self.log.stages)?;
        self.log.add_update(&update);
        Ok(update.metrics)
    }

    /// Whether an evaluation follows the current step.
    pub(crate) fn evaluates_now(&self) -> bool {
        self.is_due(self.config.eval_strategy, self.config.eval_steps())
    }

    fn is_due(&self, strategy: Strategy, every: u64) -> bool {
        match strategy {
            Strategy::No => false,
            Strategy::Steps => self.learner.step.is_multiple_of(every),
            Strategy::Epoch => self.ends_epoch(),
        }
    }

    /// Logs an evaluation, and returns whether the run should stop early.
    pub(crate) fn log_evaluation(&mut self, metrics: &[(String, f64)]) -> anyhow::Result<bool> {
        self.log.evaluation(&self.learner, metrics)?;
        if let Some((name, value)) = metrics.iter().find(|(_, value)| !value.is_finite()) {
            let step = self.learner.step;
            self.log.warn(&format!("step {step}: {name} of the evaluation is {value}: do sums of scores overflow?"));
        }
        self.evaluations.take(&self.config, self.learner.step, metrics, self.log.sinks())
    }

    /// The reason why the run ends after the current step although this is not the last step. `early` is the result of
    /// [`log_evaluation`](Self::log_evaluation).
    pub(crate) fn stop_reason(&self, early: bool) -> Option<StopReason> {
        if self.stop.is_requested() {
            return Some(StopReason::Interrupted);
        }
        if self.learner.is_done() {
            return None;
        }
        if early {
            return Some(StopReason::EarlyStopping);
        }
        self.log.callbacks.stops.then_some(StopReason::Requested)
    }

    /// Whether the current step is the last step of an epoch.
    pub(crate) fn ends_epoch(&self) -> bool {
        self.data.ends_epoch(self.learner.step)
    }

    /// Whether a checkpoint is saved: as configured or as the caller decides, after the best evaluation so far, and at
    /// the end, if nothing follows (`last`). With `save_strategy = "no"` only the caller decides. (When a signal stops
    /// the run, a checkpoint is always saved.)
    pub(crate) fn saves_now(&mut self, ended: Option<StopReason>, last: bool) -> bool {
        let best = self.config.load_best_model_at_end
            && self.evaluations.best.as_ref().is_some_and(|best| best.step == self.learner.step);
        let strategy = self.config.save_strategy;
        let at_end = last && (ended.is_some() || self.learner.is_done());
        let is_due = self.is_due(strategy, self.config.save_steps);
        self.log.callbacks.follows(Follow::Save, is_due) || (strategy != Strategy::No && (at_end || best))
    }

    /// Rewrites files that a resume needs if they were deleted. Called before more is written.
    pub(crate) fn check_files(&self) -> anyhow::Result<()> {
        let _span = self.log.stages.span("log");
        let dir_note = self.checkpoints.dir.check()?;
        let notes = dir_note.into_iter().chain(self.log.sinks().check()?);
        notes.for_each(|note| self.log.warn(&note));
        Ok(())
    }

    /// Waits for a checkpoint that is being written. Must be called before anything changes that the checkpoint saves.
    pub(crate) fn finish_checkpoint(&mut self) -> anyhow::Result<()> {
        self.checkpoints.finish(&mut self.log, &self.learner)
    }

    /// Writes the run's result: the current weights, or those of the best checkpoint. An interrupted run writes no
    /// result.
    pub(crate) fn write_result(&mut self, reason: StopReason) -> anyhow::Result<()> {
        self.finish_checkpoint()?;
        let _span = self.log.stages.span("result");
        if reason != StopReason::Interrupted {
            let best = self.evaluations.best.as_ref().filter(|_| self.config.load_best_model_at_end);
            self.checkpoints.write_result(best.map(|best| best.step), &mut self.learner, &self.log)?;
        }
        self.log.sinks().flush().iter().for_each(|note| self.log.warn(note));
        Ok(self.log.sinks().finish()?)
    }
}
