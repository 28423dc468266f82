//! PPO's two losses (Schulman et al. 2017, arXiv:1707.06347; for language models Ziegler et al. 2019,
//! arXiv:1909.08593), with N tokens in the loss of the optimizer batch:
//!
//! policy: J = 1/N Σ m (−min(r A, clip(r, 1 − ε, 1 + ε) A) − c_H H),  r = π_θ / π_old
//! value:  J = c_V/N Σ m ½ max((V − R)², (clip(V, V_old − ε_V, V_old + ε_V) − R)²)
//!
//! H is the entropy of the distribution that the token comes from, V the value of the state in which it is chosen. A
//! and R are those of [`gae`](crate::gae). The value loss is clipped as the policy's is: where V has left the range
//! around what it was at rollout and the clipped side is worse, its gradient is 0.
//!
//! Means have the names of TRL's `PPOTrainer`. Knows no model.

use super::{LossConfig, LossSums, Normalizer, clip};
use crate::Advantage;
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// The policy's loss; names and defaults are those of TRL's `PPOConfig`, which has no entropy bonus.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PpoConfig {
    /// ε
    pub cliprange: f64,
    /// c_H
    pub entropy_coef: f64,
}

impl Default for PpoConfig {
    fn default() -> Self {
        PpoConfig { cliprange: 0.2, entropy_coef: 0.0 }
    }
}

/// The value model's loss; names and defaults are those of TRL's `PPOConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueConfig {
    /// ε_V
    pub cliprange_value: f64,
    /// c_V
    pub vf_coef: f64,
}

impl Default for ValueConfig {
    fn default() -> Self {
        ValueConfig { cliprange_value: 0.2, vf_coef: 0.1 }
    }
}

/// A completion as the policy's loss sees it; the slices have one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct Actions<'a, T> {
    /// log π_θ
    pub logps: &'a [T],
    /// log π_old
    pub old_logps: &'a [T],
    /// H
    pub entropies: &'a [T],
    /// Which tokens the loss uses. The values of the others are never read.
    pub mask: &'a [bool],
    /// A
    pub advantage: &'a Advantage,
}

/// Adds one completion's part of the policy's J to `sums`; overwrites `d_logps` with ∂J/∂log π_θ and `d_entropies` with
/// ∂J/∂H.
pub fn policy<T: Float>(
    config: &PpoConfig,
    normalizer: &Normalizer,
    actions: &Actions<'_, T>,
    d_logps: &mut [T],
    d_entropies: &mut [T],
    sums: &mut LossSums,
) {
    let Actions { logps, old_logps, entropies, mask, advantage } = *actions;
    assert!(logps.len() == mask.len() && old_logps.len() == mask.len() && entropies.len() == mask.len());
    assert!(d_logps.len() == mask.len() && d_entropies.len() == mask.len());
    let surrogate = LossConfig { epsilon: config.cliprange, ..LossConfig::default() };
    let weight = 1.0 / normalizer.tokens.max(1) as f64;
    let (mut tokens, mut low, mut high) = (0, 0, 0);
    let (mut loss, mut entropy, mut ratios, mut squares) = (0.0, 0.0, 0.0, 0.0);
    for t in 0..mask.len() {
        (d_logps[t], d_entropies[t]) = (T::of(0.0), T::of(0.0));
        if !mask[t] {
            continue;
        }
        let log_ratio = logps[t].f64() - old_logps[t].f64();
        let ratio = libm::exp(log_ratio);
        let term = clip::surrogate(&surrogate, ratio, f64::from(advantage.at(t)));
        d_logps[t] = T::of(weight * term.d_log_ratio);
        d_entropies[t] = T::of(-weight * config.entropy_coef);
        loss += term.value;
        entropy += entropies[t].f64();
        ratios += ratio;
        squares += log_ratio * log_ratio;
        low += u64::from(term.low);
        high += u64::from(term.high);
        tokens += 1;
    }
    // Without a bonus, entropies are reported alone: one that is not finite spoils no step.
    let bonus = if config.entropy_coef == 0.0 { 0.0 } else { config.entropy_coef * entropy };
    sums.loss += weight * (loss - bonus);
    sums.tokens += tokens;
    sums.count_clipped(low, high, tokens);
    sums.means.add("loss/policy_avg", loss, tokens);
    sums.means.add("policy/approxkl_avg", 0.5 * squares, tokens);
    sums.means.add("policy/clipfrac_avg", (low + high) as f64, tokens);
    sums.means.add("policy/entropy_avg", entropy, tokens);
    sums.means.add("val/ratio", ratios, tokens);
}

/// A completion as the value loss sees it; the slices have one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct States<'a, T> {
    /// V
    pub values: &'a [T],
    /// V at rollout.
    pub old_values: &'a [T],
    /// R
    pub returns: &'a [T],
    /// Which tokens the loss uses. The values of the others are never read.
    pub mask: &'a [bool],
}

/// Adds one completion's part of the value model's J to `sums`, and overwrites `d_values` with ∂J/∂V.
pub fn value<T: Float>(
    config: &ValueConfig,
    normalizer: &Normalizer,
    states: &States<'_, T>,
    d_values: &mut [T],
    sums: &mut LossSums,
) {
    let States { values, old_values, returns, mask } = *states;
    assert!(values.len() == mask.len() && old_values.len() == mask.len() && returns.len() == mask.len());
    assert_eq!(d_values.len(), mask.len());
    let weight = config.vf_coef / normalizer.tokens.max(1) as f64;
    let (mut loss, mut tokens, mut clipped) = (0.0, 0, 0);
    for t in 0..mask.len() {
        d_values[t] = T::of(0.0);
        if !mask[t] {
            continue;
        }
        let (v, old, target) = (values[t].f64(), old_values[t].f64(), returns[t].f64());
        // Not `clamp`, which would panic on a NaN bound.
        let near = v.max(old - config.cliprange_value).min(old + config.cliprange_value);
        let (free, bound) = ((v - target).powi(2), (near - target).powi(2));
        let clips = bound > free;
        // `max` would hide a NaN of one side.
        loss += 0.5 * if clips { bound } else { free };
        d_values[t] = T::of(if clips { 0.0 } else { weight * (v - target) });
        clipped += u64::from(clips);
        tokens += 1;
    }
    sums.loss += weight * loss;
    sums.tokens += tokens;
    sums.means.add("loss/value_avg", loss, tokens);
    sums.means.add("val/clipfrac_avg", clipped as f64, tokens);
}

#[cfg(test)]
mod tests;
