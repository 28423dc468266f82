//! The policy's entropy in the loss: an entropy bonus, its adaptive coefficient, and training on only the tokens of
//! highest entropy.
//!
//! ```text
//! J ← J − coef · H, H = 1/max(1, n) Σ H_t over the n tokens that are kept;  ∂J/∂H_t = −coef/n
//! ```
//!
//! The bonus is a mean over tokens, whatever the divisor of the loss. A token in the loss is kept if its entropy is at
//! least the (1 − ρ) quantile of the entropies in the optimizer batch, with ρ = `top_entropy_quantile` (Wang et al.
//! 2025, Beyond the 80/20 Rule, arXiv:2506.01939).
//!
//! Adaptive coefficient (Skywork-OR1, arXiv:2505.22312): after each step the coefficient grows by `entropy_coef_delta`
//! if the mean entropy H ≤ `entropy_target`, and shrinks by it otherwise, between two bounds. The bonus is applied only
//! in steps that follow a step with H ≤ `entropy_target`.

use super::{LossSums, Normalizer};
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// Settings of the entropy bonus; names, meanings and defaults are TRL's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntropyConfig {
    /// Coefficient of the bonus, or its initial value if the coefficient is adaptive.
    pub entropy_coef: f64,
    /// Whether the coefficient is adaptive.
    pub use_adaptive_entropy: bool,
    /// The lower bound of the adaptive coefficient.
    pub entropy_coef_min: f64,
    /// The upper bound of the adaptive coefficient.
    pub entropy_coef_max: f64,
    /// Change of the adaptive coefficient in one step.
    pub entropy_coef_delta: f64,
    /// Target of the mean entropy per token, in nats.
    pub entropy_target: f64,
}

impl Default for EntropyConfig {
    fn default() -> Self {
        EntropyConfig {
            entropy_coef: 0.0,
            use_adaptive_entropy: false,
            entropy_coef_min: 0.0,
            entropy_coef_max: 1.0,
            entropy_coef_delta: 0.005,
            entropy_target: 0.2,
        }
    }
}

impl EntropyConfig {
    /// Whether there is a bonus, even if its current coefficient is 0.
    pub fn is_on(&self) -> bool {
        self.entropy_coef != 0.0 || self.use_adaptive_entropy
    }
}

/// State of the entropy bonus, stored in checkpoints. It is serialised as bits, because the last entropy is ∞ before
/// the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "[u64; 2]", from = "[u64; 2]")]
pub struct EntropyControl {
    /// The coefficient.
    pub coef: f64,
    /// Mean entropy of the last step.
    pub last: f64,
}

impl From<EntropyControl> for [u64; 2] {
    fn from(c: EntropyControl) -> Self {
        [c.coef.to_bits(), c.last.to_bits()]
    }
}

impl From<[u64; 2]> for EntropyControl {
    fn from([coef, last]: [u64; 2]) -> Self {
        EntropyControl { coef: f64::from_bits(coef), last: f64::from_bits(last) }
    }
}

impl EntropyControl {
    /// The state before the first step.
    pub fn new(config: &EntropyConfig) -> EntropyControl {
        EntropyControl { coef: config.entropy_coef, last: f64::INFINITY }
    }

    /// The coefficient to apply in the next step.
    pub fn applied(&self, config: &EntropyConfig) -> f64 {
        if !config.use_adaptive_entropy || self.last <= config.entropy_target { self.coef } else { 0.0 }
    }

    /// Adapts the coefficient to the mean entropy of a step.
    pub fn adapt(&mut self, config: &EntropyConfig, entropy: f64) {
        if config.use_adaptive_entropy {
            self.coef = if entropy <= config.entropy_target {
                (self.coef + config.entropy_coef_delta).min(config.entropy_coef_max)
            } else {
                (self.coef - config.entropy_coef_delta).max(config.entropy_coef_min)
            };
            self.last = entropy;
        }
    }
}

/// Adds the entropies of a sequence's kept tokens to `sums`, and overwrites `d_entropies` with the gradient ∂J/∂H_t of
/// the loss with respect to each entropy.
pub fn bonus<T: Float>(
    normalizer: &Normalizer,
    entropies: &[T],
    mask: &[bool],
    d_entropies: &mut [T],
    sums: &mut LossSums,
) {
    let slope = -normalizer.entropy_coef / normalizer.entropy_tokens.max(1) as f64;
    for t in 0..mask.len() {
        let kept = mask[t] && normalizer.keeps(entropies[t].f64());
        d_entropies[t] = T::of(if kept { slope } else { 0.0 });
        if kept {
            sums.entropy += entropies[t].f64();
        }
    }
}

/// The loss J with its entropy bonus, given the mean `entropy` of the kept tokens. If no token is kept, the bonus
/// is 0.
pub fn with_bonus(loss: f64, bonus: &EntropyConfig, normalizer: &Normalizer, entropy: Option<f64>) -> f64 {
    let bonus = if bonus.is_on() { entropy.map(|entropy| normalizer.entropy_coef * entropy) } else { None };
    loss - bonus.unwrap_or(0.0)
}

/// The q quantile of `values`, 0 ≤ q ≤ 1, interpolated linearly in f32 as `torch.quantile` does. `None` without values;
/// NaN if a value is NaN.
pub fn quantile(mut values: Vec<f32>, q: f64) -> Option<f32> {
    if values.iter().any(|v| v.is_nan()) {
        return Some(f32::NAN);
    }
    values.sort_unstable_by(f32::total_cmp);
    let rank = q as f32 * (values.len().checked_sub(1)? as f32);
    let (below, above) = (values[rank.floor() as usize], values[rank.ceil() as usize]);
    let share = rank - rank.floor();
    // As in `torch.lerp`, interpolate from the nearer end.
    Some(if share < 0.5 { below + share * (above - below) } else { above - (above - below) * (1.0 - share) })
}
