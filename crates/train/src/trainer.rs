//! The trainer: it takes optimizer steps, from samples to the next version of the weights.
//!
//! A [`Trainer`] is a [`TrainState`] (the gradients, the optimizer and the counters of one model) with [`Passes`] (the
//! tape and its buffers, which hold the activations of one micro-batch). Several states can take turns with the same
//! passes: their methods take the passes as an argument.

mod held_out;
mod micro_batch;
mod passes;
mod skip;
mod state;

pub use held_out::HeldOut;
pub use passes::Passes;
pub use state::TrainState;

use crate::loss::Normalizer;
use crate::loss::entropy::EntropyControl;
use crate::objective::Objective;
use crate::optimizer::Optimizer;
use crate::{OptimizerConfig, Result, Samples, UpdateMetrics};
use kernels::{Context, Memory};
use model::{Capacity, Grads, LoraConfig, ModelConfig, ModelView, StopCheck, Trainable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The number of skipped optimizer steps in a row that ends a training run with an error.
pub const MAX_SKIPPED_IN_A_ROW: u32 = 3;

/// Settings of a [`Trainer`].
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerConfig {
    /// The loss to minimise.
    pub objective: Objective,
    /// Settings of the optimizer.
    pub optimizer: OptimizerConfig,
    /// The LoRA adapter to train, which the weights must have; none: every parameter is trained.
    pub adapter: Option<LoraConfig>,
    /// Temperature that logits are divided by, the same as in sampling; above 0.
    pub temperature: f64,
    /// The most rows (tokens) of a micro-batch; a larger group is a separate micro-batch. This setting changes memory
    /// use, never the result.
    pub max_tokens_per_micro_batch: usize,
    /// Whether consecutive samples with the same prompt share the prompt's computation.
    pub prefix_sharing: bool,
    /// Whether to skip groups whose gradient is known to be 0, if the objective allows it ([`Objective::can_skip`]).
    /// This setting changes time and some metrics, never the result.
    pub skip_zero_gradients: bool,
    /// Whether to keep only each layer's input in the forward pass, and compute the other activations again in the
    /// backward pass.
    pub gradient_checkpointing: bool,
}

/// State of a trainer that lasts from step to step, besides the [optimizer's moments](Trainer::optimizer). A checkpoint
/// stores it without interpreting it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Number of optimizer steps taken (without skipped ones): the exponent of AdamW's bias correction.
    steps: u64,
    skipped_in_a_row: u32,
    skipped_total: u64,
    /// State of the entropy bonus, if its coefficient is adaptive.
    #[serde(default)]
    entropy: Option<EntropyControl>,
}

/// Parameters of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepParams {
    /// The learning rate.
    pub learning_rate: f64,
}

/// The trainer of one model: what training changes, and the passes that it computes with. The weights belong to the
/// caller.
pub struct Trainer {
    pub(crate) passes: Passes,
    pub(crate) state: TrainState,
}

impl Trainer {
    /// A trainer for a model of this configuration, with zero moments. Activation buffers are allocated by
    /// [`reserve`](Self::reserve), or grow with the samples.
    pub fn new(memory: &Memory, model: &Arc<ModelConfig>, config: TrainerConfig) -> Result<Trainer> {
        let passes = Passes::new(memory, config.gradient_checkpointing);
        let trainer = Trainer { state: TrainState::new(memory, model, config)?, passes };
        memory.check()?;
        Ok(trainer)
    }

    /// Makes the passes of a gradient check `stop` before each layer, and end with [`model::Error::Stopped`] once it
    /// says so. The accumulated gradient is then discarded, and the step has changed nothing.
    pub fn stop_with(&mut self, stop: impl Into<StopCheck>) {
        self.passes.stop_with(stop);
    }

    /// Allocates memory now for updates of up to `tokens` rows, in micro-batches of up to `capacity`, with sequences of
    /// up to `positions` tokens.
    pub fn reserve(&mut self, model: &ModelConfig, tokens: usize, capacity: Capacity, positions: usize) {
        self.state.grads.reserve(tokens);
        self.passes.reserve(model, capacity, positions);
    }

    /// Takes one optimizer step on all of `samples`: forward pass, loss, backward pass, clipping, optimizer, and the
    /// next version of `model`. A step whose loss or gradient is not finite is skipped: it is counted and changes
    /// nothing. The third skipped step in a row is an error.
    pub fn update<'a>(
        &mut self,
        ctx: &Context,
        model: &mut impl Trainable,
        samples: impl Into<Samples<'a>>,
        learning_rate: f64,
    ) -> Result<UpdateMetrics> {
        self.gradient(ctx, model.view(), samples)?;
        self.step(ctx, model, StepParams { learning_rate })
    }

    /// See [`TrainState::gradient`].
    pub fn gradient<'a>(&mut self, ctx: &Context, model: ModelView<'_>, samples: impl Into<Samples<'a>>) -> Result<()> {
        self.state.gradient(&mut self.passes, ctx, model, samples)
    }

    /// See [`TrainState::normalizer`].
    pub fn normalizer(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        samples: Samples<'_>,
        loss: &Objective,
    ) -> Result<Normalizer> {
        self.state.normalizer(&mut self.passes, ctx, model, samples, loss)
    }

    /// See [`TrainState::accumulate`].
    pub fn accumulate(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        samples: Samples<'_>,
        loss: &Objective,
        normalizer: &Normalizer,
    ) -> Result<()> {
        self.state.accumulate(&mut self.passes, ctx, model, samples, loss, normalizer)
    }

    /// See [`TrainState::reduce`].
    pub fn reduce(&mut self, ctx: &Context) -> Result<()> {
        self.state.reduce(ctx)
    }

    /// See [`TrainState::step`].
    pub fn step(&mut self, ctx: &Context, model: &mut impl Trainable, params: StepParams) -> Result<UpdateMetrics> {
        self.state.step(ctx, model, params)
    }

    /// The optimizer with its moments and master weights, which a checkpoint stores.
    pub fn optimizer(&self) -> &Optimizer {
        &self.state.optimizer
    }

    /// The optimizer, to overwrite its state when a training run is resumed.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.state.optimizer
    }

    /// The gradients of the last update, before clipping.
    pub fn grads(&self) -> &Grads {
        &self.state.grads
    }

    /// The trainer's counters and entropy coefficient, which a checkpoint stores.
    pub fn state(&self) -> TrainerState {
        self.state.counters()
    }

    /// Restores the state from a checkpoint.
    pub fn set_state(&mut self, state: TrainerState) {
        self.state.set_counters(state);
    }
}

impl TrainerState {
    /// Number of optimizer steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

#[cfg(test)]
mod tests;
