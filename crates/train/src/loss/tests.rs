mod arguments;
mod edges;
mod family;
mod logits;
mod oracle;
mod pairs;

use super::*;
use crate::ClipRatios;
use kernels::check::{directional_error, normal};
use sampling::{Correction, CorrectionMode};

/// Five sequences of odd lengths, one without a token in the loss and one empty, with ratios inside and outside the
/// clip range.
struct Case {
    logps: Vec<Vec<f64>>,
    entropies: Vec<Vec<f64>>,
    old: Vec<Vec<f64>>,
    sampler: Vec<Vec<f64>>,
    reference: Vec<Vec<f64>>,
    masks: Vec<Vec<bool>>,
    advantages: Vec<Advantage>,
}

fn case() -> Case {
    let lengths = [7usize, 1, 5, 0, 4];
    let rows = |seed: u64, scale: f64, shift: f64| -> Vec<Vec<f64>> {
        let row =
            |(i, &n): (usize, &usize)| normal::<f64>(seed + i as u64, n).iter().map(|x| shift + scale * x).collect();
        lengths.iter().enumerate().map(row).collect()
    };
    let logps = rows(10, 1.0, -2.0);
    let add = |noise: Vec<Vec<f64>>| -> Vec<Vec<f64>> {
        logps.iter().zip(noise).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
    };
    let (old, sampler, reference) = (add(rows(20, 0.4, 0.1)), add(rows(50, 0.6, 0.2)), add(rows(30, 0.7, 0.0)));
    let entropies = rows(40, 0.3, 1.5);
    let mut masks: Vec<Vec<bool>> = lengths.iter().map(|&n| (0..n).map(|t| t % 4 != 2).collect()).collect();
    masks[4].fill(false);
    let advantages = [1.3, -0.8, -0.4, 0.7, 2.0].map(Advantage::Sequence).to_vec();
    Case { logps, entropies, old, sampler, reference, masks, advantages }
}

impl Case {
    fn normalizer(&self) -> Normalizer {
        Normalizer::of(&self.masks)
    }
    /// Evaluates J and its gradient at the given log-probabilities (concatenated over sequences).
    fn evaluate(&self, config: &LossConfig, flat: &[f64]) -> (LossSums, Vec<f64>) {
        self.evaluate_with(config, &self.normalizer(), flat)
    }
    fn evaluate_with(&self, config: &LossConfig, normalizer: &Normalizer, flat: &[f64]) -> (LossSums, Vec<f64>) {
        let (mut sums, mut gradient, mut start) = (LossSums::default(), vec![f64::NAN; flat.len()], 0);
        for s in 0..self.masks.len() {
            let range = start..start + self.masks[s].len();
            let sequence = Sequence {
                logps: &flat[range.clone()],
                entropies: &self.entropies[s],
                old_logps: &self.old[s],
                sampler_logps: &self.sampler[s],
                ref_logps: Some(&self.reference[s]),
                mask: &self.masks[s],
                advantage: &self.advantages[s],
            };
            policy(config, normalizer, &sequence, &mut gradient[range.clone()], &mut sums);
            start = range.end;
        }
        (sums, gradient)
    }
}

const LEVELS: [ImportanceSamplingLevel; 2] = [ImportanceSamplingLevel::Token, ImportanceSamplingLevel::Sequence];

#[test]
fn values_and_gradients_match_the_oracle() {
    let mut case = case();
    let flat: Vec<f64> = case.logps.concat();
    for tokens in [false, true] {
        if tokens {
            let per_token = |m: &Vec<bool>| Advantage::Tokens(normal::<f32>(m.len() as u64, m.len()));
            case.advantages = case.masks.iter().map(per_token).collect();
        }
        for (_, loss_type) in LossType::NAMES {
            for importance_sampling_level in LEVELS {
                let base = LossConfig {
                    loss_type,
                    importance_sampling_level,
                    max_completion_length: 9,
                    epsilon_high: Some(if loss_type == LossType::Cispo { 1.2 } else { 0.3 }),
                    ..LossConfig::default()
                };
                let correction = |mode| Correction { enabled: true, mode, clip_max: Some(1.3), clip_min: Some(0.4) };
                let variants = [
                    base.clone(),
                    LossConfig { beta: 0.3, use_bias_correction_kl: false, delta: Some(1.35), ..base.clone() },
                    LossConfig { beta: 0.3, ..base.clone() },
                    LossConfig { off_policy_mask_threshold: Some(0.15), beta: 0.1, ..base.clone() },
                    LossConfig { importance_sampling: correction(CorrectionMode::TokenTruncate), ..base.clone() },
                    LossConfig { importance_sampling: correction(CorrectionMode::TokenMask), ..base.clone() },
                    LossConfig {
                        importance_sampling: correction(CorrectionMode::SequenceMask),
                        beta: 0.2,
                        ..base.clone()
                    },
                    LossConfig { importance_sampling: correction(CorrectionMode::SequenceTruncate), ..base },
                ];
                for config in &variants {
                    for entropy_threshold in [None, Some(1.5)] {
                        let normalizer = Normalizer { entropy_threshold, ..case.normalizer() };
                        let (sums, gradient) = case.evaluate_with(config, &normalizer, &flat);
                        let expected = oracle::loss(&case, config, &normalizer, &flat, &flat);
                        assert!((sums.loss - expected).abs() <= 1e-12 * expected.abs(), "{config:?}: {expected}");
                        let value = |x: &[f64]| oracle::loss(&case, config, &normalizer, x, &flat);
                        let error = directional_error(&flat, &gradient, value);
                        assert!(error < 1e-7, "{config:?}: {error}");
                        let mut spoiled = gradient;
                        spoiled[4] += 1e-3;
                        assert!(directional_error(&flat, &spoiled, value) > 1e-5);
                    }
                }
            }
        }
    }
}

#[test]
fn the_on_policy_gradient_is_the_plain_policy_gradient() {
    let mut case = case();
    case.old = case.logps.clone();
    let config = LossConfig { loss_type: LossType::Bnpo, ..LossConfig::default() };
    let (sums, gradient) = case.evaluate(&config, &case.logps.concat());
    let n = case.normalizer().tokens as f64;
    let mut start = 0;
    for (mask, advantage) in case.masks.iter().zip(&case.advantages) {
        for (t, &m) in mask.iter().enumerate() {
            let expected = if m { -f64::from(advantage.at(t)) / n } else { 0.0 };
            assert_eq!(gradient[start + t], expected);
        }
        start += mask.len();
    }
    assert_eq!(sums.clip_ratios(), Some(ClipRatios::default()));
}

/// The clipped surrogate of one token with this ratio and advantage, with ε = 0.2 and ε_high = 0.3.
fn one(ratio: f64, advantage: f64, delta: Option<f64>) -> Term {
    clip::surrogate(
        &LossConfig { epsilon: 0.2, epsilon_high: Some(0.3), delta, ..LossConfig::default() },
        ratio,
        advantage,
    )
}

#[test]
fn the_surrogate_is_clipped_on_both_sides() {
    let close = |term: Term, value: f64, slope: f64, low: bool, high: bool| {
        assert!((term.value - value).abs() < 1e-12 && (term.d_log_ratio - slope).abs() < 1e-12, "{term:?}");
        assert_eq!((term.low, term.high), (low, high));
    };
    close(one(1.5, 2.0, None), -2.6, 0.0, false, true); // A > 0, above the range: clipped at 1.3
    close(one(1.5, -2.0, None), 3.0, 3.0, false, false); // A < 0, above the range: not clipped
    close(one(0.5, 2.0, None), -1.0, -1.0, false, false); // A > 0, below the range: not clipped
    close(one(0.5, -2.0, None), 1.6, 0.0, true, false); // A < 0, below the range: clipped at 0.8
    close(one(1.1, 2.0, None), -2.2, -2.2, false, false); // inside the range
    close(one(5.0, -2.0, Some(4.0)), 8.0, 0.0, false, false); // δ bounds the pessimistic side
    close(one(3.0, 0.0, None), 0.0, 0.0, false, false); // no advantage, no loss
    assert!(one(f64::NAN, 1.0, None).value.is_nan() && one(f64::NAN, -1.0, Some(2.0)).value.is_nan());
}

#[test]
fn sequences_without_a_token_in_the_loss_contribute_nothing() {
    let mut case = case();
    case.masks.iter_mut().for_each(|m| m.fill(false));
    // Elements outside the mask are never read.
    case.old.iter_mut().chain(&mut case.sampler).for_each(|x| x.fill(f64::NAN));
    for (_, loss_type) in LossType::NAMES {
        for importance_sampling_level in LEVELS {
            let importance_sampling = Correction { enabled: true, ..Correction::default() };
            let off_policy_mask_threshold = Some(0.1);
            let base = LossConfig { importance_sampling, off_policy_mask_threshold, ..LossConfig::default() };
            let config = LossConfig { loss_type, importance_sampling_level, beta: 0.1, ..base };
            let (sums, gradient) = case.evaluate(&config, &case.logps.concat());
            assert_eq!((sums.loss, sums.kl_mean(), sums.clip_ratios()), (0.0, None, None));
            assert!(gradient.iter().all(|&g| g == 0.0));
        }
    }
}

/// Computes Σ w m L for given token losses L.
fn reduce(loss: &impl PolicyLoss, values: &[Vec<f64>], masks: &[Vec<bool>]) -> f64 {
    let count = |m: &[bool]| m.iter().filter(|&&m| m).count();
    let normalizer = Normalizer::of(masks);
    let mut sum = 0.0;
    for (values, mask) in values.iter().zip(masks) {
        let weight = loss.weight(&LossConfig::default(), count(mask), &normalizer);
        sum += values.iter().zip(mask).filter(|(_, m)| **m).map(|(v, _)| weight * v).sum::<f64>();
    }
    sum
}

#[test]
fn reductions_match_known_values() {
    let check = |values: &[Vec<f64>], masks: &[Vec<bool>], per_sequence: f64, per_token: f64| {
        assert!((reduce(&grpo::Grpo, values, masks) - per_sequence).abs() < 5e-5);
        assert!((reduce(&bnpo::Bnpo, values, masks) - per_token).abs() < 5e-5);
        assert!((reduce(&dapo::Dapo, values, masks) - per_token).abs() < 5e-5);
    };
    let small = [vec![1.0, 2.0], vec![3.0, 4.0], vec![5.0, 6.0]];
    check(&small, &[vec![true, true], vec![true, false], vec![true, false]], 3.1667, 2.75);
    for (length, per_sequence, per_token) in [(4, 906.3438, 727.5455), (4096, 875.1555, 2.9478)] {
        let row: Vec<f64> = (0..length).map(|t| if t == 0 { 1000.0 } else { 1.0 }).collect();
        let mask = |s: usize| (0..length).map(|t| s == 0 || t == 0).collect();
        check(&vec![row; 8], &(0..8).map(mask).collect::<Vec<_>>(), per_sequence, per_token);
    }
}

#[test]
fn the_supervised_loss_is_the_mean_over_tokens() {
    let (logps, mask) = (vec![-1.0f64, -2.0, -4.0], vec![true, false, true]);
    let (mut d, mut sums) = (vec![f64::NAN; 3], LossSums::default());
    supervised::supervised(
        &Normalizer { sequences: 1, tokens: 2, ..Normalizer::default() },
        &logps,
        &mask,
        &mut d,
        &mut sums,
    );
    assert_eq!((sums.loss, sums.tokens, d), (2.5, 2, vec![-0.5, 0.0, -0.5]));
}
