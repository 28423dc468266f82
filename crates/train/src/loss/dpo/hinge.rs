//! SLiC's hinge loss (Zhao et al. 2023, arXiv:2305.10425). φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log π_ref
//! of the chosen and the rejected answer:
//!
//! φ = max(0, 1 − x), x = β (ρ_c − ρ_r); ∂φ/∂ρ_c = −∂φ/∂ρ_r = −β where x < 1, else 0

use super::{DpoConfig, Phi, Ratios};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let x = config.beta * (ratios.chosen - ratios.rejected);
    // The condition is written so that NaN stays NaN.
    if x >= 1.0 { Phi::from_difference(0.0, 0.0) } else { Phi::from_difference(1.0 - x, -config.beta) }
}
