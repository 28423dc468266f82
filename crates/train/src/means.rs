//! Metrics that only some losses report.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Means over an optimizer batch, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Means {
    sums: BTreeMap<String, (f64, u64)>,
}

impl Means {
    /// Adds `count` values (of tokens, sequences or pairs) to the mean `name`, given their `sum`.
    pub fn add(&mut self, name: &str, sum: f64, count: u64) {
        match self.sums.get_mut(name) {
            Some(entry) => *entry = (entry.0 + sum, entry.1 + count),
            None => {
                self.sums.insert(name.to_owned(), (sum, count));
            }
        }
    }

    /// Sets the metric `name` to the minimum of the given values so far.
    pub fn least(&mut self, name: &str, value: f64) {
        let entry = self.sums.entry(name.to_owned()).or_insert((value, 1));
        entry.0 = entry.0.min(value);
    }

    /// Sets the metric `name` to the maximum of the given values so far.
    pub fn greatest(&mut self, name: &str, value: f64) {
        let entry = self.sums.entry(name.to_owned()).or_insert((value, 1));
        entry.0 = entry.0.max(value);
    }

    /// All means with at least one value, sorted by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, f64)> {
        self.sums.iter().filter(|(_, (_, n))| *n > 0).map(|(name, (sum, n))| (name.as_str(), sum / *n as f64))
    }
}

/// Clip ratios: fractions of tokens (or of sequences, if ratios are per sequence) whose importance ratio r is outside
/// the clip range on the side where clipping takes effect. A is the advantage, ε and ε_high the clip range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClipRatios {
    /// Fraction of tokens with r < 1 − ε and A < 0.
    pub low_mean: f64,
    /// The smallest such fraction (r < 1 − ε, A < 0) among the sequences.
    pub low_min: f64,
    /// Fraction of tokens with r > 1 + ε_high and A > 0.
    pub high_mean: f64,
    /// The largest such fraction (r > 1 + ε_high, A > 0) among the sequences.
    pub high_max: f64,
    /// Fraction of tokens clipped on either side.
    pub region_mean: f64,
}
