//! CISPO (MiniMax-M1, Chen et al. 2025, arXiv:2506.13585): the importance ratio r is bounded and held constant (sg),
//! and the gradient goes through log π_θ, so that no token loses its gradient. A is the advantage, m the mask, N the
//! number of tokens in the loss:
//!
//! L = −sg[min(r, ε_max)] A log π_θ, J = 1/N Σ_s Σ_t m L
//!
//! ∂L/∂log π_θ = −min(r, ε_max) A. `epsilon_high` is ε_max itself, not its distance from 1; ScaleRL (arXiv:2510.13786)
//! recommends 5.

use super::{LossConfig, LossSums, Normalizer, PolicyLoss, Term, Token, Whole, clip};

/// The CISPO loss. Each token has the weight 1 / max(1, N), with N tokens in the loss of the optimizer batch.
#[derive(Clone, Copy, Debug)]
pub struct Cispo;

impl PolicyLoss for Cispo {
    fn weight(&self, _: &LossConfig, _: usize, normalizer: &Normalizer) -> f64 {
        1.0 / normalizer.tokens.max(1) as f64
    }

    fn term(&self, config: &LossConfig, token: &Token) -> Term {
        let &Token { ratio, logp, advantage, .. } = token;
        let slope = -clip::at_most(ratio, config.epsilon_high()) * advantage;
        let high = ratio > config.epsilon_high() && advantage > 0.0;
        Term { value: slope * logp, d_logp: slope, high, ..Term::default() }
    }

    /// Reports `cispo_clip_ratio`: the fraction of tokens with a ratio above the bound and a positive advantage.
    fn report(&self, _: &LossConfig, whole: &Whole<'_>, sums: &mut LossSums) {
        sums.means.add("cispo_clip_ratio", whole.high as f64, whole.counted);
    }
}
