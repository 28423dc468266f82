//! DPO's loss with mean log-ratios over tokens, so that a longer answer does not count more (SimPO's normalisation,
//! Meng et al. 2024, arXiv:2405.14734, with a reference model). φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log
//! π_ref of the chosen and the rejected answer, which have n_c and n_r tokens; σ is the sigmoid:
//!
//! φ = −log σ(x), x = β (ρ_c/n_c − ρ_r/n_r); ∂φ/∂ρ_c = −β σ(−x)/n_c, ∂φ/∂ρ_r = β σ(−x)/n_r

use super::{DpoConfig, Phi, Ratios, logistic, softplus};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let per = ratios.tokens.map(|n| 1.0 / n);
    let x = config.beta * (ratios.chosen * per[0] - ratios.rejected * per[1]);
    let slope = -config.beta * logistic(-x);
    Phi { value: softplus(-x), d_chosen: slope * per[0], d_rejected: -slope * per[1] }
}
