//! DAPO's token-level loss (Yu et al. 2025, arXiv:2503.14476): every token of the optimizer step has the same weight.
//!
//! J = 1/max(1, N) Σ_s Σ_t m L over sequences s and tokens t, with mask m, policy term L, and N tokens in the loss of
//! the whole optimizer step, over all processes. (With several optimizer steps per generation batch, TRL divides by the
//! mean N of those steps.)

use super::{LossConfig, Normalizer, PolicyLoss};

/// DAPO. Each token has the weight 1 / max(1, N), with N tokens in the loss of the optimizer step.
#[derive(Clone, Copy, Debug)]
pub struct Dapo;

impl PolicyLoss for Dapo {
    fn weight(&self, _: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / normalizer.tokens.max(1) as f64
    }
}
