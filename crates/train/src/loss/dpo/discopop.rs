//! DiscoPOP, the log-ratio modulated loss (Lu et al. 2024, arXiv:2406.08414, eq. 5), which was discovered by a language
//! model. φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log π_ref of the chosen and the rejected answer; σ is the
//! sigmoid:
//!
//! φ = (1 − m) · −log σ(x) + m e^{−x}, m = σ(x/τ), x = β (ρ_c − ρ_r), τ = `discopop_tau`
//!
//! ∂φ/∂ρ_c = −∂φ/∂ρ_r = β (−(1 − m) σ(−x) − m e^{−x} + m (1 − m)/τ (e^{−x} + log σ(x)))

use super::{DpoConfig, Phi, Ratios, logistic, softplus};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let x = config.beta * (ratios.chosen - ratios.rejected);
    let (m, other) = (logistic(x / config.discopop_tau), logistic(-x / config.discopop_tau));
    // m e^{−x}, in a form that stays finite if e^{−x} overflows, since m is small in that case.
    let exponential = libm::exp(-x - softplus(-x / config.discopop_tau));
    let slope = -other * logistic(-x) - exponential + other / config.discopop_tau * (exponential - m * softplus(-x));
    Phi::from_difference(other * softplus(-x) + exponential, config.beta * slope)
}
