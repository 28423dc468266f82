//! Tests of reward metrics: a metric without a value to average is missing, and the deviation of equal rewards is
//! exactly 0.

use super::*;
use crate::advantages::{gdpo, reinforce_plus_plus, rloo};
use model::columns::REF_LOGPS;

type Scores = Option<f64>;
const NAMES: [&str; 5] = ["reward", "reward_std", "frac_reward_zero_std", "rewards/a/mean", "rewards/a/std"];

/// The values of [`NAMES`] for every estimator that compares groups.
fn found(rewards: &[Scores], size: usize) -> Vec<(&'static str, [Option<f64>; 5])> {
    let m = one_function(rewards, size);
    let samples: Vec<Sample> = (0..rewards.len()).map(|_| sample()).collect();
    let masks = vec![vec![true]; rewards.len()];
    let of = |a: Advantages| NAMES.map(|name| metric(&a, name));
    vec![
        ("group", of(compute(&m, ScaleRewards::Group))),
        ("none", of(compute(&m, ScaleRewards::None))),
        ("rloo", of(rloo::compute(&m, &samples, &RlooRewards { beta: 0.0, ..RlooRewards::default() }))),
        ("reinforce++", of(reinforce_plus_plus::compute(&m, &samples, &masks, 0.0, Baseline::Group))),
    ]
}

fn sample() -> Sample {
    let columns = model::Columns::of([(SAMPLER_LOGPS, vec![-1.0]), (REF_LOGPS, vec![-2.0])]);
    Sample { columns, ..Sample::supervised(model::Prompt::new([1]), vec![2]) }
}

#[test]
fn metrics_without_scores_are_missing_and_deviations_of_equal_scores_zero() {
    let s = Some;
    let mut wrong = Vec::new();
    let equal = |x: f64, n: usize| vec![s(x); n];
    for (what, rewards, size, expected) in [
        ("no score", vec![None; 4], 2, [None; 5]),
        ("one score", vec![s(0.5), None, None, None], 2, [s(0.5), None, None, s(0.5), None]),
        (
            "one score in each group",
            vec![s(0.5), None, s(0.25), None],
            2,
            [s(0.375), s(0.03125f64.sqrt()), None, s(0.375), s(0.03125f64.sqrt())],
        ),
        ("NaN alone", vec![s(f64::NAN); 4], 2, [None; 5]),
        ("equal whole numbers", equal(1.0, 4), 2, [s(1.0), s(0.0), s(1.0), s(1.0), s(0.0)]),
        ("zeros", equal(0.0, 4), 4, [s(0.0), s(0.0), s(1.0), s(0.0), s(0.0)]),
        (
            "a group of two, the other without a score",
            vec![s(2.0), s(2.0), None, None],
            2,
            [s(2.0), s(0.0), s(0.5), s(2.0), s(0.0)],
        ),
        ("equal, one without a score", vec![s(3.0), s(3.0), s(3.0), None], 4, [s(3.0), s(0.0), s(1.0), s(3.0), s(0.0)]),
    ] {
        for (way, found) in found(&rewards, size) {
            if found != expected {
                wrong.push(format!("{what}, {way}: {found:?}, not {expected:?}"));
            }
        }
    }
    // The mean of these numbers is rounded: without a special case the deviation would be 5.7e-17, or above 1e-8 for
    // large numbers.
    for x in [0.1, 0.3, 0.7, -0.1, 1e-9, 1.1, 123_456_789.1, 1e15 + 0.3, 2.0 / 3.0, f64::MIN_POSITIVE] {
        for (rewards, size) in [(equal(x, 3), 3), (equal(x, 8), 4), (equal(x, 14), 7), (equal(x, 42), 6)] {
            for (way, found) in found(&rewards, size) {
                if [found[1], found[2], found[4]] != [s(0.0), s(1.0), s(0.0)] {
                    wrong.push(format!("{} times {x:e}, {way}: {found:?}", rewards.len()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In REINFORCE++, a single completion per prompt has no others to compare with. GRPO counts such a group as TRL does.
#[test]
fn the_share_of_equal_groups_is_missing_if_no_group_has_a_deviation() {
    let rewards = [Some(1.0), Some(0.0), Some(1.0)];
    let share = |way: &str| found(&rewards, 1).into_iter().find(|(name, _)| *name == way).unwrap().1[2];
    assert_eq!([share("reinforce++"), share("group"), share("rloo")], [None, Some(1.0), Some(1.0)]);
}

#[test]
fn the_kl_is_missing_if_no_token_is_in_the_loss() {
    let samples = [sample(), sample()];
    let m = one_function(&[Some(1.0), Some(0.0)], 2);
    for (mask, expected) in [(true, Some(1.0)), (false, None)] {
        let mut masked = samples.clone();
        for sample in &mut masked {
            sample.loss_mask = vec![mask];
        }
        let rloo_result = rloo::compute(&m, &masked, &RlooRewards::default());
        let masks = vec![vec![mask]; 2];
        let token_result = reinforce_plus_plus::compute(&m, &samples, &masks, 0.1, Baseline::Batch);
        assert_eq!([metric(&rloo_result, "kl"), metric(&token_result, "kl")], [expected; 2], "{mask}");
    }
    let one = |scores: &[Option<f64>]| {
        let a = gdpo::compute(&one_function(scores, 2));
        ["reward", "frac_reward_zero_std"].map(|name| metric(&a, name))
    };
    assert_eq!((one(&[None, None]), one(&[Some(1.0), None])), ([None; 2], [Some(1.0), None]));
    assert_eq!(one(&[Some(0.1), Some(0.1)])[1], Some(1.0));
}
