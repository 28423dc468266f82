//! Binary classifier optimization (Jung et al. 2024, arXiv:2404.04656) on pairs, without its reward shift, as in TRL:
//! each answer is classified separately. φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log π_ref of the chosen and
//! the rejected answer; σ is the sigmoid:
//!
//! φ = −log σ(a) − log σ(−b), a = β ρ_c, b = β ρ_r; ∂φ/∂ρ_c = −β σ(−a), ∂φ/∂ρ_r = β σ(b)

use super::{DpoConfig, Phi, Ratios, logistic, softplus};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let [a, b] = [config.beta * ratios.chosen, config.beta * ratios.rejected];
    Phi {
        value: softplus(-a) + softplus(b),
        d_chosen: -config.beta * logistic(-a),
        d_rejected: config.beta * logistic(b),
    }
}
