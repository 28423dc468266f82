//! Supervised fine-tuning: the mean negative log-likelihood of the completion tokens of the optimizer batch.
//!
//! With N tokens in the loss and mask m, J = −1/max(1, N) Σ_s Σ_t m log π_θ over sequences s and tokens t; ∂J/∂log
//! π_θ(t) = −m_t / max(1, N).

use super::{LossSums, Normalizer};
use kernels::check::Float;

/// Adds one sequence's contribution to the loss J to `sums`, and overwrites `d_logps` with ∂J/∂log π_θ.
pub fn supervised<T: Float>(
    normalizer: &Normalizer,
    logps: &[T],
    mask: &[bool],
    d_logps: &mut [T],
    sums: &mut LossSums,
) {
    assert!(logps.len() == mask.len() && d_logps.len() == mask.len());
    let weight = 1.0 / normalizer.tokens.max(1) as f64;
    for ((&logp, &m), d) in logps.iter().zip(mask).zip(d_logps) {
        *d = T::of(if m { -weight } else { 0.0 });
        if m {
            sums.loss -= weight * logp.f64();
            sums.tokens += 1;
        }
    }
}
