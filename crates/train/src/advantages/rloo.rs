//! RLOO's advantages (Ahmadian et al. 2024, arXiv:2402.14740), as TRL's `RLOOTrainer` computes them: a completion's
//! reward minus the mean reward of the *other* completions of its group, with the KL divergence subtracted from
//! rewards. Below, r_i is the reward of completion i, m the mask of its tokens, G the group's size, s a standard
//! deviation.
//!
//! ```text
//! r_i ← clamp(r_i, reward_clip_range) − β Σ_t m (log π_old − log π_ref)
//! A_i = r_i − mean of the others in its group, which is G/(G − 1) (r_i − mean of the group)
//! A_i ← (A_i − mean of A) / (s + 1e-4)        over the batch, with normalize_advantages
//! ```

use super::{Advantages, RewardMatrix, SMALL, ZeroStd, all_equal, deviation, exact, mean, metrics, per_sequence};
use crate::Sample;
use crate::gae::{KlEstimator, kl};
use kernels::mean::Mean;
use serde::{Deserialize, Serialize};

/// Settings of RLOO's advantages; names, meanings and defaults are those of TRL's `RLOOConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RlooRewards {
    /// Weight of the KL divergence to the reference model; 0 for none.
    pub beta: f64,
    /// Bounds to which rewards are clipped before the KL divergence is subtracted.
    pub reward_clip_range: Option<[f64; 2]>,
    /// Whether advantages are normalised to mean 0 and standard deviation 1 over the batch.
    pub normalize_advantages: bool,
    /// Leave completions that reached the length limit out of the loss and of the KL divergence.
    pub mask_truncated_completions: bool,
}

impl Default for RlooRewards {
    fn default() -> Self {
        RlooRewards {
            beta: 0.05,
            reward_clip_range: None,
            normalize_advantages: false,
            mask_truncated_completions: false,
        }
    }
}

/// Computes the advantages of `samples`. Row i of `matrix` has the rewards of sample i. The advantages in `samples` are
/// ignored. Panics if `beta` is not 0 and a sample has no reference log-probabilities.
pub fn compute(matrix: &RewardMatrix, samples: &[Sample], config: &RlooRewards) -> Advantages {
    let rewards = matrix.totals();
    assert_eq!(rewards.len(), samples.len());
    let mut penalised = rewards.clone();
    if let Some([low, high]) = config.reward_clip_range {
        penalised.iter_mut().flatten().for_each(|r| *r = r.clamp(low, high));
    }
    let mut kl_per_token = Mean::default();
    if config.beta != 0.0 {
        for (reward, sample) in penalised.iter_mut().zip(samples) {
            let out = config.mask_truncated_completions && sample.truncated();
            let mask: Vec<bool> = sample.loss_mask.iter().map(|&m| m && !out).collect();
            let reference = sample.columns.ref_logps().expect("beta needs reference log-probabilities");
            let sum: f64 = kl(KlEstimator::K1, sample.old_logps(), reference, &mask).iter().sum();
            kl_per_token.add_sum(sum, mask.iter().filter(|&&m| m).count() as u64);
            *reward = reward.map(|r| r - config.beta * sum);
        }
    }

    let mut advantages: Vec<Option<f64>> = Vec::with_capacity(rewards.len());
    let mut zero_std = ZeroStd::default();
    for group in matrix.groups().map(|group| &penalised[group]) {
        let std = if group.len() > 1 { deviation(group) } else { Some(0.0) };
        zero_std.add(group.len(), exact(std, group));
        let scored = group.iter().flatten().count();
        let sum: f64 = group.iter().flatten().sum();
        // With normalisation, exact zeros would shift the mean of the other advantages.
        let equal = !config.normalize_advantages && all_equal(group);
        // A single completion has no other one to compare with: TRL's 0/0 becomes 0.
        advantages.extend(group.iter().map(|r| match r {
            Some(_) if equal => Some(0.0),
            Some(r) if scored > 1 => Some(r - (sum - r) / (scored - 1) as f64),
            Some(_) if group.len() == 1 => Some(0.0),
            _ => None,
        }));
    }
    if config.normalize_advantages {
        let center = mean(&advantages).unwrap_or(0.0);
        let std = deviation(&advantages);
        for a in &mut advantages {
            *a = a.zip(std).map(|(a, std)| (a - center) / (std + SMALL));
        }
    }
    let advantages: Vec<f64> = advantages.iter().map(|a| a.unwrap_or(0.0)).collect();
    let mut metrics = metrics(matrix, &rewards, zero_std);
    if config.beta != 0.0 {
        metrics.push(("kl".into(), kl_per_token.get()));
    }
    Advantages { advantages: per_sequence(&advantages), rewards, metrics }
}
