//! Sums over an optimizer batch from which the losses' metrics are made.

use super::sampling::SamplingSums;
use crate::{ClipRatios, Means};

/// Sums over sequences, in their order, from which the metrics of an optimizer step are made.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSums {
    /// J so far.
    pub loss: f64,
    /// Tokens so far.
    pub tokens: u64,
    /// Sum of K over tokens.
    pub kl: f64,
    /// What a loss reports beyond this.
    pub means: Means,
    /// Sum of the entropies that the entropy bonus takes.
    pub entropy: f64,
    /// How far the sampler was from the old policy, where that is corrected for.
    pub sampling: Option<SamplingSums>,
    low: f64,
    high: f64,
    /// What `low` and `high` count: tokens, or sequences at sequence level.
    counted: u64,
    low_min: f64,
    high_max: f64,
}

impl Default for LossSums {
    fn default() -> Self {
        LossSums {
            loss: 0.0,
            tokens: 0,
            kl: 0.0,
            means: Means::default(),
            entropy: 0.0,
            sampling: None,
            low: 0.0,
            high: 0.0,
            counted: 0,
            low_min: f64::INFINITY,
            high_max: f64::NEG_INFINITY,
        }
    }
}

impl LossSums {
    /// Mean K per token.
    pub fn kl_mean(&self) -> f64 {
        self.kl / self.tokens.max(1) as f64
    }

    /// The clip ratios. Where no sequence has a token, the extremes are 0 (TRL has NaN); a loss that does not clip
    /// reports none, and all are 0.
    pub fn clip_ratios(&self) -> ClipRatios {
        let per = |x: f64| x / self.counted.max(1) as f64;
        let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
        ClipRatios {
            low_mean: per(self.low),
            low_min: finite(self.low_min),
            high_mean: per(self.high),
            high_max: finite(self.high_max),
            region_mean: per(self.low + self.high),
        }
    }

    /// Counts the clipped ones among `of` tokens (or 1, the sequence).
    pub(super) fn count_clipped(&mut self, low: u64, high: u64, of: u64) {
        self.low += low as f64;
        self.high += high as f64;
        self.counted += of;
        if of > 0 {
            self.low_min = self.low_min.min(low as f64 / of as f64);
            self.high_max = self.high_max.max(high as f64 / of as f64);
        }
    }
}
