//! Rewards to advantages, as TRL's `GRPOTrainer` computes them, in f64.
//!
//! With r[i, k] the reward of sample i by function k and w[k] its weight:
//!
//! r[i] = Σ_k w[k] r[i, k], leaving out the functions that gave none;
//! A[i] = (r[i] − mean of its group) / (s + 10⁻⁴), with s the standard deviation of the group or of the batch
//! (Bessel-corrected), or A[i] = r[i] − mean of its group.
//!
//! A sample that no function scored is left out of every mean and deviation, and its advantage is 0.
//!
//! GRPO: Shao et al. 2024, arXiv:2402.03300. Without division: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.

use serde::{Deserialize, Serialize};

/// What an advantage is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The standard deviation of the sample's group.
    #[default]
    Group,
    /// The standard deviation of the whole batch.
    Batch,
    /// Nothing.
    None,
}

/// Rewards of a generation batch: one row per sample, one column per reward function.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardMatrix {
    /// `[samples][functions]`; `None` where a function gave no score.
    pub rewards: Vec<Vec<Option<f64>>>,
    /// Names of the functions, for the metrics.
    pub names: Vec<String>,
    /// Weight of each function.
    pub weights: Vec<f64>,
}

/// Advantages, total rewards, and what TRL logs about them.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// One per sample.
    pub advantages: Vec<f32>,
    /// The weighted total of each sample; `None` where no function scored it.
    pub rewards: Vec<Option<f64>>,
    /// TRL's `reward`, `reward_std`, `frac_reward_zero_std`, `rewards/<name>/mean` and `rewards/<name>/std`; `None` where
    /// TRL has NaN (nothing to average).
    pub metrics: Vec<(String, Option<f64>)>,
}

/// Computes the advantages of samples that lie group by group, `num_generations` each.
///
/// Panics if the rows are not a multiple of `num_generations` or have the wrong number of columns.
pub fn compute(matrix: &RewardMatrix, num_generations: usize, scale: ScaleRewards) -> Advantages {
    let functions = matrix.names.len();
    assert!(num_generations > 0 && matrix.rewards.len().is_multiple_of(num_generations), "whole groups");
    assert!(matrix.weights.len() == functions && matrix.rewards.iter().all(|row| row.len() == functions), "columns");

    let rewards: Vec<Option<f64>> = matrix.rewards.iter().map(|row| total(row, &matrix.weights)).collect();
    let batch_std = if rewards.len() > 1 { deviation(&rewards) } else { Some(0.0) };
    let mut advantages = Vec::with_capacity(rewards.len());
    let mut without_spread = 0;
    for group in rewards.chunks(num_generations) {
        let mean = mean(group).unwrap_or(0.0);
        let std = match scale {
            ScaleRewards::Batch => batch_std,
            // Undivided advantages still report which groups have no spread.
            ScaleRewards::Group | ScaleRewards::None if num_generations > 1 => deviation(group),
            ScaleRewards::Group | ScaleRewards::None => Some(0.0),
        };
        if std.is_some_and(|s| s <= ZERO_STD) {
            without_spread += group.len();
        }
        advantages.extend(group.iter().map(|reward| match (reward, scale, std) {
            (None, ..) => 0.0,
            (Some(r), ScaleRewards::None, _) => (r - mean) as f32,
            (Some(r), _, Some(std)) => ((r - mean) / (std + 1e-4)) as f32,
            // One scored sample has no standard deviation: TRL's NaN becomes 0.
            (Some(_), _, None) => 0.0,
        }));
    }

    let mut metrics = Vec::new();
    for (k, name) in matrix.names.iter().enumerate() {
        let column: Vec<_> = matrix.rewards.iter().map(|row| row[k]).collect();
        metrics.push((format!("rewards/{name}/mean"), mean(&column)));
        metrics.push((format!("rewards/{name}/std"), deviation(&column)));
    }
    let fraction = (!rewards.is_empty()).then(|| without_spread as f64 / rewards.len() as f64);
    metrics.push(("reward".into(), mean(&rewards)));
    metrics.push(("reward_std".into(), deviation(&rewards)));
    metrics.push(("frac_reward_zero_std".into(), fraction));
    Advantages { advantages, rewards, metrics }
}

/// A standard deviation up to this is called zero (the absolute tolerance of `torch.isclose`).
const ZERO_STD: f64 = 1e-8;

fn total(row: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    let scored = row.iter().any(Option::is_some);
    scored.then(|| row.iter().zip(weights).filter_map(|(r, w)| r.map(|r| r * w)).sum())
}

fn mean(values: &[Option<f64>]) -> Option<f64> {
    let count = values.iter().flatten().count();
    (count > 0).then(|| values.iter().flatten().sum::<f64>() / count as f64)
}

/// Bessel-corrected; `None` below two values.
fn deviation(values: &[Option<f64>]) -> Option<f64> {
    let count = values.iter().flatten().count();
    let mean = mean(values)?;
    let squares: f64 = values.iter().flatten().map(|x| (x - mean).powi(2)).sum();
    (count > 1).then(|| (squares / (count - 1) as f64).sqrt())
}
