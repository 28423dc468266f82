//! Importance sampling for samples whose sampler was not the old policy: another weight version, or another engine.
//!
//! ```text
//! c = e^(log π_old − log π_sampler) of the token, or e^Σ of the sequence
//! truncate: c ← clamp(c, clip_min, clip_max)      mask: c ← 0 where c < clip_min or c > clip_max
//! ```
//!
//! c multiplies the policy term, not the KL term, and is a constant. Where the sampler is the old policy, as in every
//! synchronous run, c is exactly 1. Truncated weights are those of IMPALA (Espeholt et al. 2018, arXiv:1802.01561);
//! leaving out whole sequences that are too far away is also in Li et al. 2025 (arXiv:2512.23075), who judge by the
//! worst token where here it is the product over tokens, as in TRL. The metrics are of c **before** it is truncated or
//! masked (TRL logs it after, where nothing above `clip_max` can be seen).

use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// What c is of, and what happens to a c outside its bounds; the names are those of TRL's
/// `vllm_importance_sampling_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionMode {
    /// A ratio for each token, clamped to the bounds.
    TokenTruncate,
    /// A ratio for each token; tokens beyond the bounds are left out.
    TokenMask,
    /// One ratio for the sequence, clamped to the bounds.
    SequenceTruncate,
    /// One ratio for the sequence; a sequence beyond the bounds is left out.
    #[default]
    SequenceMask,
}

/// The correction; TRL's defaults for its `vllm_importance_sampling_*` keys, but off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// Whether it is made.
    pub enabled: bool,
    /// How.
    pub mode: CorrectionMode,
    /// The upper bound.
    pub clip_max: Option<f64>,
    /// The lower bound.
    pub clip_min: Option<f64>,
}

impl Default for Correction {
    fn default() -> Self {
        Correction { enabled: false, mode: CorrectionMode::default(), clip_max: Some(3.0), clip_min: None }
    }
}

/// c of the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Before bounds; one per token, or a single one. Empty: 1 for all.
    raw: Vec<f64>,
    bounded: Vec<f64>,
    of_sequence: bool,
}

impl Weights {
    /// The weights of a sequence's tokens. A token whose sampler's log-probability is not known (NaN) counts as equal.
    pub fn new<T: Float>(config: &Correction, old_logps: &[T], sampler_logps: &[T], mask: &[bool]) -> Weights {
        if !config.enabled {
            return Weights { raw: Vec::new(), bounded: Vec::new(), of_sequence: false };
        }
        let difference = |t: usize| {
            let sampler = sampler_logps[t].f64();
            if mask[t] && !sampler.is_nan() { old_logps[t].f64() - sampler } else { 0.0 }
        };
        use CorrectionMode::{SequenceMask, SequenceTruncate, TokenMask, TokenTruncate};
        let of_sequence = matches!(config.mode, SequenceTruncate | SequenceMask);
        let raw: Vec<f64> = match of_sequence {
            false => (0..mask.len()).map(|t| libm::exp(difference(t))).collect(),
            true => vec![libm::exp((0..mask.len()).map(difference).sum())],
        };
        let (low, high) = (config.clip_min.unwrap_or(f64::NEG_INFINITY), config.clip_max.unwrap_or(f64::INFINITY));
        let bound = |&c: &f64| match config.mode {
            TokenTruncate | SequenceTruncate => c.clamp(low, high),
            TokenMask | SequenceMask if c < low || c > high => 0.0,
            TokenMask | SequenceMask => c,
        };
        Weights { bounded: raw.iter().map(bound).collect(), raw, of_sequence }
    }

    /// What token `t` is weighed with.
    pub fn at(&self, t: usize) -> f64 {
        match self.bounded.as_slice() {
            [one] if self.of_sequence => *one,
            [] => 1.0,
            many => many[t],
        }
    }
}

/// Sums for TRL's `sampling/` metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingSums {
    ratio: Extremes,
    bounded: u64,
    difference: Extremes,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Extremes {
    sum: f64,
    min: f64,
    max: f64,
    count: u64,
}

impl Extremes {
    fn add(&mut self, x: f64) {
        let first = self.count == 0;
        // Once NaN, it stays NaN.
        self.min = if first || x < self.min || x.is_nan() { x } else { self.min };
        self.max = if first || x > self.max || x.is_nan() { x } else { self.max };
        self.sum += x;
        self.count += 1;
    }
    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

/// How far the sampler was from the old policy, over an optimizer batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingMetrics {
    /// Smallest, mean and largest c before its bounds, over tokens or sequences.
    pub importance_sampling_ratio: [f64; 3],
    /// The share of c that its bounds changed.
    pub bounded_ratio: f64,
    /// Mean and largest |log π_old − log π_sampler| over tokens.
    pub sampling_logp_difference: [f64; 2],
}

impl SamplingSums {
    /// Adds a sequence.
    pub fn add<T: Float>(&mut self, weights: &Weights, old_logps: &[T], sampler_logps: &[T], mask: &[bool]) {
        // One c of the sequence counts even where no token is kept, as in TRL.
        let kept = |t: usize| weights.of_sequence || mask[t];
        for (t, (&raw, &bounded)) in weights.raw.iter().zip(&weights.bounded).enumerate() {
            if kept(t) {
                self.ratio.add(raw);
                self.bounded += u64::from(raw != bounded);
            }
        }
        for t in (0..mask.len()).filter(|&t| mask[t] && !sampler_logps[t].f64().is_nan()) {
            self.difference.add((old_logps[t].f64() - sampler_logps[t].f64()).abs());
        }
    }

    /// The metrics.
    pub fn metrics(&self) -> SamplingMetrics {
        SamplingMetrics {
            importance_sampling_ratio: [self.ratio.min, self.ratio.mean(), self.ratio.max],
            bounded_ratio: self.bounded as f64 / self.ratio.count.max(1) as f64,
            sampling_logp_difference: [self.difference.mean(), self.difference.max],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_one_is_that_one() {
        let mut sums = Extremes::default();
        assert_eq!(sums.mean(), 0.0);
        sums.add(3.0);
        assert_eq!((sums.mean(), sums.min, sums.max), (3.0, 3.0, 3.0));
        sums.add(f64::NAN);
        assert!(sums.mean().is_nan() && sums.min.is_nan());
    }
}
