//! Metrics that were not measured neither raise nor end alarms. Rewards that cancel are distinguished from equal ones.

use super::{Text, WELL, rollouts, seen};
use crate::rollouts::Rollouts;
use crate::run::alarms::{Alarms, Observations};
use std::collections::BTreeMap;
use telemetry::Step;

type Metrics<'a> = &'a [(&'a str, f64)];

fn map(metrics: Metrics<'_>) -> BTreeMap<String, f64> {
    metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Takes a step for each list of metrics, with completions that raise no alarm. Returns the ids of alarms with their
/// steps; an alarm that ends has a minus before its id.
fn course(steps: &[Metrics<'_>]) -> Vec<(u64, String)> {
    let mut alarms = Alarms::default();
    let mut found = Vec::new();
    for (step, metrics) in (1..).zip(steps) {
        alarms.take(seen(&rollouts(WELL)));
        let raised = alarms.end_step(Step(step), &map(metrics)).into_iter();
        found.extend(
            raised.map(|alarm| (step, if alarm.until.is_some() { format!("-{}", alarm.id) } else { alarm.id })),
        );
    }
    found
}

/// Each condition holds by its metric, which is then missing for a while, and holds again. The gaps only delay the
/// alarm, and a raised alarm does not end in a gap.
#[test]
fn a_missing_metric_neither_raises_nor_ends_an_alarm() {
    let mut wrong = Vec::new();
    for (id, name, bad, good, patience) in [
        ("truncated", "completions/clipped_ratio", 1.0, 0.0, 3),
        ("zero_variance", "frac_reward_zero_std", 1.0, 0.0, 3),
        ("no_answer", "rewards/r/no_answer", 1.0, 0.0, 3),
        ("kl_blow_up", "kl", 2.0, 0.0, 3),
        ("entropy_collapse", "entropy", 0.001, 2.0, 5),
        ("entropy_collapse", "logprob_p10", -0.001, -1.0, 5),
    ] {
        let (bad, good, none): (Metrics<'_>, Metrics<'_>, Metrics<'_>) =
            (&[(name, bad)], &[("grad_norm", 1.0), (name, good)], &[("grad_norm", 1.0)]);
        let mut steps = vec![good];
        for _ in 0..patience {
            steps.extend([none, none, bad, none]);
        }
        let raised = steps.len() as u64 - 1;
        steps.extend([none; 9]);
        steps.extend([good; 5]);
        let over = steps.len() as u64;
        // Each generation also measures the conditions on its rewards, even if the metric is missing.
        let spread = id == "zero_variance";
        let expected = if spread { vec![] } else { vec![(raised, id.to_owned()), (over, format!("-{id}"))] };
        let found = course(&steps);
        if found != expected {
            wrong.push(format!("{id} by {name}: {found:?}, not {expected:?}"));
        }
        let in_a_row: Vec<_> = [vec![good], vec![bad; patience]].concat();
        if course(&in_a_row) != [(patience as u64 + 1, id.to_owned())] {
            wrong.push(format!("{id} by {name} in a row: {:?}", course(&in_a_row)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_fully_masked_step_is_reported_once_and_not_as_a_collapse() {
    let mut alarms = Alarms::default();
    let mut found = Vec::new();
    for step in 1..=12 {
        alarms.take(seen(&rollouts(WELL)));
        if step > 2 {
            alarms.all_masked(8);
        }
        // The metrics of such a run have neither entropy nor divergence.
        let metrics = map(&[("completions/clipped_ratio", 1.0), ("grad_norm", 0.0), ("logprob_p10", -3.0)]);
        found.extend(alarms.end_step(Step(step), &metrics).into_iter().map(|alarm| (step, alarm.id, alarm.evidence)));
    }
    let masked = "no token of the step's 8 sequences is in the loss: every one is masked, and nothing was learned: all \
                  were truncated at max_completion_length";
    let ids: Vec<_> = found.iter().map(|(step, id, _)| (*step, id.as_str())).collect();
    assert_eq!(ids, [(3, "nothing_learned"), (3, "truncated")]);
    assert_eq!(found[0].2, masked);
}

#[test]
fn tokens_without_text_raise_an_alarm_from_5_percent_on() {
    let raised = |unknown: usize, all: usize| {
        let mut alarms = Alarms::default();
        let mut step = |step: u64| {
            let mut observed = seen(&rollouts(WELL));
            observed.tokens(unknown, all);
            alarms.take(observed);
            alarms.end_step(Step(step), &BTreeMap::new()).len()
        };
        (1..=3).map(&mut step).sum::<usize>()
    };
    assert_eq!([raised(1, 20), raised(1, 21), raised(0, 20), raised(0, 0)], [1, 0, 0, 0]);
}

/// Groups of completions, each with the scores of several rewards.
fn scored(weights: &[f64], groups: &[&[&[Option<f64>]]]) -> Rollouts {
    let texts: Vec<Vec<Text<'_>>> = groups
        .iter()
        .map(|group| ["a", "b", "c", "d"][..group.len()].iter().map(|t| (*t, None, false)).collect())
        .collect();
    let texts: Vec<&[Text<'_>]> = texts.iter().map(Vec::as_slice).collect();
    let mut rollouts = rollouts(&texts);
    rollouts.reward_names = ["x", "y", "z"][..weights.len()].iter().map(|name| (*name).to_owned()).collect();
    rollouts.reward_weights = weights.to_vec();
    for (group, scores) in rollouts.groups.iter_mut().zip(groups) {
        for (completion, scores) in group.completions.iter_mut().zip(*scores) {
            completion.rewards = scores.to_vec();
        }
    }
    rollouts
}

/// The cause that `zero_variance` names after three such generations: equal, cancelling or unweighted rewards, or
/// `None`.
fn cause_named(rollouts: &Rollouts, share: Option<f64>) -> Option<&'static str> {
    let mut alarms = Alarms::default();
    let metrics: BTreeMap<String, f64> =
        share.map(|share| ("frac_reward_zero_std".to_owned(), share)).into_iter().collect();
    let mut raised = Vec::new();
    for step in 1..=3 {
        let mut observed = Observations::default();
        observed.generation(rollouts);
        alarms.take(observed);
        raised.extend(alarms.end_step(Step(step), &metrics).into_iter().filter(|alarm| alarm.id == "zero_variance"));
    }
    let alarm = raised.pop()?;
    let is = |words: &str, remedy: &str| alarm.evidence.contains(words) && alarm.remedy.contains(remedy);
    Some(match () {
        () if is("their weighted sum cancels", "opposite effects") => "cancel",
        () if is("the weight of these rewards is 0", "a weight other than 0") => "unweighted",
        () if is("all rewards are equal", "prompts that the model solves sometimes") => "equal",
        () => panic!("{alarm}"),
    })
}

#[test]
fn rewards_that_cancel_are_distinguished_from_equal_ones() {
    let s = Some;
    let mirrored: &[&[Option<f64>]] = &[&[s(1.0), s(-1.0)], &[s(0.0), s(0.0)]];
    let same: &[&[Option<f64>]] = &[&[s(1.0), s(1.0)], &[s(0.0), s(0.0)]];
    let flat: &[&[Option<f64>]] = &[&[s(1.0), s(2.0)], &[s(1.0), s(2.0)]];
    let three: &[&[Option<f64>]] = &[&[s(0.1), s(0.2), s(-0.3)], &[s(0.2), s(0.1), s(-0.3)]];
    let unscored: &[&[Option<f64>]] = &[&[s(1.0), s(-1.0)], &[s(0.0), s(0.0)], &[None, None]];
    let one: &[&[Option<f64>]] = &[&[s(1.0), s(-1.0)], &[None, None]];
    let singles: &[&[&[Option<f64>]]] = &[&[&[s(1.0), s(-1.0)]], &[&[s(0.5), s(-0.5)]], &[&[s(0.0), s(0.0)]]];
    let halves: &[&[&[Option<f64>]]] = &[mirrored, flat];
    let mut wrong = Vec::new();
    for (what, weights, groups, share, expected) in [
        ("r and -r", &[1.0, 1.0][..], &[mirrored][..], s(1.0), Some("cancel")),
        ("r and -r, weights alike", &[0.5, 0.5], &[mirrored, mirrored], s(1.0), Some("cancel")),
        ("one reward twice, weights of opposite sign", &[1.0, -1.0], &[same], s(1.0), Some("cancel")),
        (
            "r and -2r, weights 2 and 1",
            &[2.0, 1.0],
            &[&[&[s(1.0), s(-2.0)], &[s(2.0), s(-4.0)]]],
            s(1.0),
            Some("cancel"),
        ),
        ("three rewards that cancel up to rounding", &[1.0, 1.0, 1.0], &[three], s(1.0), Some("cancel")),
        (
            "a constant third reward",
            &[1.0, 1.0, 1.0],
            &[&[&[s(1.0), s(-1.0), s(5.0)], &[s(0.0), s(0.0), s(5.0)]]],
            s(1.0),
            Some("cancel"),
        ),
        ("one completion without a score", &[1.0, 1.0], &[unscored], s(1.0), Some("cancel")),
        ("half of the equal groups cancel", &[1.0, 1.0], halves, s(1.0), Some("cancel")),
        ("a third of the equal groups cancel", &[1.0, 1.0], &[mirrored, flat, flat], s(1.0), Some("equal")),
        ("every reward is equal", &[1.0, 1.0], &[flat], s(1.0), Some("equal")),
        ("equal rewards of weight 0", &[0.0, 0.0], &[flat], s(1.0), Some("equal")),
        ("all weights are 0", &[0.0, 0.0], &[same], s(1.0), Some("unweighted")),
        (
            "the one that varies has the weight 0",
            &[1.0, 0.0],
            &[&[&[s(1.0), s(3.0)], &[s(1.0), s(4.0)]]],
            s(1.0),
            Some("unweighted"),
        ),
        ("a single reward of weight 0", &[0.0], &[&[&[s(1.0)], &[s(0.0)]]], s(1.0), Some("unweighted")),
        ("weights minus 0", &[-0.0, 0.0], &[mirrored], s(1.0), Some("unweighted")),
        // Without the metric, as in PPO, equal totals are reported only if rewards vary.
        ("PPO, r and -r", &[1.0, 1.0], &[mirrored], None, Some("cancel")),
        ("PPO, one completion for each prompt", &[1.0, 1.0], singles, None, Some("cancel")),
        ("PPO, weights 0", &[0.0, 0.0], singles, None, Some("unweighted")),
        ("PPO, equal rewards", &[1.0, 1.0], &[flat], None, None),
        ("PPO, totals that vary", &[1.0, 2.0], &[mirrored], None, None),
        ("one score in each group", &[1.0, 1.0], &[one], None, None),
        ("the metric is below its threshold", &[1.0, 1.0], &[mirrored], s(0.5), None),
    ] {
        let found = cause_named(&scored(weights, groups), share);
        if found != expected {
            wrong.push(format!("{what}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A generation without scores does not end the alarm about a constant reward.
#[test]
fn a_generation_without_scores_does_not_end_the_constant_reward_alarm() {
    let mut alarms = Alarms::default();
    let mut take = |step: u64, score: Option<f64>| {
        alarms.take(seen(&rollouts(&[&[("a", score, false), ("b", score, false)]])));
        let raised = alarms.end_step(Step(step), &BTreeMap::new()).into_iter();
        raised.filter(|alarm| alarm.id == "constant_reward").map(|alarm| (step, alarm.until)).collect::<Vec<_>>()
    };
    let scores = (1..=30).map(|step| (step, if step % 3 == 0 { None } else { Some(0.25) }));
    let found: Vec<_> = scores.flat_map(|(step, score)| take(step, score)).collect();
    // Ten of the 14 generations have scores.
    assert_eq!(found, [(14, None)]);
}
