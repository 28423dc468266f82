//! LUSPO, length-unbiased sequence policy optimisation (arXiv:2602.05261): GSPO in which the weight of a sequence is
//! proportional to its length. It is meant for `importance_sampling_level = "sequence"`.
//!
//! J = 1/B Σ_s Σ_t m L over sequences s and tokens t, with mask m, the clipped surrogate L, and B sequences.

use super::{LossConfig, Normalizer, PolicyLoss};

/// LUSPO. Each token has the weight 1 / B, with B sequences in the optimizer batch.
#[derive(Clone, Copy, Debug)]
pub struct Luspo;

impl PolicyLoss for Luspo {
    fn weight(&self, _: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / normalizer.sequences as f64
    }
}
