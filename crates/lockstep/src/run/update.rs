//! One optimizer step of the policy: the gradient, which can be given up, and then the step, which cannot.
//!
//! A step that is given up has never begun: [`TrainingRun::give_up_step`] takes back what making its batch changed, and
//! the task the rest, so that a checkpoint is that of the step before.

use super::checkpoint::state::MetricSums;
use super::training::{TrainingRun, not_finite, record_ops};
use crate::bad_input;
use crate::data::SamplerState;
use model::Trainable;
use train::{Samples, StepParams, UpdateMetrics};

/// What a run was before the step that it is in.
pub struct StepBefore {
    sampler: SamplerState,
    num_tokens: u64,
    sums: MetricSums,
}

impl TrainingRun {
    /// A step begins: its batch is made next.
    pub(crate) fn begin_step(&mut self) {
        let (sampler, sums) = (self.sampler.state(), self.reporter.unlogged().clone());
        self.before = Some(StepBefore { sampler, num_tokens: self.num_tokens, sums });
    }

    /// Takes back what the step that was begun has changed. Says whether there was one that had not got as far as its
    /// optimizer step.
    pub(crate) fn give_up_step(&mut self) -> bool {
        let Some(StepBefore { sampler, num_tokens, sums }) = self.before.take() else { return false };
        self.sampler.restore(sampler);
        self.num_tokens = num_tokens;
        self.reporter.restore(sums);
        self.alarms.forget();
        true
    }

    /// One optimizer step of the policy on these samples.
    pub fn update_policy<'a>(&mut self, samples: impl Into<Samples<'a>>) -> anyhow::Result<UpdateMetrics> {
        let seconds = self.policy_gradient(samples)?;
        self.step_policy(seconds)
    }

    /// The gradient of the policy on these samples, for the [`step_policy`](Self::step_policy) that follows, and the
    /// seconds that it took. A stop request ends it; it changes nothing.
    pub fn policy_gradient<'a>(&mut self, samples: impl Into<Samples<'a>>) -> anyhow::Result<f64> {
        let (span, before) = (self.stages.span("update"), kernels::context::counted());
        self.trainer.gradient(&self.ctx, self.policy.weights.view(), samples)?;
        record_ops(&span, before);
        Ok(span.end())
    }

    /// The optimizer step of a gradient that took `seconds`: from here on the step is taken.
    pub fn step_policy(&mut self, seconds: f64) -> anyhow::Result<UpdateMetrics> {
        let learning_rate = self.schedule.at(self.step);
        self.finish_checkpoint()?;
        self.before = None;
        let (span, before) = (self.stages.span("update"), kernels::context::counted());
        let params = StepParams { learning_rate };
        let stepped = self.trainer.step(&self.ctx, &mut self.policy.weights, params);
        let metrics = match stepped {
            Err(train::Error::NonFinite { .. }) if !self.policy.weights_are_finite() => {
                let why = self.policy.why_not_finite();
                bad_input!("{why}, and was so before training: no loss or gradient of it is finite")
            }
            stepped => stepped?,
        };
        record_ops(&span, before);
        self.count_update(&metrics, seconds + span.end());
        Ok(metrics)
    }

    fn count_update(&mut self, metrics: &UpdateMetrics, seconds: f64) {
        self.step += 1;
        if metrics.skipped {
            self.alarms.not_finite("policy", not_finite(metrics));
        }
        for (name, value) in metrics.entries() {
            self.reporter.add(name, value);
        }
        self.reporter.add("update_time_s", seconds);
        self.reporter.add("forward_time_s", metrics.forward_time_s);
        self.reporter.add("backward_time_s", metrics.backward_time_s);
        self.reporter.add("optimizer_time_s", metrics.optimizer_time_s);
        self.reporter.add("update_tokens_per_s", metrics.computed_tokens as f64 / seconds);
    }
}
