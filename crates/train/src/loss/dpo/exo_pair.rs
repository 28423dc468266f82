//! Efficient exact optimization on pairs (Ji et al. 2024, arXiv:2402.00856, eq. 16): the KL divergence from the
//! policy's preference (q, 1 − q) to that of the data, (1 − ε, ε). φ is the loss of a pair; ρ_c and ρ_r are log π_θ −
//! log π_ref of the chosen and the rejected answer; σ is the sigmoid:
//!
//! φ = q (log q − log(1 − ε)) + (1 − q) (log(1 − q) − log ε), q = σ(x), x = β (ρ_c − ρ_r), ε = `label_smoothing` > 0
//!
//! ∂φ/∂ρ_c = −∂φ/∂ρ_r = β q (1 − q) (x − log((1 − ε)/ε))

use super::{DpoConfig, Phi, Ratios, logistic, softplus};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let x = config.beta * (ratios.chosen - ratios.rejected);
    let (right, wrong) = (libm::log1p(-config.label_smoothing), libm::log(config.label_smoothing));
    let (q, other) = (logistic(x), logistic(-x));
    let value = q * (-softplus(-x) - right) + other * (-softplus(x) - wrong);
    Phi::from_difference(value, config.beta * q * other * (x - (right - wrong)))
}
