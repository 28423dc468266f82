//! Arguments of the losses: lists of one length, counts of zero, defaults, and quantiles and coefficients by hand.

use super::*;
use crate::loss::bradley_terry::{RankingConfig, negative_log_sigmoid, sigmoid};
use crate::loss::dft::dft;
use crate::loss::dpo::{DpoConfig, DpoLoss};
use crate::loss::entropy::{EntropyConfig, EntropyControl, bonus, quantile};
use crate::loss::ppo::{Actions, PpoConfig, States, ValueConfig};
use crate::loss::rloo::{RlooConfig, rloo};
use crate::loss::supervised::supervised;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Which of `n` lists may have another length without a panic: `call` gets the lengths of the lists.
fn accepted(n: usize, call: impl Fn(&[usize])) -> Vec<usize> {
    call(&vec![3; n]);
    let fine = |which: usize, len: usize| {
        let mut lengths = vec![3; n];
        lengths[which] = len;
        catch_unwind(AssertUnwindSafe(|| call(&lengths))).is_ok()
    };
    (0..n).filter(|&which| [2, 4].into_iter().any(|len| fine(which, len))).collect()
}

#[test]
fn lists_of_another_length_are_refused() {
    let (normalizer, x, all) = (Normalizer { sequences: 1, tokens: 3, ..Normalizer::default() }, [-1.0; 4], [true; 4]);
    let masked = [false; 4];
    let none: &[usize] = &[];
    for mask in [all, masked] {
        let of_supervised = accepted(3, |n| {
            supervised(&normalizer, &x[..n[0]], &mask[..n[1]], &mut [0.0; 4][..n[2]], &mut LossSums::default());
        });
        let of_dft = accepted(3, |n| {
            dft(&normalizer, &x[..n[0]], &mask[..n[1]], &mut [0.0; 4][..n[2]], &mut LossSums::default());
        });
        let of_ppo = accepted(6, |n| {
            let actions = Actions {
                logps: &x[..n[0]],
                old_logps: &x[..n[1]],
                entropies: &x[..n[2]],
                mask: &mask[..n[3]],
                advantage: &Advantage::Sequence(1.0),
            };
            let (mut d, mut d_entropies) = ([0.0; 4], [0.0; 4]);
            let (d, d_entropies) = (&mut d[..n[4]], &mut d_entropies[..n[5]]);
            ppo::policy(&PpoConfig::default(), &normalizer, &actions, d, d_entropies, &mut LossSums::default());
        });
        let of_value = accepted(5, |n| {
            let (values, old_values, returns, mask) = (&x[..n[0]], &x[..n[1]], &x[..n[2]], &mask[..n[3]]);
            let states = States { values, old_values, returns, mask };
            let config = ValueConfig::default();
            ppo::value(&config, &normalizer, &states, &mut [0.0; 4][..n[4]], &mut LossSums::default());
        });
        let of_policy = accepted(4, |n| {
            let sequence = Sequence {
                logps: &x[..n[0]],
                entropies: &x,
                old_logps: &x[..n[1]],
                sampler_logps: &x,
                ref_logps: None,
                mask: &mask[..n[2]],
                advantage: &Advantage::Sequence(1.0),
            };
            policy(&LossConfig::default(), &normalizer, &sequence, &mut [0.0; 4][..n[3]], &mut LossSums::default());
        });
        for found in [of_supervised, of_dft, of_ppo, of_value, of_policy] {
            assert_eq!(found, none);
        }
    }
    let of_gae = accepted(3, |n| {
        crate::gae::estimate(1.0, 1.0, &[0.0; 4][..n[0]], &[0.0; 4][..n[1]], &masked[..n[2]]);
    });
    let of_kl = accepted(3, |n| {
        crate::gae::kl(crate::KlEstimator::K1, &[0.0; 4][..n[0]], &[0.0; 4][..n[1]], &masked[..n[2]]);
    });
    let of_rewards = accepted(2, |n| {
        crate::gae::token_rewards(0.1, &[0.0; 4][..n[0]], 1.0, &masked[..n[1]]);
    });
    assert_eq!((of_gae, of_kl, of_rewards), (vec![], vec![], vec![]));
    let rows = [vec![1.0], vec![1.0]];
    assert!(catch_unwind(|| crate::gae::explained_variance(&rows, &rows, &[vec![true]])).is_err());
    let per_token = Advantage::Tokens(vec![1.0; 3]);
    let one = |advantage| Sequence {
        logps: &x[..3],
        entropies: &x[..3],
        old_logps: &x[..3],
        sampler_logps: &x[..3],
        ref_logps: None,
        mask: &all[..3],
        advantage,
    };
    let of_rloo =
        |advantage| rloo(&RlooConfig::default(), &normalizer, &one(advantage), &mut [0.0; 3], &mut LossSums::default());
    of_rloo(&Advantage::Sequence(1.0));
    assert!(catch_unwind(|| of_rloo(&per_token)).is_err(), "one number for the completion");
    let kl = LossConfig { beta: 0.1, ..LossConfig::default() };
    let without = || policy(&kl, &normalizer, &one(&per_token), &mut [0.0; 3], &mut LossSums::default());
    assert!(catch_unwind(without).is_err(), "a weight of the divergence needs the reference");
}

/// Where the formula has max(1, n), nothing is divided by 0.
#[test]
fn weights_of_tokens_by_hand() {
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
    // The weight of VESPO: e^λ wᵏ e^(−λw), with each sign's own numbers.
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
    assert_eq!(vespo::Vespo { log_weight: 10.0 }.phi(&huge, 1.0), 0.0, "∞ becomes 0, as in TRL");
    assert!(vespo::Vespo { log_weight: f64::NAN }.phi(&huge, 1.0).is_nan());
    assert!(vespo.corrects_itself() && !grpo::Grpo.corrects_itself());
}

#[test]
fn the_logarithm_of_a_sequence_s_weight_is_clamped() {
    let off = sampling::Weights::new(&Correction::default(), &[0.0; 3], &[0.0; 3], &[true; 3]);
    let of = |logps: &[f64], mask: &[bool], correction: &sampling::Weights| {
        vespo::Vespo::new(logps, &vec![0.0; logps.len()], mask, correction).log_weight
    };
    let (least, most) = (1e-8f64.ln(), 20.0);
    assert_eq!(of(&[1.0, -3.0, 0.5], &[true, false, true], &off), 1.5, "of the tokens in the loss, summed");
    assert_eq!(of(&[30.0, -25.0, 0.0], &[true, true, false], &off), 0.0, "each ratio by ±20");
    assert_eq!((of(&[15.0, 15.0], &[true; 2], &off), of(&[-15.0, -15.0], &[true; 2], &off)), (most, least));
    let config = Correction { enabled: true, mode: CorrectionMode::TokenTruncate, clip_max: None, clip_min: None };
    let on = sampling::Weights::new(&config, &[0.5, 0.25, 9.0], &[0.0; 3], &[true, true, false]);
    assert!((of(&[1.0, 1.0, 1.0], &[true, true, false], &on) - 2.75).abs() < 1e-12);
}

#[test]
fn corrections_are_bounded_or_left_out() {
    let of = |mode, clip_min, clip_max| {
        let config = Correction { enabled: true, mode, clip_min, clip_max };
        let weights = sampling::Weights::new(&config, &[0.0, 1.0, -1.0, 5.0], &[0.0, 0.0, 0.0, f64::NAN], &[true; 4]);
        [0, 1, 2, 3].map(|t| weights.at(t))
    };
    use CorrectionMode::{SequenceMask, SequenceTruncate, TokenMask, TokenTruncate};
    let (e, small) = (libm::exp(1.0), libm::exp(-1.0));
    assert_eq!(of(TokenTruncate, None, None), [1.0, e, small, 1.0], "1 where the sampler's is unknown");
    assert_eq!(of(TokenTruncate, Some(0.5), Some(2.0)), [1.0, 2.0, 0.5, 1.0]);
    assert_eq!(of(TokenMask, Some(0.5), Some(2.0)), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(of(TokenMask, Some(small), Some(e)), [1.0, e, small, 1.0], "a bound itself is kept");
    assert_eq!(
        (of(SequenceMask, Some(1.0), Some(1.0)), of(SequenceTruncate, Some(3.0), Some(4.0))),
        ([1.0; 4], [3.0; 4])
    );
    assert_eq!(of(SequenceMask, Some(1.5), None), [0.0; 4]);
    let default = Correction::default();
    assert_eq!(
        (default.enabled, default.mode, default.clip_max, default.clip_min),
        (false, SequenceMask, Some(3.0), None)
    );
    let mut sums = sampling::SamplingSums::default();
    let config = Correction { enabled: true, mode: TokenTruncate, clip_max: Some(2.0), clip_min: None };
    let (old, sampler, mask) = ([0.0, 1.0, -1.0, 5.0], [0.0, 0.0, 0.0, f64::NAN], [true, true, true, true]);
    sums.add(&sampling::Weights::new(&config, &old, &sampler, &mask), &old, &sampler, &mask);
    let found = sums.metrics().expect("known");
    assert_eq!([found.importance_sampling_ratio[0], found.importance_sampling_ratio[2]], [small, e]);
    assert!((found.importance_sampling_ratio[1] - (2.0 + e + small) / 4.0).abs() < 1e-15);
    assert_eq!((found.bounded_ratio, found.sampling_logp_difference), (0.25, [2.0 / 3.0, 1.0]));
    // Sequences of which no token counts, or of which the sampler's log-probabilities are unknown, are nothing.
    for mode in [TokenTruncate, TokenMask, SequenceTruncate, SequenceMask] {
        let config = Correction { mode, ..config };
        for (sampler, mask) in [([0.0; 4], [false; 4]), ([f64::NAN; 4], [true; 4])] {
            let mut sums = sampling::SamplingSums::default();
            sums.add(&sampling::Weights::new(&config, &old, &sampler, &mask), &old, &sampler, &mask);
            assert_eq!(sums.metrics(), None, "{mode:?}");
        }
    }
}

#[test]
fn settings_have_trls_defaults() {
    let c = LossConfig::default();
    assert_eq!((c.loss_type, c.importance_sampling_level), (LossType::Dapo, ImportanceSamplingLevel::Token));
    assert_eq!((c.epsilon, c.epsilon_high, c.delta, c.epsilon_high()), (0.2, None, None, 0.2));
    assert_eq!((c.sapo_temperature_pos, c.sapo_temperature_neg), (1.0, 1.05));
    assert_eq!((c.vespo_k_pos, c.vespo_lambda_pos, c.vespo_k_neg, c.vespo_lambda_neg), (2.0, 3.0, 3.0, 2.0));
    assert_eq!((c.beta, c.use_bias_correction_kl, c.mask_truncated_completions), (0.0, true, false));
    assert_eq!((c.off_policy_mask_threshold, c.top_entropy_quantile, c.max_completion_length), (None, 1.0, 512));
    let e = c.entropy;
    assert_eq!(
        (e.entropy_coef, e.use_adaptive_entropy, e.entropy_coef_min, e.entropy_coef_max),
        (0.0, false, 0.0, 1.0)
    );
    assert_eq!((e.entropy_coef_delta, e.entropy_target, e.is_on()), (0.005, 0.2, false));
    assert_eq!(PpoConfig::default(), PpoConfig { cliprange: 0.2, entropy_coef: 0.0 });
    assert_eq!(ValueConfig::default(), ValueConfig { cliprange_value: 0.2, vf_coef: 0.1 });
    let rloo = RlooConfig { epsilon: 0.2, epsilon_high: None, mask_truncated_completions: false };
    assert_eq!(RlooConfig::default(), rloo);
    let dpo = DpoConfig { beta: 0.1, loss_type: DpoLoss::Sigmoid, label_smoothing: 0.0, discopop_tau: 0.05 };
    assert_eq!(DpoConfig::default(), dpo);
    assert_eq!(RankingConfig::default().center_rewards_coefficient, None);
    let advantages = crate::advantages::rloo::RlooRewards::default();
    assert_eq!((advantages.beta, advantages.reward_clip_range, advantages.normalize_advantages), (0.05, None, false));
    assert!(!advantages.mask_truncated_completions);
    let clips: Vec<&str> = LossType::NAMES.iter().filter(|(_, loss)| loss.clips()).map(|(name, _)| *name).collect();
    assert_eq!(clips, ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"]);
    for (name, loss) in LossType::NAMES {
        assert_eq!(serde_json::to_value(loss).unwrap(), name);
    }
}

#[test]
fn truncated_completions_are_left_out_where_that_is_asked_for() {
    let sample = |truncated| {
        let plain = crate::Sample::supervised(model::Prompt::new([1]), vec![2, 3]);
        crate::Sample { mask: vec![true, false], truncated, ..plain }
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

/// As `torch.quantile`.
#[test]
fn quantiles_are_interpolated() {
    let values = || vec![4.0, 1.0, 3.0, 2.0];
    for (q, expected) in [(0.0, 1.0), (0.1, 1.3), (0.25, 1.75), (0.5, 2.5), (0.75, 3.25), (0.9, 3.7), (1.0, 4.0)] {
        let found = quantile(values(), q).unwrap();
        assert!((found - expected).abs() < 1e-6, "{q}: {found}");
    }
    assert_eq!((quantile(vec![], 0.5), quantile(vec![7.0], 0.3)), (None, Some(7.0)));
    assert!(quantile(vec![1.0, f32::NAN], 0.0).unwrap().is_nan());
    assert_eq!(quantile(vec![0.0, 16_777_216.0, 1.0], 0.5), Some(1.0));
}

#[test]
fn the_entropy_s_coefficient_follows_its_target() {
    let config = EntropyConfig {
        entropy_coef: 0.5,
        use_adaptive_entropy: true,
        entropy_coef_min: 0.375,
        entropy_coef_max: 0.75,
        entropy_coef_delta: 0.125,
        entropy_target: 2.0,
    };
    let mut control = EntropyControl::new(&config);
    assert_eq!((control.coef, control.last, control.applied(&config)), (0.5, f64::INFINITY, 0.0));
    // The bonus is applied after steps at the target or below it.
    for (entropy, coef, applied) in [
        (2.0, 0.625, 0.625),
        (1.0, 0.75, 0.75),
        (0.5, 0.75, 0.75),
        (2.5, 0.625, 0.0),
        (3.0, 0.5, 0.0),
        (9.0, 0.375, 0.0),
        (9.0, 0.375, 0.0),
    ] {
        control.adapt(&config, entropy);
        assert_eq!((control.coef, control.applied(&config), control.last), (coef, applied, entropy));
    }
    let fixed = EntropyConfig { use_adaptive_entropy: false, ..config };
    let mut control = EntropyControl::new(&fixed);
    control.adapt(&fixed, 0.0);
    assert_eq!((control, control.applied(&fixed)), (EntropyControl::new(&fixed), 0.5));
    let back: EntropyControl = serde_json::from_str(&serde_json::to_string(&control).unwrap()).unwrap();
    assert_eq!(back, control);
    assert!(fixed.is_on() && EntropyConfig { entropy_coef: 0.0, ..config }.is_on());
    assert!(
        EntropyConfig { entropy_coef: -0.5, ..fixed }.is_on() && !EntropyConfig { entropy_coef: 0.0, ..fixed }.is_on()
    );
    // The bonus of the tokens that are kept: masked ones and those below the threshold are not.
    let normalizer =
        Normalizer { entropy_threshold: Some(1.0), entropy_tokens: 2, entropy_coef: 0.5, ..Normalizer::default() };
    let (mut d, mut sums) = ([9.0; 5], LossSums::default());
    bonus(&normalizer, &[1.0, 0.5, 3.0, 4.0, f64::NAN], &[true, true, false, true, false], &mut d, &mut sums);
    assert_eq!((d, sums.entropy), ([-0.25, 0.0, 0.0, -0.25, 0.0], 5.0));
    let none = Normalizer { entropy_coef: 0.5, ..Normalizer::default() };
    bonus(&none, &[1.0], &[true], &mut d[..1], &mut sums);
    assert_eq!(d[0], -0.5);
    assert!(normalizer.keeps(1.0) && !normalizer.keeps(0.999) && normalizer.keeps(f64::NAN) && none.keeps(0.0));
    assert!(Normalizer { entropy_threshold: Some(f32::NAN), ..none }.keeps(0.0));
}

#[test]
fn counts_are_of_sequences_and_of_their_tokens() {
    let masks = [vec![true, false, true], vec![], vec![false], vec![true]];
    let found = Normalizer::of(&masks);
    let expected =
        Normalizer { sequences: 4, tokens: 3, entropy_tokens: 3, entropy_threshold: None, entropy_coef: 0.0 };
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
    assert_eq!(sums.clip_ratios(), None, "sequences without a token alone are nothing");
}

#[test]
fn sigmoids_by_hand() {
    for x in [-3.0f64, -0.5, 0.0, 0.5, 3.0] {
        let expected = 1.0 / (1.0 + (-x).exp());
        assert!((sigmoid(x) - expected).abs() < 1e-15 && (negative_log_sigmoid(x) + expected.ln()).abs() < 1e-15);
    }
    // Sequence ratios of the masked tokens, and their gradient on these tokens alone.
    let mask = [true, false, true];
    let token = ratio::Ratio::new(ImportanceSamplingLevel::Token, &[1.0, 9.0, 2.0], &[0.5, 0.0, 2.0], &mask);
    assert_eq!(([0, 1, 2].map(|t| token.at(t)), token.tokens()), ([0.5f64.exp(), 1.0, 1.0], 2));
    let whole = ratio::Ratio::new(ImportanceSamplingLevel::Sequence, &[1.0, 9.0, 2.0], &[0.5, 0.0, 2.0], &mask);
    assert_eq!([0, 1, 2].map(|t| whole.at(t)), [0.25f64.exp(); 3]);
    let mut d = [1.0, 2.0, 3.0];
    ratio::spread(4.0, &mask, &mut d);
    assert_eq!(d, [3.0, 2.0, 5.0]);
    // A sequence is near if the mean over its tokens is at most the threshold; what is unknown is no difference.
    let near = |threshold, sampler: [f64; 3]| off_policy::is_near(threshold, &[0.0; 3], &sampler, &mask);
    assert!(near(None, [99.0; 3]) && near(Some(0.5), [0.25, 99.0, 0.75]) && !near(Some(0.49), [0.25, 99.0, 0.75]));
    assert!(near(Some(0.5), [f64::NAN, 0.0, 1.0]) && !near(Some(0.5), [f64::NAN, 0.0, 1.1]));
    assert!(off_policy::is_near(Some(0.5), &[f64::NAN; 3], &[0.0; 3], &mask), "NaN must show");
    assert!(off_policy::is_near(Some(0.0), &[0.0; 3], &[9.0; 3], &[false; 3]));
}
