//! The metrics that losses report, by name.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Means by name over an optimizer batch: what a loss reports beyond the fields that all of them share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Means {
    sums: BTreeMap<String, (f64, u64)>,
}

impl Means {
    /// Adds `count` values (tokens, sequences, pairs) whose sum is `sum`.
    pub fn add(&mut self, name: &str, sum: f64, count: u64) {
        match self.sums.get_mut(name) {
            Some(entry) => *entry = (entry.0 + sum, entry.1 + count),
            None => {
                self.sums.insert(name.to_owned(), (sum, count));
            }
        }
    }

    /// Keeps the smallest of the values given under this name.
    pub fn least(&mut self, name: &str, value: f64) {
        let entry = self.sums.entry(name.to_owned()).or_insert((value, 1));
        entry.0 = entry.0.min(value);
    }

    /// Keeps the largest of the values given under this name.
    pub fn greatest(&mut self, name: &str, value: f64) {
        let entry = self.sums.entry(name.to_owned()).or_insert((value, 1));
        entry.0 = entry.0.max(value);
    }

    /// The means of what was counted at least once, in the order of their names.
    pub fn entries(&self) -> impl Iterator<Item = (&str, f64)> {
        self.sums.iter().filter(|(_, (_, n))| *n > 0).map(|(name, (sum, n))| (name.as_str(), sum / *n as f64))
    }
}

/// Fractions of tokens (at sequence level: of sequences) beyond the clip range on the side where the clip acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClipRatios {
    /// Mean of r < 1 − ε with A < 0.
    pub low_mean: f64,
    /// The smallest of these among the sequences.
    pub low_min: f64,
    /// Mean of r > 1 + ε_high with A > 0.
    pub high_mean: f64,
    /// The largest of these among the sequences.
    pub high_max: f64,
    /// Mean of either.
    pub region_mean: f64,
}
