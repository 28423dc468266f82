mod counts;
mod nothing;

use super::reinforce_plus_plus::Baseline;
use super::rloo::RlooRewards;
use super::*;
use crate::Sample;
use model::columns::{REF_LOGPS, SAMPLER_LOGPS};

/// Groups of `size` rows.
fn rows<const N: usize>(rows: &[[Option<f64>; N]], size: usize) -> Vec<RewardRow> {
    rows.iter()
        .enumerate()
        .map(|(i, r)| RewardRow { group: GroupId(7 - (i / size) as u64), scores: r.to_vec() })
        .collect()
}
fn matrix(of: &[[Option<f64>; 2]], size: usize, weights: [f64; 2]) -> RewardMatrix {
    RewardMatrix { rows: rows(of, size), names: vec!["a".into(), "b".into()], weights: weights.to_vec() }
}
fn one_function(rewards: &[Option<f64>], size: usize) -> RewardMatrix {
    let one: Vec<[Option<f64>; 1]> = rewards.iter().map(|&r| [r]).collect();
    RewardMatrix { rows: rows(&one, size), names: vec!["a".into()], weights: vec![1.0] }
}
fn close(got: &[Advantage], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().zip(expected).all(|(g, e)| (f64::from(g.at(0)) - e).abs() < 1e-6), "{got:?} {expected:?}");
}
fn metric(a: &Advantages, name: &str) -> Option<f64> {
    a.metrics.iter().find(|(n, _)| n == name).expect(name).1
}

#[test]
fn grpo_matches_hand_computed_advantages() {
    // Groups (1, 3) and (2, 2) have the means 2 and 2 and the deviations √2 and 0; the batch's deviation is √(2/3).
    let m = one_function(&[Some(1.0), Some(3.0), Some(2.0), Some(2.0)], 2);
    let (group, batch) = (2f64.sqrt() + 1e-4, (2.0 / 3.0f64).sqrt() + 1e-4);
    close(&compute(&m, ScaleRewards::Group).advantages, &[-1.0 / group, 1.0 / group, 0.0, 0.0]);
    close(&compute(&m, ScaleRewards::Batch).advantages, &[-1.0 / batch, 1.0 / batch, 0.0, 0.0]);
    let none = compute(&m, ScaleRewards::None);
    close(&none.advantages, &[-1.0, 1.0, 0.0, 0.0]);
    assert_eq!(metric(&none, "reward"), Some(2.0));
    assert!((metric(&none, "reward_std").unwrap() - (2.0 / 3.0f64).sqrt()).abs() < 1e-12);
    assert_eq!(metric(&none, "frac_reward_zero_std"), Some(0.5));
    assert_eq!(metric(&compute(&m, ScaleRewards::Batch), "frac_reward_zero_std"), Some(0.0));
}

#[test]
fn rewards_are_weighted_and_missing_scores_skipped() {
    let rows = [[Some(1.0), Some(2.0)], [None, Some(4.0)], [None, None], [Some(3.0), None]];
    let a = compute(&matrix(&rows, 4, [1.0, 0.5]), ScaleRewards::None);
    assert_eq!(a.rewards, [Some(2.0), Some(2.0), None, Some(3.0)]);
    let mean = 7.0 / 3.0;
    close(&a.advantages, &[2.0 - mean, 2.0 - mean, 0.0, 3.0 - mean]);
    assert_eq!(metric(&a, "rewards/a/mean"), Some(2.0));
    assert_eq!(metric(&a, "rewards/b/mean"), Some(3.0));
    assert!((metric(&a, "rewards/b/std").unwrap() - 2f64.sqrt()).abs() < 1e-12);
}

#[test]
fn samples_without_others_to_compare_with_get_advantage_zero() {
    let scored_once = compute(&one_function(&[Some(5.0), None], 2), ScaleRewards::Group);
    close(&scored_once.advantages, &[0.0, 0.0]);
    assert_eq!(metric(&scored_once, "reward_std"), None);
    let never = compute(&one_function(&[None, None], 2), ScaleRewards::Group);
    close(&never.advantages, &[0.0, 0.0]);
    assert_eq!(
        [metric(&never, "reward"), metric(&never, "frac_reward_zero_std")],
        [None; 2],
        "metrics without scores are missing, not 0"
    );
    let alone = compute(&one_function(&[Some(5.0), Some(7.0)], 1), ScaleRewards::None);
    close(&alone.advantages, &[0.0, 0.0]);
}

/// A sample with these KL estimates: log π_old is 0, so that the estimate k of a token is −log π_ref.
fn sample(kl: &[f32], mask: &[bool]) -> Sample {
    let mut sample = Sample::supervised(model::Prompt::new([]), vec![0; kl.len()]);
    sample.loss_mask = mask.to_vec();
    sample.columns.set(SAMPLER_LOGPS, vec![0.0; kl.len()]);
    sample.columns.set(REF_LOGPS, kl.iter().map(|k| -k).collect());
    sample
}

#[test]
fn gdpo_matches_hand_computed_advantages() {
    // Two functions score a group (0, 2) and (4, 4): the deviations are √2 and 0, so only the first function counts.
    let rows = [[Some(0.0), Some(4.0)], [Some(2.0), Some(4.0)]];
    let a = gdpo::compute(&matrix(&rows, 2, [1.0, 3.0]));
    let one = 1.0 / (2f64.sqrt() + SMALL); // normalised, mean 0
    let scaled = one / (one * 2f64.sqrt() + SMALL);
    close(&a.advantages, &[-scaled, scaled]);
    assert_eq!(a.rewards, [Some(12.0), Some(14.0)]);
    // A function that scored only one sample has no deviation and does not count. A sample without a score is left out.
    let rows = [[Some(1.0), None], [Some(3.0), Some(9.0)], [None, None], [Some(2.0), None]];
    let a = gdpo::compute(&matrix(&rows, 4, [1.0, 1.0]));
    assert_eq!(a.advantages[2], Advantage::Sequence(0.0));
    close(&a.advantages[3..], &[0.0]);
    assert!((a.advantages[0].at(0) + a.advantages[1].at(0)).abs() < 1e-6 && a.advantages[1].at(0) > 0.9);
    close(&gdpo::compute(&one_function(&[Some(1.0), None], 2)).advantages, &[0.0, 0.0]);
}

#[test]
fn rloo_matches_hand_computed_advantages() {
    let rewards = one_function(&[Some(1.0), Some(2.0), Some(6.0), None], 4);
    let samples = [
        sample(&[0.5, 0.5], &[true, true]),
        sample(&[1.0, f32::NAN], &[true, false]),
        sample(&[0.0], &[true]),
        sample(&[], &[]),
    ];
    let plain = RlooRewards::default();
    let a = rloo::compute(&rewards, &samples, &RlooRewards { beta: 0.0, ..plain });
    close(&a.advantages, &[1.0 - 4.0, 2.0 - 3.5, 6.0 - 1.5, 0.0]);
    assert!(a.metrics.iter().all(|(name, _)| name != "kl"));
    // With β = 1, KL sums of 1, 1 and 0 change the rewards to 0, 1 and 6.
    let a = rloo::compute(&rewards, &samples, &RlooRewards { beta: 1.0, ..plain });
    close(&a.advantages, &[0.0 - 3.5, 1.0 - 3.0, 6.0 - 0.5, 0.0]);
    assert_eq!(metric(&a, "kl"), Some(0.5));
    assert_eq!(metric(&a, "reward"), Some(3.0), "the logged reward does not include the penalty");
    // Rewards are clipped to [1.5, 4] before the baseline is subtracted.
    let clip = RlooRewards { beta: 0.0, reward_clip_range: Some([1.5, 4.0]), ..plain };
    let a = rloo::compute(&rewards, &samples, &clip);
    close(&a.advantages, &[1.5 - 3.0, 2.0 - 2.75, 4.0 - 1.75, 0.0]);
    let a = rloo::compute(&rewards, &samples, &RlooRewards { normalize_advantages: true, beta: 0.0, ..plain });
    let std = ((9.0 + 2.25 + 20.25) / 2.0f64).sqrt() + SMALL;
    close(&a.advantages, &[-3.0 / std, -1.5 / std, 4.5 / std, 0.0]);
    // A sample that is alone in its group has no other sample to compare with.
    let a = rloo::compute(&one_function(&[Some(5.0), None], 2), &samples[..2], &plain);
    close(&a.advantages, &[0.0, 0.0]);
    let a = rloo::compute(&one_function(&[Some(5.0), Some(2.0)], 1), &samples[..2], &plain);
    close(&a.advantages, &[0.0, 0.0]);
}

#[test]
fn reinforce_plus_plus_matches_hand_computed_advantages() {
    let rewards = |size| one_function(&[Some(1.0), None, Some(-1.0)], size);
    let samples =
        [sample(&[1.0, 2.0, 4.0], &[true, false, true]), sample(&[1.0], &[true]), sample(&[0.0, 0.0], &[true, true])];
    let masks: Vec<Vec<bool>> = samples.iter().map(|s| s.loss_mask.clone()).collect();
    // The advantages of tokens before the division, by hand: 1 − 0.1·5, 1 − 0.1·4, −1, −1.
    let a = reinforce_plus_plus::compute(&rewards(1), &samples, &masks, 0.1, Baseline::Batch);
    let tokens = [0.5, 0.6, -1.0, -1.0f64];
    let mean = tokens.iter().sum::<f64>() / 4.0;
    let std = (tokens.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.0).sqrt();
    let expected = |x: f64| ((x - mean) / std) as f32;
    let close = |got: f32, x: f64| assert!((got - expected(x)).abs() < 1e-6, "{got} {}", expected(x));
    let Advantage::Tokens(first) = &a.advantages[0] else { panic!("the advantages must be per token") };
    close(first[0], 0.5);
    assert_eq!(first[1], 0.0, "a masked token has advantage 0");
    close(first[2], 0.6);
    assert_eq!(a.advantages[1], Advantage::Tokens(vec![0.0]), "a sample without a score has advantage 0");
    close(a.advantages[2].at(1), -1.0);
    assert_eq!(metric(&a, "kl"), Some((1.0 + 4.0 + 1.0) / 5.0));

    // With the group mean as baseline, the KL is not in the reward: advantages are 1 and −1 around 0.
    let a = reinforce_plus_plus::compute(&rewards(3), &samples, &masks, 0.1, Baseline::Group);
    assert_eq!(a.advantages[0], Advantage::Tokens(vec![1.0, 0.0, 1.0]));
    assert_eq!(a.advantages[2], Advantage::Tokens(vec![-1.0, -1.0]));
    assert!(a.metrics.iter().all(|(name, _)| name != "kl"), "kl is reported by the loss, not by the advantages");

    // Equal rewards have deviation 0: all advantages are 0, not NaN.
    let same = one_function(&[Some(1.0), Some(1.0), Some(1.0)], 1);
    let a = reinforce_plus_plus::compute(&same, &samples, &masks, 0.0, Baseline::Batch);
    assert!(a.advantages.iter().all(|a| (0..1).all(|t| a.at(t) == 0.0)));
    let nothing =
        reinforce_plus_plus::compute(&one_function(&[None], 1), &samples[..1], &masks[..1], 0.0, Baseline::Batch);
    assert_eq!(nothing.advantages, [Advantage::Tokens(vec![0.0; 3])]);
}

/// A NaN reward counts as missing: it affects no mean, no deviation and no other sample's advantage.
#[test]
fn a_nan_score_counts_as_missing() {
    let rows = |missing: Option<f64>, size: usize| {
        let rows = [[Some(1.0), Some(2.0)], [missing, Some(4.0)], [missing, missing], [Some(3.0), missing]];
        (matrix(&rows, size, [1.0, 0.5]), one_function(&[Some(1.0), missing, Some(-1.0), Some(0.5)], size))
    };
    let samples: Vec<Sample> = (0..4).map(|_| sample(&[0.5, -0.25], &[true, true])).collect();
    let masks: Vec<Vec<bool>> = samples.iter().map(|s| s.loss_mask.clone()).collect();
    for size in [1, 2, 4] {
        let ((m, one), (nan, one_nan)) = (rows(None, size), rows(Some(f64::NAN), size));
        for scale in [ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None] {
            assert_eq!(compute(&nan, scale), compute(&m, scale));
        }
        assert_eq!(gdpo::compute(&nan), gdpo::compute(&m));
        for normalize_advantages in [false, true] {
            let config =
                RlooRewards { normalize_advantages, reward_clip_range: Some([-0.5, 2.5]), ..RlooRewards::default() };
            let of = |m| rloo::compute(m, &samples, &config);
            assert_eq!(of(&one_nan), of(&one));
        }
        for baseline in [Baseline::Batch, Baseline::Group] {
            let of = |m| reinforce_plus_plus::compute(m, &samples, &masks, 0.1, baseline);
            assert_eq!(of(&one_nan), of(&one));
        }
    }
    let all = compute(&one_function(&[Some(f64::NAN), Some(f64::NAN)], 2), ScaleRewards::Group);
    close(&all.advantages, &[0.0, 0.0]);
    assert_eq!((metric(&all, "reward"), all.rewards), (None, vec![None, None]));
    // An infinite score is not missing: it must make the advantages non-finite.
    let infinite = compute(&one_function(&[Some(f64::INFINITY), Some(0.0)], 2), ScaleRewards::Group);
    assert!(infinite.advantages[0].at(0).is_nan());
}

/// Eight times 0.1, summed and divided by 8, is not 0.1. Groups of equal rewards must still get exactly 0, and the
/// advantages of other groups must keep every bit.
#[test]
fn equal_rewards_have_exactly_zero_advantage() {
    let row = |group, reward| RewardRow { group: GroupId(group), scores: vec![reward] };
    let groups = |equal: f64| {
        let rows = (0..8).map(|_| row(1, Some(equal))).chain([0.1, 0.2, 0.7].map(|r| row(2, Some(r))));
        RewardMatrix { rows: rows.collect(), names: vec!["r".into()], weights: vec![1.0] }
    };
    let zeros = vec![Advantage::Sequence(0.0); 8];
    let samples = vec![Sample::supervised(model::Prompt::new([1]), vec![7]); 11];
    assert_ne!((0..8).map(|_| 0.1).sum::<f64>() / 8.0, 0.1, "without rounding this test checks nothing");
    let plain = RlooRewards { beta: 0.0, ..RlooRewards::default() };
    for reward in [0.1, -0.7, 1e300, f64::MAX, -0.0] {
        let matrix = groups(reward);
        for scale in [ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None] {
            assert_eq!(compute(&matrix, scale).advantages[..8], zeros, "{reward} {scale:?}");
        }
        assert_eq!(rloo::compute(&matrix, &samples, &plain).advantages[..8], zeros, "{reward}");
    }
    // A sample without a score does not count. An infinite score must make the advantages non-finite.
    let mut matrix = groups(0.1);
    matrix.rows[3].scores[0] = None;
    assert_eq!(compute(&matrix, ScaleRewards::Group).advantages[..8], zeros);
    let infinite = compute(&groups(f64::INFINITY), ScaleRewards::None).advantages;
    assert!(infinite[..8].iter().all(|a| a.mean().is_some_and(f64::is_nan)), "{infinite:?}");
    // If advantages are normalised over the batch, rounding errors remain, because an exact 0 would shift the mean of
    // the other advantages.
    let normalised = RlooRewards { normalize_advantages: true, ..plain };
    let found = rloo::compute(&groups(0.1), &samples, &normalised).advantages;
    assert!(found[..8].iter().all(|a| *a != Advantage::Sequence(0.0)), "{found:?}");
}
