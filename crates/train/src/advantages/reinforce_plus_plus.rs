//! REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): advantages of tokens, normalised over the whole batch instead of
//! within a group, so that one completion per prompt is enough. Below, r is the reward of a completion, k_i the KL
//! estimate at token i with weight β, and s the standard deviation of A.
//!
//! ```text
//! A_t = r − β Σ_{i ≥ t} k_i,  k_i = log π_old(i) − log π_ref(i)    the reward comes at the last token, the KL at each
//! A_t ← (A_t − mean of A) / max(s, 1e-4)                            over all tokens of the generation batch
//! ```
//!
//! With [`Baseline::Group`] (the paper's "REINFORCE++ w/ baseline"), A_t = r − mean of the group, normalised over the
//! batch in the same way, and the KL divergence is in the loss. On-policy, the paper's k2 estimator has the same
//! gradient as `beta` with `use_bias_correction_kl`: log π_θ − log π_ref times ∇ log π_θ.
//!
//! REINFORCE++ advantages work with any policy loss of [`crate::loss`]; the paper clips per token. The deviation s is
//! not Bessel-corrected.

use super::{Advantages, RewardMatrix, ZeroStd, exact_deviation, mean, metrics};
use crate::gae::{KlEstimator, kl};
use crate::{Advantage, Sample};
use kernels::mean::Mean;

/// The baseline that is subtracted from a reward before normalisation over the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Nothing; normalisation subtracts the batch's mean.
    Batch,
    /// The mean reward of the completion's group.
    Group,
}

/// Lower bound of the standard deviation by which advantages are divided.
const MIN_STD: f64 = 1e-4;

/// Computes the advantages of the tokens of `samples` that `masks` keep; other tokens get 0. Row i of `matrix` has the
/// rewards of sample i. `beta` is used only with [`Baseline::Batch`]. The advantages in `samples` are ignored. Panics
/// if `beta` is used and a sample has no reference log-probabilities.
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
    let (mut all, mut kl_per_token) = (Vec::with_capacity(samples.len()), Mean::default());
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
            kl_per_token.add_sum(to_go.iter().sum(), mask.iter().filter(|&&m| m).count() as u64);
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
                Some(a) if mask[t] => ((a[t] - center) / std.max(MIN_STD)) as f32,
                _ => 0.0,
            };
            Advantage::Tokens((0..mask.len()).map(token).collect())
        })
        .collect();
    let mut zero_std = ZeroStd::default();
    matrix.groups().map(|group| &rewards[group]).for_each(|group| zero_std.add(group.len(), exact_deviation(group)));
    let mut metrics = metrics(matrix, &rewards, zero_std);
    if penalised {
        metrics.push(("kl".into(), kl_per_token.get()));
    }
    Advantages { advantages, rewards, metrics }
}
