//! Advantages from rewards, as TRL's trainers compute them, in f64. This file has GRPO's advantages and shared code;
//! every other estimator has its own file.
//!
//! ```text
//! r_i = Σ_k w_k r_ik                            r_ik: reward of sample i by function k, if it gave one; w_k: weight
//! A_i = (r_i − mean of its group) / (s + 1e-4)  s: standard deviation of the group or the batch (Bessel-corrected)
//! A_i = r_i − mean of its group                 without division
//! ```
//!
//! If all rewards of a group are equal, its advantages are exactly 0: the mean of equal numbers is set to that number,
//! since the rounded sum divided by the count may differ from it.
//!
//! A sample that no reward function scored is left out of every mean and deviation, and gets advantage 0. A NaN score
//! counts as missing, as in TRL. An infinite score is kept, so that it makes the loss non-finite.
//!
//! GRPO is from Shao et al. 2024, arXiv:2402.03300; Dr. GRPO (Liu et al. 2025, arXiv:2503.20783) does not divide by the
//! deviation. [`gdpo`] normalises each of several rewards first. [`rloo`] takes the baseline from the other completions
//! of the group. [`reinforce_plus_plus`] computes advantages per token and normalises them over the batch. [`process`]
//! uses rewards of steps. (PPO's advantages are in [`crate::gae`].)

pub mod gdpo;
pub mod process;
pub mod reinforce_plus_plus;
pub mod rloo;

#[cfg(test)]
mod tests;

use crate::Advantage;
use kernels::mean::share;
use model::GroupId;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The standard deviation by which GRPO's advantages are divided, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The standard deviation of the sample's group.
    #[default]
    Group,
    /// The standard deviation of the batch.
    Batch,
    /// Advantages are not divided.
    None,
}

/// How the rewards of several functions are combined into one advantage; the names are TRL's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MultiObjectiveAggregation {
    /// The weighted sum of the rewards is normalised within the group.
    #[default]
    SumThenNormalize,
    /// Each reward is normalised within the group; their weighted sum is then normalised over the batch ([`gdpo`]).
    NormalizeThenSum,
}

/// The scores of one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardRow {
    /// The sample's group.
    pub group: GroupId,
    /// The score of each reward function; `None` (or NaN) if the function gave no score.
    pub scores: Vec<Option<f64>>,
}

/// The rewards of a generation batch: a row for each sample, a column for each reward function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardMatrix {
    /// One row per sample. The samples of a group are consecutive.
    pub rows: Vec<RewardRow>,
    /// Names of the reward functions, for metrics.
    pub names: Vec<String>,
    /// Weight of each reward function.
    pub weights: Vec<f64>,
}

/// Advantages, total rewards, and the metrics that TRL logs about them.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// The advantage of each sample.
    pub advantages: Vec<Advantage>,
    /// The weighted total reward of each sample; `None` if no function scored it.
    pub rewards: Vec<Option<f64>>,
    /// TRL's metrics `reward`, `reward_std`, `frac_reward_zero_std`, `rewards/<name>/mean` and `rewards/<name>/std`;
    /// `None` where TRL reports NaN (nothing to average).
    pub metrics: Vec<(String, Option<f64>)>,
}

/// Computes GRPO's advantages. Panics if a row has the wrong number of scores.
pub fn compute(matrix: &RewardMatrix, scale: ScaleRewards) -> Advantages {
    let rewards = matrix.totals();
    let batch_std = if rewards.len() > 1 { deviation(&rewards) } else { Some(0.0) };
    let mut advantages = Vec::with_capacity(rewards.len());
    let mut zero_std = ZeroStd::default();
    for group in matrix.groups().map(|group| &rewards[group]) {
        let mean = mean(group).unwrap_or(0.0);
        let std = match scale {
            ScaleRewards::Batch => batch_std,
            // The metrics report groups of zero deviation even if advantages are not divided by it.
            ScaleRewards::Group | ScaleRewards::None if group.len() > 1 => deviation(group),
            ScaleRewards::Group | ScaleRewards::None => Some(0.0),
        };
        let equal = all_equal(group);
        let compared = if scale == ScaleRewards::Batch { &rewards } else { group };
        zero_std.add(group.len(), exact(std, compared));
        advantages.extend(group.iter().map(|reward| match (reward, scale, std) {
            (None, ..) => 0.0,
            // The rounded mean of equal rewards may differ from them by about 1e-17, and the advantage would not be 0.
            _ if equal => 0.0,
            (Some(r), ScaleRewards::None, _) => r - mean,
            (Some(r), _, Some(std)) => (r - mean) / (std + SMALL),
            // A group with only one scored sample has no standard deviation: TRL's NaN becomes 0.
            (Some(_), _, None) => 0.0,
        }));
    }
    let metrics = metrics(matrix, &rewards, zero_std);
    Advantages { advantages: per_sequence(&advantages), rewards, metrics }
}

/// One advantage per completion, the same for all its tokens.
fn per_sequence(advantages: &[f64]) -> Vec<Advantage> {
    advantages.iter().map(|&a| Advantage::Sequence(a as f32)).collect()
}

impl RewardMatrix {
    /// The range of rows of each group.
    pub fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let mut first = 0;
        self.rows.chunk_by(|a, b| a.group == b.group).map(move |group| {
            let rows = first..first + group.len();
            first = rows.end;
            rows
        })
    }

    /// The weighted total reward of each sample; `None` if no function scored it. Panics if a row has the wrong number
    /// of scores.
    pub fn totals(&self) -> Vec<Option<f64>> {
        let functions = self.names.len();
        assert!(
            self.weights.len() == functions && self.rows.iter().all(|row| row.scores.len() == functions),
            "columns"
        );
        self.rows.iter().map(|row| total(&row.scores, &self.weights)).collect()
    }
}

/// Counts the samples in groups of zero standard deviation. As in TRL, a group of several samples with fewer than two
/// scores counts as a group with differing rewards. If all groups are like this, the count is unknown.
#[derive(Clone, Copy, Debug, Default)]
struct ZeroStd {
    zero: usize,
    is_known: bool,
}

impl ZeroStd {
    /// Adds the samples of a group with this standard deviation, if it has one.
    fn add(&mut self, samples: usize, std: Option<f64>) {
        let Some(std) = std else { return };
        self.is_known = true;
        if std <= ZERO_STD {
            self.zero += samples;
        }
    }
}

/// Computes TRL's metrics of rewards.
fn metrics(matrix: &RewardMatrix, rewards: &[Option<f64>], zero_std: ZeroStd) -> Vec<(String, Option<f64>)> {
    let mut metrics = Vec::new();
    for (k, name) in matrix.names.iter().enumerate() {
        let column: Vec<_> = matrix.rows.iter().map(|row| given(row.scores[k])).collect();
        metrics.push((format!("rewards/{name}/mean"), mean(&column)));
        metrics.push((format!("rewards/{name}/std"), exact_deviation(&column)));
    }
    let scored = rewards.iter().any(Option::is_some);
    let fraction = share(zero_std.zero, rewards.len()).filter(|_| scored && zero_std.is_known);
    metrics.push(("reward".into(), mean(rewards)));
    metrics.push(("reward_std".into(), exact_deviation(rewards)));
    metrics.push(("frac_reward_zero_std".into(), fraction));
    metrics
}

/// TRL's constant that is added to a standard deviation before dividing by it.
const SMALL: f64 = 1e-4;

/// A standard deviation up to this counts as zero (the absolute tolerance of `torch.isclose`).
const ZERO_STD: f64 = 1e-8;

/// The score, or `None` if it is NaN.
fn given(score: Option<f64>) -> Option<f64> {
    score.filter(|r| !r.is_nan())
}

fn total(row: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    let scored = row.iter().any(|r| given(*r).is_some());
    scored.then(|| row.iter().zip(weights).filter_map(|(r, w)| given(*r).map(|r| r * w)).sum())
}

fn mean(values: &[Option<f64>]) -> Option<f64> {
    kernels::mean::mean(values.iter().flatten().copied())
}

/// Whether all values are the same finite number. Such values equal their mean without rounding errors. An infinite
/// value has no mean, and must make the result non-finite.
fn all_equal(values: &[Option<f64>]) -> bool {
    let mut given = values.iter().flatten();
    given.next().is_some_and(|first| first.is_finite() && given.all(|value| value == first))
}

/// The standard deviation as a metric: exactly 0 if all values are equal, although their mean is rounded. Advantages
/// use [`deviation`], whose bits are fixed.
fn exact_deviation(values: &[Option<f64>]) -> Option<f64> {
    exact(deviation(values), values)
}

/// Returns the deviation `std` of `values`, or exactly 0 if they are equal.
fn exact(std: Option<f64>, values: &[Option<f64>]) -> Option<f64> {
    std.map(|std| if all_equal(values) { 0.0 } else { std })
}

/// Bessel-corrected standard deviation; `None` for fewer than two values. On overflow it is NaN and not infinite, since
/// dividing by infinity would give 0.
fn deviation(values: &[Option<f64>]) -> Option<f64> {
    let count = values.iter().flatten().count();
    let mean = mean(values)?;
    let squares: f64 = values.iter().flatten().map(|x| (x - mean).powi(2)).sum();
    let std = (squares / count.saturating_sub(1) as f64).sqrt();
    (count > 1).then_some(if std.is_finite() { std } else { f64::NAN })
}
