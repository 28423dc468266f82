//! Tests whether a reward depends on the text at all. A random reward has a spread but teaches nothing, and no other
//! alarm shows this.
//!
//! Each completion has some features: its length, how repetitive it is, its mean log-probability, which tokens it has.
//! Score and feature are centred by their group's means and multiplied. If the reward does not depend on the text, the
//! sum of these products over all completions is 0 apart from chance: divided by its standard deviation under random
//! scores within groups, it is a standard normal number. If the reward depends on the text, that number soon becomes
//! large for at least one feature. The alarm's thresholds are in `mod.rs` and `conditions.rs`.

use super::repetition::repetition;
use crate::rollouts::{Rollouts, ScoredCompletion};
use crate::run::bits64::Bits64;
use kernels::mean::mean;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Numeric features: tokens, characters, share of distinct tokens, repetition, mean log-probability.
const NUMBERS: usize = 5;
/// Buckets for tokens: a token id belongs to the bucket of its remainder.
const BUCKETS: usize = 128;
/// The number of generations whose mean scores are compared.
const REMEMBERED: usize = 20;

/// Statistics of how one reward depends on the text, over all generations so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dependence {
    /// For each feature: the sum of its products with the score, and the variance of this sum under random scores.
    sums: Vec<[Bits64; 2]>,
    /// Completions in groups whose scores differ.
    completions: u64,
    generations: u64,
    /// Pairs of equal texts with equal scores in such groups, which are rare under random scores.
    equal: u64,
    /// The mean score of each of the last generations.
    means: VecDeque<Bits64>,
}

/// Statistics of how one reward depends on the text, in one generation.
#[derive(Default)]
pub struct Portion {
    sums: Vec<[f64; 2]>,
    completions: u64,
    equal: u64,
    mean: Option<f64>,
}

impl Portion {
    /// Computes the statistics of the reward with index `k` in a generation.
    pub fn of(rollouts: &Rollouts, k: usize) -> Portion {
        let mut portion = Portion { sums: vec![[0.0; 2]; NUMBERS + BUCKETS], ..Portion::default() };
        let mut all = (0.0, 0usize);
        for group in &rollouts.groups {
            let scored: Vec<(&ScoredCompletion, f64)> = group
                .completions
                .iter()
                .filter_map(|c| Some((c, c.rewards[k].filter(|score| score.is_finite())?)))
                .collect();
            for (_, score) in &scored {
                all = (all.0 + score, all.1 + 1);
            }
            portion.add(&scored);
        }
        portion.mean = (all.1 > 0).then(|| all.0 / all.1 as f64);
        portion
    }

    fn add(&mut self, scored: &[(&ScoredCompletion, f64)]) {
        let count = scored.len() as f64;
        let less_mean = |values: Vec<f64>| {
            let mean = values.iter().sum::<f64>() / count;
            values.into_iter().map(|value| value - mean).collect::<Vec<f64>>()
        };
        let scores = less_mean(scored.iter().map(|(_, score)| *score).collect());
        let square: f64 = scores.iter().map(|score| score * score).sum();
        let scale = scored.iter().map(|(_, score)| score.abs()).fold(0.0, f64::max);
        if scored.len() < 2 || !square.is_finite() || square <= 1e-16 * scale * scale {
            return;
        }
        self.completions += scored.len() as u64;
        let features: Vec<Vec<f64>> = scored.iter().map(|(completion, _)| features(completion)).collect();
        for (k, sum) in self.sums.iter_mut().enumerate() {
            let feature = less_mean(features.iter().map(|own| own[k]).collect());
            let own: f64 = feature.iter().map(|value| value * value).sum();
            sum[0] += feature.iter().zip(&scores).map(|(value, score)| value * score).sum::<f64>();
            sum[1] += own * square / (count - 1.0);
        }
        let mut known: BTreeMap<&[u32], f64> = BTreeMap::new();
        for (completion, score) in scored {
            match known.get(completion.completion.ids.as_slice()) {
                Some(first) => self.equal += u64::from(first == score),
                None => drop(known.insert(&completion.completion.ids, *score)),
            }
        }
    }
}

fn features(completion: &ScoredCompletion) -> Vec<f64> {
    let (ids, logps) = (&completion.completion.ids, completion.completion.logps());
    let length = ids.len().max(1) as f64;
    let mut all = vec![0.0; NUMBERS + BUCKETS];
    all[0] = length;
    all[1] = completion.content.text().chars().count() as f64;
    all[2] = ids.iter().collect::<BTreeSet<_>>().len() as f64 / length;
    all[3] = repetition(ids);
    all[4] = logps.iter().map(|logp| f64::from(*logp)).sum::<f64>() / logps.len().max(1) as f64;
    for id in ids {
        all[NUMBERS + *id as usize % BUCKETS] = 1.0;
    }
    all
}

impl Dependence {
    pub fn take(&mut self, portion: &Portion) {
        self.sums.resize(portion.sums.len(), [Bits64(0.0); 2]);
        for (sum, more) in self.sums.iter_mut().zip(&portion.sums) {
            *sum = [Bits64(sum[0].0 + more[0]), Bits64(sum[1].0 + more[1])];
        }
        self.completions += portion.completions;
        self.equal += portion.equal;
        self.generations += u64::from(portion.completions > 0);
        self.means.extend(portion.mean.map(Bits64));
        while self.means.len() > REMEMBERED {
            self.means.pop_front();
        }
    }

    /// How many completions and generations were counted.
    pub fn seen(&self) -> (u64, u64) {
        (self.completions, self.generations)
    }

    /// How many pairs of equal texts had equal scores.
    pub fn equal(&self) -> u64 {
        self.equal
    }

    /// The strongest dependence of the score on any feature, in standard deviations under random scores.
    pub fn strongest(&self) -> f64 {
        let sizes = self.sums.iter().filter(|sum| sum[1].0 > 0.0).map(|sum| sum[0].0.abs() / sum[1].0.sqrt());
        sizes.fold(0.0, f64::max)
    }

    /// Whether the mean score has risen over the last generations by more than its noise: the last quarter must exceed
    /// the first by 1.3 standard deviations. A steady rise exceeds it by 2.6, chance by 0.6.
    pub fn rises(&self) -> bool {
        let means: Vec<f64> = self.means.iter().map(|mean| mean.0).collect();
        let of = |part: &[f64]| mean(part.iter().copied());
        let quarter = means.len() / 4;
        let (Some(middle), Some(first), Some(last)) =
            (of(&means), of(&means[..quarter]), of(&means[means.len() - quarter..]))
        else {
            return false;
        };
        let variance = mean(means.iter().map(|value| (value - middle) * (value - middle)));
        variance.is_some_and(|variance| last - first > 1.3 * variance.sqrt())
    }
}
