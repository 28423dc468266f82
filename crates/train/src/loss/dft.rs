//! Dynamic fine-tuning (Wu et al. 2025, arXiv:2508.05629): supervised fine-tuning in which each token is weighted by
//! its own probability, so that unlikely tokens do not have the largest gradients.
//!
//! With N tokens in the loss, mask m and sg the stop-gradient, J = −1/max(1, N) Σ_s Σ_t m sg(π_θ) log π_θ over
//! sequences s and tokens t; ∂J/∂log π_θ(t) = −m_t π_θ(t) / max(1, N).

use super::{LossSums, Normalizer};
use kernels::check::Float;

/// The loss −p log p of a token with probability p, whose first factor is held constant.
pub fn term(logp: f64) -> f64 {
    -libm::exp(logp) * logp
}

/// Adds one sequence's contribution to the loss J to `sums`, and overwrites `d_logps` with ∂J/∂log π_θ.
pub fn dft<T: Float>(normalizer: &Normalizer, logps: &[T], mask: &[bool], d_logps: &mut [T], sums: &mut LossSums) {
    assert!(logps.len() == mask.len() && d_logps.len() == mask.len());
    let weight = 1.0 / normalizer.tokens.max(1) as f64;
    for ((&logp, &m), d) in logps.iter().zip(mask).zip(d_logps) {
        *d = T::of(if m { -weight * libm::exp(logp.f64()) } else { 0.0 });
        if m {
            sums.loss += weight * term(logp.f64());
            sums.tokens += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::check::{directional_error, normal};

    /// The token's probability is held constant, so the gradient equals that of a loss whose weights are fixed at this
    /// point.
    #[test]
    fn the_dft_gradient_holds_the_token_weights_constant() {
        let x: Vec<f64> = normal::<f64>(7, 9).iter().map(|x| -(x.abs() + 0.1)).collect();
        let mask: Vec<bool> = (0..9).map(|t| t % 4 != 2).collect();
        let normalizer = Normalizer::of([&mask]);
        let (mut sums, mut gradient) = (LossSums::default(), vec![f64::NAN; 9]);
        dft(&normalizer, &x, &mask, &mut gradient, &mut sums);
        let kept = || (0..9).filter(|&t| mask[t]);
        let value = |y: &[f64]| kept().map(|t| -x[t].exp() * y[t]).sum::<f64>() / 7.0;
        assert!(directional_error(&x, &gradient, value) < 1e-9);
        assert!((sums.loss - value(&x)).abs() < 1e-15 && sums.tokens == 7);
        let mut spoiled = gradient.clone();
        spoiled[0] *= 1.1;
        assert!(directional_error(&x, &spoiled, value) > 1e-4);
        assert!((2..9).step_by(4).all(|t| gradient[t] == 0.0));
        // Computed by hand for p = 1/2.
        assert!((term(0.5f64.ln()) - 0.5 * 2f64.ln()).abs() < 1e-15);
    }
}
