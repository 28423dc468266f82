//! DPO's original loss (Rafailov et al. 2023, arXiv:2305.18290). φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log
//! π_ref of the chosen and the rejected answer; σ is the sigmoid:
//!
//! φ = −log σ(x), x = β (ρ_c − ρ_r); ∂φ/∂ρ_c = −∂φ/∂ρ_r = −β σ(−x)

use super::{DpoConfig, Phi, Ratios, logistic, softplus};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let x = config.beta * (ratios.chosen - ratios.rejected);
    Phi::from_difference(softplus(-x), -config.beta * logistic(-x))
}
