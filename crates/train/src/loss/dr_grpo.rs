//! Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): a constant divisor, so that a token counts the same in a short and in
//! a long completion, and from batch to batch.
//!
//! J = 1/(B · max_completion_length) Σ_s Σ_t m L, with B sequences.

use super::{LossConfig, Normalizer, PolicyLoss};

/// w_s = 1 / (B · max_completion_length)
#[derive(Clone, Copy, Debug)]
pub struct DrGrpo;

impl PolicyLoss for DrGrpo {
    fn weight(&self, config: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / (normalizer.sequences as f64 * config.max_completion_length as f64)
    }
}
