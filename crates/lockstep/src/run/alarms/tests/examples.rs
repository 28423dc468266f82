//! Examples of alarms: an alarm about one reward shows this reward's scores.

use super::{Text, rollouts, seen};
use crate::rollouts::Rollouts;
use crate::run::alarms::Alarms;
use std::collections::BTreeMap;
use telemetry::Step;

/// Two rewards, "short" and "right". Each completion has both scores, and their weighted sum as total.
fn two(weights: [f64; 2], scores: &[(&str, Option<f64>, Option<f64>)]) -> Rollouts {
    let texts: Vec<Text<'_>> = scores.iter().map(|(text, short, _)| (*text, *short, false)).collect();
    let mut rollouts = rollouts(&[&texts]);
    for (completion, (_, _, right)) in rollouts.groups[0].completions.iter_mut().zip(scores) {
        completion.rewards.push(*right);
    }
    (rollouts.reward_names, rollouts.reward_weights) = (vec!["short".into(), "right".into()], weights.to_vec());
    rollouts
}

/// Each row: the weights, both scores of the completions "a", "b" and "c" (whose texts differ from step to step), the
/// alarm's id and subject, and the scores at the end of its examples.
#[test]
fn an_alarm_about_a_reward_shows_this_rewards_scores() {
    type Row = ([f64; 2], [(Option<f64>, Option<f64>); 3], (&'static str, &'static str), &'static [&'static str]);
    let (some, none) = (Some, None);
    let [same, huge] = [-0.32, 1e200];
    let rows: [Row; 22] = [
        // The first reward is constant and the second is not, under all kinds of weights.
        (
            [1.0, 1.0],
            [(some(same), some(1.0)), (some(same), some(0.0)), (some(same), some(1.0))],
            ("constant_reward", "short"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        (
            [2.0, 1.0],
            [(some(same), some(1.0)), (some(same), some(0.0)), (some(same), some(1.0))],
            ("constant_reward", "short"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        (
            [0.0, 1.0],
            [(some(same), some(1.0)), (some(same), some(0.0)), (some(same), some(1.0))],
            ("constant_reward", "short"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        (
            [-1.0, 1.0],
            [(some(same), some(1.0)), (some(same), some(0.0)), (some(same), some(1.0))],
            ("constant_reward", "short"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        // The second reward is constant.
        (
            [1.0, 1.0],
            [(some(1.0), some(same)), (some(0.0), some(same)), (some(1.0), some(same))],
            ("constant_reward", "right"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        (
            [1.0, 0.2],
            [(some(1.0), some(same)), (some(0.0), some(same)), (some(1.0), some(same))],
            ("constant_reward", "right"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        (
            [0.0, 3.0],
            [(some(1.0), some(same)), (some(0.0), some(same)), (some(1.0), some(same))],
            ("constant_reward", "right"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        // Examples have a score of the alarm's reward; other scores may be missing.
        (
            [1.0, 1.0],
            [(none, some(1.0)), (some(same), some(0.0)), (some(same), some(1.0))],
            ("constant_reward", "short"),
            &["-0.32", "-0.32"],
        ),
        (
            [1.0, 1.0],
            [(some(same), some(1.0)), (none, some(0.0)), (some(same), some(1.0))],
            ("constant_reward", "short"),
            &["-0.32", "-0.32"],
        ),
        (
            [1.0, 1.0],
            [(some(same), none), (some(same), some(0.0)), (some(same), some(1.0))],
            ("constant_reward", "short"),
            &["-0.32", "-0.32", "-0.32"],
        ),
        (
            [1.0, 1.0],
            [(some(1.0), some(same)), (none, some(same)), (some(0.0), none)],
            ("constant_reward", "right"),
            &["-0.32", "-0.32"],
        ),
        // 0 is a score.
        (
            [1.0, 1.0],
            [(some(0.0), some(1.0)), (some(0.0), some(0.0)), (some(0.0), some(1.0))],
            ("constant_reward", "short"),
            &["0", "0", "0"],
        ),
        (
            [1.0, 1.0],
            [(some(1.0), some(0.0)), (some(0.0), some(0.0)), (some(1.0), some(0.0))],
            ("constant_reward", "right"),
            &["0", "0", "0"],
        ),
        (
            [1.0, 1.0],
            [(some(1.0), some(1.0)), (some(0.0), some(1.0)), (some(1.0), some(1.0))],
            ("constant_reward", "right"),
            &["1", "1", "1"],
        ),
        // The sum of the squared scores is infinite.
        (
            [1.0, 1.0],
            [(some(huge), some(1.0)), (some(0.5), some(0.0)), (some(2.0), some(1.0))],
            ("reward_overflow", "short"),
            &["1e200", "0.5", "2"],
        ),
        (
            [1.0, 1.0],
            [(some(1.0), some(huge)), (some(0.0), some(0.5)), (some(1.0), some(2.0))],
            ("reward_overflow", "right"),
            &["1e200", "0.5", "2"],
        ),
        (
            [1.0, 1e-300],
            [(some(1.0), some(huge)), (some(0.0), some(0.5)), (some(1.0), some(2.0))],
            ("reward_overflow", "right"),
            &["1e200", "0.5", "2"],
        ),
        (
            [1.0, 1.0],
            [(some(huge), none), (none, some(0.5)), (some(2.0), some(1.0))],
            ("reward_overflow", "short"),
            &["1e200", "2"],
        ),
        // The examples are one text with two scores of the same reward.
        (
            [1.0, 1.0],
            [(some(0.25), some(1.0)), (some(0.75), some(1.0)), (some(0.5), some(2.0))],
            ("contradiction", "short"),
            &["0.25 and 0.75"],
        ),
        (
            [5.0, 1.0],
            [(some(0.25), some(1.0)), (some(0.75), some(1.0)), (some(0.5), some(2.0))],
            ("contradiction", "short"),
            &["0.25 and 0.75"],
        ),
        (
            [1.0, 1.0],
            [(some(1.0), some(0.25)), (some(1.0), some(0.75)), (some(2.0), some(0.5))],
            ("contradiction", "right"),
            &["0.25 and 0.75"],
        ),
        // An alarm without a subject shows the total.
        (
            [1.0, 1.0],
            [(some(0.5), some(-0.5)), (none, none), (none, none)],
            ("unscored", ""),
            &["no score", "no score"],
        ),
    ];
    for (weights, scores, (id, subject), expected) in rows {
        let mut alarms = Alarms::default();
        for step in 1..13 {
            let texts = if id == "contradiction" { ["a", "a", "b"] } else { ["a", "b", "c"] };
            let scored: Vec<_> = texts.iter().zip(scores).map(|(text, (short, right))| (*text, short, right)).collect();
            alarms.take(seen(&two(weights, &scored)));
            alarms.end_step(Step(step), &BTreeMap::new());
        }
        let found = alarms.raised().iter().find(|alarm| alarm.id == id && alarm.subject == subject);
        let alarm = found.unwrap_or_else(|| panic!("no {id} of {subject:?}: {:?}", alarms.raised()));
        let ends: Vec<&str> = alarm.examples.iter().filter_map(|text| Some(text.rsplit_once(": ")?.1)).collect();
        assert_eq!(ends, expected, "{id} of {subject:?} with the weights {weights:?}: {alarm:?}");
    }
}

#[test]
fn examples_come_from_several_prompts_if_possible() {
    let text = |text: &'static str| -> Text<'static> { (text, Some(1.0), false) };
    let of = |groups: &[&[Text<'_>]]| {
        let mut alarms = Alarms::default();
        for step in 1..20 {
            alarms.take(seen(&rollouts(groups)));
            let raised = alarms.end_step(Step(step), &BTreeMap::new());
            if let Some(alarm) = raised.into_iter().find(|alarm| alarm.id == "constant_reward") {
                return alarm.examples.iter().map(|one| one.split(':').next().unwrap().to_owned()).collect::<Vec<_>>();
            }
        }
        panic!("no alarm about a constant reward")
    };
    let (a, b) = ([text("a"), text("b"), text("c")], [text("d"), text("e")]);
    assert_eq!(of(&[&a, &b, &b, &b]), ["\"p0", "\"p1", "\"p2"]);
    assert_eq!(of(&[&a, &b]), ["\"p0", "\"p1", "\"p0"]);
    assert_eq!(of(&[&a]), ["\"p0"; 3]);
}
