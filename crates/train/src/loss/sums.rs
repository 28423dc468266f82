//! Sums over an optimizer batch, from which the loss and its metrics are computed.

use super::sampling::SamplingSums;
use crate::{ClipRatios, Means};
use kernels::mean::over;

/// Sums over sequences, in their order, from which the loss and the metrics of an optimizer step are computed.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSums {
    /// The loss J so far.
    pub loss: f64,
    /// Number of tokens in the loss so far.
    pub tokens: u64,
    /// Sum over tokens of the estimated KL divergence to the reference model.
    pub kl: f64,
    /// Further metrics of the loss.
    pub means: Means,
    /// Sum of the token entropies in the entropy bonus.
    pub entropy: f64,
    /// Statistics of the importance-sampling correction; `None` without a correction.
    pub sampling: Option<SamplingSums>,
    low: f64,
    high: f64,
    /// The denominator for `low` and `high`: the number of tokens, or of sequences if ratios are per sequence.
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
    /// Mean estimated KL divergence per token; `None` if no token is in the loss.
    pub fn kl_mean(&self) -> Option<f64> {
        over(self.kl, self.tokens)
    }

    /// The clip ratios; `None` if no token is in the loss or the loss does not clip. (TRL logs NaN for minimum and
    /// maximum, and 0 for the means.)
    pub fn clip_ratios(&self) -> Option<ClipRatios> {
        // As in TRL, a per-sequence ratio counts even for a sequence without tokens, unless no sequence has tokens.
        let per = |x: f64| over(x, self.counted).filter(|_| self.tokens > 0);
        Some(ClipRatios {
            low_mean: per(self.low)?,
            low_min: self.low_min,
            high_mean: per(self.high)?,
            high_max: self.high_max,
            region_mean: per(self.low + self.high)?,
        })
    }

    /// Adds the numbers of tokens clipped below (`low`) and above (`high`) among `of` tokens of a sequence. For
    /// per-sequence ratios, `of` is 1.
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
