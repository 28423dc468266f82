//! Groups whose columns do not match: each error names the group, the column and the fault.

use super::super::read::Outline;
use super::*;
use telemetry::Step;

type Put<'a> = &'a dyn Fn(&mut RecordWriter);

/// A group of two completions, with two tokens and one token, scored by two rewards.
fn good() -> Vec<u8> {
    let mut record = RecordWriter::new();
    record.uints("group", 1, [4]);
    record.uints("prompt_ids", 1, [1, 2]);
    record.uints("lengths", 1, [2, 1]);
    record.uints("ids", 1, [9, 8, 7]);
    record.texts("reward_names", ["a", "b"]);
    record.f64s("reward_weights", 1, &[2.0, 1.0]);
    record.runs("scored", [1, 0, 1, 1]);
    record.f64s("scores", 1, &[0.5, 0.25, 4.0]);
    let mut bytes = Vec::new();
    record.finish(&mut bytes);
    bytes
}

fn with(name: &str, put: Put<'_>) -> Result<Group, String> {
    let bytes = with_column(&good(), name, put);
    Group::read(&bytes).map(|(group, _)| group).map_err(|error| error.to_string())
}

/// Checks the error for a group whose column `name` is written by `put`.
#[track_caller]
fn refused(name: &str, put: Put<'_>, what: &str) {
    assert_eq!(with(name, put).unwrap_err(), format!("group 4: column {what}"));
}

#[test]
fn a_missing_column_is_named() {
    assert_eq!(with("group", &|_| {}).unwrap_err(), "column `group` is missing");
    assert_eq!(with("group", &|r| r.uints("group", 1, [4, 4])).unwrap_err(), "column `group` must have one number");
    for name in ["prompt_ids", "lengths", "ids", "scored", "scores"] {
        refused(name, &|_| {}, &format!("`{name}` is missing"));
    }
    // Without names of rewards, no scores are read.
    let without = with("reward_names", &|_| {}).unwrap_err();
    assert_eq!(without, "group 4: column `reward_weights` must have one weight for each of `reward_names`");
    let rewards = |group: Group| group.completions.into_iter().map(|c| c.rewards).collect::<Vec<_>>();
    assert_eq!(
        with("reward_weights", &|_| {}).map(rewards),
        Ok(vec![vec![Some(0.5), None], vec![Some(0.25), Some(4.0)]])
    );
}

#[test]
fn invalid_numbers_and_strings_are_named() {
    refused("prompt_ids", &|r| r.uints("prompt_ids", 1, [1, 1 << 32]), "`prompt_ids` has a number above 2^32");
    refused("ids", &|r| r.uints("ids", 1, [9, 8, 1 << 32]), "`ids` has a number above 2^32");
    for more in [vec![2, 2], vec![4], vec![2, u64::MAX], vec![u64::MAX, 2]] {
        refused("lengths", &|r| r.uints("lengths", 1, more.clone()), "`lengths` names more tokens than `ids` has");
    }
    for fewer in [vec![2], vec![1, 1], vec![]] {
        refused("lengths", &|r| r.uints("lengths", 1, fewer.clone()), "`lengths` names fewer tokens than `ids` has");
    }
    for weights in [&[1.0][..], &[1.0; 3]] {
        let what = "`reward_weights` must have one weight for each of `reward_names`";
        refused("reward_weights", &|r| r.f64s("reward_weights", 1, weights), what);
    }
    for name in ["step", "prompt_id", "prompt_in_batch"] {
        refused("", &|r| r.uints(name, 1, [1, 2]), &format!("`{name}` must have one number"));
        refused("", &|r| r.uints(name, 1, []), &format!("`{name}` must have one number"));
    }
    for name in ["prompt", "dataset", "sampling"] {
        refused("", &|r| r.texts(name, ["{}", "{}"]), &format!("`{name}` must have one string"));
    }
    for name in ["dataset", "sampling", "problems"] {
        let end = "EOF while parsing an object at line 1 column 1";
        refused("", &|r| r.texts(name, ["{"]), &format!("`{name}` has broken JSON: {end}"));
    }
    for length in [15, 17] {
        refused("", &|r| r.bytes("lineage", &vec![0; length]), "`lineage` must have 16 bytes");
    }
}

#[test]
fn columns_must_have_one_value_per_completion() {
    for name in ["completions", "extra", "step_scores"] {
        refused("", &|r| r.texts(name, ["{}"; 3]), &format!("`{name}` must have 2 values, got 3"));
    }
    refused("", &|r| r.uints("generations", 1, [0]), "`generations` must have 2 values, got 1");
    refused("", &|r| r.f32s("advantages", 1, &[0.5]), "`advantages` must have 2 values, got 1");
    refused("", &|r| r.f32s("token_advantages", 1, &[0.5; 2]), "`token_advantages` must have 3 values, got 2");
    for name in ["mask", "inserted", "versions"] {
        refused("", &|r| r.runs(name, [1, 0]), &format!("`{name}` must have 3 values"));
    }
    refused("", &|r| r.runs("finish_reasons", [1]), "`finish_reasons` must have 2 values");
    refused("", &|r| r.runs("finish_reasons", [0, 3]), "`finish_reasons` has an unknown finish reason");
    refused("scored", &|r| r.runs("scored", [1, 0, 1]), "`scored` must have 4 values");
    for (name, flags) in [("mask", vec![1, 0, 2]), ("inserted", vec![2, 0, 1])] {
        refused("", &|r| r.runs(name, flags.clone()), &format!("`{name}` must contain only 0 and 1"));
    }
    refused("scored", &|r| r.runs("scored", [1, 0, 2, 1]), "`scored` must contain only 0 and 1");
    refused("scores", &|r| r.f64s("scores", 1, &[0.5; 2]), "`scores` has fewer scores than `scored` requires");
    refused("scores", &|r| r.f64s("scores", 1, &[0.5; 4]), "`scores` has more scores than `scored` allows");
    let does_not_fit = "`step_scores` does not fit the completions and `reward_names`";
    for steps in
        [["[null]", "[]"], ["[]", "[null, null, null]"], ["[[[2, 1.0]], null]", "[]"], ["[]", "[null, [[1, 1.0]]]"]]
    {
        refused("", &|r| r.texts("step_scores", steps), does_not_fit);
    }
    let steps = with("", &|r| r.texts("step_scores", ["[[[1, 0.5]], null]", "[null, [[0, 1.5]]]"])).unwrap();
    let steps: Vec<_> = steps.completions.into_iter().map(|c| c.steps).collect();
    assert_eq!(steps, [vec![Some(vec![(1, 0.5)]), None], vec![None, Some(vec![(0, 1.5)])]]);
}

#[test]
fn a_column_of_some_completions_is_assigned_to_these() {
    let some = |put: Put<'_>| with("", put).unwrap().completions;
    let found = some(&|r| {
        r.runs("has.finish_reasons", [0, 1]);
        r.runs("finish_reasons", [1]);
        r.runs("has.completions", [1, 0]);
        r.texts("completions", ["\"x\""]);
        r.runs("has.versions", [0, 1]);
        r.runs("versions", [6]);
        r.runs("has.advantages", [0, 1]);
        r.f32s("advantages", 1, &[0.5]);
        r.runs("has.token_advantages", [1, 0]);
        r.f32s("token_advantages", 1, &[1.0, 2.0]);
        r.runs("has.token.x", [0, 1]);
        r.uints("token.x", 3, [1, 2, 3]);
        r.f32s("token.y", 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    });
    let [first, second] = &found[..] else { panic!("{found:?}") };
    assert_eq!((first.finish_reason, second.finish_reason), (None, Some(FinishReason::Length)));
    assert_eq!((&first.content, &second.content), (&Some(Content::Text("x".into())), &None));
    assert_eq!((&first.versions[..], &second.versions[..]), (&[][..], &[Updates(6)][..]));
    assert_eq!(first.advantage, Some(Advantage::Tokens(vec![1.0, 2.0])));
    assert_eq!(second.advantage, Some(Advantage::Sequence(0.5)));
    assert_eq!(first.columns.get("x"), None);
    assert_eq!(second.columns.get("x"), Some(&Column { width: 3, values: Values::U32(vec![1, 2, 3]) }));
    assert_eq!(first.columns.get("y"), Some(&Column { width: 2, values: Values::F32(vec![1.0, 2.0, 3.0, 4.0]) }));
    assert_eq!(second.columns.get("y"), Some(&Column { width: 2, values: Values::F32(vec![5.0, 6.0]) }));

    let has = |flags: &'static [u64]| {
        move |r: &mut RecordWriter| {
            r.runs("has.advantages", flags.iter().copied());
            r.f32s("advantages", 1, &[0.5]);
        }
    };
    refused("", &has(&[1, 2]), "`has.advantages` must contain only 0 and 1");
    refused("", &has(&[1]), "`has.advantages` must have 2 values");
    refused("", &has(&[1, 1]), "`advantages` must have 2 values, got 1");
    refused(
        "",
        &|r| r.uints("token.x", 1, [1, 2]),
        "`token.x` has 2 values, which does not match the tokens and the column's width",
    );
    refused(
        "",
        &|r| r.f32s("token.x", 2, &[0.0; 7]),
        "`token.x` has 7 values, which does not match the tokens and the column's width",
    );
    refused(
        "",
        &|r| r.f32s("prompt.x", 2, &[0.0; 3]),
        "`prompt.x` has 3 values, which does not match the tokens and the column's width",
    );
    refused("", &|r| r.runs("token.x", [1; 3]), "`token.x` has values of kind 4, not 2");
    refused("", &|r| r.f64s("prompt.x", 1, &[1.0]), "`prompt.x` has values of kind 3, not 2");
    let prompt = with("", &|r| r.f32s("prompt.x", 2, &[0.5, 1.5])).unwrap().prompt_columns;
    assert_eq!(prompt.get("x"), Some(&Column { width: 2, values: Values::F32(vec![0.5, 1.5]) }));
}

#[test]
fn a_fork_must_refer_to_existing_tokens() {
    let forks = |pairs: [u64; 4]| {
        let forks = with("", &|r| r.uints("forks", 2, pairs))?.completions.into_iter();
        Ok::<_, String>(forks.map(|c| c.fork.map(|fork| (fork.parent, fork.at))).collect::<Vec<_>>())
    };
    assert_eq!(forks([0, 0, 0, 0]), Ok(vec![None, None]));
    assert_eq!(forks([2, 1, 1, 1]), Ok(vec![Some((1, 1)), Some((0, 1))]));
    assert_eq!(forks([2, 0, 0, 5]), Ok(vec![Some((1, 0)), None]));
    // The fork has more tokens than the other completion or than its own; it refers to its own completion, or to a
    // missing one.
    for wrong in [[2, 2, 0, 0], [0, 0, 1, 2], [1, 0, 0, 0], [0, 0, 2, 0], [3, 0, 0, 0], [u64::MAX, 0, 0, 0]] {
        assert_eq!(forks(wrong), Err("group 4: column `forks` refers to a missing token".into()), "{wrong:?}");
    }
    for odd in [&[0, 0][..], &[0; 3], &[0; 5], &[0; 6]] {
        let what = "`forks` must have two numbers per completion";
        refused("", &|r| r.uints("forks", 2, odd.iter().copied()), what);
    }
}

#[test]
fn the_outline_of_a_group_matches_its_record() {
    let outline = |name: &str, put: Put<'_>| {
        let bytes = with_column(&good(), name, put);
        Outline::from_record(&RecordReader::take(&bytes).unwrap().0).map_err(|error| error.to_string())
    };
    // The total rewards are 2 · 0.5, and 2 · 0.25 + 4.
    let expected = |step, completions, tokens| Outline {
        group: GroupId(4),
        step,
        prompt_ids: vec![1, 2],
        totals: if completions == 2 { vec![1.0, 4.5] } else { vec![] },
        completions,
        tokens,
    };
    assert_eq!(outline("", &|_| {}), Ok(expected(None, 2, 3)));
    assert_eq!(outline("", &|r| r.uints("step", 1, [6])), Ok(expected(Some(Step(6)), 2, 3)));
    assert_eq!(outline("lengths", &|r| r.uints("lengths", 1, [2, u64::MAX])), Ok(expected(None, 2, u64::MAX)));
    let unscored = |r: &mut RecordWriter| {
        r.runs("scored", [0, 0, 1, 0]);
    };
    let bytes = with_column(&with_column(&good(), "scored", unscored), "scores", |r| r.f64s("scores", 1, &[3.0]));
    let found = Outline::from_record(&RecordReader::take(&bytes).unwrap().0).unwrap();
    assert_eq!(found.totals, [6.0], "a completion without a score has no total");
    assert_eq!(outline("lengths", &|_| {}), Err("group 4: column `lengths` is missing".into()));
    assert_eq!(outline("prompt_ids", &|_| {}), Err("group 4: column `prompt_ids` is missing".into()));
    assert_eq!(outline("group", &|_| {}), Err("column `group` is missing".into()));
    let group = with("", &|_| {}).unwrap();
    assert_eq!((group.tokens(), group.totals().collect::<Vec<_>>()), (3, vec![1.0, 4.5]));
}

#[test]
fn the_place_of_a_damaged_record_is_reported() {
    let (first, second) = (good(), with_column(&good(), "ids", |_| {}));
    let error = Group::read_all(&[&first[..], &first, &second].concat()).unwrap_err().to_string();
    assert_eq!(error, format!("record 2, at byte {}: group 4: column `ids` is missing", 2 * first.len()));
}
