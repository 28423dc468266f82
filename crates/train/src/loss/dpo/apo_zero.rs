//! Anchored preference optimization, "zero" (D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 7): for chosen answers
//! that are better than the model's own. Chosen answers become likelier, rejected ones less likely. φ is the loss of a
//! pair; ρ_c and ρ_r are log π_θ − log π_ref of the chosen and the rejected answer; σ is the sigmoid:
//!
//! φ = 1 − σ(a) + σ(b), a = β ρ_c, b = β ρ_r; ∂φ/∂ρ_c = −β σ(a) σ(−a), ∂φ/∂ρ_r = β σ(b) σ(−b)

use super::{DpoConfig, Phi, Ratios, logistic};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let [a, b] = [config.beta * ratios.chosen, config.beta * ratios.rejected];
    Phi {
        value: logistic(-a) + logistic(b),
        d_chosen: -config.beta * logistic(a) * logistic(-a),
        d_rejected: config.beta * logistic(b) * logistic(-b),
    }
}
