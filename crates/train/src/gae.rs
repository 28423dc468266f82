//! PPO's advantages: rewards of tokens from the score of a completion, and generalised advantage estimation (GAE).
//!
//! The reward of token t (Ziegler et al. 2019, arXiv:1909.08593; InstructGPT, Ouyang et al. 2022, arXiv:2203.02155):
//!
//! r_t = −β k_t + [t is the last token] · score
//!
//! If steps of the completion have rewards (process rewards), each of them is assigned to the last token of its step.
//! k_t is an estimate of the KL divergence from the sampling policy to the reference model ([`KlEstimator`]), and β its
//! weight. GAE (Schulman et al. 2016, arXiv:1506.02438), with V_t the value of the state in which token t is chosen,
//! gives advantages A and returns R:
//!
//! δ_t = r_t + γ V_{t+1} − V_t,  A_t = δ_t + γ λ A_{t+1},  R_t = A_t + V_t
//!
//! A completion is an episode, and V after its last token is 0. This also holds for a completion that reached the
//! length limit: the score rates the truncated text, and the value of a possible continuation would be added to that
//! score. (TRL and InstructGPT do the same. A missing-EOS penalty gives the policy a reason to end.)
//!
//! Tokens outside the mask (such as tool output) are not actions, but part of the transition between two actions. The
//! recursion skips them. Arithmetic is f64.

mod samples;

pub use samples::{TokenRewards, estimate_samples, rewards_of_samples, whiten_samples};

use serde::{Deserialize, Serialize};

/// The estimator of the KL divergence to the reference model at a token, with d = log π_ref − log π (Schulman 2020,
/// <http://joschu.net/blog/kl-approx.html>).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// k1 = −d: unbiased, of either sign.
    #[default]
    K1,
    /// k3 = e^d − 1 − d: unbiased, never negative.
    K3,
}

impl KlEstimator {
    /// Estimates the KL divergence at one token.
    pub fn estimate(self, logp: f64, ref_logp: f64) -> f64 {
        let d = ref_logp - logp;
        match self {
            KlEstimator::K1 => -d,
            // expm1 keeps the digits of a small divergence.
            KlEstimator::K3 => libm::expm1(d) - d,
        }
    }
}

/// The estimated KL divergence at each token; 0 where `mask` is false.
pub fn kl(estimator: KlEstimator, logps: &[f32], ref_logps: &[f32], mask: &[bool]) -> Vec<f64> {
    assert!(logps.len() == mask.len() && ref_logps.len() == mask.len());
    let token = |t: usize| if mask[t] { estimator.estimate(f64::from(logps[t]), f64::from(ref_logps[t])) } else { 0.0 };
    (0..mask.len()).map(token).collect()
}

/// The reward of each token: −`kl_coef` times the token's `kl`, plus `score` at the last token that `mask` keeps.
pub fn token_rewards(kl_coef: f64, kl: &[f64], score: f64, mask: &[bool]) -> Vec<f64> {
    assert_eq!(kl.len(), mask.len());
    let mut rewards: Vec<f64> = kl.iter().zip(mask).map(|(k, &m)| if m { -kl_coef * k } else { 0.0 }).collect();
    if let Some(last) = mask.iter().rposition(|&m| m) {
        rewards[last] += score;
    }
    rewards
}

/// The result of GAE for one completion, with one element per token; 0 where the mask is false.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimates {
    /// Advantages.
    pub advantages: Vec<f64>,
    /// Returns, which the value model learns.
    pub returns: Vec<f64>,
}

/// Computes advantages and returns of one completion from the rewards and values of its tokens.
pub fn estimate(gamma: f64, lambda: f64, rewards: &[f64], values: &[f64], mask: &[bool]) -> Estimates {
    assert!(rewards.len() == mask.len() && values.len() == mask.len());
    let mut out = Estimates { advantages: vec![0.0; mask.len()], returns: vec![0.0; mask.len()] };
    let (mut next_value, mut next_advantage) = (0.0, 0.0);
    for t in (0..mask.len()).rev().filter(|&t| mask[t]) {
        let delta = rewards[t] + gamma * next_value - values[t];
        next_advantage = delta + gamma * lambda * next_advantage;
        next_value = values[t];
        out.advantages[t] = next_advantage;
        out.returns[t] = next_advantage + values[t];
    }
    out
}

/// TRL's ε, which is added to a variance before dividing by its square root.
const VARIANCE_EPSILON: f64 = 1e-8;

/// Scales the values of the tokens that `masks` keep to variance 1 over all rows, and shifts them to mean 0 if
/// `shift_mean`. The variance is Bessel-corrected. Fewer than two values are not changed.
pub fn whiten(rows: &mut [Vec<f64>], masks: &[Vec<bool>], shift_mean: bool) {
    let Some(Moments { mean, variance }) = Moments::of(kept(rows, masks)) else { return };
    let scale = 1.0 / (variance + VARIANCE_EPSILON).sqrt();
    let shift = if shift_mean { 0.0 } else { mean };
    for (row, mask) in rows.iter_mut().zip(masks) {
        for (x, _) in row.iter_mut().zip(mask).filter(|(_, m)| **m) {
            *x = (*x - mean) * scale + shift;
        }
    }
}

/// The explained variance of the value model, 1 − Var(R − V) / Var(R) with returns R and values V, over the tokens that
/// `masks` keep: 1 is perfect, 0 is not better than a constant. `None` if the returns do not vary.
pub fn explained_variance(returns: &[Vec<f64>], values: &[Vec<f64>], masks: &[Vec<bool>]) -> Option<f64> {
    let errors: Vec<Vec<f64>> =
        returns.iter().zip(values).map(|(r, v)| r.iter().zip(v).map(|(r, v)| r - v).collect()).collect();
    let of = |rows: &[Vec<f64>]| Moments::of(kept(rows, masks)).map(|m| m.variance);
    let (errors, all) = (of(&errors)?, of(returns)?);
    (all > 0.0).then(|| 1.0 - errors / all)
}

fn kept<'a>(rows: &'a [Vec<f64>], masks: &'a [Vec<bool>]) -> impl Iterator<Item = f64> + Clone + 'a {
    assert_eq!(rows.len(), masks.len());
    rows.iter().zip(masks).flat_map(|(row, mask)| row.iter().zip(mask).filter(|(_, m)| **m).map(|(x, _)| *x))
}

struct Moments {
    mean: f64,
    variance: f64,
}

impl Moments {
    /// Mean and variance of at least two numbers.
    fn of(numbers: impl Iterator<Item = f64> + Clone) -> Option<Moments> {
        let count = numbers.clone().count();
        if count < 2 {
            return None;
        }
        let mean = numbers.clone().sum::<f64>() / count as f64;
        let variance = numbers.map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
        Some(Moments { mean, variance })
    }
}

/// The weight β of the KL divergence, fixed or adaptive. If adaptive, it is updated after each generation of n
/// completions with mean divergence KL per completion (Ziegler et al. 2019, section 2.2):
///
/// e = clip(KL / target − 1, −0.2, 0.2), β ← β (1 + e n / horizon).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KlController {
    /// The current β.
    pub kl_coef: f64,
}

/// The target of an adaptive β.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KlTarget {
    /// Target KL divergence per completion, in nats; above 0.
    pub target: f64,
    /// Number of completions after which an error of 1 would have doubled β; above 0.
    pub horizon: f64,
}

impl KlController {
    /// Updates β after `completions` completions with mean divergence `kl`. A NaN or infinite divergence is ignored.
    pub fn update(&mut self, target: &KlTarget, kl: f64, completions: usize) {
        let error = (kl / target.target - 1.0).clamp(-0.2, 0.2);
        if error.is_finite() {
            self.kl_coef *= 1.0 + error * completions as f64 / target.horizon;
        }
    }
}

#[cfg(test)]
mod tests;
