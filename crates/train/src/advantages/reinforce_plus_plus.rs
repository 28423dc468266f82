//! REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): advantages of tokens, normalised over the whole batch instead of
//! within a group, so that one completion per prompt is enough.
//!
//! ```text
//! A_t = r − β Σ_{i ≥ t} k_i,  k_i = log π_old(i) − log π_ref(i)    the reward comes at the last token, the KL at each
//! A_t ← (A_t − mean of A) / max(s, 1e-4)                            over all tokens of the generation batch
//! ```
//!
//! With [`Baseline::Group`] (the paper's "REINFORCE++ w/ baseline") A_t = r − mean of the group instead, normalised
//! likewise, and the KL divergence is in the loss: the paper's k2 estimator has on policy the gradient that `beta` with
//! `use_bias_correction_kl` has, log π_θ − log π_ref times ∇ log π_θ.
//!
//! The policy loss on top is any of [`crate::loss`]; the paper clips per token. s is not Bessel-corrected.

use super::{Advantages, RewardMatrix, ZERO_STD, deviation, mean, metrics};
use crate::gae::{KlEstimator, kl};
use crate::{Advantage, Sample};

/// What a reward is compared with before the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Nothing: the batch's mean alone.
    Batch,
    /// The mean of its group.
    Group,
}

/// The least divisor.
const LEAST: f64 = 1e-4;

/// Computes the advantages of `samples`, one for each row, at the tokens that `masks` keep; 0 elsewhere. `beta` acts
/// with [`Baseline::Batch`] alone. The samples' own advantages are not read. Panics if there is a β and no reference.
pub fn compute(
    matrix: &RewardMatrix,
    samples: &[Sample],
    masks: &[Vec<bool>],
    beta: f64,
    baseline: Baseline,
) -> Advantages {
    let rewards = matrix.totals();
    assert!(rewards.len() == samples.len() && masks.len() == samples.len());
    let penalised = beta != 0.0 && baseline == Baseline::Batch;
    let (mut all, mut kl_sum, mut tokens) = (Vec::with_capacity(samples.len()), 0.0, 0u64);
    let base_of = |group: &[Option<f64>]| match baseline {
        Baseline::Group => mean(group).unwrap_or(0.0),
        Baseline::Batch => 0.0,
    };
    let bases = matrix.groups().flat_map(|group| std::iter::repeat_n(base_of(&rewards[group.clone()]), group.len()));
    for (((sample, mask), reward), base) in samples.iter().zip(masks).zip(&rewards).zip(bases) {
        let mut to_go = vec![0.0; mask.len()];
        if penalised {
            let reference = sample.columns.ref_logps().expect("beta needs reference log-probabilities");
            to_go = kl(KlEstimator::K1, sample.old_logps(), reference, mask);
            kl_sum += to_go.iter().sum::<f64>();
            tokens += mask.iter().filter(|&&m| m).count() as u64;
            for t in (1..to_go.len()).rev() {
                to_go[t - 1] += to_go[t];
            }
        }
        all.push(reward.map(|r| to_go.iter().map(|k| r - base - beta * k).collect::<Vec<f64>>()));
    }

    let scored = || all.iter().zip(masks).filter_map(|(a, m)| Some((a.as_ref()?, m)));
    let kept = || scored().flat_map(|(a, m)| a.iter().zip(m).filter(|(_, m)| **m).map(|(a, _)| *a));
    let count = kept().count().max(1) as f64;
    let center = kept().sum::<f64>() / count;
    let std = (kept().map(|a| (a - center).powi(2)).sum::<f64>() / count).sqrt();
    let advantages = all
        .iter()
        .zip(masks)
        .map(|(a, mask)| {
            let token = |t: usize| match a {
                Some(a) if mask[t] => ((a[t] - center) / std.max(LEAST)) as f32,
                _ => 0.0,
            };
            Advantage::Tokens((0..mask.len()).map(token).collect())
        })
        .collect();
    let is_zero_std = |group: &&[Option<f64>]| group.len() > 1 && deviation(group).is_some_and(|s| s <= ZERO_STD);
    let zero_std = matrix.groups().map(|group| &rewards[group]).filter(is_zero_std).map(<[_]>::len).sum();
    let mut metrics = metrics(matrix, &rewards, zero_std);
    if penalised {
        metrics.push(("kl".into(), Some(kl_sum / tokens.max(1) as f64)));
    }
    Advantages { advantages, rewards, metrics }
}
