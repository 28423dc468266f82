//! The memory of a rank other than 0, for a plan of a run's memory.

use crate::optimizer::Optimizer;
use crate::trainer::TrainerConfig;
use crate::trainer::passes::Passes;
use crate::{Error, Result};
use kernels::Memory;
use model::{Capacity, Grads, ModelConfig, Params};

/// The buffers of a rank other than 0 besides the weights, and its part of the optimizer's state.
pub struct RankMemory {
    grads: Grads,
    _partial: Vec<Params>,
    _optimizer: Optimizer,
    passes: Passes,
}

impl RankMemory {
    /// The buffers of `rank`, one of `world_size` ranks, counted in `memory`.
    pub fn new(
        memory: &Memory,
        model: &ModelConfig,
        config: &TrainerConfig,
        [rank, world_size]: [usize; 2],
    ) -> Result<RankMemory> {
        let lora = config.adapter.as_ref();
        let count = config.gradient_shares / world_size;
        let partial = (0..count.max(1).ilog2()).map(|_| Params::trained(&memory.part("gradients"), model, lora));
        let passes = Passes::new(memory, config.gradient_checkpointing);
        let optimizer = Optimizer::count_rank(memory, model, lora, config.optimizer, [rank, world_size]);
        let (grads, partial) = (Grads::trained(memory, model, lora), partial.collect());
        let rank = RankMemory { grads, _partial: partial, _optimizer: optimizer, passes };
        memory.check().map_err(Error::from)?;
        Ok(rank)
    }

    /// Adds the buffers for micro-batches of up to `capacity`, with forward passes of up to `forwarded` rows and
    /// sequences of up to `positions` tokens.
    pub fn reserve(&mut self, model: &ModelConfig, capacity: Capacity, forwarded: usize, positions: usize) {
        self.grads.reserve(capacity.tokens);
        self.passes.reserve(model, capacity, forwarded, positions);
    }
}
