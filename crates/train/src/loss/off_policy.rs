//! Off-policy sequence masking (DeepSeek-V3.2, arXiv:2512.02556, equation 9): completions that the current policy is
//! very unlikely to generate are not made even less likely.
//!
//! A token stays in the policy term if its advantage A ≥ 0, or if the sequence's mean 1/max(1, n) Σ_t m (log π_sampler
//! − log π_θ) over its n tokens in the loss (mask m) is at most the threshold. The KL term is not masked, and the
//! counts that losses divide by do not change.

use kernels::check::Float;

/// Whether the sequence is close enough to the policy to use negative advantages. A token whose sampler log-probability
/// is unknown (NaN) counts as difference 0.
pub fn is_near<T: Float>(threshold: Option<f64>, logps: &[T], sampler_logps: &[T], mask: &[bool]) -> bool {
    let Some(threshold) = threshold else { return true };
    let tokens = mask.iter().filter(|&&m| m).count();
    let difference = |t: usize| {
        let sampler = sampler_logps[t].f64();
        if mask[t] && !sampler.is_nan() { sampler - logps[t].f64() } else { 0.0 }
    };
    let mean = (0..mask.len()).map(difference).sum::<f64>() / tokens.max(1) as f64;
    // A NaN must make the loss non-finite, so the sequence must not be masked.
    mean <= threshold || mean.is_nan()
}
