//! RLOO (Ahmadian et al. 2024, arXiv:2402.14740): REINFORCE on whole completions, here with PPO's clipping, as TRL's
//! `RLOOTrainer`. A completion's advantage A is relative to the mean reward of the other completions
//! ([`crate::advantages::rloo`]); the KL divergence is subtracted from rewards. With B sequences and mask m:
//!
//! J = −1/B Σ_s min(r A, clip(r, 1 − ε, 1 + ε_high) A), r = e^ρ, ρ = Σ_t m (log π_θ − log π_old)
//!
//! The ratio r is that of the whole completion, not GSPO's geometric mean; ∂ρ/∂log π_θ(t) = m_t. A sequence without a
//! token in the loss has r = 1: it contributes −A to the loss, but no gradient.

use super::{LossConfig, LossSums, Normalizer, Sequence, clip};
use crate::{Advantage, Sample};
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// Settings of the RLOO loss; names, meanings and defaults are those of TRL's `RLOOConfig`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RlooConfig {
    /// Clip range of the ratio below 1.
    pub epsilon: f64,
    /// Clip range of the ratio above 1; `None` means the same as below.
    pub epsilon_high: Option<f64>,
    /// Leave completions that reached the length limit out of the loss.
    pub mask_truncated_completions: bool,
}

impl Default for RlooConfig {
    fn default() -> Self {
        RlooConfig { epsilon: 0.2, epsilon_high: None, mask_truncated_completions: false }
    }
}

impl RlooConfig {
    /// The completion tokens of `sample` that the loss uses.
    pub fn loss_mask(&self, sample: &Sample) -> Vec<bool> {
        let out = self.mask_truncated_completions && sample.truncated();
        sample.loss_mask.iter().map(|&m| m && !out).collect()
    }
}

/// Adds one sequence's contribution to the loss J to `sums`, and overwrites `d_logps` with ∂J/∂log π_θ. Panics if the
/// advantage is per token.
pub fn rloo<T: Float>(
    config: &RlooConfig,
    normalizer: &Normalizer,
    sequence: &Sequence<'_, T>,
    d_logps: &mut [T],
    sums: &mut LossSums,
) {
    let &Sequence { logps, old_logps, mask, advantage, .. } = sequence;
    let &Advantage::Sequence(advantage) = advantage else { panic!("RLOO needs one advantage per completion") };
    let log_ratio: f64 = (0..mask.len()).filter(|&t| mask[t]).map(|t| logps[t].f64() - old_logps[t].f64()).sum();
    let clip = LossConfig { epsilon: config.epsilon, epsilon_high: config.epsilon_high, ..LossConfig::default() };
    let term = clip::surrogate(&clip, libm::exp(log_ratio), f64::from(advantage));
    let weight = 1.0 / normalizer.sequences as f64;
    for (d, &m) in d_logps.iter_mut().zip(mask) {
        *d = T::of(if m { weight * term.d_log_ratio } else { 0.0 });
    }
    sums.loss += weight * term.value;
    sums.tokens += mask.iter().filter(|&&m| m).count() as u64;
    sums.count_clipped(u64::from(term.low), u64::from(term.high), 1);
}
