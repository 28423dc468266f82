mod examples;
mod nothing;

use super::*;
use crate::data::prompts::Prompt;
use crate::rollouts::{ScoredCompletion, ScoredGroup};
use rewards::{Content, ProblemKind};
use rollout::{Completion, FinishReason};
use serde_json::Map;
use std::sync::Arc;

/// A completion: its text, its score, and whether it was truncated.
type Text<'a> = (&'a str, Option<f64>, bool);

/// Rollouts with these groups of completions, for the prompts "p0:", "p1:", …; every character is a token.
fn rollouts(groups: &[&[Text<'_>]]) -> Rollouts {
    let completion = |&(text, score, cut): &Text<'_>| {
        let ids: Vec<u32> = text.chars().map(u32::from).collect();
        ScoredCompletion {
            completion: Completion {
                generation: 0,
                sampled: vec![true; ids.len()],
                versions: vec![model::Updates(0); ids.len()],
                columns: model::Columns::default(),
                finish_reason: if cut { FinishReason::Length } else { FinishReason::Stop },
                ids,
            },
            content: Content::from(text),
            rewards: vec![score],
            steps: Vec::new(),
            extra: Map::new(),
        }
    };
    let group = |(row, texts): (usize, &&[Text<'_>])| {
        let (tokens, content) = (model::Prompt::new([1]), Content::from(format!("p{row}:")));
        ScoredGroup {
            group: model::GroupId(row as u64),
            prompt: Arc::new(Prompt { row, tokens, content, columns: Map::new() }),
            completions: texts.iter().map(completion).collect(),
            problems: Vec::new(),
            lineage: None,
        }
    };
    let groups = groups.iter().enumerate().map(group).collect();
    Rollouts { groups, reward_names: vec!["r".into()], reward_weights: vec![1.0] }
}

fn seen(rollouts: &Rollouts) -> Observations {
    let mut observed = Observations::default();
    observed.generation(rollouts);
    observed
}

/// Takes steps that learn from these completions. Returns the alarms that begin or end, as (step, id).
fn steps(alarms: &mut Alarms, steps: std::ops::Range<u64>, groups: &[&[Text<'_>]]) -> Vec<(u64, String)> {
    let mut out = Vec::new();
    for step in steps {
        alarms.take(seen(&rollouts(groups)));
        out.extend(alarms.end_step(Step(step), &BTreeMap::new()).into_iter().map(|alarm| (step, alarm.id)));
    }
    out
}

/// Takes one step for each value of the metric `name`. Returns the alarms that begin or end, with their steps.
fn values(alarms: &mut Alarms, name: &str, values: impl IntoIterator<Item = f64>) -> Vec<(u64, Alarm)> {
    let mut out = Vec::new();
    for (value, step) in values.into_iter().zip(1..) {
        // A generation with different rewards raises no alarm.
        alarms.take(seen(&rollouts(&[&[("a", Some(1.0), false), ("b", Some(0.0), false)]])));
        let raised = alarms.end_step(Step(step), &BTreeMap::from([(name.to_owned(), value)]));
        out.extend(raised.into_iter().map(|alarm| (step, alarm)));
    }
    out
}

const WELL: &[&[Text<'_>]] = &[
    &[("7", Some(1.0), false), ("12", Some(0.0), false), ("3", Some(0.0), false)],
    &[("4", Some(1.0), false), ("3", Some(0.0), false), ("9", Some(0.0), true)],
];

#[test]
fn an_alarm_is_raised_once_and_ends_later() {
    let mut alarms = Alarms::default();
    let course = [0.95, 0.95, 0.9, 0.95, 1.0, 0.96, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let raised = values(&mut alarms, "completions/clipped_ratio", course);
    let steps: Vec<_> =
        raised.iter().map(|(step, alarm)| (*step, alarm.since.0, alarm.until.map(|step| step.0))).collect();
    assert_eq!(steps, [(6, 4, None), (17, 4, Some(17))]);
    assert!(raised[0].1.evidence.starts_with("96 % of the completions were truncated"), "{}", raised[0].1);
    assert_eq!(alarms.raised(), [Alarm { until: Some(Step(17)), ..raised[0].1.clone() }]);
}

#[test]
fn metrics_beyond_their_thresholds_raise_alarms() {
    let first = |name: &str, course: &[f64]| {
        let raised = values(&mut Alarms::default(), name, course.iter().copied());
        raised.first().map(|(step, alarm)| (*step, alarm.id.clone()))
    };
    let at = |step, id: &str| Some((step, id.to_owned()));
    assert_eq!(first("frac_reward_zero_std", &[0.9, 0.9, 0.9]), at(3, "zero_variance"));
    assert_eq!(first("frac_reward_zero_std", &[0.89; 9]), None);
    assert_eq!(first("rewards/gsm8k/no_answer", &[0.9, 0.89, 0.9, 1.0, 0.9]), at(5, "no_answer"));
    assert_eq!(first("eval_rewards/gsm8k/no_answer", &[1.0; 9]), None);
    let raised = values(&mut Alarms::default(), "rewards/gsm8k/no_answer", [1.0; 3]);
    assert_eq!(raised[0].1.subject, "gsm8k");
    // The first step's entropy is older than the first generation, and is not checked.
    let falling = |low: f64| [[2.0; 6], [low; 6]].concat();
    assert_eq!(first("entropy", &falling(0.19)), at(11, "entropy_collapse"));
    assert_eq!(first("entropy", &falling(0.21)), None);
    assert_eq!(first("entropy", &falling(0.1 * 2.0)), None, "below, not at");
    assert_eq!(first("logprob_p10", &[-0.1, -0.004, -0.004, -0.001, -0.0, -0.0]), at(6, "entropy_collapse"));
    assert_eq!(first("kl", &[0.2, 1.0, 1.5, 2.0]), at(4, "kl_blow_up"));
    // The policy is already far from the reference in the first step, before any training.
    assert_eq!(first("kl", &[0.3, 0.5, 0.4]), at(3, "stale_reference"));
    assert_eq!(first("kl", &[0.0, 0.5, 0.5, 0.5]), None);
    let norms = |few: usize, high: f64| [vec![1.0; few], vec![high; 9]].concat();
    assert_eq!(first("grad_norm", &norms(10, 10.1)), at(13, "grad_norm"));
    assert_eq!(first("grad_norm", &norms(10, 10.0)), None);
    // A large norm that persists becomes the new normal.
    assert_eq!(first("grad_norm", &norms(7, 10.1)), at(13, "grad_norm"));
    assert_eq!(first("grad_norm", &norms(6, 10.1)), None);
    assert_eq!(first("grad_norm", &[[0.0; 20], [1.0; 20]].concat()), None, "steps without a gradient do not count");
    assert_eq!(first("grad_norm", &[0.0, 1.0, 100.0, 100.0, 100.0, 100.0]), None, "too few steps are known");
}

#[test]
fn a_healthy_run_does_not_raise_alarms() {
    assert_eq!(steps(&mut Alarms::default(), 1..40, WELL), []);
}

#[test]
fn reward_hacks_are_reported_with_examples() {
    let hacked = |winner: &str| {
        let mut alarms = Alarms::default();
        assert_eq!(steps(&mut alarms, 1..3, WELL), []);
        let prompts = [format!("{winner}!"), format!("{winner}?"), winner.to_owned(), format!("a {winner}")];
        let texts: Vec<Text<'_>> = prompts.iter().map(|text| (text.as_str(), Some(1.0), false)).collect();
        let found = steps(&mut alarms, 3..9, &[&texts[..2], &texts[2..]]);
        let shown = alarms.raised().first().map(|alarm| alarm.examples.clone());
        (found, shown.unwrap_or_default())
    };
    for (winner, id) in [
        ("so <answer> </answer>", "empty_answer_wins"),
        ("let f( x = ", "broken_text_wins"),
        ("aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "repetition_wins"),
    ] {
        let (found, shown) = hacked(winner);
        assert_eq!(found, [(7, id.to_owned())], "{winner}");
        assert!(shown.len() == 3 && shown[0] == format!("\"p0:\" → {:?}: 1", format!("{winner}!")), "{shown:?}");
    }
    assert_eq!(hacked("<answer>3</answer>").0, []);
    // A property of all completions, including unrewarded ones, does not explain the reward.
    let mut alarms = Alarms::default();
    let all: &[Text<'_>] = &[("(a", Some(1.0), false), ("(b", Some(1.0), false), ("(c", Some(0.0), false)];
    assert_eq!(steps(&mut alarms, 1..12, &[all]), []);
}

#[test]
fn one_winning_text_for_every_prompt_raises_an_alarm() {
    let same: &[Text<'_>] = &[("yes", Some(1.0), false), ("yes", Some(1.0), false), ("no", Some(0.0), false)];
    assert_eq!(steps(&mut Alarms::default(), 1..9, &[same, same]), [(5, "one_text_wins".to_owned())]);
    assert_eq!(
        steps(&mut Alarms::default(), 1..9, &[same]),
        [],
        "with a single prompt, the text may be the right answer"
    );
}

#[test]
fn constant_contradictory_and_missing_scores_raise_alarms() {
    let one = |text| (text, Some(0.25), false);
    let mut alarms = Alarms::default();
    assert_eq!(steps(&mut alarms, 1..13, &[&[one("a"), one("b")]]), [(10, "constant_reward".to_owned())]);
    assert_eq!((&*alarms.raised()[0].subject, alarms.raised()[0].since.0), ("r", 1));
    // A reward whose constant value changes is not constant.
    let mut alarms = Alarms::default();
    for step in 1..30 {
        let score = Some(f64::from(u8::from(step % 2 == 0)));
        alarms.take(seen(&rollouts(&[&[("a", score, false), ("b", score, false)]])));
        assert_eq!(alarms.end_step(Step(step), &BTreeMap::new()), []);
    }
    let both: &[Text<'_>] = &[("a", Some(1.0), false), ("b", Some(0.5), false), ("a", Some(0.0), false)];
    let mut alarms = Alarms::default();
    assert_eq!(steps(&mut alarms, 1..2, &[both]), [(1, "contradiction".to_owned())]);
    assert_eq!(alarms.raised()[0].examples, ["\"p0:\" → \"a\": 1 and 0"]);
    let none: &[Text<'_>] = &[("a", None, false), ("b", Some(0.5), false), ("c", Some(0.0), false)];
    assert_eq!(steps(&mut Alarms::default(), 1..2, &[none]), [(1, "unscored".to_owned())]);
}

#[test]
fn truncated_completions_that_would_have_scored_raise_an_alarm() {
    let group = |cut: f64| [("ab", Some(1.0), false), ("abc", Some(cut), true)];
    let found = |cut: f64| steps(&mut Alarms::default(), 1..5, &[&group(cut), &group(cut)]);
    assert_eq!(found(0.0), [(3, "cut_short".to_owned())]);
    assert_eq!(found(1.0), []);
}

#[test]
fn a_reward_that_rises_with_length_or_repetition_raises_an_alarm() {
    let course = |text: fn(u64) -> String, rises: f64| {
        let mut alarms = Alarms::default();
        let mut found = Vec::new();
        for step in 1..=20 {
            let (text, score) = (text(step), rises * step as f64);
            alarms.take(seen(&rollouts(&[&[(&text, Some(score), false), ("b", Some(score - 0.5), false)]])));
            found.extend(alarms.end_step(Step(step), &BTreeMap::new()).into_iter().map(|alarm| alarm.id));
        }
        found
    };
    let longer = |step: u64| (0..step * step).map(|i| char::from_u32(200 + i as u32).unwrap()).collect::<String>();
    assert_eq!(course(longer, 1.0), ["length_explodes"]);
    assert_eq!(course(longer, -1.0), Vec::<String>::new());
    let repeating = |step: u64| {
        let text = (0..30 - step).map(|i| char::from_u32(200 + i as u32).unwrap()).collect::<String>();
        text + &"a".repeat(step as usize)
    };
    assert_eq!(course(repeating, 1.0)[0], "repetition_explodes");
}

#[test]
fn reward_failures_raise_alarms_by_kind_and_in_evaluations() {
    let failed = |kind| Problem::new("r", 2, "it broke").with_kind(kind);
    let mut alarms = Alarms::default();
    let mut observed = seen(&rollouts(&[&[("a", None, false), ("b", None, false)]]));
    observed.problems(&[failed(ProblemKind::TimedOut), failed(ProblemKind::TimedOut), failed(ProblemKind::Crashed)]);
    alarms.take(observed);
    let raised = alarms.end_step(Step(1), &BTreeMap::new());
    let ids = |raised: &[Alarm]| raised.iter().map(|a| (a.id.clone(), a.subject.clone())).collect::<Vec<_>>();
    let of = |id: &str, subject: &str| (id.to_owned(), subject.to_owned());
    assert_eq!(ids(&raised), [of("reward_timed_out", "r"), of("reward_crashed", "r")]);
    assert!(raised[0].evidence.contains("it broke"), "{}", raised[0]);
    let raised = alarms.evaluation(Step(1), &[failed(ProblemKind::Crashed)], Some("no score for 3 of 4".into()));
    assert_eq!(ids(&raised), [of("reward_crashed", "r in evaluation"), of("unscored", "in evaluation")]);
    // An alarm of evaluations ends only with a later evaluation.
    let over = steps(&mut alarms, 2..20, WELL);
    assert_eq!(over, [(6, "reward_crashed".to_owned()), (6, "reward_timed_out".to_owned())]);
    let over: Vec<Alarm> = (0..5).flat_map(|_| alarms.evaluation(Step(20), &[], None)).collect();
    assert_eq!(over.len(), 2);

    alarms.not_finite("value model", "the loss is NaN".into());
    assert_eq!(ids(&alarms.end_step(Step(21), &BTreeMap::new())), [of("not_finite", "value model")]);
}

#[test]
fn alarms_resume_from_a_checkpoint_unchanged() {
    let empty: &[Text<'_>] = &[("", Some(1.0), false), (" ", Some(1.0), false), ("3", Some(0.1), false)];
    let (mut whole, mut cut) = (Alarms::default(), Alarms::default());
    steps(&mut whole, 1..9, &[empty, empty]);
    steps(&mut cut, 1..4, &[empty, empty]);
    let text = serde_json::to_string(&cut.state()).unwrap();
    let mut cut = Alarms::restore(serde_json::from_str(&text).unwrap());
    let found = steps(&mut cut, 4..9, &[empty, empty]);
    assert_eq!(found, [(5, "empty_answer_wins".to_owned())]);
    assert_eq!(cut.state(), whole.state());
}

/// Takes steps with metrics but without completions, as in SFT. Returns the ids of alarms that begin or end.
fn without_completions(metrics: &[(&str, f64)], steps: u64) -> Vec<String> {
    let metrics: BTreeMap<String, f64> = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let mut alarms = Alarms::default();
    (1..=steps).flat_map(|step| alarms.end_step(Step(step), &metrics)).map(|alarm| alarm.id).collect()
}

#[test]
fn sft_may_have_low_entropy_and_ppos_divergence_counts_per_token() {
    let mut alarms = Alarms::default();
    for step in 1..40 {
        let entropy = if step < 20 { 2.0 } else { 0.01 };
        assert_eq!(alarms.end_step(Step(step), &BTreeMap::from([("entropy".to_owned(), entropy)])), []);
    }
    let kl =
        |kl: f64, length: f64| without_completions(&[("objective/kl", kl), ("completions/mean_length", length)], 3);
    assert_eq!(kl(10.0, 10.0), ["kl_blow_up", "stale_reference"]);
    assert_eq!(kl(9.9, 10.0), ["stale_reference"]);
    assert_eq!(kl(0.2, 0.0), Vec::<String>::new(), "an empty completion must not divide by zero");
    assert_eq!(without_completions(&[("objective/kl", 99.0)], 3), Vec::<String>::new());
}

/// The ids of alarms raised in `count` steps with these completions, after one step with the lowest score 0.
fn raised(count: u64, groups: &[&[Text<'_>]]) -> Vec<String> {
    let mut alarms = Alarms::default();
    let mut all = steps(&mut alarms, 1..2, WELL);
    all.extend(steps(&mut alarms, 2..2 + count, groups));
    all.into_iter().map(|(_, id)| id).collect()
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_property_must_be_shared_by_two_winners_and_half_of_all() {
    let empty = ("", Some(1.0), false);
    let good = |text| (text, Some(1.0), false);
    let none = |text| (text, Some(0.0), false);
    assert_eq!(raised(5, &[&[empty, good("a"), none("b")]]), ["empty_answer_wins"]);
    assert_eq!(raised(5, &[&[empty, good("a"), good("b"), none("c")]]), NOTHING);
    assert_eq!(raised(5, &[&[empty, none("b"), none("c")]]), NOTHING, "a single winner");
    // A completion wins if its reward is at least the middle of the range.
    assert_eq!(raised(5, &[&[("", Some(0.5), false), good("a"), none("b")]]), ["empty_answer_wins"]);
    assert_eq!(raised(5, &[&[("", Some(0.49), false), good("a"), good("b")]]), NOTHING);
    // The share among winners must be twice that among losers, but here as many losers as winners are empty.
    assert_eq!(raised(5, &[&[empty, good("a"), none(" "), none("c")]]), NOTHING);
    // Truncated completions may have unmatched brackets.
    let open = |cut: bool| [("f(", Some(1.0), cut), ("g(", Some(1.0), cut), none("b")];
    assert_eq!(raised(5, &[&open(false)]), ["broken_text_wins"]);
    assert_eq!(raised(5, &[&open(true)]), NOTHING);

    let [yes, other] = [good("yes"), good("no")];
    assert_eq!(raised(5, &[&[yes, yes, none("x")], &[yes, other, none("x")]]), ["one_text_wins"]);
    assert_eq!(
        raised(5, &[&[yes, none("x")], &[yes, other, none("x")]]),
        NOTHING,
        "only two of three winners share the text"
    );
    assert_eq!(raised(5, &[&[yes, none("x")], &[yes, none("x")]]), NOTHING, "there are only two winners");
}

#[test]
fn a_single_score_and_equal_texts_of_other_prompts_raise_no_alarm() {
    let alone: &[Text<'_>] = &[("a", Some(0.25), false)];
    assert_eq!(steps(&mut Alarms::default(), 1..20, &[alone]), []);
    let by_prompt: &[&[Text<'_>]] =
        &[&[("a", Some(1.0), false), ("b", Some(0.0), false)], &[("a", Some(0.0), false), ("b", Some(1.0), false)]];
    assert_eq!(steps(&mut Alarms::default(), 1..9, by_prompt), []);
}

/// Takes steps with these shares of truncated completions, of at most `longest` tokens.
#[test]
fn truncation_of_short_completions_from_the_start_is_noted_once() {
    let course = |shares: &[f64], longest: f64| {
        let mut alarms = Alarms::default();
        let mut out = Vec::new();
        for (share, step) in shares.iter().zip(1..) {
            let values = [("completions/clipped_ratio", *share), ("completions/max_length", longest)];
            let values = values.map(|(name, value)| (name.to_owned(), value));
            alarms.take(seen(&rollouts(WELL)));
            out.extend(
                alarms
                    .end_step(Step(step), &BTreeMap::from(values))
                    .into_iter()
                    .map(|a| (step, a.quiet, a.until.map(|step| step.0))),
            );
        }
        out
    };
    assert_eq!(course(&[1.0; 30], 64.0), [(3, true, None)]);
    assert_eq!(course(&[1.0; 30], 512.0), [(3, false, None)]);
    // Truncation that begins later is not a choice of the configuration, so its alarm is not quiet.
    let later = [&[0.5; 3][..], &[1.0; 9]].concat();
    assert_eq!(course(&later, 64.0), [(6, false, None)]);
    let again = [&[1.0; 5][..], &[0.5; 6], &[1.0; 5]].concat();
    assert_eq!(course(&again, 64.0), [(3, true, None), (10, true, Some(10)), (14, false, None)]);
    let mut quiet = Alarm { id: "truncated".into(), since: Step(1), quiet: true, ..Alarm::default() };
    quiet.evidence = "all were cut".into();
    assert_eq!(quiet.to_string(), "note: truncated since step 1: all were cut");
}

#[test]
fn diverged_supervised_training_raises_an_alarm() {
    let course = |metrics: &[(&str, f64)], from: &[(&str, f64)]| {
        let mut alarms = Alarms::default();
        let values = |all: &[(&str, f64)]| all.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect::<BTreeMap<_, _>>();
        let mut found = Vec::new();
        for step in 1..=20 {
            let now = values(if step <= 6 { from } else { metrics });
            found.extend(alarms.end_step(Step(step), &now).into_iter().map(|alarm| (step, alarm.id)));
        }
        found
    };
    let healthy = [("loss", 2.0), ("grad_norm", 1.0)];
    let at = |step: u64, id: &str| vec![(step, id.to_owned())];
    // The loss is ln 512 and the gradient exactly 0: the model predicts all tokens as equally likely.
    assert_eq!(course(&[("loss", 6.238), ("grad_norm", 0.0)], &healthy), at(9, "diverged"));
    assert_eq!(course(&[("loss", 6.1), ("grad_norm", 0.5)], &healthy), at(9, "diverged"));
    assert_eq!(course(&[("loss", 5.9), ("grad_norm", 0.5)], &healthy), []);
    assert_eq!(course(&[("loss", 0.0), ("grad_norm", 0.0)], &healthy), [], "a loss of 0 is fully learned");
    let pairs = |margin: f64| [("loss", 0.1), ("grad_norm", 0.01), ("rewards/margins", margin)];
    assert_eq!(course(&pairs(20_631.0), &pairs(0.0)), at(9, "margin"));
    assert_eq!(course(&pairs(-100.0), &pairs(0.0)), at(9, "margin"));
    assert_eq!(course(&pairs(99.0), &pairs(0.0)), []);
    // With sampled completions, a gradient of 0 may also mean that all advantages are 0.
    assert_eq!(course(&[("loss", 1.0), ("grad_norm", 0.0), ("reward", 0.5)], &[("reward", 0.5)]), []);
}

#[test]
fn an_entropy_near_zero_from_the_start_is_a_collapse() {
    let first = |course: &[f64]| {
        let raised = values(&mut Alarms::default(), "entropy", course.iter().copied());
        raised.first().map(|(step, alarm)| (*step, alarm.id.clone()))
    };
    // The first step's entropy is older than the first generation, and is not checked.
    assert_eq!(first(&[0.001; 20]), Some((6, "entropy_collapse".to_owned())));
    assert_eq!(first(&[0.01; 20]), None);
}

#[test]
fn scores_without_a_finite_deviation_raise_an_alarm() {
    let both = |score: f64| [("a", Some(score), false), ("b", Some(-score), false)];
    assert_eq!(steps(&mut Alarms::default(), 1..2, &[&both(1e154)]), [(1, "reward_overflow".to_owned())]);
    assert_eq!(steps(&mut Alarms::default(), 1..2, &[&both(1e150)]), []);
}

/// Takes `count` steps with 16 random completions of 12 letters, truncated or not, scored by `score`. Returns the ids
/// of alarms.
fn generations(count: u64, cut: bool, score: impl Fn(&str, u64) -> f64) -> Vec<String> {
    let mut noise = 88172645463325252u64;
    let mut random = move || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise >> 11
    };
    let mut alarms = Alarms::default();
    let mut found = Vec::new();
    for step in 1..=count {
        let text = |random: &mut dyn FnMut() -> u64| {
            let word = |random: &mut dyn FnMut() -> u64| {
                let letters = if random().is_multiple_of(3) { ["aé", "\"", "i"] } else { ["b", "cd", "e"] };
                letters[random() as usize % 3].to_owned()
            };
            (0..12).map(|_| word(random)).collect::<String>()
        };
        let texts: Vec<(String, f64)> = (0..16)
            .map(|_| {
                let text = text(&mut random);
                let score = score(&text, random());
                (text, score)
            })
            .collect();
        let rows: Vec<Text<'_>> = texts.iter().map(|(text, score)| (text.as_str(), Some(*score), cut)).collect();
        alarms.take(seen(&rollouts(&[&rows[..8], &rows[8..]])));
        found.extend(alarms.end_step(Step(step), &BTreeMap::new()).into_iter().map(|alarm| alarm.id));
    }
    found
}

#[test]
fn only_rewards_independent_of_the_text_are_reported_as_noise() {
    let chance = |_: &str, random: u64| (random % 1000) as f64 / 1000.0;
    assert_eq!(generations(60, false, chance), ["reward_is_noise"]);
    assert_eq!(generations(60, true, |_, random| (random % 2) as f64), ["reward_is_noise"]);
    // Scores that depend on chance and text, and scores that depend only on the text.
    let noisy = |text: &str, random: u64| text.matches('b').count() as f64 + (random % 1000) as f64 / 250.0;
    assert_eq!(generations(60, false, noisy), NOTHING);
    assert_eq!(generations(60, false, |text, _| f64::from(u8::from(text.contains("be")))), NOTHING);
    assert_eq!(generations(24, false, chance), NOTHING, "too few completions");
}

#[test]
fn with_all_completions_truncated_characters_and_marks_are_checked() {
    let characters = |text: &str, _: u64| text.chars().count() as f64;
    assert!(generations(12, true, characters).contains(&"length_is_paid".to_owned()));
    assert_eq!(generations(12, false, characters), NOTHING);
    let quotes = |text: &str, _: u64| f64::from(u8::from(text.matches('"').count() % 2 == 1));
    assert!(generations(30, true, quotes).contains(&"odd_marks_win".to_owned()));
    assert!(generations(30, false, quotes).contains(&"odd_marks_win".to_owned()));
    let unique = |text: &str, _: u64| text.chars().collect::<BTreeSet<_>>().len() as f64;
    assert_eq!(generations(60, true, unique), NOTHING);
}
