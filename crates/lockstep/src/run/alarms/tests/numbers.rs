//! The numbers that alarms are raised by: of a reward's dependence on the text, and of what a generation shows.

use super::{Text, WELL, rollouts, seen};
use crate::data::prompts::Prompt;
use crate::rollouts::Rollouts;
use crate::run::alarms::noise::{Dependence, Portion};
use crate::run::alarms::signs::GenerationSigns;
use crate::run::alarms::{Alarms, mean, remember};
use rewards::Content;
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{found}, not {expected}");
}

/// The sums of the feature `k`: of its products with the score, and of their variance.
fn sums(dependence: &Dependence, k: usize) -> [f64; 2] {
    let state = serde_json::to_value(dependence).unwrap();
    [0, 1].map(|which| f64::from_bits(state["sums"][k][which].as_u64().unwrap()))
}

fn taken(rollouts: &Rollouts) -> Dependence {
    let mut dependence = Dependence::default();
    dependence.take(&Portion::of(rollouts, 0));
    dependence
}

/// Of token `t` the feature is 5 + t mod 128.
fn token(letter: char) -> usize {
    5 + letter as usize % 128
}

#[test]
fn products_of_features_and_scores_within_groups() {
    let group: &[Text<'_>] = &[("aab", Some(2.0), false), ("abcd", Some(0.0), false), ("é", Some(1.0), false)];
    let found = taken(&rollouts(&[group]));
    assert_eq!((found.seen(), found.equal()), ((3, 1), 0));
    // Scores 1, −1, 0 around their mean; their squares sum to 2, and two of three are free.
    let check = |k: usize, values: [f64; 3]| {
        let mean = values.iter().sum::<f64>() / 3.0;
        let own: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let [product, variance] = sums(&found, k);
        close(product, values[0] - values[1]);
        close(variance, own * 2.0 / 2.0);
    };
    check(0, [3.0, 4.0, 1.0]);
    check(1, [3.0, 4.0, 1.0]);
    check(2, [2.0 / 3.0, 1.0, 1.0]);
    check(3, [0.0; 3]);
    check(4, [0.0; 3]);
    check(token('a'), [1.0, 1.0, 0.0]);
    check(token('b'), [1.0, 1.0, 0.0]);
    check(token('c'), [0.0, 1.0, 0.0]);
    check(token('é'), [0.0, 0.0, 1.0]);
    check(token('x'), [0.0; 3]);
    assert_eq!(serde_json::to_value(&found).unwrap()["sums"].as_array().map(Vec::len), Some(5 + 128));
    // The letter c has −1 · (1 − 1/3) …, which is −1 in sums whose deviation is √(2/3).
    close(found.strongest(), 1.0 / (2.0f64 / 3.0).sqrt());
}

#[test]
fn a_log_probability_and_a_repetition_are_features() {
    let text = "abcdabcdabcdabcd";
    let mut rollouts = rollouts(&[&[(text, Some(1.0), false), ("efghijklmnopqrst", Some(0.0), false)]]);
    let logps = |logp: f32| model::Columns::of([(model::columns::SAMPLER_LOGPS, vec![logp; 16])]);
    let completions = &mut rollouts.groups[0].completions;
    completions[0].completion.columns = logps(-0.5);
    completions[1].completion.columns = logps(-2.0);
    let found = taken(&rollouts);
    // 13 sequences of four tokens, of which 4 differ.
    let [product, variance] = sums(&found, 3);
    close(product, 9.0 / 13.0 * 0.5);
    close(variance, (9.0f64 / 13.0).powi(2) / 2.0 * 0.5);
    let [product, variance] = sums(&found, 4);
    close(product, 1.5 * 0.5);
    close(variance, 1.5 * 1.5 / 2.0 * 0.5);
}

#[test]
fn groups_are_summed_and_those_without_a_spread_left_out() {
    let spread: &[Text<'_>] = &[("ab", Some(1.0), false), ("abc", Some(0.0), false)];
    let once = taken(&rollouts(&[spread]));
    assert_eq!((once.seen(), sums(&once, 0)), ((2, 1), [-0.5, 0.25]));
    let twice = taken(&rollouts(&[spread, spread]));
    assert_eq!((twice.seen(), sums(&twice, 0)), ((4, 1), [-1.0, 0.5]));
    let mut later = once.clone();
    later.take(&Portion::of(&rollouts(&[spread]), 0));
    assert_eq!((later.seen(), sums(&later, 0)), ((4, 2), [-1.0, 0.5]));
    for flat in [
        &[("a", Some(1.0), false), ("b", Some(1.0), false)][..],
        &[("a", Some(1.0), false)],
        &[("a", Some(1.0), false), ("b", None, false)],
        &[("a", Some(1.0), false), ("b", Some(f64::INFINITY), false)],
        &[("a", Some(1e9), false), ("b", Some(1e9 + 1e-4), false)],
    ] {
        assert_eq!(taken(&rollouts(&[flat])).seen(), (0, 0), "{flat:?}");
    }
    // A spread counts from 1e-8 of the largest score on: its square sums to 1.5e-16, or to half of 1e-16.
    let nearly = |apart: f64| taken(&rollouts(&[&[("a", Some(1.0), false), ("b", Some(1.0 + apart), false)]])).seen();
    assert_eq!((nearly(1.732e-8), nearly(1e-8)), ((2, 1), (0, 0)));
    // Equal texts with the first one's score count, in their group alone.
    let yes = ("yes", Some(1.0), false);
    let equal = |group: &[Text<'_>]| taken(&rollouts(&[group])).equal();
    assert_eq!(equal(&[yes, yes, ("no", Some(0.0), false), yes]), 2);
    assert_eq!(equal(&[yes, ("yes", Some(0.0), false), yes]), 1);
    assert_eq!(equal(&[yes, ("no", Some(0.0), false)]), 0);
    assert_eq!(Dependence::default().strongest(), 0.0);
}

fn of_means(means: &[f64]) -> Dependence {
    let bits: Vec<u64> = means.iter().map(|mean| mean.to_bits()).collect();
    serde_json::from_value(json!({"means": bits})).unwrap()
}

#[test]
fn a_mean_score_rises_beyond_its_fluctuation() {
    let steady: Vec<f64> = (0..20).map(f64::from).collect();
    assert!(of_means(&steady).rises());
    assert!(!of_means(&steady.iter().rev().copied().collect::<Vec<_>>()).rises());
    assert!(!of_means(&[]).rises() && !of_means(&[1.0; 20]).rises());
    assert!(of_means(&[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]).rises());
    // From a quarter's mean of 0 to one of 1, with a deviation of 0.75 and of 0.80: 1.34 and 1.24 of them.
    let middle = |x: f64| of_means(&[0.0, 0.0, 0.5 + x, 0.5 - x, 0.5 + x, 0.5 - x, 1.0, 1.0]).rises();
    assert!(middle(0.93) && !middle(1.02));
    // Only the last twenty are compared.
    let mut long = Dependence::default();
    for step in 0..25 {
        let score = f64::from(step);
        let group = [("a", Some(score + 1.0), false), ("b", Some(score - 1.0), false)];
        long.take(&Portion::of(&rollouts(&[&group]), 0));
    }
    let means = serde_json::to_value(&long).unwrap()["means"].clone();
    let means: Vec<f64> = means.as_array().unwrap().iter().map(|bits| f64::from_bits(bits.as_u64().unwrap())).collect();
    assert_eq!(means, (5..25).map(f64::from).collect::<Vec<_>>());
    // A generation without a score has no mean.
    let before = serde_json::to_value(&long).unwrap()["means"].clone();
    long.take(&Portion::of(&rollouts(&[&[("a", None, false)]]), 0));
    assert_eq!(serde_json::to_value(&long).unwrap()["means"], before);
}

#[test]
fn what_a_generation_shows() {
    let groups: &[&[Text<'_>]] =
        &[&[("ab", Some(1.0), false), ("abcd", Some(0.0), true)], &[("", None, true), ("abcdef", Some(0.5), false)]];
    let signs = GenerationSigns::of(&rollouts(groups));
    assert_eq!((signs.cut_share(), signs.mean_total, signs.mean_length), (Some(0.5), Some(0.5), Some(3.0)));
    assert_eq!((signs.repetition, signs.rewards[0].range), (Some(0.0), Some((0.0, 1.0))));
    let rows: Vec<_> = signs.rows().map(|row| (row.prompt, row.total, row.cut, row.empty)).collect();
    let expected = [
        (0, Some(1.0), false, false),
        (0, Some(0.0), true, false),
        (1, None, true, true),
        (1, Some(0.5), false, false),
    ];
    assert_eq!(rows, expected);
    let nothing = GenerationSigns::of(&rollouts(&[]));
    assert_eq!((nothing.cut_share(), nothing.mean_total, nothing.mean_length), (None, None, None));
    assert!(nothing.rewards[0].range.is_none() && nothing.length_and_total().is_none());
    // The example of a completion.
    let example = |text: &str| {
        let signs = GenerationSigns::of(&rollouts(&[&[(text, Some(0.25), false), ("b", None, false)]]));
        signs.rows().map(|row| row.example()).collect::<Vec<_>>()
    };
    assert_eq!(example("a\n\"b\""), ["\"p0:\" → \"a\\n\\\"b\\\"\": 0.25", "\"p0:\" → \"b\": no score"]);
    assert_eq!(example(&"é".repeat(100))[0], format!("\"p0:\" → \"{}\": 0.25", "é".repeat(100)));
    assert_eq!(example(&"é".repeat(101))[0], format!("\"p0:\" → \"{}…\": 0.25", "é".repeat(100)));
}

#[test]
fn half_of_the_sequences_again_is_repetition() {
    let repetitive = |length: usize| {
        let text: String = "abcdefgh".chars().cycle().take(length).collect();
        let signs = GenerationSigns::of(&rollouts(&[&[(&text, Some(1.0), false)]]));
        let is_repetitive = signs.rows().all(|row| row.repetitive);
        (is_repetitive, signs.repetition.unwrap())
    };
    // Of 16 sequences of four tokens 8 differ, of 15 too.
    assert_eq!((repetitive(19), repetitive(18)), ((true, 0.5), (false, 7.0 / 15.0)));
}

#[test]
fn length_goes_with_the_reward_within_groups() {
    let correlation = |groups: &[&[Text<'_>]]| GenerationSigns::of(&rollouts(groups)).length_and_total();
    let longer: &[Text<'_>] = &[("a", Some(1.0), false), ("bb", Some(2.0), false), ("ccc", Some(3.0), false)];
    let shorter: &[Text<'_>] = &[("a", Some(3.0), false), ("bb", Some(2.0), false), ("ccc", Some(1.0), false)];
    close(correlation(&[longer]).unwrap(), 1.0);
    close(correlation(&[shorter]).unwrap(), -1.0);
    close(correlation(&[longer, shorter]).unwrap(), 0.0);
    close(correlation(&[longer, longer, shorter]).unwrap(), 1.0 / 3.0);
    // What groups differ in is not what their completions differ in.
    let far: &[Text<'_>] = &[("aaaaaaaa", Some(9.0), false), ("aaaaaaaa", Some(9.0), false)];
    close(correlation(&[shorter, far]).unwrap(), -1.0);
    let without: &[Text<'_>] = &[("aaaaaaaa", None, false)];
    close(correlation(&[shorter, without]).unwrap(), -1.0);
    assert_eq!((correlation(&[far]), correlation(&[&longer[..1]])), (None, None));
    let tilted: &[Text<'_>] = &[("a", Some(0.0), false), ("bb", Some(0.0), false), ("ccc", Some(3.0), false)];
    close(correlation(&[tilted]).unwrap(), 3.0 / 12.0f64.sqrt());
}

/// Whether a completion of this prompt is broken, and whether it is odd.
fn marks(prompt: &str, text: &str, cut: bool) -> (bool, bool) {
    let mut rollouts = rollouts(&[&[(text, Some(1.0), cut), ("fine", Some(0.0), false)]]);
    let group = &mut rollouts.groups[0];
    let content = Content::from(prompt);
    group.prompt = Arc::new(Prompt { content, ..Prompt::clone(&group.prompt) });
    let signs = GenerationSigns::of(&rollouts);
    signs.rows().next().map(|row| (row.broken, row.odd)).unwrap()
}

#[test]
fn a_text_continues_where_its_prompt_ends() {
    assert_eq!(marks("f(", "x)", false), (false, false));
    assert_eq!(marks("f(", "x", false), (true, false));
    assert_eq!(marks("f()", "x", false), (false, false));
    assert_eq!(marks("f()", "x)", false), (true, false));
    assert_eq!(marks("f()", "x)", true), (false, false));
    assert_eq!(marks("say \"", "a\"", false), (false, false));
    assert_eq!(marks("say \"", "a", false), (false, true));
    assert_eq!(marks("say", "\"a", false), (false, true));
    assert_eq!(marks("say", "\"a", true), (false, false));
    // If nearly all were cut, it is looked at.
    let all: &[Text<'_>] = &[("f(\"", Some(1.0), true), ("g", Some(0.0), true)];
    let signs = GenerationSigns::of(&rollouts(&[all]));
    assert_eq!(signs.rows().map(|row| (row.broken, row.odd)).collect::<Vec<_>>(), [(true, true), (false, false)]);
}

#[test]
fn scores_of_one_text() {
    let of = |group: &[Text<'_>]| GenerationSigns::of(&rollouts(&[group])).rewards.remove(0);
    let twice = |second: f64| of(&[("a", Some(1.0), false), ("a", Some(second), false)]).contradiction;
    assert_eq!(twice(1.0 + 1e-9), None);
    assert_eq!(twice(0.5).as_deref(), Some("\"p0:\" → \"a\": 1 and 0.5"));
    // The first is named, and one score is no range.
    let three = of(&[("a", Some(1.0), false), ("a", Some(0.5), false), ("a", Some(0.25), false)]);
    assert_eq!(three.contradiction.as_deref(), Some("\"p0:\" → \"a\": 1 and 0.5"));
    assert_eq!((three.range, three.name.as_str()), (Some((0.25, 1.0)), "r"));
    assert_eq!(of(&[("a", Some(1.0), false), ("b", None, false)]).range, None);
    let large = |scores: [Option<f64>; 2]| of(&[("a", scores[0], false), ("b", scores[1], false)]).overflows;
    assert!(large([Some(1e200), Some(1.0)]) && !large([Some(1e200), None]) && !large([Some(1e150), Some(1.0)]));
}

#[test]
fn what_is_remembered_and_its_mean() {
    let mut list: VecDeque<u32> = VecDeque::new();
    (0..21).for_each(|value| remember(&mut list, value));
    assert_eq!((list.len(), list.front(), list.back()), (20, Some(&1), Some(&20)));
    assert_eq!((mean([1.0, 2.0, 6.0]), mean([])), (Some(3.0), None));
}

/// Takes three steps with these metrics beside completions that go well. Ids of alarms, and whether they are quiet.
fn at(values: &[(&str, f64)]) -> Vec<(String, bool)> {
    let values: BTreeMap<String, f64> = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let mut alarms = Alarms::default();
    let steps = (1..=6).flat_map(|step| {
        alarms.take(seen(&rollouts(WELL)));
        alarms.end_step(step, &values)
    });
    steps.map(|alarm| (alarm.id, alarm.quiet)).collect()
}

#[test]
fn metrics_exactly_at_their_thresholds() {
    let truncated = |longest: f64| at(&[("completions/clipped_ratio", 0.95), ("completions/max_length", longest)]);
    assert_eq!(
        (truncated(128.0), truncated(129.0)),
        (vec![("truncated".into(), true)], vec![("truncated".into(), false)])
    );
    let collapse = || vec![("entropy_collapse".to_owned(), false)];
    assert_eq!((at(&[("logprob_p10", -0.0049)]), at(&[("logprob_p10", -0.005)])), (collapse(), vec![]));
    assert_eq!((at(&[("entropy", 0.0049)]), at(&[("entropy", 0.005)])), (collapse(), vec![]));
    // Where an entropy is logged, it is what counts.
    assert_eq!(at(&[("entropy", 1.0), ("logprob_p10", -0.001)]), []);
}

#[test]
fn an_alarm_that_is_over_shows_no_examples() {
    let mut alarms = Alarms::default();
    let unscored: &[Text<'_>] = &[("a", None, false), ("b", Some(0.5), false), ("c", Some(0.0), false)];
    let mut step = |step: u64, group: &[Text<'_>]| {
        alarms.take(seen(&rollouts(&[group])));
        alarms.end_step(step, &BTreeMap::new())
    };
    let raised = step(1, unscored);
    assert_eq!((raised[0].examples.len(), raised[0].since, raised[0].until), (1, 1, None));
    let over: Vec<_> = (2..9).flat_map(|number| step(number, WELL[0])).collect();
    assert_eq!(over.len(), 1);
    assert_eq!((over[0].id.as_str(), over[0].examples.len(), over[0].until), ("unscored", 0, Some(6)));
}
