//! BNPO's normalisation as in TRL: the mean over the tokens of the batch. TRL averages over a local micro-batch, so
//! that its result depends on the micro-batch size; here the mean is over the optimizer batch.
//!
//! J = 1/max(1, N) Σ_s Σ_t m L over sequences s and tokens t, with mask m, policy term L, and N tokens in the loss.

use super::{LossConfig, Normalizer, PolicyLoss};

/// BNPO. Each token has the weight 1 / max(1, N), with N tokens in the loss of the optimizer batch.
#[derive(Clone, Copy, Debug)]
pub struct Bnpo;

impl PolicyLoss for Bnpo {
    fn weight(&self, _: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / normalizer.tokens.max(1) as f64
    }
}
