//! The memory of a rank other than 0, for a plan of a run's memory.

use crate::trainer::TrainerConfig;
use crate::trainer::passes::Passes;
use crate::{Error, Result};
use kernels::Memory;
use model::{Capacity, Grads, ModelConfig, Params};

/// The buffers that a rank other than 0 allocates besides the weights, which it shares with rank 0.
pub struct RankMemory {
    grads: Grads,
    _partial: Vec<Params>,
    passes: Passes,
}

impl RankMemory {
    /// The buffers of one of `world_size` ranks, counted in `memory`.
    pub fn new(memory: &Memory, model: &ModelConfig, config: &TrainerConfig, world_size: usize) -> Result<RankMemory> {
        let lora = config.adapter.as_ref();
        let count = config.gradient_shares / world_size;
        let partial = (0..count.max(1).ilog2()).map(|_| Params::trained(&memory.part("gradients"), model, lora));
        let passes = Passes::new(memory, config.gradient_checkpointing);
        let rank = RankMemory { grads: Grads::trained(memory, model, lora), _partial: partial.collect(), passes };
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
