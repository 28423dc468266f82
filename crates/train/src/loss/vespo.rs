//! VESPO, variational sequence-level soft policy optimisation (arXiv:2602.10693). Instead of clipping, log π_θ is
//! multiplied by a smooth, Gamma-shaped weight φ of the whole sequence's importance weight w. φ is held constant (sg).
//! A is the advantage, m the mask, N the number of tokens in the loss.
//!
//! ```text
//! L = −sg[φ(w)] A log π_θ, φ(w) = e^λ w^k e^(−λw), so that φ(1) = 1;  J = 1/N Σ_s Σ_t m L
//! ln w = Σ_t m (clamp(ρ_t, ±20) + clamp(ln c_t, ln 1e-8, 20)), then clamped to ln 1e-8 .. 20
//! ```
//!
//! ρ_t = log π_θ(t) − log π_old(t), summed and not averaged. c_t is the token's importance-sampling
//! [correction](super::sampling), which is a factor of w, not of L. k and λ are `vespo_k_pos` and `vespo_lambda_pos` if
//! A ≥ 0, else `vespo_k_neg` and `vespo_lambda_neg`. ∂L/∂log π_θ = −φ A.

use super::sampling::Weights;
use super::{LossConfig, LossSums, Normalizer, PolicyLoss, Term, Token, Whole};
use kernels::check::Float;

const LOWEST: f64 = -18.420_680_743_952_367; // ln 1e-8
const HIGHEST: f64 = 20.0;

/// The VESPO loss. Each token has the weight 1 / max(1, N), with N tokens in the loss of the optimizer batch.
#[derive(Clone, Copy, Debug)]
pub struct Vespo {
    /// Logarithm of the sequence's importance weight w.
    pub log_weight: f64,
}

impl Vespo {
    /// Computes the importance weight of a sequence.
    pub fn new<T: Float>(logps: &[T], old_logps: &[T], mask: &[bool], correction: &Weights) -> Vespo {
        let kept = |t: &usize| mask[*t];
        let ratio: f64 =
            (0..mask.len()).filter(kept).map(|t| (logps[t].f64() - old_logps[t].f64()).clamp(-HIGHEST, HIGHEST)).sum();
        let correction: f64 =
            (0..mask.len()).filter(kept).map(|t| libm::log(correction.at(t)).clamp(LOWEST, HIGHEST)).sum();
        Vespo { log_weight: (ratio + correction).clamp(LOWEST, HIGHEST) }
    }

    /// The weight φ(w) of the sequence's tokens, for this advantage.
    pub fn phi(&self, config: &LossConfig, advantage: f64) -> f64 {
        let (k, lambda) = if advantage >= 0.0 {
            (config.vespo_k_pos, config.vespo_lambda_pos)
        } else {
            (config.vespo_k_neg, config.vespo_lambda_neg)
        };
        let lambda = lambda.max(1e-4);
        let phi = libm::exp(lambda + k * self.log_weight - lambda * libm::exp(self.log_weight));
        // In TRL a NaN weight becomes 0. Here it stays NaN, so that it makes the loss non-finite.
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

    /// Reports `vespo/phi_seq_mean`: the mean of φ over sequences, or over tokens if advantages are per token.
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
