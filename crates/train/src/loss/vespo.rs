//! VESPO, variational sequence-level soft policy optimisation (arXiv:2602.10693): a Gamma-shaped weight of the whole
//! sequence's importance weight, held constant, in the place of the clip; log π_θ carries the gradient.
//!
//! ```text
//! L = −sg[φ(w)] A log π_θ, φ(w) = e^λ w^k e^(−λw), so that φ(1) = 1;  J = 1/N Σ_s Σ_t m L
//! ln w = Σ_t m (clamp(ρ_t, ±20) + clamp(ln c_t, ln 1e-8, 20)), then clamped to ln 1e-8 .. 20
//! ```
//!
//! ρ_t = log π_θ(t) − log π_old(t), summed and not averaged; c_t the token's importance-sampling
//! [correction](super::sampling), which is in w instead of in front of L. k and λ are `vespo_k_pos`, `vespo_lambda_pos`
//! where A ≥ 0, else `vespo_k_neg`, `vespo_lambda_neg`. ∂L/∂log π_θ = −φ A.

use super::sampling::Weights;
use super::{LossConfig, LossSums, Normalizer, PolicyLoss, Term, Token, Whole};
use kernels::check::Float;

const LOWEST: f64 = -18.420_680_743_952_367; // ln 1e-8
const HIGHEST: f64 = 20.0;

/// w_s = 1 / max(1, N)
#[derive(Clone, Copy, Debug)]
pub struct Vespo {
    /// ln w
    pub log_weight: f64,
}

impl Vespo {
    /// With ln w of a sequence.
    pub fn new<T: Float>(logps: &[T], old_logps: &[T], mask: &[bool], correction: &Weights) -> Vespo {
        let kept = |t: &usize| mask[*t];
        let ratio: f64 =
            (0..mask.len()).filter(kept).map(|t| (logps[t].f64() - old_logps[t].f64()).clamp(-HIGHEST, HIGHEST)).sum();
        let correction: f64 =
            (0..mask.len()).filter(kept).map(|t| libm::log(correction.at(t)).clamp(LOWEST, HIGHEST)).sum();
        Vespo { log_weight: (ratio + correction).clamp(LOWEST, HIGHEST) }
    }

    /// φ(w)
    pub fn phi(&self, config: &LossConfig, advantage: f64) -> f64 {
        let (k, lambda) = match advantage >= 0.0 {
            true => (config.vespo_k_pos, config.vespo_lambda_pos),
            false => (config.vespo_k_neg, config.vespo_lambda_neg),
        };
        let lambda = lambda.max(1e-4);
        let phi = libm::exp(lambda + k * self.log_weight - lambda * libm::exp(self.log_weight));
        // A weight that is not a number weighs nothing in TRL; here it must show.
        if phi == f64::INFINITY { 0.0 } else { phi }
    }
}

impl PolicyLoss for Vespo {
    fn weight(&self, _: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / normalizer.tokens.max(1) as f64
    }

    fn term(&self, config: &LossConfig, token: &Token) -> Term {
        let slope = -self.phi(config, token.advantage) * token.advantage;
        Term { value: slope * token.logp, d_logp: slope, ..Term::default() }
    }

    fn corrects_itself(&self) -> bool {
        true
    }

    /// `vespo/phi_seq_mean`: the mean of φ over sequences; over tokens where the advantage is per token.
    fn report(&self, config: &LossConfig, whole: &Whole<'_>, sums: &mut LossSums) {
        let name = "vespo/phi_seq_mean";
        match whole.advantage {
            crate::Advantage::Sequence(a) => sums.means.add(name, self.phi(config, f64::from(*a)), 1),
            crate::Advantage::Tokens(a) => {
                let kept = a.iter().zip(whole.mask).filter(|(_, m)| **m);
                sums.means.add(name, kept.map(|(a, _)| self.phi(config, f64::from(*a))).sum(), whole.tokens as u64);
            }
        }
    }
}
