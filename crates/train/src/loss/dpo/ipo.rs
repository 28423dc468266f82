//! Identity preference optimization (Azar et al. 2023, arXiv:2310.12036), with means over tokens, as TRL and the
//! paper's authors implement it. φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log π_ref of the chosen and the
//! rejected answer, which have n_c and n_r tokens:
//!
//! φ = (ρ_c/n_c − ρ_r/n_r − 1/(2β))²; ∂φ/∂ρ_c = 2 (…)/n_c, ∂φ/∂ρ_r = −2 (…)/n_r

use super::{DpoConfig, Phi, Ratios};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let per = ratios.tokens.map(|n| 1.0 / n);
    let away = ratios.chosen * per[0] - ratios.rejected * per[1] - 0.5 / config.beta;
    let slope = 2.0 * away;
    Phi { value: away * away, d_chosen: slope * per[0], d_rejected: -slope * per[1] }
}
