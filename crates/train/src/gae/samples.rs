//! PPO's rewards, advantages and returns for all samples of a generation batch.

use super::{Estimates, KlEstimator, estimate, explained_variance, kl, token_rewards, whiten};
use crate::{Sample, StepRewards};
use kernels::mean::Mean;

/// Rewards of all tokens of a generation batch.
pub struct TokenRewards {
    /// The rewards: one row per sample, one element per token.
    pub rewards: Vec<Vec<f64>>,
    /// Mean KL divergence to the reference model per completion, in nats; `None` if no completion has both a score and
    /// a token in the loss.
    pub kl: Option<f64>,
    /// TRL's `objective/` metrics. A metric without values to average is omitted.
    pub metrics: Vec<(&'static str, f64)>,
}

/// Computes the reward of each token: −`kl_coef` times its KL divergence, plus the completion's score at the last
/// token, or the completion's `steps` at their last tokens if it has step rewards. (If `steps` is empty, no completion
/// has step rewards.) Completions without a score are excluded from all means, and completions without a token in the
/// loss from means over tokens.
pub fn rewards_of_samples(
    estimator: KlEstimator,
    kl_coef: f64,
    samples: &[Sample],
    scores: &[Option<f64>],
    steps: &[Option<StepRewards>],
) -> TokenRewards {
    let mut rewards = Vec::with_capacity(samples.len());
    let (mut divergence, mut surprise, mut scored) = (Mean::default(), Mean::default(), Mean::default());
    for (i, (sample, score)) in samples.iter().zip(scores).enumerate() {
        let (mask, old) = (&sample.loss_mask, sample.old_logps());
        let kl = match sample.columns.ref_logps() {
            Some(reference) => kl(estimator, old, reference, mask),
            None => vec![0.0; mask.len()],
        };
        rewards.push(match steps.get(i).and_then(Option::as_ref) {
            None => token_rewards(kl_coef, &kl, score.unwrap_or(0.0), mask),
            Some(steps) => {
                let mut rewards = token_rewards(kl_coef, &kl, 0.0, mask);
                steps.placed(mask).into_iter().for_each(|(token, reward)| rewards[token] += reward);
                rewards
            }
        });
        let Some(score) = score else { continue };
        scored.add(*score);
        if mask.contains(&true) {
            divergence.add(kl.iter().sum());
            surprise.add(-old.iter().zip(mask).filter(|(_, m)| **m).map(|(l, _)| f64::from(*l)).sum::<f64>());
        }
    }
    let (kl, score) = (divergence.get(), scored.get());
    let metrics = [
        ("objective/kl", kl),
        ("objective/kl_coef", score.map(|_| kl_coef)),
        ("objective/entropy", surprise.get()),
        ("objective/non_score_reward", kl.map(|kl| -kl_coef * kl)),
        ("objective/rlhf_reward", score.zip(kl).map(|(score, kl)| score - kl_coef * kl)),
        ("objective/scores", score),
    ];
    let metrics = metrics.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    TokenRewards { rewards, kl, metrics }
}

/// Divides the rewards of tokens by their standard deviation over the generation batch.
pub fn whiten_samples(rewards: &mut [Vec<f64>], samples: &[Sample]) {
    whiten(rewards, &masks(samples), false);
}

/// Computes the advantage and the return of each token, with advantages normalised over the generation batch, and the
/// explained variance of `values` (`None` if returns do not vary).
pub fn estimate_samples(
    gamma: f64,
    lambda: f64,
    rewards: &[Vec<f64>],
    values: &[Vec<f32>],
    samples: &[Sample],
) -> (Vec<Estimates>, Option<f64>) {
    let masks = masks(samples);
    let values: Vec<Vec<f64>> = values.iter().map(|row| row.iter().map(|&v| f64::from(v)).collect()).collect();
    let of = |i: usize| estimate(gamma, lambda, &rewards[i], &values[i], &masks[i]);
    let (mut advantages, returns): (Vec<_>, Vec<_>) =
        (0..samples.len()).map(of).map(|e| (e.advantages, e.returns)).unzip();
    whiten(&mut advantages, &masks, true);
    let explained = explained_variance(&returns, &values, &masks);
    let both = advantages.into_iter().zip(returns);
    (both.map(|(advantages, returns)| Estimates { advantages, returns }).collect(), explained)
}

fn masks(samples: &[Sample]) -> Vec<Vec<bool>> {
    samples.iter().map(|s| s.loss_mask.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::columns::{REF_LOGPS, SAMPLER_LOGPS};
    use model::{Columns, Prompt};

    fn sample(logps: [f32; 2], reference: [f32; 2]) -> Sample {
        let columns = Columns::of([(SAMPLER_LOGPS, logps.to_vec()), (REF_LOGPS, reference.to_vec())]);
        Sample { columns, ..Sample::supervised(Prompt::new([1]), vec![2, 3]) }
    }

    #[test]
    fn metrics_of_a_generation_match_hand_computed_values() {
        // The divergences are 0.5 − 0.25 and 1. The third completion has no score.
        let samples = [([-1.0, -2.0], [-1.5, -1.75]), ([-0.5, -1.0], [-1.5, -1.0]), ([-9.0, -9.0], [-1.0, -1.0])];
        let samples = samples.map(|(logps, reference)| sample(logps, reference));
        let of = rewards_of_samples(KlEstimator::K1, 0.5, &samples, &[Some(3.0), Some(1.0), None], &[]);
        assert_eq!(of.rewards, [[-0.25, 3.125], [-0.5, 1.0], [4.0, 4.0]]);
        assert_eq!(of.kl, Some(0.625));
        let metric = |name: &str| of.metrics.iter().find(|(n, _)| *n == name).unwrap().1;
        let names = ["kl", "kl_coef", "entropy", "non_score_reward", "rlhf_reward", "scores"];
        let found = names.map(|name| metric(&format!("objective/{name}")));
        assert_eq!(found, [0.625, 0.5, 2.25, -0.3125, 2.0 - 0.3125, 2.0]);
    }

    #[test]
    fn whitened_rewards_keep_their_mean() {
        let samples = [sample([0.0; 2], [0.0; 2]), sample([0.0; 2], [0.0; 2])];
        let mut rewards = vec![vec![1.0, 2.0], vec![3.0, 6.0]];
        whiten_samples(&mut rewards, &samples);
        assert!((rewards.iter().flatten().sum::<f64>() / 4.0 - 3.0).abs() < 1e-12, "{rewards:?}");
        assert!((rewards[1][1] - rewards[0][0] - 5.0 / (14.0f64 / 3.0).sqrt()).abs() < 1e-6, "{rewards:?}");
    }
}
