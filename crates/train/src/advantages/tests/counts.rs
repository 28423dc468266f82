//! Tests of the metrics of each estimator, and of groups and batches with one sample.

use super::*;

type Way = (&'static str, fn(&RewardMatrix) -> Advantages);

/// Samples of three tokens with KL estimates of 0. The model did not sample the last token.
fn samples(matrix: &RewardMatrix) -> (Vec<Sample>, Vec<Vec<bool>>) {
    let samples: Vec<Sample> = matrix.rows.iter().map(|_| sample(&[0.0; 3], &[true, true, false])).collect();
    let masks = samples.iter().map(|s| s.loss_mask.clone()).collect();
    (samples, masks)
}

fn ways() -> [Way; 7] {
    [
        ("group", |m| compute(m, ScaleRewards::Group)),
        ("batch", |m| compute(m, ScaleRewards::Batch)),
        ("none", |m| compute(m, ScaleRewards::None)),
        ("gdpo", gdpo::compute),
        ("rloo", |m| rloo::compute(m, &samples(m).0, &RlooRewards { beta: 0.0, ..RlooRewards::default() })),
        ("reinforce++", |m| {
            let (samples, masks) = samples(m);
            reinforce_plus_plus::compute(m, &samples, &masks, 0.0, Baseline::Batch)
        }),
        ("baseline", |m| {
            let (samples, masks) = samples(m);
            reinforce_plus_plus::compute(m, &samples, &masks, 0.5, Baseline::Group)
        }),
    ]
}

#[test]
fn samples_in_groups_without_deviation_are_counted() {
    let (a, b, c) = (Some(1.0), Some(2.0), None);
    // Each row: rewards, group size, and the fraction of samples in groups of zero deviation, as each estimator counts
    // it.
    for (rewards, size, expected) in [
        (&[a, a, a, b][..], 2, [0.5, 0.0, 0.5, 0.0, 0.5, 0.5, 0.5]),
        (&[a, a, a, a], 2, [1.0; 7]),
        (&[a, b, b, a], 2, [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
        // A sample that is alone in its group has no deviation. In REINFORCE++, a batch of only such groups has no
        // fraction (NaN).
        (&[a, b], 1, [1.0, 0.0, 1.0, 1.0, 1.0, f64::NAN, f64::NAN]),
        (&[a], 1, [1.0, 1.0, 1.0, 1.0, 1.0, f64::NAN, f64::NAN]),
        // A group with only one score has no deviation, so it does not count as a group with deviation 0.
        (&[a, c, b, b], 2, [0.5, 0.0, 0.5, 0.0, 0.5, 0.5, 0.5]),
    ] {
        let matrix = one_function(rewards, size);
        for ((name, way), expected) in ways().into_iter().zip(expected) {
            let found = metric(&way(&matrix), "frac_reward_zero_std");
            if name == "gdpo" {
                // GDPO uses the deviation of the whole batch, so the fraction is 0 or 1.
                assert!(found == Some(0.0) || found == Some(1.0), "{rewards:?}: {found:?}");
                continue;
            }
            assert_eq!(found, (!expected.is_nan()).then_some(expected), "{name} of {rewards:?}");
        }
    }
    assert_eq!(metric(&gdpo::compute(&one_function(&[a, a, b, b], 2)), "frac_reward_zero_std"), Some(1.0));
    assert_eq!(metric(&gdpo::compute(&one_function(&[a, b, b, b], 2)), "frac_reward_zero_std"), Some(0.0));
    // A deviation up to 1e-8 counts as zero.
    for (step, share) in [(1e-8, 1.0), (3e-8, 0.0)] {
        let matrix = one_function(&[Some(0.0), Some(step)], 2);
        for name in ["group", "none", "rloo", "reinforce++"] {
            let way = ways().into_iter().find(|(n, _)| *n == name).unwrap().1;
            assert_eq!(metric(&way(&matrix), "frac_reward_zero_std"), Some(share), "{name} {step}");
        }
    }
}

#[test]
fn reward_metrics_cover_the_total_and_each_function() {
    let rows = [[Some(1.0), Some(2.0)], [None, Some(4.0)], [Some(f64::NAN), Some(9.0)], [Some(3.0), None]];
    let matrix = matrix(&rows, 2, [1.0, 0.5]);
    let names = [
        "rewards/a/mean",
        "rewards/a/std",
        "rewards/b/mean",
        "rewards/b/std",
        "reward",
        "reward_std",
        "frac_reward_zero_std",
    ];
    for (name, way) in ways() {
        let found = way(&matrix);
        assert_eq!(found.metrics.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(), names, "{name}");
        assert_eq!(found.rewards, [Some(2.0), Some(2.0), Some(4.5), Some(3.0)], "{name}");
        let close = |metric: usize, expected: f64| {
            let found = found.metrics[metric].1.unwrap();
            assert!((found - expected).abs() < 1e-12, "{name} {}: {found} {expected}", names[metric]);
        };
        let deviation = |x: &[f64]| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (x.len() - 1) as f64).sqrt()
        };
        close(0, 2.0);
        close(1, 2f64.sqrt());
        close(2, 5.0);
        close(3, deviation(&[2.0, 4.0, 9.0]));
        close(4, 11.5 / 4.0);
        close(5, deviation(&[2.0, 2.0, 4.5, 3.0]));
    }
}

#[test]
fn groups_must_be_consecutive_and_rows_need_one_score_per_function() {
    let row = |group: u64| RewardRow { group: GroupId(group), scores: vec![Some(1.0)] };
    let groups = |ids: &[u64]| {
        let rows = ids.iter().map(|&id| row(id)).collect();
        RewardMatrix { rows, names: vec!["a".into()], weights: vec![2.0] }.groups().collect::<Vec<_>>()
    };
    assert_eq!(groups(&[7, 7, 3, 7]), [0..2, 2..3, 3..4]);
    assert!(groups(&[]).is_empty());
    let good = RewardMatrix { rows: vec![row(1), row(1)], names: vec!["a".into()], weights: vec![2.0] };
    assert_eq!(good.totals(), [Some(2.0), Some(2.0)]);
    let panics = |change: &dyn Fn(&mut RewardMatrix)| {
        let mut bad = good.clone();
        change(&mut bad);
        std::panic::catch_unwind(|| bad.totals()).is_err()
    };
    assert!(panics(&|m| m.rows[1].scores.push(None)) && panics(&|m| m.rows[0].scores.clear()));
    assert!(panics(&|m| m.weights.push(1.0)) && panics(&|m| m.names.push("b".into())) && !panics(&|_| {}));
    let (few, masks) = samples(&good);
    let short = || reinforce_plus_plus::compute(&good, &few[..1], &masks, 0.0, Baseline::Batch);
    let unmasked = || reinforce_plus_plus::compute(&good, &few, &masks[..1], 0.0, Baseline::Batch);
    assert!(std::panic::catch_unwind(short).is_err() && std::panic::catch_unwind(unmasked).is_err());
    assert!(std::panic::catch_unwind(|| rloo::compute(&good, &few[..1], &RlooRewards::default())).is_err());
}

/// A truncated completion that is left out of the loss must not count in the KL divergence, either.
#[test]
fn rloo_measures_the_kl_of_only_the_tokens_in_the_loss() {
    let rewards = one_function(&[Some(1.0), Some(2.0)], 2);
    let samples = [
        Sample { finish_reason: model::FinishReason::Length, ..sample(&[1.0, 3.0], &[true; 2]) },
        sample(&[5.0, 7.0], &[true, false]),
    ];
    for (mask_truncated_completions, sums, kl) in [(false, [4.0, 5.0], 3.0), (true, [0.0, 5.0], 5.0)] {
        let config = RlooRewards { beta: 0.5, mask_truncated_completions, ..RlooRewards::default() };
        let found = rloo::compute(&rewards, &samples, &config);
        assert_eq!(metric(&found, "kl"), Some(kl));
        let penalised = [1.0 - 0.5 * sums[0], 2.0 - 0.5 * sums[1]];
        close(&found.advantages, &[penalised[0] - penalised[1], penalised[1] - penalised[0]]);
    }
}
