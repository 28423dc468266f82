//! Noise contrastive alignment on pairs (Chen et al. 2024, arXiv:2402.05369): it also keeps the likelihood of the
//! chosen answer high. φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log π_ref of the chosen and the rejected
//! answer; σ is the sigmoid:
//!
//! φ = −log σ(a) − ½ log σ(−a) − ½ log σ(−b), a = β ρ_c, b = β ρ_r
//!
//! ∂φ/∂ρ_c = β (½ σ(a) − σ(−a)), ∂φ/∂ρ_r = ½ β σ(b)

use super::{DpoConfig, Phi, Ratios, logistic, softplus};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let [a, b] = [config.beta * ratios.chosen, config.beta * ratios.rejected];
    Phi {
        value: softplus(-a) + 0.5 * softplus(a) + 0.5 * softplus(b),
        d_chosen: config.beta * (0.5 * logistic(a) - logistic(-a)),
        d_rejected: 0.5 * config.beta * logistic(b),
    }
}
