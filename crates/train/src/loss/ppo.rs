//! PPO's policy loss and value loss (Schulman et al. 2017, arXiv:1707.06347; for language models Ziegler et al. 2019,
//! arXiv:1909.08593), with N tokens in the loss of the optimizer batch and mask m:
//!
//! policy: J = 1/N Σ m (−min(r A, clip(r, 1 − ε, 1 + ε) A) − c_H H),  r = π_θ / π_old
//! value:  J = c_V/N Σ m ½ max((V − R)², (clip(V, V_old − ε_V, V_old + ε_V) − R)²)
//!
//! H is the entropy of the next-token distribution, and V the value of the state in which the token is chosen. The
//! advantages A and returns R come from [`gae`](crate::gae). The value loss is clipped like the policy loss: if V has
//! left the range around its value at rollout and the clipped error is larger, the gradient is 0.
//!
//! Metrics have the names of TRL's `PPOTrainer`.

use super::{LossConfig, LossSums, Normalizer, clip};
use crate::Advantage;
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// Settings of PPO's policy loss; names and defaults are those of TRL's `PPOConfig`, except for the entropy bonus,
/// which TRL does not have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PpoConfig {
    /// Clip range ε of the importance ratio.
    pub cliprange: f64,
    /// Coefficient c_H of the entropy bonus.
    pub entropy_coef: f64,
}

impl Default for PpoConfig {
    fn default() -> Self {
        PpoConfig { cliprange: 0.2, entropy_coef: 0.0 }
    }
}

/// Settings of PPO's value loss; names and defaults are those of TRL's `PPOConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueConfig {
    /// Clip range ε_V of the value around its value at rollout.
    pub cliprange_value: f64,
    /// Coefficient c_V of the value loss.
    pub vf_coef: f64,
}

impl Default for ValueConfig {
    fn default() -> Self {
        ValueConfig { cliprange_value: 0.2, vf_coef: 0.1 }
    }
}

/// A completion as the input of the policy loss. Each slice has one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct Actions<'a, T> {
    /// Log-probabilities under the current policy, log π_θ.
    pub logps: &'a [T],
    /// Log-probabilities under the old policy, log π_old.
    pub old_logps: &'a [T],
    /// Entropies of the next-token distributions, in nats.
    pub entropies: &'a [T],
    /// The tokens that the loss uses. Elements of the slices at other tokens are never read.
    pub mask: &'a [bool],
    /// Advantages.
    pub advantage: &'a Advantage,
}

/// Adds one completion's contribution to the policy loss J to `sums`; overwrites `d_logps` with ∂J/∂log π_θ and
/// `d_entropies` with the gradient with respect to entropies.
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
    // Without a bonus, entropies are only reported, so a non-finite entropy must not affect the step.
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

/// A completion as the input of the value loss. Each slice has one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct States<'a, T> {
    /// Value estimates V of the value model in training.
    pub values: &'a [T],
    /// Value estimates at rollout.
    pub old_values: &'a [T],
    /// Returns, the targets of the values.
    pub returns: &'a [T],
    /// The tokens that the loss uses. Elements of the slices at other tokens are never read.
    pub mask: &'a [bool],
}

/// Adds one completion's contribution to the value loss J to `sums`, and overwrites `d_values` with ∂J/∂V.
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
        // `clamp` would panic on a NaN bound.
        let near = v.max(old - config.cliprange_value).min(old + config.cliprange_value);
        let (free, bound) = ((v - target).powi(2), (near - target).powi(2));
        let clips = bound > free;
        // `max` would drop a NaN in one operand.
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
