//! GRPO (Shao et al. 2024, arXiv:2402.03300): the mean over sequences of the mean over their tokens.
//!
//! J = 1/B Σ_s 1/max(1, n_s) Σ_t m L over sequences s and tokens t, with mask m, policy term L, B sequences, and n_s
//! tokens in the loss of sequence s.

use super::{LossConfig, Normalizer, PolicyLoss};

/// GRPO. Each token has the weight 1 / (B max(1, n)), with B sequences in the optimizer batch and n tokens in the loss
/// of its sequence.
#[derive(Clone, Copy, Debug)]
pub struct Grpo;

impl PolicyLoss for Grpo {
    fn weight(&self, _: &LossConfig, tokens: usize, normalizer: &Normalizer) -> f64 {
        1.0 / (normalizer.sequences as f64 * tokens.max(1) as f64)
    }
}
