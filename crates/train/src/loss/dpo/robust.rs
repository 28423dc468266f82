//! Robust DPO (Chowdhury et al. 2024, arXiv:2403.00409): an unbiased loss if a fraction ε of the pairs has swapped
//! labels. φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log π_ref of the chosen and the rejected answer; σ is the
//! sigmoid:
//!
//! φ = −((1 − ε) log σ(x) − ε log σ(−x)) / (1 − 2ε), x = β (ρ_c − ρ_r), ε = `label_smoothing`
//!
//! ∂φ/∂ρ_c = −∂φ/∂ρ_r = −β ((1 − ε) σ(−x) + ε σ(x)) / (1 − 2ε)

use super::{DpoConfig, Phi, Ratios, logistic, softplus};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let x = config.beta * (ratios.chosen - ratios.rejected);
    let e = config.label_smoothing;
    let scale = 1.0 / (1.0 - 2.0 * e);
    let value = scale * ((1.0 - e) * softplus(-x) - e * softplus(x));
    Phi::from_difference(value, -config.beta * scale * ((1.0 - e) * logistic(-x) + e * logistic(x)))
}
