//! Self-play preference optimization (Wu et al. 2024, arXiv:2405.00675, eq. 4.7), where the chosen answer wins with
//! probability 1 and the rejected one with 0. φ is the loss of a pair; ρ_c and ρ_r are log π_θ − log π_ref of the
//! chosen and the rejected answer:
//!
//! φ = (ρ_c − 1/(2β))² + (ρ_r + 1/(2β))²; ∂φ/∂ρ_c = 2 (ρ_c − 1/(2β)), ∂φ/∂ρ_r = 2 (ρ_r + 1/(2β))

use super::{DpoConfig, Phi, Ratios};

pub(super) fn phi(config: &DpoConfig, ratios: &Ratios) -> Phi {
    let half = 0.5 / config.beta;
    let [chosen, rejected] = [ratios.chosen - half, ratios.rejected + half];
    Phi { value: chosen * chosen + rejected * rejected, d_chosen: 2.0 * chosen, d_rejected: 2.0 * rejected }
}
