//! One optimizer step: samples in, weights one version further.

use crate::{LossConfig, OptimizerConfig, OptimizerState, Result, Sample, UpdateMetrics};
use kernels::Context;
use model::weights::Weights;

/// What is minimised.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// A policy-gradient loss.
    Policy(LossConfig),
    /// The mean negative log-likelihood of the completion tokens of the optimizer batch.
    Supervised,
}

/// How a [`Trainer`] works.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerConfig {
    /// What is minimised.
    pub objective: Objective,
    /// AdamW.
    pub optimizer: OptimizerConfig,
    /// Logits are divided by it, as in sampling.
    pub temperature: f32,
    /// Rows of a micro-batch; a larger group is a micro-batch of its own. It changes memory, never the result.
    pub max_tokens_per_micro_batch: usize,
    /// Consecutive samples with the same prompt compute it once.
    pub prefix_sharing: bool,
    /// Keep only each layer's input, and compute the rest again in the backward pass.
    pub gradient_checkpointing: bool,
}

/// Gradients, moments and buffers of a training run. The weights stay the caller's.
pub struct Trainer {
    config: TrainerConfig,
}

impl Trainer {
    /// A trainer for weights of this shape, its moments zero.
    pub fn new(ctx: &Context, weights: &Weights, config: TrainerConfig) -> Result<Trainer> {
        let _ = (ctx, weights);
        Ok(Trainer { config })
    }

    /// How it works.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }

    /// One optimizer step on all of `samples`: forward, loss, backward, clip, AdamW, and `weights.version` + 1. A step whose
    /// loss or gradient is not finite changes nothing, is counted, and the third in a row is an error.
    pub fn update(
        &mut self,
        ctx: &Context,
        weights: &mut Weights,
        samples: &[Sample],
        learning_rate: f64,
    ) -> Result<UpdateMetrics> {
        let _ = (ctx, weights, samples, learning_rate);
        unimplemented!()
    }

    /// The state that a checkpoint needs.
    pub fn export_state(&self) -> OptimizerState {
        unimplemented!()
    }

    /// Continues from a saved state.
    pub fn import_state(&mut self, state: &OptimizerState) -> Result<()> {
        let _ = state;
        unimplemented!()
    }
}
