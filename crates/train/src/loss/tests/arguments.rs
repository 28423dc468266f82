//! Tests of arguments of the losses, and of weights, counts and sigmoids computed by hand.

use super::*;
use crate::loss::bradley_terry::{negative_log_sigmoid, sigmoid};
use crate::loss::rloo::RlooConfig;

/// The formulas with max(1, n) do not divide by 0.
#[test]
fn token_weights_match_hand_computed_values() {
    let config = LossConfig { max_completion_length: 5, ..LossConfig::default() };
    let nothing = Normalizer { sequences: 2, ..Normalizer::default() };
    let some = Normalizer { sequences: 2, tokens: 8, ..Normalizer::default() };
    let vespo = vespo::Vespo { log_weight: 0.0 };
    fn of(loss: &impl PolicyLoss, config: &LossConfig, tokens: usize, normalizer: &Normalizer) -> f64 {
        loss.weight(config, tokens, normalizer)
    }
    let all = |tokens: usize, n: &Normalizer| {
        let by_tokens = [
            of(&bnpo::Bnpo, &config, tokens, n),
            of(&dapo::Dapo, &config, tokens, n),
            of(&cispo::Cispo, &config, tokens, n),
            of(&vespo, &config, tokens, n),
        ];
        let by_sequences = [of(&grpo::Grpo, &config, tokens, n), of(&sapo::Sapo, &config, tokens, n)];
        (by_tokens, by_sequences, of(&dr_grpo::DrGrpo, &config, tokens, n), of(&luspo::Luspo, &config, tokens, n))
    };
    assert_eq!(all(4, &some), ([0.125; 4], [0.125; 2], 0.1, 0.5));
    assert_eq!(all(0, &nothing), ([1.0; 4], [0.5; 2], 0.1, 0.5));
    // VESPO's weight e^λ wᵏ e^(−λw), with separate k and λ for each sign of the advantage.
    let config =
        LossConfig { vespo_k_pos: 2.0, vespo_lambda_pos: 3.0, vespo_k_neg: 5.0, vespo_lambda_neg: 0.5, ..config };
    let phi = |w: f64, advantage: f64| vespo::Vespo { log_weight: w.ln() }.phi(&config, advantage);
    let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-12, "{found} {expected}");
    for w in [0.25, 1.0, 1.75] {
        for advantage in [0.0, 0.5] {
            close(phi(w, advantage), w.powi(2) * (3.0 * (1.0 - w)).exp());
        }
        close(phi(w, -0.5), w.powi(5) * (0.5 * (1.0 - w)).exp());
    }
    let tiny = LossConfig { vespo_lambda_pos: 0.0, ..config };
    close(vespo::Vespo { log_weight: 2f64.ln() }.phi(&tiny, 1.0), 4.0 * (-1e-4f64).exp());
    let huge = LossConfig { vespo_lambda_pos: 0.0, vespo_k_pos: 100.0, ..tiny };
    assert_eq!(vespo::Vespo { log_weight: 10.0 }.phi(&huge, 1.0), 0.0, "an infinite weight becomes 0, as in TRL");
    assert!(vespo::Vespo { log_weight: f64::NAN }.phi(&huge, 1.0).is_nan());
    assert!(vespo.corrects_itself() && !grpo::Grpo.corrects_itself());
}

#[test]
fn the_log_weight_of_a_sequence_is_clamped() {
    let off = sampling::Weights::new(&Correction::default(), &[0.0; 3], &[0.0; 3], &[true; 3]);
    let of = |logps: &[f64], mask: &[bool], correction: &sampling::Weights| {
        vespo::Vespo::new(logps, &vec![0.0; logps.len()], mask, correction).log_weight
    };
    let (least, most) = (1e-8f64.ln(), 20.0);
    assert_eq!(of(&[1.0, -3.0, 0.5], &[true, false, true], &off), 1.5, "the sum over the tokens in the loss");
    assert_eq!(of(&[30.0, -25.0, 0.0], &[true, true, false], &off), 0.0, "each log-ratio is clamped to ±20");
    assert_eq!((of(&[15.0, 15.0], &[true; 2], &off), of(&[-15.0, -15.0], &[true; 2], &off)), (most, least));
    let config = Correction { enabled: true, mode: CorrectionMode::TokenTruncate, clip_max: None, clip_min: None };
    let on = sampling::Weights::new(&config, &[0.5, 0.25, 9.0], &[0.0; 3], &[true, true, false]);
    assert!((of(&[1.0, 1.0, 1.0], &[true, true, false], &on) - 2.75).abs() < 1e-12);
}

#[test]
fn truncated_completions_are_masked_if_configured() {
    let sample = |truncated| {
        let plain = crate::Sample::supervised(model::Prompt::new([1]), vec![2, 3]);
        let finish_reason = model::FinishReason::from_truncated(truncated);
        crate::Sample { loss_mask: vec![true, false], finish_reason, ..plain }
    };
    for (asked, truncated) in [(false, false), (false, true), (true, false), (true, true)] {
        let policy = LossConfig { mask_truncated_completions: asked, ..LossConfig::default() };
        let rloo = RlooConfig { mask_truncated_completions: asked, ..RlooConfig::default() };
        let expected = [!(asked && truncated), false];
        assert_eq!(
            (policy.loss_mask(&sample(truncated)), rloo.loss_mask(&sample(truncated))),
            (expected.to_vec(), expected.to_vec())
        );
    }
}

#[test]
fn the_normalizer_and_clip_ratios_count_sequences_and_tokens() {
    let masks = [vec![true, false, true], vec![], vec![false], vec![true]];
    let found = Normalizer::of(&masks);
    let expected = Normalizer {
        groups: 0,
        sequences: 4,
        tokens: 3,
        entropy_tokens: 3,
        entropy_threshold: None,
        entropy_coef: 0.0,
    };
    assert_eq!(found, expected);
    let mut sums = LossSums::default();
    (sums.kl, sums.tokens) = (6.0, 4);
    assert_eq!((sums.kl_mean(), LossSums::default().kl_mean(), sums.clip_ratios()), (Some(1.5), None, None));
    sums.count_clipped(0, 0, 0);
    assert_eq!(sums.clip_ratios(), None);
    sums.count_clipped(1, 2, 4);
    let expected = ClipRatios { low_mean: 0.25, low_min: 0.25, high_mean: 0.5, high_max: 0.5, region_mean: 0.75 };
    assert_eq!(sums.clip_ratios(), Some(expected));
    sums.tokens = 0;
    assert_eq!(sums.clip_ratios(), None, "clip ratios are missing without a token in the loss");
}

#[test]
fn sigmoids_ratios_and_masks_match_hand_computed_values() {
    for x in [-3.0f64, -0.5, 0.0, 0.5, 3.0] {
        let expected = 1.0 / (1.0 + (-x).exp());
        assert!((sigmoid(x) - expected).abs() < 1e-15 && (negative_log_sigmoid(x) + expected.ln()).abs() < 1e-15);
    }
    // Sequence ratios, and their gradients, use only the tokens that the mask keeps.
    let mask = [true, false, true];
    let token = ratio::Ratio::new(ImportanceSamplingLevel::Token, &[1.0, 9.0, 2.0], &[0.5, 0.0, 2.0], &mask);
    assert_eq!(([0, 1, 2].map(|t| token.at(t)), token.tokens()), ([0.5f64.exp(), 1.0, 1.0], 2));
    let whole = ratio::Ratio::new(ImportanceSamplingLevel::Sequence, &[1.0, 9.0, 2.0], &[0.5, 0.0, 2.0], &mask);
    assert_eq!([0, 1, 2].map(|t| whole.at(t)), [0.25f64.exp(); 3]);
    let mut d = [1.0, 2.0, 3.0];
    ratio::spread(4.0, &mask, &mut d);
    assert_eq!(d, [3.0, 2.0, 5.0]);
    // A sequence is near if the mean difference over its tokens is at most the threshold. Unknown tokens count as 0.
    let near = |threshold, sampler: [f64; 3]| off_policy::is_near(threshold, &[0.0; 3], &sampler, &mask);
    assert!(near(None, [99.0; 3]) && near(Some(0.5), [0.25, 99.0, 0.75]) && !near(Some(0.49), [0.25, 99.0, 0.75]));
    assert!(near(Some(0.5), [f64::NAN, 0.0, 1.0]) && !near(Some(0.5), [f64::NAN, 0.0, 1.1]));
    assert!(off_policy::is_near(Some(0.5), &[f64::NAN; 3], &[0.0; 3], &mask), "a NaN must not be masked");
    assert!(off_policy::is_near(Some(0.0), &[0.0; 3], &[9.0; 3], &[false; 3]));
}
