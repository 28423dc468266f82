//! Tests of whole responses about recorded groups.

use super::tests::recorded;
use super::*;
use lockstep::wire::file::GroupLog;
use lockstep::wire::{GroupId, RecordWriter};

fn completion(place: usize, ids: &[u32], reward: f64, text: Option<&str>) -> Completion {
    Completion { rewards: vec![Some(reward)], content: text.map(Into::into), ..Completion::new(place, ids.to_vec()) }
}

/// A group of completions with these rewards and this number of tokens.
fn group_of(id: u64, step: u64, rewards: &[f64], tokens: usize) -> Group {
    let one = |(place, reward): (usize, &f64)| completion(place, &vec![1; tokens], *reward, Some("none"));
    Group {
        group: GroupId(id),
        step: Some(Step(step)),
        prompt_ids: vec![id as u32],
        prompt: Some(format!("question {id}").into()),
        reward_names: vec!["r".into()],
        reward_weights: vec![1.0],
        completions: rewards.iter().enumerate().map(one).collect(),
        ..Group::default()
    }
}

/// A completion that is recorded as truncated.
fn cut(text: &str) -> Completion {
    let (mut record, mut bytes) = (RecordWriter::new(), Vec::new());
    for (name, value) in [("group", 1), ("prompt_ids", 1), ("lengths", 1), ("ids", 1)] {
        record.must_be_known().uints(name, 1, [value]);
    }
    record.runs("finish_reasons", [1]);
    record.finish(&mut bytes);
    let finish_reason = Group::read(&bytes).unwrap().0.completions[0].finish_reason;
    Completion { finish_reason, ..completion(0, &[1, 2], 1.0, Some(text)) }
}

/// Four groups with mean rewards 1, 3, 0 and 2, at steps 5, 5, 7 and 8.
fn four(dir: &std::path::Path) -> GroupFile {
    let groups = [
        group_of(10, 5, &[0.5, 1.5], 2),
        group_of(11, 5, &[3.0, 3.0], 4),
        group_of(12, 7, &[-2.0, 2.0], 1),
        group_of(13, 8, &[1.0, 3.0], 3),
    ];
    recorded(dir, groups)
}

fn wanted() -> Wanted {
    Wanted { to: Step(99), limit: 9, ..Wanted::default() }
}

fn numbers(file: &GroupFile, wanted: &Wanted) -> Vec<u64> {
    let answer = list(file, wanted, None);
    answer["groups"].as_array().unwrap().iter().map(|group| group["group"].as_u64().unwrap()).collect()
}

#[test]
fn a_list_has_a_summary_of_each_group() {
    let dir = tempfile::tempdir().unwrap();
    let file = four(dir.path());
    let of = |place: usize, reward: f64, spread: f64, tokens: u32, scored: bool| {
        let entry = &file.index()[place];
        json!({
            "place": place, "group": 10 + place, "step": entry.step, "reward": reward, "spread": spread,
            "completions": 2, "tokens": tokens, "prompt_hash": format!("{:016x}", entry.prompt_hash),
            "prompt": format!("question {}", 10 + place), "scored": scored,
        })
    };
    let updated = HashSet::from([GroupId(12)]);
    let answer = list(&file, &Wanted { after: 1, limit: 2, updated, ..wanted() }, None);
    let shown = [of(1, 3.0, 0.0, 8, false), of(2, 0.0, 2.0, 2, true)];
    assert_eq!(answer, json!({ "total": 4, "unread": 0, "groups": shown, "next": 3 }));
    let rest = list(&file, &Wanted { after: 3, limit: 2, ..wanted() }, None);
    assert_eq!(rest, json!({ "total": 4, "unread": 0, "groups": [of(3, 2.0, 1.0, 6, false)], "next": null }));
    let exactly = list(&file, &Wanted { after: 2, limit: 2, ..wanted() }, None);
    assert_eq!((exactly["groups"].as_array().unwrap().len(), &exactly["next"]), (2, &Value::Null));
    let long = Group { prompt: Some("é".repeat(170).into()), ..group_of(1, 1, &[1.0], 1) };
    assert_eq!(prompt_of(&recorded(dir.path(), [long]), 4), "é".repeat(160));
}

#[test]
fn every_order_and_filter_selects_the_expected_groups() {
    let dir = tempfile::tempdir().unwrap();
    let file = four(dir.path());
    let sorted = |sort: &str| numbers(&file, &Wanted { sort: sort.into(), ..wanted() });
    for (sort, expected) in [
        ("", [10, 11, 12, 13]),
        ("step", [10, 11, 12, 13]),
        ("-step", [13, 12, 11, 10]),
        ("reward", [12, 10, 13, 11]),
        ("-reward", [11, 13, 10, 12]),
        ("spread", [11, 10, 13, 12]),
        ("-spread", [12, 13, 10, 11]),
        ("tokens", [12, 10, 13, 11]),
        ("-tokens", [11, 13, 10, 12]),
    ] {
        assert_eq!(sorted(sort), expected, "{sort}");
    }
    let only = |only: &str| {
        numbers(&file, &Wanted { only: only.into(), updated: HashSet::from([13, 99].map(GroupId)), ..wanted() })
    };
    assert_eq!((only("best"), only("worst")), (vec![11, 13, 10, 12], vec![12, 10, 13, 11]));
    assert_eq!((only("spread"), only("no-spread")), (vec![10, 12, 13], vec![11]));
    assert_eq!((only("updated"), only("cut"), only("other")), (vec![13], vec![], vec![10, 11, 12, 13]));
    let range = |from, to| numbers(&file, &Wanted { from: Step(from), to: Step(to), ..wanted() });
    assert_eq!((range(5, 5), range(6, 7), range(8, 9), range(9, 99)), (vec![10, 11], vec![12], vec![13], vec![]));
}

#[test]
fn a_search_covers_prompts_and_completions_and_ignores_case() {
    let dir = tempfile::tempdir().unwrap();
    let chat = json!([{"role": "system", "content": "Be BRIEF"}, {"role": "user", "content": "Why?"}]);
    let chat = Some(serde_json::from_value(chat).unwrap());
    let groups = [
        Group { completions: vec![cut("Halved"), completion(1, &[3], 1.0, Some("Whole"))], ..group_of(10, 1, &[], 0) },
        Group { prompt: chat, ..group_of(11, 1, &[1.0], 1) },
        Group { completions: vec![completion(0, &[5], 1.0, None)], ..group_of(12, 1, &[], 0) },
    ];
    let file = recorded(dir.path(), groups);
    let with = |only: &str, text: &str| numbers(&file, &Wanted { only: only.into(), text: text.into(), ..wanted() });
    assert_eq!((with("", "hALVED"), with("cut", ""), with("cut", "none")), (vec![10], vec![10], vec![]));
    assert_eq!((with("", "brief"), with("", "brief\nwhy?"), with("", "question 12")), (vec![11], vec![11], vec![12]));
    assert_eq!(with("", "text that occurs nowhere"), [0u64; 0]);
    assert_eq!(
        (plain(&json!("x")), plain(&json!(3)), plain(&json!([{"role": "user"}]))),
        ("x".into(), String::new(), String::new())
    );
}

#[test]
fn a_map_lists_the_groups_of_each_step_from_best_to_worst() {
    let dir = tempfile::tempdir().unwrap();
    let file = four(dir.path());
    let cells = json!([[[3.0, 0.0, 1], [1.0, 0.5, 0]], [[0.0, 2.0, 2]], [[2.0, 1.0, 3]]]);
    assert_eq!(map(&file, 4, 9, Step(0)), json!({ "steps": [5, 7, 8], "width": 1, "cells": cells }));
    // Four steps in two columns; the grid starts at the first step.
    let cells = json!([[[3.0, 0.0, 1], [1.0, 0.5, 0]], [[2.0, 1.0, 3], [0.0, 2.0, 2]]]);
    assert_eq!(map(&file, 3, 2, Step(0)), json!({ "steps": [5, 7], "width": 2, "cells": cells }));
    let one = json!([[[3.0, 0.0, 1], [1.0, 0.5, 0]]]);
    assert_eq!(
        map(&file, 0, 2, Step(0)),
        json!({ "steps": [5], "width": 4, "cells": one }),
        "every second of four groups"
    );
    assert_eq!(map(&file, 1, 0, Step(0))["cells"], json!([[[3.0, 0.0, 1]]]));
    // From step 7 on: whole columns, on the same grid.
    let last = json!([[[2.0, 1.0, 3], [0.0, 2.0, 2]]]);
    assert_eq!(map(&file, 3, 2, Step(8)), json!({ "steps": [7], "width": 2, "cells": last }));
    assert_eq!(
        (&map(&file, 4, 9, Step(7))["steps"], &map(&file, 4, 9, Step(9))["steps"]),
        (&json!([7, 8]), &json!([]))
    );
}

#[test]
fn groups_are_filtered_by_mean_reward_or_by_reward_of_a_completion() {
    let dir = tempfile::tempdir().unwrap();
    let unscored = Completion { rewards: vec![None], ..Completion::new(0, vec![1]) };
    let no_score = Group { completions: vec![unscored], ..group_of(14, 9, &[], 0) };
    let weighted = Group { reward_weights: vec![0.5], ..group_of(15, 9, &[8.0, 10.0], 1) };
    four(dir.path());
    let file = recorded(dir.path(), [no_score, weighted]);
    let within = |min: Option<f64>, max: Option<f64>, per_completion: bool| {
        numbers(&file, &Wanted { rewards: RewardRange { min, max, per_completion }, ..wanted() })
    };
    // The means are 1, 3, 0, 2, none, 4.5.
    assert_eq!(within(None, None, true), [10, 11, 12, 13, 14, 15]);
    assert_eq!(within(Some(2.0), None, false), [11, 13, 15]);
    assert_eq!(within(None, Some(1.0), false), [10, 12]);
    assert_eq!(within(Some(1.0), Some(2.0), false), [10, 13]);
    // The rewards of the completions are 0.5 1.5, 3 3, −2 2, 1 3, none, 4 5.
    assert_eq!(within(Some(2.0), None, true), [11, 12, 13, 15]);
    assert_eq!(within(Some(4.5), None, true), [15]);
    assert_eq!(within(Some(1.2), Some(1.8), true), [10]);
    assert_eq!(within(None, Some(-1.0), true), [12]);
}

#[test]
fn the_nearest_scored_group_is_found_by_step() {
    let dir = tempfile::tempdir().unwrap();
    let file = four(dir.path());
    let of = |place: usize, updated: &[u64]| nearest(&file, place, &updated.iter().copied().map(GroupId).collect());
    assert_eq!(of(0, &[]), Value::Null);
    assert_eq!(of(2, &[10, 13]), json!({ "place": 3, "step": 8 }), "one step later is nearer than two steps earlier");
    assert_eq!(of(3, &[11, 12]), json!({ "place": 2, "step": 7 }));
    assert_eq!(of(0, &[10, 11]), json!({ "place": 0, "step": 5 }), "itself");
}

#[test]
fn a_completion_is_returned_with_the_recorded_values_of_its_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = completion(0, &[4, 5, 6], 0.5, None);
    one.columns.set("entropies", vec![0.5, 0.25, 0.125]);
    one.columns.set("values", vec![1.0, 2.0, 3.0]);
    one.columns.set("sampler_logps", vec![-1.0, -2.0, -4.0]);
    let sequence = completion(1, &[7], 1.0, Some("seven"));
    let file = recorded(dir.path(), [Group { completions: vec![one, sequence], ..group_of(3, 2, &[], 0) }]);
    let updates = dir.path().join("updates.bin");
    let mut log = GroupLog::open(&updates).unwrap();
    let mut scored = Completion::new(0, vec![4, 5, 6]);
    scored.columns.set(NEW_LOGPS, vec![-0.5, -0.25, -8.0]);
    let mut record = Vec::new();
    Group { group: GroupId(3), completions: vec![scored], ..Group::default() }.write(&mut record);
    log.append(&record).unwrap();
    let updates = GroupFile::open(&updates).unwrap();
    let cut = |from, count| window(&file, 0, 0, None, Some(&updates), (from, count)).unwrap().unwrap();
    let middle = cut(1, 1);
    for (key, value) in [
        ("number", json!(0)),
        ("length", json!(3)),
        ("from", json!(1)),
        ("ids", json!([5])),
        ("pieces", Value::Null),
        ("text", Value::Null),
        ("logprobs", json!([-2.0])),
        ("new_logprobs", json!([-0.25])),
        ("entropies", json!([0.25])),
        ("values", json!([2.0])),
        ("advantages", Value::Null),
        ("advantage", Value::Null),
        ("mask", Value::Null),
        ("rewards", json!([0.5])),
    ] {
        assert_eq!(middle[key], value, "{key}");
    }
    assert_eq!((&cut(0, 2)["ids"], &cut(2, 9)["ids"], &cut(3, 1)["ids"]), (&json!([4, 5]), &json!([6]), &json!([])));
    let behind = cut(9, usize::MAX);
    assert_eq!((&behind["from"], &behind["ids"], &behind["logprobs"]), (&json!(3), &json!([]), &json!([])));
    let other = window(&file, 0, 1, None, Some(&updates), (0, 9)).unwrap().unwrap();
    assert_eq!((&other["number"], &other["text"], &other["new_logprobs"]), (&json!(1), &json!("seven"), &Value::Null));
    let whole = group(&file, 0, None, None).unwrap();
    assert_eq!(
        (&whole["prompt"], &whole["weights"], &whole["problems"]),
        (&json!("question 3"), &json!([1.0]), &json!([]))
    );
    assert_eq!(
        (&whole["reward_names"], &whole["columns"], &whole["scored"]),
        (&json!(["r"]), &Value::Null, &json!(false))
    );
    assert_eq!((&whole["completions"][0]["ids"], &whole["nearest_scored"]), (&json!([4, 5, 6]), &Value::Null));
    // A long completion is returned in windows.
    let long = Group { completions: vec![completion(0, &[1; WINDOW + 1], 1.0, None)], ..group_of(4, 2, &[], 0) };
    let dir = tempfile::tempdir().unwrap();
    let file = recorded(dir.path(), [long]);
    let ids = |value: &Value| value["ids"].as_array().unwrap().len();
    assert_eq!(ids(&group(&file, 0, None, None).unwrap()["completions"][0]), WINDOW);
    assert_eq!(ids(&window(&file, 0, 0, None, None, (0, usize::MAX)).unwrap().unwrap()), WINDOW);
    assert_eq!(ids(&window(&file, 0, 0, None, None, (WINDOW, usize::MAX)).unwrap().unwrap()), 1);
}
