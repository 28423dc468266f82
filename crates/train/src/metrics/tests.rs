//! Tests of the metrics and their names.

use super::*;

#[test]
fn means_extremes_and_sums_are_separate_metrics() {
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
