//! BNPO's normalisation as TRL understands it: the mean over the tokens of the batch. TRL's batch is the local
//! micro-batch, so that its result depends on the micro-batch size; here it is the optimizer batch.
//!
//! J = 1/max(1, N) Σ_s Σ_t m L, with N tokens in the loss.

use super::{LossConfig, Normalizer, PolicyLoss};

/// w_s = 1 / max(1, N)
#[derive(Clone, Copy, Debug)]
pub struct Bnpo;

impl PolicyLoss for Bnpo {
    fn weight(&self, _: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / normalizer.tokens.max(1) as f64
    }
}
