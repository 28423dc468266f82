//! Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): the loss is divided by a constant, so that a token has the same weight
//! in a short and in a long completion, and in every batch.
//!
//! J = 1/(B · max_completion_length) Σ_s Σ_t m L over sequences s and tokens t, with mask m, policy term L, and B
//! sequences.

use super::{LossConfig, Normalizer, PolicyLoss};

/// Dr. GRPO. Each token has the weight 1 / (B · max_completion_length), with B sequences in the optimizer batch.
#[derive(Clone, Copy, Debug)]
pub struct DrGrpo;

impl PolicyLoss for DrGrpo {
    fn weight(&self, config: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / (normalizer.sequences as f64 * config.max_completion_length as f64)
    }
}
