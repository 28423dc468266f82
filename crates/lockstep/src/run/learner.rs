//! What learns: the policy, and what trains it. The gradient changes nothing that a checkpoint holds; the optimizer
//! step does.

use crate::bad_input;
use crate::models::{Policy, WriteFiles};
use crate::rollouts::collector::record_ops;
use crate::run::checkpoint::moments;
use crate::run::checkpoint::state::RunState;
use kernels::Context;
use model::Trainable;
use std::path::Path;
use telemetry::{Stages, stages::Span};
use train::{Samples, Schedule, StepParams, Trainer, UpdateMetrics};

/// The policy, and what trains it.
pub struct Learner {
    /// What it computes with.
    pub ctx: Context,
    /// The model that it trains.
    pub policy: Policy,
    /// Gradients, moments, buffers.
    pub trainer: Trainer,
    /// Learning rates.
    pub schedule: Schedule,
    /// Optimizer steps done.
    pub step: u64,
    /// Seconds of the gradient that the next step takes.
    gradient_time_s: f64,
}

/// What an optimizer step did.
pub struct Update {
    /// What the trainer measured.
    pub metrics: UpdateMetrics,
    /// Seconds of its gradient and its step.
    pub seconds: f64,
}

impl Learner {
    /// `policy` before its first step.
    pub fn new(ctx: Context, policy: Policy, trainer: Trainer, schedule: Schedule) -> Learner {
        Learner { ctx, policy, trainer, schedule, step: 0, gradient_time_s: 0.0 }
    }

    /// Takes up the optimizer's state in `checkpoint`, whose weights the policy has, and the counters of `state`.
    pub fn restore(&mut self, checkpoint: &Path, state: &RunState) -> anyhow::Result<()> {
        moments::restore_moments(checkpoint, "", &mut self.trainer)?;
        self.trainer.set_state(state.trainer);
        self.policy.weights.set_version(state.weights_version);
        self.step = state.step;
        Ok(())
    }

    /// Whether the last step is done.
    pub fn is_done(&self) -> bool {
        self.step >= self.schedule.total_steps
    }

    /// The gradient of the policy on these samples, for the [`step`](Self::step) that follows. A stop request ends it.
    pub fn gradient<'a>(&mut self, stages: &Stages, samples: impl Into<Samples<'a>>) -> anyhow::Result<()> {
        let (span, before) = (stages.span("update"), kernels::context::counted());
        self.trainer.gradient(&self.ctx, self.policy.weights.view(), samples)?;
        record_ops(&span, before);
        self.gradient_time_s = span.end();
        Ok(())
    }

    /// The optimizer step of the gradient.
    pub fn step(&mut self, stages: &Stages) -> anyhow::Result<Update> {
        let learning_rate = self.schedule.at(self.step);
        let (span, before) = (stages.span("update"), kernels::context::counted());
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
        record_parts(&span, &metrics);
        self.step += 1;
        Ok(Update { metrics, seconds: self.gradient_time_s + span.end() })
    }

    /// What writes weights and optimizer state into a checkpoint. Neither changes before it is called, or else is
    /// copied.
    pub fn writers(&self) -> Vec<WriteFiles> {
        vec![self.policy.writer(), moments::write_moments("", &self.trainer)]
    }
}

/// Enters what the trainer timed itself into the span of the step.
pub fn record_parts(span: &Span, metrics: &UpdateMetrics) {
    span.part("forward", metrics.forward_time_s);
    span.part("backward", metrics.backward_time_s);
    span.part("optimizer", metrics.optimizer_time_s);
}

/// Why a step was skipped.
pub fn not_finite(metrics: &UpdateMetrics) -> String {
    format!("the loss or the gradient is not finite (loss {}, gradient norm {})", metrics.loss, metrics.grad_norm)
}
