//! The clipped surrogate of PPO (Schulman et al. 2017, arXiv:1707.06347), optionally with a wider upper range (DAPO, Yu
//! et al. 2025, arXiv:2503.14476) and an upper bound δ of the unclipped ratio (INTELLECT-2, arXiv:2505.07291). With
//! importance ratio r and advantage A:
//!
//! L = −min(min(r, δ) A, clip(r, 1 − ε, 1 + ε_high) A)
//!
//! With ρ = ln r, ∂L/∂ρ = −r A if the selected term is neither clipped nor bounded, else 0.

use super::{LossConfig, Term};

/// The smaller of the two numbers; NaN if `x` is NaN (`f64::min` would hide it).
pub fn at_most(x: f64, bound: f64) -> f64 {
    if x > bound { bound } else { x }
}

/// The clipped surrogate of a token, and its derivative.
pub fn surrogate(config: &LossConfig, ratio: f64, advantage: f64) -> Term {
    let (lower, upper) = (1.0 - config.epsilon, 1.0 + config.epsilon_high());
    let bounded = config.delta.map_or(ratio, |delta| at_most(ratio, delta));
    let clipped = ratio.clamp(lower, upper);
    let (free_side, clip_side) = (bounded * advantage, clipped * advantage);
    // On a tie, both terms have the same slope or the advantage is 0.
    let moves = if free_side <= clip_side { bounded == ratio } else { clipped == ratio };
    Term {
        // `min` would drop a NaN in one operand.
        value: -(if free_side <= clip_side || free_side.is_nan() { free_side } else { clip_side }),
        d_log_ratio: if moves { -ratio * advantage } else { 0.0 },
        d_logp: 0.0,
        low: bounded < lower && advantage < 0.0,
        high: bounded > upper && advantage > 0.0,
    }
}
