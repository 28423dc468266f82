//! Importance-sampling correction for samples that were not drawn from the old policy, but from another version of the
//! weights or another engine. The correction c is:
//!
//! ```text
//! c = e^(log π_old − log π_sampler) of the token, or e^Σ of the sequence
//! truncate: c ← clamp(c, clip_min, clip_max)      mask: c ← 0 where c < clip_min or c > clip_max
//! ```
//!
//! c multiplies the policy term but not the KL term, and is held constant. If the sampler is the old policy, as in
//! every synchronous training run, c is exactly 1. Truncated weights come from IMPALA (Espeholt et al. 2018,
//! arXiv:1802.01561). Li et al. 2025 (arXiv:2512.23075) also leave out whole sequences that are too far off-policy, by
//! their worst token; here the criterion is the product over tokens, as in TRL. Metrics describe c **before** it is
//! truncated or masked. (TRL logs c afterwards, so that values above `clip_max` are invisible.)

use kernels::check::Float;
use kernels::mean::over;
use serde::{Deserialize, Serialize};

/// Whether the importance-sampling correction c is per token or per sequence, and clamped or masked outside its bounds.
/// The names are those of TRL's `vllm_importance_sampling_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionMode {
    /// A correction for each token, clamped to the bounds.
    TokenTruncate,
    /// A correction for each token; tokens outside the bounds are left out.
    TokenMask,
    /// One correction for the sequence, clamped to the bounds.
    SequenceTruncate,
    /// One correction for the sequence; a sequence outside the bounds is left out.
    #[default]
    SequenceMask,
}

/// Settings of the importance-sampling correction. Defaults are those of TRL's `vllm_importance_sampling_*` keys,
/// except that it is off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// Whether the correction is applied.
    pub enabled: bool,
    /// Whether the correction is per token or per sequence, and truncated or masked at its bounds.
    pub mode: CorrectionMode,
    /// Upper bound of the correction.
    pub clip_max: Option<f64>,
    /// Lower bound of the correction.
    pub clip_min: Option<f64>,
}

impl Default for Correction {
    fn default() -> Self {
        Correction { enabled: false, mode: CorrectionMode::default(), clip_max: Some(3.0), clip_min: None }
    }
}

/// The importance-sampling corrections of one sequence.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Corrections before the bounds are applied: one per token, or a single one. Empty means 1 for all tokens.
    raw: Vec<f64>,
    bounded: Vec<f64>,
    per_sequence: bool,
}

impl Weights {
    /// Computes the corrections of a sequence. If the sampler log-probability of a token is unknown (NaN), its
    /// correction is 1.
    pub fn new<T: Float>(config: &Correction, old_logps: &[T], sampler_logps: &[T], mask: &[bool]) -> Weights {
        if !config.enabled {
            return Weights { raw: Vec::new(), bounded: Vec::new(), per_sequence: false };
        }
        let difference = |t: usize| {
            let sampler = sampler_logps[t].f64();
            if mask[t] && !sampler.is_nan() { old_logps[t].f64() - sampler } else { 0.0 }
        };
        use CorrectionMode::{SequenceMask, SequenceTruncate, TokenMask, TokenTruncate};
        let per_sequence = matches!(config.mode, SequenceTruncate | SequenceMask);
        let raw: Vec<f64> = if per_sequence {
            vec![libm::exp((0..mask.len()).map(difference).sum())]
        } else {
            (0..mask.len()).map(|t| libm::exp(difference(t))).collect()
        };
        let (low, high) = (config.clip_min.unwrap_or(f64::NEG_INFINITY), config.clip_max.unwrap_or(f64::INFINITY));
        let bound = |&c: &f64| match config.mode {
            TokenTruncate | SequenceTruncate => c.clamp(low, high),
            TokenMask | SequenceMask if c < low || c > high => 0.0,
            TokenMask | SequenceMask => c,
        };
        Weights { bounded: raw.iter().map(bound).collect(), raw, per_sequence }
    }

    /// The correction of token `t`.
    pub fn at(&self, t: usize) -> f64 {
        match self.bounded.as_slice() {
            [one] if self.per_sequence => *one,
            [] => 1.0,
            many => many[t],
        }
    }
}

/// Sums from which TRL's `sampling/` metrics are computed.
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
        // A NaN extreme stays NaN.
        self.min = if first || x < self.min || x.is_nan() { x } else { self.min };
        self.max = if first || x > self.max || x.is_nan() { x } else { self.max };
        self.sum += x;
        self.count += 1;
    }
    fn mean(&self) -> Option<f64> {
        over(self.sum, self.count)
    }
}

/// Metrics of the distance between sampler and old policy, over an optimizer batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingMetrics {
    /// Minimum, mean and maximum of the correction before its bounds are applied, over tokens or sequences.
    pub importance_sampling_ratio: [f64; 3],
    /// Fraction of the corrections that the bounds changed.
    pub bounded_ratio: f64,
    /// Mean and maximum of |log π_old − log π_sampler| over tokens: the distance between sampler and old policy.
    pub sampling_logp_difference: [f64; 2],
}

impl SamplingSums {
    /// Adds a sequence to the sums.
    pub fn add<T: Float>(&mut self, weights: &Weights, old_logps: &[T], sampler_logps: &[T], mask: &[bool]) {
        // A per-sequence correction counts even if the mask keeps no token, as in TRL.
        let kept = |t: usize| weights.per_sequence || mask[t];
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

    /// Computes the metrics from the sums. `None` if no token in the loss has a known sampler log-probability. (The
    /// corrections of such sequences are 1 by definition, not by measurement.)
    pub fn metrics(&self) -> Option<SamplingMetrics> {
        let difference = self.difference.mean()?;
        Some(SamplingMetrics {
            importance_sampling_ratio: [self.ratio.min, self.ratio.mean()?, self.ratio.max],
            bounded_ratio: over(self.bounded as f64, self.ratio.count)?,
            sampling_logp_difference: [difference, self.difference.max],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_one_value_is_that_value() {
        let mut sums = Extremes::default();
        assert_eq!(sums.mean(), None);
        sums.add(3.0);
        assert_eq!((sums.mean(), sums.min, sums.max), (Some(3.0), 3.0, 3.0));
        sums.add(f64::NAN);
        assert!(sums.mean().is_some_and(f64::is_nan) && sums.min.is_nan());
    }
}
