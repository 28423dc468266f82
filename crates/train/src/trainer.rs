//! The trainer takes optimizer steps: from samples to the next version of the weights.
//!
//! A [`Trainer`] consists of a [`TrainState`] (gradients, optimizer and counters of one model) and [`Passes`] (the tape
//! and its buffers, which hold the activations of one micro-batch). Several states can share the same passes, since the
//! methods of a state take the passes as an argument.

mod checked;
mod divided;
mod held_out;
mod kept;
mod loss_gradient;
mod micro_batch;
mod passes;
mod ranks;
mod shares;
mod skip;
mod state;

pub use self::ranks::{OtherRanks, OtherWork, RankMemory, RankModel, SendReply, World, serve as serve_rank};
pub use held_out::HeldOut;
pub use passes::Passes;
pub(crate) use passes::{Compute, OutputGrads};
pub use state::TrainState;

use crate::loss::Normalizer;
use crate::loss::entropy::EntropyControl;
use crate::objective::Objective;
use crate::optimizer::Optimizer;
use crate::{OptimizerConfig, Result, Samples, UpdateMetrics};
use kernels::{Context, Memory};
use model::kept::RolloutActivations;
use model::{Capacity, Grads, LoraConfig, ModelConfig, ModelView, StopCheck, Trainable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// After this many consecutive skipped optimizer steps, training fails.
pub const MAX_SKIPPED_IN_A_ROW: u32 = 3;

/// Settings of a [`Trainer`].
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerConfig {
    /// The loss to minimise.
    pub objective: Objective,
    /// Settings of the optimizer.
    pub optimizer: OptimizerConfig,
    /// The LoRA adapter to train, which the weights must have. `None`: all parameters are trained.
    pub adapter: Option<LoraConfig>,
    /// Temperature by which logits are divided, the same as in sampling. Must be above 0.
    pub temperature: f64,
    /// The maximum number of rows (tokens) of a micro-batch. A larger group gets a separate micro-batch. This affects
    /// memory use, but never the result.
    pub max_tokens_per_micro_batch: usize,
    /// Whether consecutive samples with the same prompt share the prompt's computation.
    pub prefix_sharing: bool,
    /// Whether to skip groups whose gradient is known to be 0, if the objective allows it ([`Objective::can_skip`]).
    /// This affects time and some metrics, but never the result.
    pub skip_zero_gradients: bool,
    /// Whether the forward pass keeps only each layer's input, and the backward pass recomputes the other activations.
    pub gradient_checkpointing: bool,
    /// The number of shares into which a step's groups are divided, a power of two. The gradients of the shares are
    /// added as a tree. The number determines the last bits of the gradient, and how many processes can divide a step.
    pub gradient_shares: usize,
}

/// The trainer's state between steps, besides the [optimizer's moments](Trainer::optimizer). Checkpoints store it
/// without interpreting it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Number of optimizer steps taken, without skipped ones. It is the exponent in AdamW's bias correction.
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

/// The trainer of one model: the state that training changes, and the passes. The weights belong to the caller.
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

    /// Sets a check that forward and backward passes make before each layer. Once `stop` returns true, they fail with
    /// [`model::Error::Stopped`]. The accumulated gradient is then discarded, and the step has changed nothing.
    pub fn stop_with(&mut self, stop: impl Into<StopCheck>) {
        self.passes.stop_with(stop);
    }

    /// Replaces forward passes by the activations that the engine keeps in `activations`, if they belong to the samples
    /// and the weights of an update. The result has the same bits. Ignored with LoRA dropout.
    pub fn use_activations(&mut self, activations: RolloutActivations) {
        self.passes.activations = Some(activations).filter(|_| self.state.can_use_activations());
    }

    /// Allocates memory for updates of up to `tokens` rows, in micro-batches of up to `capacity` with forward passes of
    /// up to `forwarded` rows, and with sequences of up to `positions` tokens.
    pub fn reserve(
        &mut self,
        model: &ModelConfig,
        tokens: usize,
        capacity: Capacity,
        forwarded: usize,
        positions: usize,
    ) {
        self.state.grads.reserve(tokens);
        self.passes.reserve(model, capacity, forwarded, positions);
    }

    /// Takes one optimizer step on all of `samples`: forward pass, loss, backward pass, clipping, optimizer, and the
    /// next version of `model`. A step with a non-finite loss or gradient is counted and skipped, and changes nothing.
    /// The third consecutive skipped step is an error.
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
        self.state.reduce(ctx, &self.passes.stop)
    }

    /// See [`TrainState::step`].
    pub fn step(&mut self, ctx: &Context, model: &mut impl Trainable, params: StepParams) -> Result<UpdateMetrics> {
        self.state.step(ctx, model, params)
    }

    /// The optimizer with its moments and master weights, which a checkpoint stores.
    pub fn optimizer(&self) -> &Optimizer {
        &self.state.optimizer
    }

    /// The optimizer, to overwrite its state when a training run resumes.
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
