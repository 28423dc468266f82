//! Off-policy sequence masking (DeepSeek-V3.2, arXiv:2512.02556, equation 9): what the policy would hardly write any
//! more is not pushed down further.
//!
//! A token stays in the policy term where A ≥ 0, or 1/max(1, n) Σ_t m (log π_sampler − log π_θ) ≤ threshold. The KL
//! term is not masked, and no count that losses divide by changes.

use kernels::check::Float;

/// Whether the sequence is near enough for negative advantages to count. A token whose sampler's log-probability is not
/// known (NaN) counts as equal.
pub fn is_near<T: Float>(threshold: Option<f64>, logps: &[T], sampler_logps: &[T], mask: &[bool]) -> bool {
    let Some(threshold) = threshold else { return true };
    let tokens = mask.iter().filter(|&&m| m).count();
    let difference = |t: usize| {
        let sampler = sampler_logps[t].f64();
        if mask[t] && !sampler.is_nan() { sampler - logps[t].f64() } else { 0.0 }
    };
    let mean = (0..mask.len()).map(difference).sum::<f64>() / tokens.max(1) as f64;
    // A policy that is not a number must show in the loss, not be masked out of it.
    mean <= threshold || mean.is_nan()
}
