//! Tests of edge cases, computed by hand, of the losses other than the clipped surrogate.

use super::*;
use crate::loss::entropy::{EntropyConfig, EntropyControl, quantile};
use crate::loss::rloo::{RlooConfig, rloo};
use crate::loss::vespo::Vespo;
use sampling::Weights;

/// Calls `f` with each sequence of `case` and its part of `d`.
pub fn each(case: &Case, flat: &[f64], d: &mut [f64], mut f: impl FnMut(&Sequence<'_, f64>, &mut [f64])) {
    let mut start = 0;
    for s in 0..case.masks.len() {
        let range = start..start + case.masks[s].len();
        let sequence = Sequence {
            logps: &flat[range.clone()],
            entropies: &case.entropies[s],
            old_logps: &case.old[s],
            sampler_logps: &case.sampler[s],
            ref_logps: None,
            mask: &case.masks[s],
            advantage: &case.advantages[s],
        };
        f(&sequence, &mut d[range.clone()]);
        start = range.end;
    }
}

/// Evaluates RLOO's J by its plain formula.
pub fn rloo_value(case: &Case, config: &RlooConfig, x: &[f64]) -> f64 {
    let (mut sum, mut start) = (0.0, 0);
    for s in 0..case.masks.len() {
        let kept = (0..case.masks[s].len()).filter(|&t| case.masks[s][t]);
        let r = kept.map(|t| x[start + t] - case.old[s][t]).sum::<f64>().exp();
        let a = f64::from(case.advantages[s].at(0));
        let high = config.epsilon_high.unwrap_or(config.epsilon);
        sum -= (r * a).min(r.clamp(1.0 - config.epsilon, 1.0 + high) * a);
        start += case.masks[s].len();
    }
    sum / case.masks.len() as f64
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{got} {expected}");
}

fn term(loss: &impl PolicyLoss, config: &LossConfig, ratio: f64, advantage: f64) -> Term {
    loss.term(config, &Token { ratio, logp: -3.0, advantage })
}

#[test]
fn cispo_matches_hand_computed_values() {
    let config = LossConfig { epsilon_high: Some(2.0), ..LossConfig::default() };
    for (ratio, advantage, slope, high) in [
        (1.0, 0.5, -0.5, false),
        (1.5, 0.5, -0.75, false),
        (4.0, 0.5, -1.0, true),     // bounded at 2, with a gradient
        (4.0, -0.5, 1.0, false),    // also bounded, but only A > 0 counts as clipped
        (0.01, 0.5, -0.005, false), // no lower bound
        (3.0, 0.0, 0.0, false),
    ] {
        let term = term(&cispo::Cispo, &config, ratio, advantage);
        close(term.d_logp, slope);
        close(term.value, slope * -3.0);
        assert_eq!((term.d_log_ratio, term.low, term.high), (0.0, false, high));
    }
    assert!(term(&cispo::Cispo, &config, f64::NAN, 1.0).value.is_nan());
}

#[test]
fn sapo_matches_hand_computed_values() {
    let config = LossConfig { sapo_temperature_pos: 1.0, sapo_temperature_neg: 2.0, ..LossConfig::default() };
    // At r = 1 the slope is that of the plain policy gradient, for any temperature.
    close(term(&sapo::Sapo, &config, 1.0, 0.5).d_log_ratio, -0.5);
    close(term(&sapo::Sapo, &config, 1.0, -0.5).d_log_ratio, 0.5);
    close(term(&sapo::Sapo, &config, 1.0, 0.5).value, -1.0);
    close(term(&sapo::Sapo, &config, 1.0, -0.5).value, 0.5);
    // σ(1) and σ(2) at r = 2.
    let (one, two) = (1.0 / (1.0 + (-1.0f64).exp()), 1.0 / (1.0 + (-2.0f64).exp()));
    close(term(&sapo::Sapo, &config, 2.0, 0.5).value, -4.0 * one * 0.5);
    close(term(&sapo::Sapo, &config, 2.0, -0.5).value, 2.0 * two * 0.5);
    close(term(&sapo::Sapo, &config, 2.0, -0.5).d_log_ratio, 4.0 * two * (1.0 - two) * 2.0 * 0.5);
    assert_eq!(term(&sapo::Sapo, &config, 2.0, 0.0).d_log_ratio, 0.0);
}

#[test]
fn vespo_matches_hand_computed_values() {
    let config = LossConfig::default();
    close(Vespo { log_weight: 0.0 }.phi(&config, 1.0), 1.0);
    close(Vespo { log_weight: 0.0 }.phi(&config, -1.0), 1.0);
    close(Vespo { log_weight: 2f64.ln() }.phi(&config, 1.0), 3f64.exp() * 4.0 * (-6f64).exp());
    close(Vespo { log_weight: 2f64.ln() }.phi(&config, 0.0), 3f64.exp() * 4.0 * (-6f64).exp());
    close(Vespo { log_weight: 2f64.ln() }.phi(&config, -1.0), 2f64.exp() * 8.0 * (-4f64).exp());
    // φ vanishes for very large and very small weights.
    assert_eq!(Vespo { log_weight: 20.0 }.phi(&config, 1.0), 0.0);
    assert!(Vespo { log_weight: 1e-8f64.ln() }.phi(&config, 1.0) < 1e-14);

    let off = Weights::new(&Correction::default(), &[0.0], &[0.0], &[true]);
    let weight = |logps: &[f64], mask: &[bool]| Vespo::new(logps, &vec![0.0; logps.len()], mask, &off).log_weight;
    close(weight(&[0.1, 0.2, 0.4], &[true, false, true]), 0.5);
    close(weight(&[-100.0, 1.5], &[true, true]), 1e-8f64.ln());
    close(weight(&[15.0, 15.0], &[true, true]), 20.0);
    assert!(weight(&[f64::NAN], &[true]).is_nan());
    assert!(Vespo { log_weight: f64::NAN }.phi(&config, 1.0).is_nan());
}

#[test]
fn rloo_clips_the_ratio_of_the_whole_completion() {
    let config = RlooConfig { epsilon_high: Some(0.3), ..RlooConfig::default() };
    let normalizer = Normalizer { sequences: 2, tokens: 2, ..Normalizer::default() };
    let run = |shift: f64, advantage: f32, mask: &[bool]| {
        let (mut sums, mut d) = (LossSums::default(), vec![f64::NAN; 2]);
        let (logps, old) = ([-1.0 + shift / 2.0, -2.0 + shift / 2.0], [-1.0, -2.0]);
        let sequence = Sequence {
            logps: &logps,
            entropies: &[],
            old_logps: &old,
            sampler_logps: &old,
            ref_logps: None,
            mask,
            advantage: &Advantage::Sequence(advantage),
        };
        rloo(&config, &normalizer, &sequence, &mut d, &mut sums);
        let clip = sums.clip_ratios().unwrap_or_default();
        (sums.loss, d, (clip.low_mean, clip.high_mean))
    };
    let both = [true, true];
    let (loss, d, clip) = run(0.0, 2.0, &both);
    assert_eq!((loss, d, clip), (-1.0, vec![-1.0, -1.0], (0.0, 0.0)));
    let (loss, d, clip) = run(1.0, 2.0, &both);
    assert_eq!((loss, d, clip), (-1.3, vec![0.0, 0.0], (0.0, 1.0)));
    let (loss, d, clip) = run(-1.0, -2.0, &both);
    assert_eq!((loss, d, clip), (0.8, vec![0.0, 0.0], (1.0, 0.0)));
    let (_, d, _) = run(1.0, 0.0, &both);
    assert_eq!(d, [0.0, 0.0]);
    // A sequence without a token in the loss has ratio 1: it contributes −A/B but no gradient.
    let (loss, d, clip) = run(f64::NAN, 2.0, &[false, false]);
    assert_eq!((loss, d, clip), (-1.0, vec![0.0, 0.0], (0.0, 0.0)));
    assert!(run(f64::NAN, 2.0, &both).0.is_nan());
}

#[test]
fn a_far_off_policy_sequence_is_masked_if_its_advantage_is_negative() {
    let near = |threshold, logps: &[f64], sampler: &[f64]| {
        off_policy::is_near(Some(threshold), logps, sampler, &[true, true, false])
    };
    assert!(near(0.5, &[-1.0, -2.0, 9.0], &[-0.6, -1.6, 0.0]));
    assert!(!near(0.3, &[-1.0, -2.0, 9.0], &[-0.6, -1.6, 0.0]));
    assert!(near(0.5, &[-1.0, -2.0, 9.0], &[-0.5, -1.5, 0.0]), "a sequence at the threshold is near");
    assert!(near(0.3, &[-1.0, -2.0, 9.0], &[-0.6, f64::NAN, 0.0]), "an unknown token counts as 0, so the mean is 0.2");
    assert!(near(0.3, &[f64::NAN, -2.0, 9.0], &[-0.6, -1.6, 0.0]), "a NaN is not masked");
    assert!(off_policy::is_near(None, &[f64::NEG_INFINITY], &[0.0], &[true]));
    assert!(off_policy::is_near(Some(0.1), &[-9.0], &[0.0], &[false]), "a sequence without a token is near");
}

#[test]
fn sampling_corrections_match_hand_computed_values() {
    let ln = |x: f64| x.ln();
    let (old, mask) = ([ln(2.0), ln(0.5), ln(9.0), 0.0], [true, true, false, true]);
    let weights = |mode, clip_min, clip_max| {
        let config = Correction { enabled: true, mode, clip_max, clip_min };
        Weights::new(&config, &old, &[0.0, 0.0, 0.0, f64::NAN], &mask)
    };
    let all = |w: &Weights| [0, 1, 3].map(|t| (w.at(t) * 1e9).round() / 1e9);
    assert_eq!(all(&weights(CorrectionMode::TokenTruncate, Some(0.6), Some(1.5))), [1.5, 0.6, 1.0]);
    assert_eq!(all(&weights(CorrectionMode::TokenMask, Some(0.6), Some(1.5))), [0.0, 0.0, 1.0]);
    assert_eq!(all(&weights(CorrectionMode::TokenMask, None, Some(1.5))), [0.0, 0.5, 1.0]);
    // A ratio at a bound is inside it.
    assert_eq!(all(&weights(CorrectionMode::TokenMask, Some(1.0), Some(1.0)))[2], 1.0);
    assert_eq!(all(&weights(CorrectionMode::SequenceMask, None, Some(0.9))), [0.0; 3]);
    assert_eq!(all(&weights(CorrectionMode::SequenceTruncate, None, Some(0.9))), [0.9; 3]);
    assert_eq!(all(&weights(CorrectionMode::SequenceTruncate, None, Some(3.0))), [1.0; 3]);

    // Metrics describe the correction before its bounds are applied.
    let config = Correction { enabled: true, mode: CorrectionMode::TokenMask, clip_max: Some(1.5), clip_min: None };
    let sampler = [0.0, 0.0, 0.0, f64::NAN];
    let mut sums = sampling::SamplingSums::default();
    sums.add(&Weights::new(&config, &old, &sampler, &mask), &old, &sampler, &mask);
    let metrics = sums.metrics().expect("known");
    for (got, expected) in metrics.importance_sampling_ratio.into_iter().zip([0.5, 3.5 / 3.0, 2.0]) {
        close(got, expected);
    }
    close(metrics.bounded_ratio, 1.0 / 3.0);
    close(metrics.sampling_logp_difference[0], ln(2.0));

    // If the sampler is the old policy, c is exactly 1, so no bit of the loss changes.
    let case = case();
    let flat = case.logps.concat();
    let plain = case.evaluate(&LossConfig::default(), &flat);
    for mode in [CorrectionMode::TokenTruncate, CorrectionMode::SequenceMask] {
        let same = Case { sampler: case.old.clone(), ..super::case() };
        let importance_sampling = Correction { enabled: true, mode, ..Correction::default() };
        let config = LossConfig { importance_sampling, ..LossConfig::default() };
        let (sums, gradient) = same.evaluate(&config, &flat);
        assert_eq!((sums.loss.to_bits(), &gradient), (plain.0.loss.to_bits(), &plain.1));
        assert_eq!(sums.sampling.and_then(|s| s.metrics()).expect("metrics").importance_sampling_ratio, [1.0; 3]);
    }
}

#[test]
fn quantiles_match_torch() {
    // torch.quantile(torch.tensor([3., 1., 2., 10.]), q)
    let values = || vec![3.0f32, 1.0, 2.0, 10.0];
    for (q, expected) in [(0.0, 1.0f32), (0.25, 1.75), (0.5, 2.5), (0.8, 5.8), (1.0, 10.0)] {
        let got = quantile(values(), q).expect("values");
        assert!((got - expected).abs() < 1e-6, "{q}: {got}");
    }
    assert_eq!(quantile(vec![4.0], 0.8), Some(4.0));
    assert_eq!(quantile(Vec::new(), 0.5), None);
    assert!(quantile(vec![1.0, f32::NAN], 0.5).expect("values").is_nan());
    // A NaN threshold keeps all tokens.
    assert!(Normalizer { entropy_threshold: Some(f32::NAN), ..Normalizer::default() }.keeps(0.0));
    assert!(Normalizer { entropy_threshold: Some(1.0), ..Normalizer::default() }.keeps(f64::NAN));
    assert!(!Normalizer { entropy_threshold: Some(1.0), ..Normalizer::default() }.keeps(0.5));
}

#[test]
fn the_adaptive_entropy_coefficient_stays_within_its_bounds() {
    let config = EntropyConfig {
        entropy_coef: 0.01,
        use_adaptive_entropy: true,
        entropy_coef_min: 0.008,
        entropy_coef_max: 0.013,
        entropy_coef_delta: 0.002,
        entropy_target: 0.5,
    };
    let mut control = EntropyControl::new(&config);
    let mut seen = Vec::new();
    for entropy in [0.6, 0.5, 0.4, 0.3, 0.6, 0.7, 0.8] {
        let applied = control.applied(&config);
        control.adapt(&config, entropy);
        seen.push((applied, (control.coef * 1e6).round() / 1e6));
    }
    // The coefficient is applied in a step if the entropy of the previous step was at or below the target.
    assert_eq!(seen.iter().map(|s| s.1).collect::<Vec<_>>(), [0.008, 0.01, 0.012, 0.013, 0.011, 0.009, 0.008]);
    let applied: Vec<bool> = seen.iter().map(|s| s.0 != 0.0).collect();
    assert_eq!(applied, [false, false, true, true, true, false, false]);
    let json = serde_json::to_string(&EntropyControl::new(&config)).expect("json");
    assert_eq!(
        serde_json::from_str::<EntropyControl>(&json).expect("infinity must survive serialisation"),
        EntropyControl::new(&config)
    );

    let constant = EntropyConfig { use_adaptive_entropy: false, ..config };
    let mut control = EntropyControl::new(&constant);
    control.adapt(&constant, 0.0);
    assert_eq!(control.applied(&constant), 0.01);
    assert!(constant.is_on() && config.is_on() && !EntropyConfig::default().is_on());
}
