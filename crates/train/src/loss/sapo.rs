//! SAPO, soft adaptive policy optimisation (Gao et al. 2025, arXiv:2511.20347): a sigmoid gate instead of clipping,
//! narrower if the advantage is not positive. With importance ratio r = e^ρ, advantage A and sigmoid σ:
//!
//! L = −(4/τ) σ(τ (r − 1)) A, τ = `sapo_temperature_pos` where A > 0, else `sapo_temperature_neg`
//!
//! ∂L/∂ρ = −4 σ (1 − σ) r A, which at r = 1 is −A, as without a gate. Tokens are averaged as in [`super::grpo`].

use super::{LossConfig, LossSums, Normalizer, PolicyLoss, Term, Token, Whole, grpo};

/// The SAPO loss. Each token has the weight 1 / (B max(1, n)), with B sequences in the optimizer batch and n tokens in
/// the loss of its sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sapo;

impl PolicyLoss for Sapo {
    fn weight(&self, config: &LossConfig, tokens: usize, normalizer: &Normalizer) -> f64 {
        grpo::Grpo.weight(config, tokens, normalizer)
    }

    fn term(&self, config: &LossConfig, token: &Token) -> Term {
        let &Token { ratio, advantage, .. } = token;
        let tau = if advantage > 0.0 { config.sapo_temperature_pos } else { config.sapo_temperature_neg };
        let gate = 1.0 / (1.0 + libm::exp(-tau * (ratio - 1.0)));
        Term {
            value: -4.0 / tau * gate * advantage,
            d_log_ratio: -4.0 * gate * (1.0 - gate) * ratio * advantage,
            ..Term::default()
        }
    }

    /// Reports nothing, since nothing is clipped.
    fn report(&self, _: &LossConfig, _: &Whole<'_>, _: &mut LossSums) {}
}
