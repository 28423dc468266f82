//! Anchored preference optimization, "down" (D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 8): for chosen answers
//! that are worse than the model's own. Both answers become less likely, the rejected one more so. φ is the loss of a
//! pair; ρ_c and ρ_r are log π_θ − log π_ref of the chosen and the rejected answer; σ is the sigmoid:
//!
//! φ = σ(a) + 1 − σ(x), a = β ρ_c, x = β (ρ_c − ρ_r); ∂φ/∂ρ_c = β (σ(a) σ(−a) − σ(x) σ(−x)), ∂φ/∂ρ_r = β σ(x) σ(−x)

use super::{DpoConfig, Phi, Ratios, logistic};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let (a, x) = (config.beta * ratios.chosen, config.beta * (ratios.chosen - ratios.rejected));
    let slope = config.beta * logistic(x) * logistic(-x);
    Phi {
        value: logistic(a) + logistic(-x),
        d_chosen: config.beta * logistic(a) * logistic(-a) - slope,
        d_rejected: slope,
    }
}
