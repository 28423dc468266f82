//! The entropy of the policy in the loss: a bonus, its adaptive weight, and training on the tokens of highest entropy.
//!
//! ```text
//! J ← J − coef · H, H = 1/max(1, n) Σ H_t over the n tokens that are kept;  ∂J/∂H_t = −coef/n
//! ```
//!
//! The bonus is a mean over tokens whatever the loss divides by. Kept are the tokens in the loss whose entropy is at
//! least the (1 − ρ) quantile of all tokens of the optimizer batch, ρ = `top_entropy_quantile` (Wang et al. 2025,
//! Beyond the 80/20 Rule, arXiv:2506.01939).
//!
//! Adaptive (Skywork-OR1, arXiv:2505.22312): after each step coef grows by `entropy_coef_delta` where H ≤
//! `entropy_target`, else it shrinks, between its bounds; it is applied in steps that follow an H ≤ `entropy_target`.

use super::{LossSums, Normalizer};
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// The bonus; names, meanings and defaults are TRL's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntropyConfig {
    /// Weight of the bonus; adaptive: where it begins.
    pub entropy_coef: f64,
    /// Whether it adapts.
    pub use_adaptive_entropy: bool,
    /// The lower bound of the adaptive coefficient.
    pub entropy_coef_min: f64,
    /// The upper bound of the adaptive coefficient.
    pub entropy_coef_max: f64,
    /// How much it changes in a step.
    pub entropy_coef_delta: f64,
    /// The entropy per token, in nats, that it aims at.
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
    /// Whether there is a bonus, be it 0 for now.
    pub fn is_on(&self) -> bool {
        self.entropy_coef != 0.0 || self.use_adaptive_entropy
    }
}

/// The weight of the bonus and what it adapts to: what a checkpoint holds of it. Kept as bits, since nothing is
/// measured yet (∞) at the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "[u64; 2]", from = "[u64; 2]")]
pub struct EntropyControl {
    /// The weight.
    pub coef: f64,
    /// H of the last step.
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
    /// Before the first step.
    pub fn new(config: &EntropyConfig) -> EntropyControl {
        EntropyControl { coef: config.entropy_coef, last: f64::INFINITY }
    }

    /// The weight in the step to come.
    pub fn applied(&self, config: &EntropyConfig) -> f64 {
        if !config.use_adaptive_entropy || self.last <= config.entropy_target { self.coef } else { 0.0 }
    }

    /// Adapts to the H of a step.
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

/// The bonus of one sequence: adds its kept entropies to `sums`, and overwrites `d_entropies` with ∂J/∂H_t.
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

/// The q quantile of `values`, 0 ≤ q ≤ 1, between neighbours by linear interpolation in f32, as `torch.quantile`;
/// `None` of nothing. NaN where one value is.
pub fn quantile(mut values: Vec<f32>, q: f64) -> Option<f32> {
    if values.iter().any(|v| v.is_nan()) {
        return Some(f32::NAN);
    }
    values.sort_unstable_by(f32::total_cmp);
    let rank = q as f32 * (values.len().checked_sub(1)? as f32);
    let (below, above) = (values[rank.floor() as usize], values[rank.ceil() as usize]);
    let share = rank - rank.floor();
    // As `torch.lerp`: from the nearer side.
    Some(if share < 0.5 { below + share * (above - below) } else { above - (above - below) * (1.0 - share) })
}
