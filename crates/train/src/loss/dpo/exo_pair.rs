//! Efficient exact optimization of pairs (Ji et al. 2024, arXiv:2402.00856, eq. 16): the KL divergence of the policy's
//! preference q from the data's, (1 − ε, ε).
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
    Phi::of_difference(value, config.beta * q * other * (x - (right - wrong)))
}
