//! On-policy distillation on sampled tokens: the policy generates completions, and a teacher model scores their tokens.
//!
//! ```text
//! k_t = log π_old(t) − log π_T(t)           t: token; π_old: the policy that sampled it; π_T: the teacher
//! A_t = A − c Σ_{i ≥ t} γ^{i − t} m_i k_i   c: distillation_coef; γ: distillation_discount, 0⁰ = 1; m: loss mask
//! ```
//!
//! The mean of k_t estimates the reverse KL divergence KL(π ‖ π_T). A is GRPO's advantage of the completion if there
//! are rewards, else 0. A_t is the advantage of token t in any loss of [`train::loss`]. With γ = 0 a token is credited
//! with its own k_t alone: on-policy, the gradient of the loss is the mean over tokens of c (log π_θ − log π_T) ∇ log
//! π_θ, the gradient of each token's reverse KL divergence given the tokens before it. With γ = 1 it is the gradient of
//! the whole completion's divergence.
//!
//! Agarwal et al. 2024 (GKD), arXiv:2306.13649: distillation on the student's own completions; Gu et al. 2024
//! (MiniLLM), arXiv:2306.08543: the reverse divergence by policy gradient; Thinking Machines Lab 2025, "On-Policy
//! Distillation": per token, without discounted returns. TRL's `DistillationTrainer` and `GKDTrainer` minimise a
//! divergence over the whole vocabulary, or its likeliest tokens; this algorithm does not.

use super::{Estimator, PolicyGradient, Reference, Scored, grpo};
use crate::bad_input;
use crate::config::Config;
use kernels::mean::Mean;
use train::gae::{KlEstimator, kl};
use train::{Advantage, Advantages, Objective};

/// The configuration key that names the teacher model.
const TEACHER: &str = "teacher_model_name_or_path";

pub struct Distillation;

impl PolicyGradient for Distillation {
    fn objective(&self, config: &Config) -> Objective {
        Objective::Policy(config.loss())
    }

    fn estimator(&self) -> Estimator {
        Estimator::Batch(advantages)
    }

    fn reference<'a>(&self, config: &'a Config) -> Option<Reference<'a>> {
        config.teacher_model_name_or_path.as_deref().map(|name| Reference::Teacher { key: TEACHER, name })
    }

    fn learns_without_rewards(&self) -> bool {
        true
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        &["loss", "distillation/reverse_kl", "reward", "completions/mean_length"]
    }

    fn computes_every_group(&self, _config: &Config) -> Option<&'static str> {
        Some("the teacher gives every completion a gradient")
    }

    /// Without rewards, completions are not compared with each other, so one per prompt is enough.
    fn least_generations(&self, config: &Config) -> usize {
        if config.reward_funcs.is_empty() { 1 } else { 2 }
    }

    fn check(&self, c: &Config) -> anyhow::Result<()> {
        if c.teacher_model_name_or_path.is_none() {
            bad_input!(
                "algorithm = \"distillation\" learns from a teacher: set `{TEACHER}` to a model's directory or Hub id"
            );
        }
        if c.dynamic_sampling {
            bad_input!(
                "`dynamic_sampling` replaces groups whose rewards are all equal, but algorithm = \"distillation\" \
                 learns from them too: set dynamic_sampling to false"
            );
        }
        Ok(())
    }
}

fn advantages(config: &Config, batch: &Scored<'_>) -> Advantages {
    let mut advantages = grpo::advantages(config, batch);
    let (coef, discount) = (config.distillation_coef, config.distillation_discount);
    let mut per_token = Mean::default();
    for (sample, advantage) in batch.samples.iter().zip(&mut advantages.advantages) {
        let teacher = sample.columns.ref_logps().expect("a teacher scores every completion");
        // Masked tokens have 0 in both lists.
        let mut to_go = kl(KlEstimator::K1, sample.old_logps(), teacher, &sample.loss_mask);
        per_token.add_sum(to_go.iter().sum(), sample.loss_mask.iter().filter(|&&m| m).count() as u64);
        for t in (1..to_go.len()).rev() {
            to_go[t - 1] += discount * to_go[t];
        }
        let token =
            |t: usize| if sample.loss_mask[t] { (f64::from(advantage.at(t)) - coef * to_go[t]) as f32 } else { 0.0 };
        *advantage = Advantage::Tokens((0..sample.loss_mask.len()).map(token).collect());
    }
    advantages.metrics.push(("distillation/reverse_kl".to_owned(), per_token.get()));
    advantages
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::columns::{OLD_LOGPS, REF_LOGPS, SAMPLER_LOGPS};
    use model::{GroupId, Prompt};
    use train::loss::{LossSums, Normalizer, Sequence, policy};
    use train::{RewardMatrix, RewardRow, Sample};

    /// A completion with the log-probabilities `own` of the policy and `teacher` of the teacher model. Tokens whose
    /// `own` is 0 are masked out.
    fn sample(group: u64, own: &[f32], teacher: &[f32]) -> Sample {
        let mut sample = Sample { group: GroupId(group), ..Sample::supervised(Prompt::new([1]), vec![7; own.len()]) };
        sample.loss_mask = own.iter().map(|&logp| logp != 0.0).collect();
        sample.columns.set(SAMPLER_LOGPS, own.to_vec());
        sample.columns.set(OLD_LOGPS, own.to_vec());
        sample.columns.set(REF_LOGPS, teacher.to_vec());
        sample
    }

    fn of(config: &Config, samples: &[Sample], scores: &[&[Option<f64>]]) -> Advantages {
        let row =
            |(sample, scores): (&Sample, &&[Option<f64>])| RewardRow { group: sample.group, scores: scores.to_vec() };
        let rows: Vec<RewardRow> = samples.iter().zip(scores).map(row).collect();
        let names: Vec<String> = (0..scores[0].len()).map(|k| format!("r{k}")).collect();
        let rewards = RewardMatrix { rows, weights: vec![1.0; names.len()], names };
        let steps = vec![None; samples.len()];
        advantages(config, &Scored { rewards: &rewards, steps: &steps, samples })
    }

    fn tokens(of: &[f32]) -> Advantage {
        Advantage::Tokens(of.to_vec())
    }

    fn config(coef: f64, discount: f64) -> Config {
        Config { distillation_coef: coef, distillation_discount: discount, ..Config::default() }
    }

    /// The numbers are chosen so that all arithmetic is exact in binary.
    #[test]
    fn advantages_of_two_completions_match_values_computed_by_hand() {
        let samples = [sample(1, &[-1.0, -2.0, -0.5], &[-0.5, -2.5, -4.5]), sample(1, &[-1.0, 0.0, -1.0], &[-3.0; 3])];
        // k = log π − log π_T is −0.5, 0.5, 4 for the first sample, and 2, masked, 2 for the second.
        let found = of(&config(1.0, 0.0), &samples, &[&[], &[]]);
        assert_eq!(found.advantages, [tokens(&[0.5, -0.5, -4.0]), tokens(&[-2.0, 0.0, -2.0])]);
        let metric = found.metrics.iter().find(|(name, _)| name == "distillation/reverse_kl").unwrap();
        assert_eq!(metric.1, Some((4.0 + 4.0) / 5.0));
        assert_eq!(found.rewards, [None, None], "rewards are missing");
        // The advantage of a token sums its own k and half of each later k; the discount also counts masked tokens.
        let found = of(&config(2.0, 0.5), &samples, &[&[], &[]]);
        assert_eq!(found.advantages, [tokens(&[-1.5, -5.0, -8.0]), tokens(&[-5.0, 0.0, -4.0])]);
    }

    #[test]
    fn advantages_of_rewards_are_added_to_the_teachers_terms() {
        let samples = [sample(1, &[-1.0, -1.0], &[-1.5, -0.5]), sample(1, &[-1.0, 0.0], &[-1.0; 2])];
        let plain = Config { scale_rewards: train::ScaleRewards::None, ..config(0.5, 0.0) };
        // The rewards 3 and 1 are 1 above and 1 below their mean.
        let found = of(&plain, &samples, &[&[Some(3.0)], &[Some(1.0)]]);
        assert_eq!(found.advantages, [tokens(&[0.75, 1.25]), tokens(&[-1.0, 0.0])]);
        // A completion without a reward learns only from the teacher.
        let found = of(&plain, &samples, &[&[None], &[Some(1.0)]]);
        assert_eq!(found.advantages, [tokens(&[-0.25, 0.25]), tokens(&[0.0, 0.0])]);
    }

    /// One step on one token with a vocabulary of three: the gradient of the loss, averaged over the tokens that the
    /// policy may draw, equals the exact reverse KL divergence's gradient with respect to the logits (central
    /// differences in f64).
    #[test]
    fn the_expected_gradient_equals_the_gradient_of_the_reverse_kl() {
        let teacher = [0.6f64, 0.3, 0.1].map(f64::ln);
        let log_softmax = |z: &[f64; 3]| {
            let sum = z.iter().map(|z| z.exp()).sum::<f64>().ln();
            z.map(|z| z - sum)
        };
        let divergence = |z: &[f64; 3]| -> f64 {
            log_softmax(z).iter().zip(teacher).map(|(own, teacher)| own.exp() * (own - teacher)).sum()
        };
        let z = [0.2, -0.7, 0.4];
        let own = log_softmax(&z);
        let loss = Distillation.objective(&Config::default());
        let Objective::Policy(loss) = loss else { panic!("{loss:?}") };
        let mut expected = [0.0; 3];
        for token in 0..3 {
            let sample = sample(1, &[own[token] as f32], &[teacher[token] as f32]);
            let advantage = &of(&config(1.0, 0.0), std::slice::from_ref(&sample), &[&[]]).advantages[0];
            let (logps, mut d_logps) = ([own[token]], [0.0f64]);
            let sequence = Sequence {
                logps: &logps,
                entropies: &[],
                old_logps: &logps,
                sampler_logps: &logps,
                ref_logps: None,
                mask: &[true],
                advantage,
            };
            policy(&loss, &Normalizer::of([&vec![true]]), &sequence, &mut d_logps, &mut LossSums::default());
            // ∂ log π(token) / ∂ z_j = [j = token] − π(j)
            for (j, expected) in expected.iter_mut().enumerate() {
                *expected += own[token].exp() * d_logps[0] * (f64::from(u8::from(j == token)) - own[j].exp());
            }
        }
        for (j, expected) in expected.into_iter().enumerate() {
            let at = |by: f64| {
                let mut z = z;
                z[j] += by;
                divergence(&z)
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((difference - expected).abs() < 1e-6, "{j}: {expected} and {difference}");
        }
    }
}
