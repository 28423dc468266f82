//! Rewards to advantages, as TRL's `GRPOTrainer` computes them, in f64.
//!
//! ```text
//! r_i = Σ_k w_k r_ik                            r_ik: reward of sample i by function k, w_k its weight; over the k that gave one
//! A_i = (r_i − mean of its group) / (s + 1e-4)  s: standard deviation of the group or the batch (Bessel-corrected)
//! A_i = r_i − mean of its group                 without division
//! ```
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

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: &[[Option<f64>; 2]], weights: [f64; 2]) -> RewardMatrix {
        RewardMatrix {
            rewards: rows.iter().map(|r| r.to_vec()).collect(),
            names: vec!["a".into(), "b".into()],
            weights: weights.to_vec(),
        }
    }
    fn one_function(rewards: &[Option<f64>]) -> RewardMatrix {
        let rewards = rewards.iter().map(|&r| vec![r]).collect();
        RewardMatrix { rewards, names: vec!["a".into()], weights: vec![1.0] }
    }
    fn close(got: &[f32], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(g, e)| (f64::from(*g) - e).abs() < 1e-6), "{got:?} {expected:?}");
    }
    fn metric(a: &Advantages, name: &str) -> Option<f64> {
        a.metrics.iter().find(|(n, _)| n == name).expect(name).1
    }

    #[test]
    fn by_hand() {
        // Groups (1, 3) and (2, 2): means 2, 2; deviations √2, 0; of the batch √(2/3).
        let m = one_function(&[Some(1.0), Some(3.0), Some(2.0), Some(2.0)]);
        let (group, batch) = (2f64.sqrt() + 1e-4, (2.0 / 3.0f64).sqrt() + 1e-4);
        close(&compute(&m, 2, ScaleRewards::Group).advantages, &[-1.0 / group, 1.0 / group, 0.0, 0.0]);
        close(&compute(&m, 2, ScaleRewards::Batch).advantages, &[-1.0 / batch, 1.0 / batch, 0.0, 0.0]);
        let none = compute(&m, 2, ScaleRewards::None);
        close(&none.advantages, &[-1.0, 1.0, 0.0, 0.0]);
        assert_eq!(metric(&none, "reward"), Some(2.0));
        assert!((metric(&none, "reward_std").unwrap() - (2.0 / 3.0f64).sqrt()).abs() < 1e-12);
        assert_eq!(metric(&none, "frac_reward_zero_std"), Some(0.5));
        assert_eq!(metric(&compute(&m, 2, ScaleRewards::Batch), "frac_reward_zero_std"), Some(0.0));
    }

    #[test]
    fn weights_and_missing_scores() {
        let rows = [[Some(1.0), Some(2.0)], [None, Some(4.0)], [None, None], [Some(3.0), None]];
        let a = compute(&matrix(&rows, [1.0, 0.5]), 4, ScaleRewards::None);
        assert_eq!(a.rewards, [Some(2.0), Some(2.0), None, Some(3.0)]);
        let mean = 7.0 / 3.0;
        close(&a.advantages, &[2.0 - mean, 2.0 - mean, 0.0, 3.0 - mean]);
        assert_eq!(metric(&a, "rewards/a/mean"), Some(2.0));
        assert_eq!(metric(&a, "rewards/b/mean"), Some(3.0));
        assert!((metric(&a, "rewards/b/std").unwrap() - 2f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn nothing_to_compare_gives_zero() {
        let scored_once = compute(&one_function(&[Some(5.0), None]), 2, ScaleRewards::Group);
        assert_eq!(scored_once.advantages, [0.0, 0.0]);
        assert_eq!(metric(&scored_once, "reward_std"), None);
        let never = compute(&one_function(&[None, None]), 2, ScaleRewards::Group);
        assert_eq!((never.advantages.as_slice(), metric(&never, "reward")), ([0.0, 0.0].as_slice(), None));
        let alone = compute(&one_function(&[Some(5.0), Some(7.0)]), 1, ScaleRewards::None);
        assert_eq!(alone.advantages, [0.0, 0.0]);
    }
}
