//! LUSPO, length-unbiased sequence policy optimisation (arXiv:2602.05261): GSPO whose sequences count by
//! their length. Meant for `importance_sampling_level = "sequence"`.
//!
//! J = 1/B Σ_s Σ_t m L, with B sequences; L is the clipped surrogate.

use super::{LossConfig, Normalizer, PolicyLoss};

/// w_s = 1 / B
#[derive(Clone, Copy, Debug)]
pub struct Luspo;

impl PolicyLoss for Luspo {
    fn weight(&self, _: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / normalizer.sequences as f64
    }
}
