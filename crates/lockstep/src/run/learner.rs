//! The learner: the policy with its trainer. Computing a gradient does not change the saved state; only the optimizer
//! step does.

use crate::bad_input;
use crate::models::{Policy, WriteFiles};
use crate::ranks::{self, RankOptions};
use crate::rollouts::collector::record_ops;
use crate::run::moments;
use crate::run::state::RunState;
use crate::stop::StopSignal;
use kernels::Context;
use model::Trainable;
use std::path::Path;
use telemetry::{Sinks, Stages, Step, stages::Span};
use train::{Samples, Schedule, StepParams, Trainer, UpdateMetrics};

/// The policy with its trainer and learning-rate schedule.
pub struct Learner {
    /// The device and threads.
    pub ctx: Context,
    /// The trained model.
    pub policy: Policy,
    /// Gradients, optimizer moments and buffers.
    pub trainer: Trainer,
    /// The learning-rate schedule.
    pub schedule: Schedule,
    /// Optimizer steps done so far.
    pub step: Step,
    /// Seconds spent on the gradient of the next step.
    gradient_time_s: f64,
}

/// The result of one optimizer step.
pub struct Update {
    /// Metrics that the trainer measured.
    pub metrics: UpdateMetrics,
    /// Seconds of gradient and optimizer step together.
    pub seconds: f64,
}

impl Learner {
    /// A learner of `policy` before the first step.
    pub fn new(ctx: Context, policy: Policy, trainer: Trainer, schedule: Schedule) -> Learner {
        Learner { ctx, policy, trainer, schedule, step: Step::START, gradient_time_s: 0.0 }
    }

    /// Restores the optimizer's moments from the directory `checkpoint`, and the counters from `state`. The policy has
    /// already read its weights from the checkpoint.
    pub fn restore(&mut self, checkpoint: &Path, state: &RunState) -> anyhow::Result<()> {
        moments::restore_moments(checkpoint, "", self.trainer.optimizer_mut())?;
        self.trainer.set_state(state.trainer);
        self.policy.weights.set_version(state.weights_version);
        self.step = state.step;
        Ok(())
    }

    /// Starts or meets the other ranks of the run, which read the current weights.
    pub fn start_ranks(&mut self, ranks: &RankOptions, stop: &StopSignal, sinks: &Sinks) -> anyhow::Result<()> {
        ranks.start(&mut self.trainer, &self.ctx, self.policy.config(), stop, sinks)?;
        ranks::publish(&self.trainer, &mut self.policy.weights)
    }

    /// Whether all steps of the schedule are done.
    pub fn is_done(&self) -> bool {
        self.step.left_of(self.schedule.total_steps) == 0
    }

    /// Computes the gradient of the policy's loss on `samples`, which the next [`step`](Self::step) applies. A stop
    /// request can interrupt the computation.
    pub fn gradient<'a>(&mut self, stages: &Stages, samples: impl Into<Samples<'a>>) -> anyhow::Result<()> {
        let (span, before) = (stages.span("update"), kernels::context::counted());
        ranks::share(&self.trainer, &self.policy.weights)?;
        self.trainer.gradient(&self.ctx, self.policy.weights.view(), samples)?;
        record_ops(&span, before);
        self.gradient_time_s = span.end();
        Ok(())
    }

    /// Takes the optimizer step with the computed gradient.
    pub fn step(&mut self, stages: &Stages) -> anyhow::Result<Update> {
        let learning_rate = self.schedule.at(self.step.0);
        let (span, before) = (stages.span("update"), kernels::context::counted());
        let params = StepParams { learning_rate };
        let stepped = self.trainer.step(&self.ctx, &mut self.policy.weights, params);
        let metrics = match stepped {
            Err(train::Error::NonFinite { .. }) if !self.policy.weights_are_finite() => {
                let why = self.policy.why_not_finite();
                bad_input!("{why}; this was already the case before training, since no loss or gradient was finite")
            }
            stepped => stepped?,
        };
        record_ops(&span, before);
        record_parts(&span, &metrics);
        self.step = self.step.next();
        ranks::publish(&self.trainer, &mut self.policy.weights)?;
        Ok(Update { metrics, seconds: self.gradient_time_s + span.end() })
    }

    /// Functions that write the weights and the optimizer's state to a checkpoint later, on another thread. The data to
    /// write do not change until then, or are copied now.
    pub fn writers(&self) -> Vec<WriteFiles> {
        vec![self.policy.writer(), moments::write_moments("", self.trainer.optimizer())]
    }
}

/// Adds the times measured by the trainer to the `span` of the step.
pub fn record_parts(span: &Span, metrics: &UpdateMetrics) {
    span.part("forward", metrics.forward_time_s);
    span.part("backward", metrics.backward_time_s);
    span.part("optimizer", metrics.optimizer_time_s);
}

/// The reason why a step was skipped: its loss or gradient is not finite.
pub fn not_finite(metrics: &UpdateMetrics) -> String {
    format!("the loss or the gradient is not finite (loss {}, gradient norm {})", metrics.loss, metrics.grad_norm)
}
