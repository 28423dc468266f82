//! Metrics under TRL's names.

use super::*;

#[test]
fn entries_have_their_names_and_what_is_absent_has_none() {
    let names = |m: &UpdateMetrics| m.entries().into_iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&UpdateMetrics::default()), ["grad_norm", "learning_rate", "skipped_steps"]);
    let learns = UpdateMetrics { loss_tokens: 1, ..UpdateMetrics::default() };
    assert_eq!(names(&learns), ["loss", "grad_norm", "learning_rate", "skipped_steps"]);
    let compares_nothing = names(&UpdateMetrics { sampled: true, ..learns });
    let counts = ["sampling/logp_mismatch_tokens", "sampling/logp_compared_tokens"];
    assert_eq!(compares_nothing[3..5], counts, "counts of nothing are 0");
    assert!(!compares_nothing.contains(&"sampling/max_logp_difference".to_owned()), "an extreme of nothing is missing");
    let mut means = Means::default();
    means.add("b", 6.0, 4);
    means.add("a", 1.0, 1);
    means.add("b", 2.0, 4);
    means.add("none", 0.0, 0);
    let full = UpdateMetrics {
        loss: 1.0,
        grad_norm: 2.0,
        learning_rate: 3.0,
        entropy: Some(4.0),
        kl: Some(5.0),
        means,
        clip: Some(ClipRatios { low_mean: 6.0, low_min: 7.0, high_mean: 8.0, high_max: 9.0, region_mean: 10.0 }),
        sampling: Some(SamplingMetrics {
            importance_sampling_ratio: [13.0, 14.0, 15.0],
            bounded_ratio: 16.0,
            sampling_logp_difference: [17.0, 18.0],
        }),
        policy_loss: Some(11.0),
        entropy_coef: Some(12.0),
        sampled: true,
        loss_tokens: 30,
        logp_mismatch_tokens: 19,
        logp_compared_tokens: 20,
        max_logp_difference: 21.0,
        skipped_groups: Some(22),
        skipped_tokens: Some(23),
        skipped_total: 24,
        ..UpdateMetrics::default()
    };
    let expected = [
        ("loss", 1.0),
        ("grad_norm", 2.0),
        ("learning_rate", 3.0),
        ("entropy", 4.0),
        ("kl", 5.0),
        ("clip_ratio/low_mean", 6.0),
        ("clip_ratio/low_min", 7.0),
        ("clip_ratio/high_mean", 8.0),
        ("clip_ratio/high_max", 9.0),
        ("clip_ratio/region_mean", 10.0),
        ("policy_loss", 11.0),
        ("entropy_coef", 12.0),
        ("sampling/importance_sampling_ratio/min", 13.0),
        ("sampling/importance_sampling_ratio/mean", 14.0),
        ("sampling/importance_sampling_ratio/max", 15.0),
        ("sampling/importance_sampling_ratio/bounded", 16.0),
        ("sampling/sampling_logp_difference/mean", 17.0),
        ("sampling/sampling_logp_difference/max", 18.0),
        ("sampling/logp_mismatch_tokens", 19.0),
        ("sampling/logp_compared_tokens", 20.0),
        ("sampling/max_logp_difference", 21.0),
        ("update/skipped_groups", 22.0),
        ("update/skipped_tokens", 23.0),
        ("a", 1.0),
        ("b", 1.0),
        ("skipped_steps", 24.0),
    ];
    assert_eq!(full.entries(), expected);
}

#[test]
fn means_extremes_and_sums_are_kept_apart() {
    let mut means = Means::default();
    for (value, least, greatest) in [(3.0, 3.0, 3.0), (-1.0, -1.0, 3.0), (5.0, -1.0, 5.0)] {
        means.least("least", value);
        means.greatest("greatest", value);
        means.add("mean", value, 1);
        let found: Vec<_> = means.entries().filter(|(name, _)| *name != "mean").collect();
        assert_eq!(found, [("greatest", greatest), ("least", least)]);
    }
    assert_eq!(means.entries().last(), Some(("mean", 7.0 / 3.0)));
}
