//! Tests of edge cases of every policy loss, through the logits: ratio 1, each side of the clip, advantage 0, all
//! tokens masked, a group of one, a NaN reward. In each case the gradient must equal the slope of the plain formula,
//! and be exactly 0 where it should be.

use super::*;
use crate::advantages::reinforce_plus_plus::{self, Baseline};
use crate::advantages::rloo::RlooRewards;
use crate::advantages::{self, gdpo, rloo as against_others};
use crate::loss::ppo::{self, Actions, PpoConfig};
use crate::loss::rloo::{RlooConfig, rloo};
use crate::{RewardMatrix, RewardRow, Sample, ScaleRewards};
use model::columns::{REF_LOGPS, SAMPLER_LOGPS};
use model::{Columns, GroupId, Prompt};

/// The number of tokens of [`case`].
const TOKENS: usize = 17;

/// One of the losses.
#[derive(Debug)]
enum Loss {
    Policy(LossConfig),
    Rloo(RlooConfig),
    Ppo(PpoConfig),
}

/// All losses: every type with both levels of ratios (GSPO is `grpo` with sequence ratios), with and without a KL
/// divergence; RLOO; PPO with and without an entropy bonus. REINFORCE++ is a policy loss with one advantage per token.
fn losses() -> Vec<Loss> {
    let mut all = vec![Loss::Rloo(RlooConfig { epsilon_high: Some(0.3), ..RlooConfig::default() })];
    all.extend([0.0, 0.05].map(|entropy_coef| Loss::Ppo(PpoConfig { cliprange: 0.2, entropy_coef })));
    for (_, loss_type) in LossType::NAMES {
        for importance_sampling_level in LEVELS {
            for beta in [0.0, 0.2] {
                let epsilon_high = Some(if loss_type == LossType::Cispo { 1.2 } else { 0.3 });
                let base = LossConfig { loss_type, importance_sampling_level, beta, ..LossConfig::default() };
                all.push(Loss::Policy(LossConfig { epsilon_high, max_completion_length: 9, ..base }));
            }
        }
    }
    all
}

impl Loss {
    /// Whether the loss removes the gradient of clipped tokens.
    fn clips(&self) -> bool {
        !matches!(self, Loss::Policy(config) if !config.loss_type.clips())
    }

    /// Whether the loss has a gradient from terms other than the policy term.
    fn pulls_else(&self) -> bool {
        match self {
            Loss::Policy(config) => config.beta != 0.0,
            Loss::Rloo(_) => false,
            Loss::Ppo(config) => config.entropy_coef != 0.0,
        }
    }

    /// Evaluates J and its gradients with respect to log-probabilities and entropies.
    fn evaluate(&self, case: &Case, logps: &[f64], entropies: &[f64]) -> (LossSums, Vec<f64>, Vec<f64>) {
        let normalizer = case.normalizer();
        let (mut sums, mut d, mut d_entropies) = (LossSums::default(), vec![f64::NAN; TOKENS], vec![0.0; TOKENS]);
        match self {
            Loss::Policy(config) => (sums, d) = case.evaluate_with(config, &normalizer, logps),
            Loss::Rloo(config) => family::each(case, logps, &mut d, |s, d| rloo(config, &normalizer, s, d, &mut sums)),
            Loss::Ppo(config) => {
                let mut start = 0;
                for s in 0..case.masks.len() {
                    let range = start..start + case.masks[s].len();
                    let actions = Actions {
                        logps: &logps[range.clone()],
                        old_logps: &case.old[s],
                        entropies: &entropies[range.clone()],
                        mask: &case.masks[s],
                        advantage: &case.advantages[s],
                    };
                    let (d, d_entropies) = (&mut d[range.clone()], &mut d_entropies[range.clone()]);
                    ppo::policy(config, &normalizer, &actions, d, d_entropies, &mut sums);
                    start = range.end;
                }
            }
        }
        (sums, d, d_entropies)
    }

    /// Evaluates J by its plain formula.
    fn value(&self, case: &Case, logps: &[f64], entropies: &[f64], frozen: &[f64]) -> f64 {
        match self {
            Loss::Policy(config) => oracle::loss(case, config, &case.normalizer(), logps, frozen),
            Loss::Rloo(config) => family::rloo_value(case, config, logps),
            Loss::Ppo(config) => {
                let (mut sum, mut start) = (0.0, 0);
                for (s, mask) in case.masks.iter().enumerate() {
                    for t in (0..mask.len()).filter(|&t| mask[t]) {
                        let (r, a) = ((logps[start + t] - case.old[s][t]).exp(), f64::from(case.advantages[s].at(t)));
                        let range = config.cliprange;
                        sum -= (r * a).min(r.clamp(1.0 - range, 1.0 + range) * a);
                        sum -= config.entropy_coef * entropies[start + t];
                    }
                    start += mask.len();
                }
                sum / case.normalizer().tokens.max(1) as f64
            }
        }
    }

    /// Checks the gradient of `case`. Returns the gradient with respect to the logits, and the sums.
    fn check(&self, case: &Case, title: &str) -> (Vec<f64>, LossSums) {
        let gradient = |logps: &[f64], entropies: &[f64]| {
            let (_, d, d_entropies) = self.evaluate(case, logps, entropies);
            (d, d_entropies)
        };
        let value = |x: &[f64], entropies: &[f64], frozen: &[f64]| self.value(case, x, entropies, frozen);
        let name = format!("{title}: {self:?}");
        let gradient = logits::verify(&name, TOKENS, &gradient, &value);
        let (_, logps, entropies) = logits::point(TOKENS);
        let sums = self.evaluate(case, &logps, &entropies).0;
        let plain = self.value(case, &logps, &entropies, &logps);
        assert!((sums.loss - plain).abs() <= 1e-12 * plain.abs().max(1.0), "{name}: {} {plain}", sums.loss);
        (gradient, sums)
    }
}

/// [`case`] at [`logits::point`], where each log-probability is `shift` above that of the old policy.
fn shifted(shift: f64) -> Case {
    let mut case = case();
    let (_, logps, _) = logits::point(TOKENS);
    let mut start = 0;
    for s in 0..case.masks.len() {
        let own = &logps[start..start + case.masks[s].len()];
        case.old[s] = own.iter().map(|x| x - shift).collect();
        case.sampler[s] = case.old[s].clone();
        case.reference[s] = own.iter().map(|x| x + 0.1).collect();
        start += own.len();
    }
    case
}

fn signed(case: &mut Case, sign: f32) {
    case.advantages = [1.3, 0.8, 0.4, 0.7, 2.0].map(|a| Advantage::Sequence(sign * a)).to_vec();
}

#[test]
fn gradients_are_right_at_ratio_one_and_on_both_sides_of_the_clip() {
    // A ratio of e^0.4 = 1.49 is above every clip range, and a ratio of e^−0.4 = 0.67 is below.
    for (shift, sign) in [
        (0.0, 1.0),
        (0.0, -1.0),
        (0.0, 0.0),
        (0.4, 1.0),
        (0.4, -1.0),
        (0.4, 0.0),
        (-0.4, 1.0),
        (-0.4, -1.0),
        (-0.4, 0.0),
    ] {
        let mut case = shifted(shift);
        signed(&mut case, sign);
        let stopped = (shift > 0.0 && sign > 0.0) || (shift < 0.0 && sign < 0.0);
        for loss in losses() {
            let title = format!("shift {shift}, advantages × {sign}");
            let (gradient, sums) = loss.check(&case, &title);
            let zero = !loss.pulls_else() && (sign == 0.0 || (loss.clips() && stopped));
            assert_eq!(gradient.iter().all(|&g| g == 0.0), zero, "{title}: {loss:?}");
            if loss.clips() {
                let clip = sums.clip_ratios().expect("tokens");
                let all = |on: bool| if on { 1.0 } else { 0.0 };
                // A completion without a token in the loss has ratio 1, so it is not clipped.
                let sides = [clip.low_mean, clip.high_mean].map(|share| if share > 0.5 { 1.0 } else { share });
                assert_eq!(sides, [all(stopped && shift < 0.0), all(stopped && shift > 0.0)], "{title}: {loss:?}");
            }
        }
    }
}

#[test]
fn masked_tokens_have_no_gradient() {
    let mut case = shifted(0.4);
    case.masks.iter_mut().for_each(|m| m.fill(false));
    // Elements outside the mask are never read.
    case.old.iter_mut().chain(&mut case.sampler).chain(&mut case.reference).for_each(|x| x.fill(f64::NAN));
    for loss in losses() {
        let (gradient, sums) = loss.check(&case, "all masked");
        assert!(gradient.iter().all(|&g| g == 0.0), "{loss:?}");
        // For a completion without a token, RLOO's ratio is 1, so −A counts, as in TRL.
        assert_eq!(sums.loss == 0.0, !matches!(loss, Loss::Rloo(_)), "{loss:?}");
    }
}

/// The rewards of the five completions of [`case`], with `missing` in place of one of them.
fn rewards(missing: Option<f64>, group: u64) -> RewardMatrix {
    let row = |(i, score)| RewardRow { group: GroupId(i / group), scores: vec![score] };
    let rows = (0..).zip([Some(0.3), missing, Some(1.0), Some(0.2), Some(-1.0)]).map(row).collect();
    RewardMatrix { rows, names: vec!["r".into()], weights: vec![1.0] }
}

/// The advantages of every estimator, with its name.
fn ways(case: &Case, matrix: &RewardMatrix) -> Vec<(String, Vec<Advantage>)> {
    let sample = |s: usize| {
        let narrow = |row: &[f64]| row.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let plain = Sample::supervised(Prompt::new([]), vec![0; case.masks[s].len()]);
        let columns = Columns::of([(SAMPLER_LOGPS, narrow(&case.old[s])), (REF_LOGPS, narrow(&case.reference[s]))]);
        Sample { loss_mask: case.masks[s].clone(), columns, ..plain }
    };
    let samples: Vec<Sample> = (0..case.masks.len()).map(sample).collect();
    let mut all = Vec::new();
    for scale in [ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None] {
        all.push((format!("grpo {scale:?}"), advantages::compute(matrix, scale).advantages));
    }
    all.push(("gdpo".to_owned(), gdpo::compute(matrix).advantages));
    for normalize_advantages in [false, true] {
        let config = RlooRewards { normalize_advantages, ..RlooRewards::default() };
        let name = format!("rloo normalized {normalize_advantages}");
        all.push((name, against_others::compute(matrix, &samples, &config).advantages));
    }
    for baseline in [Baseline::Batch, Baseline::Group] {
        let of = reinforce_plus_plus::compute(matrix, &samples, &case.masks, 0.1, baseline);
        all.push((format!("reinforce_plus_plus {baseline:?}"), of.advantages));
    }
    all
}

#[test]
fn a_group_of_one_has_no_advantage_without_a_batch_baseline() {
    let mut case = shifted(0.02);
    for (name, advantages) in ways(&case, &rewards(Some(0.7), 1)) {
        // A group of one can be compared only with the batch, as in REINFORCE++.
        let compares = name == "reinforce_plus_plus Batch";
        let silent = advantages.iter().all(|a| match a {
            Advantage::Sequence(a) => *a == 0.0,
            Advantage::Tokens(a) => a.iter().all(|&a| a == 0.0),
        });
        assert_eq!(silent, !compares, "{name}: {advantages:?}");
        case.advantages = advantages;
        for loss in losses() {
            if matches!((&loss, &case.advantages[0]), (Loss::Rloo(_), Advantage::Tokens(_))) {
                continue;
            }
            let (gradient, _) = loss.check(&case, &name);
            assert_eq!(gradient.iter().all(|&g| g == 0.0), silent && !loss.pulls_else(), "{name}: {loss:?}");
        }
    }
}

#[test]
fn a_nan_reward_gives_its_completion_no_policy_gradient() {
    let mut case = shifted(0.02);
    let nan = ways(&case, &rewards(Some(f64::NAN), 5));
    assert_eq!(nan, ways(&case, &rewards(None, 5)));
    let silent = case.masks[0].len()..case.masks[0].len() + case.masks[1].len();
    assert!(case.masks[1].iter().any(|&m| m), "the completion without a score must have a token in the loss");
    for (name, advantages) in nan {
        case.advantages = advantages;
        for loss in losses() {
            if matches!((&loss, &case.advantages[0]), (Loss::Rloo(_), Advantage::Tokens(_))) {
                continue;
            }
            let (gradient, sums) = loss.check(&case, &name);
            assert!(sums.loss.is_finite() && gradient.iter().all(|g| g.is_finite()), "{name}: {loss:?}");
            let words = gradient.len() / TOKENS;
            let own = &gradient[silent.start * words..silent.end * words];
            assert_eq!(own.iter().all(|&g| g == 0.0), !loss.pulls_else(), "{name}: {loss:?}");
            assert!(gradient.iter().any(|&g| g != 0.0), "{name}: {loss:?}: the other completions must have a gradient");
        }
    }
}

/// A NaN advantage, which none of these estimators returns, makes the loss NaN, so that the step would be skipped.
#[test]
fn a_nan_advantage_makes_every_loss_nan() {
    let mut case = shifted(0.1);
    case.advantages[0] = Advantage::Sequence(f32::NAN);
    let (_, logps, entropies) = logits::point(TOKENS);
    for loss in losses() {
        assert!(loss.evaluate(&case, &logps, &entropies).0.loss.is_nan(), "{loss:?}");
    }
}

/// The smallest and the largest fraction are found at any position in the batch.
#[test]
fn clip_ratio_extremes_are_found_at_any_position() {
    let mut sums = LossSums::default();
    for (low, high) in [(2, 1), (1, 3), (3, 0)] {
        sums.count_clipped(low, high, 4);
        sums.tokens += 4;
    }
    let ClipRatios { low_mean, low_min, high_mean, high_max, region_mean } = sums.clip_ratios().expect("tokens");
    assert_eq!([low_mean, low_min, high_mean, high_max, region_mean], [0.5, 0.25, 1.0 / 3.0, 0.75, 10.0 / 12.0]);
}
