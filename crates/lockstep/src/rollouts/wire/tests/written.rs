//! Which columns a group's record has, in which order, and what cannot be written.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Two completions of two tokens and of one; nothing else is known.
fn bare() -> Group {
    let completions = vec![Completion::new(0, vec![9, 8]), Completion::new(1, vec![7])];
    Group { id: 4, prompt_ids: vec![1, 2, 3], completions, ..Group::default() }
}

fn changed(change: impl FnOnce(&mut Group)) -> Group {
    let mut group = bare();
    change(&mut group);
    group
}

/// Text of one completion, and what is known of it.
fn first(change: impl FnOnce(&mut Completion)) -> Group {
    changed(|group| change(&mut group.completions[0]))
}

fn column(width: usize, values: usize) -> Column {
    Column { width, values: Values::F32(vec![0.5; values]) }
}

#[test]
fn a_column_is_written_where_something_is_known() {
    let scored = |group: &mut Group| {
        group.reward_names = vec!["r".into()];
        group.completions.iter_mut().for_each(|c| c.rewards = vec![Some(1.0)]);
    };
    let both = |change: fn(&mut Completion)| changed(|group| group.completions.iter_mut().for_each(change));
    let cases: [(Group, &[(&str, u64)]); 31] = [
        (bare(), &[]),
        (changed(|g| g.step = Some(3)), &[("step", 1)]),
        (changed(|g| g.prompt_id = Some(3)), &[("prompt_id", 1)]),
        (changed(|g| g.prompt_in_batch = Some(3)), &[("prompt_in_batch", 1)]),
        (changed(|g| g.prompt = Some(Content::from("x"))), &[("prompt", 1)]),
        (changed(|g| g.dataset = object(json!({"a": 1}))), &[("dataset", 1)]),
        (changed(|g| g.sampling = object(json!({"a": 1}))), &[("sampling", 1)]),
        (changed(|g| g.lineage = Some(Lineage([7; 16]))), &[("lineage", 1)]),
        (changed(|g| g.prompt_columns.insert("x", column(3, 6))), &[("prompt.x", 3)]),
        (changed(|g| g.problems = vec![json!({"reward": "r"})]), &[("problems", 1)]),
        (changed(|g| g.reward_weights = vec![1.0]), &[]),
        (changed(scored), &[("reward_names", 1), ("scored", 1), ("scores", 1)]),
        (
            changed(|g| {
                scored(g);
                g.reward_weights = vec![0.5];
                g.completions[1].steps = vec![Some(vec![(0, 1.0)])];
            }),
            &[("reward_names", 1), ("reward_weights", 1), ("scored", 1), ("scores", 1), ("step_scores", 1)],
        ),
        (first(|c| c.generation = 1), &[("generations", 1)]),
        (changed(|g| g.completions[1].generation = 0), &[("generations", 1)]),
        (first(|c| c.finish_reason = Some(FinishReason::Length)), &[("has.finish_reasons", 1), ("finish_reasons", 1)]),
        (both(|c| c.finish_reason = Some(FinishReason::Stop)), &[("finish_reasons", 1)]),
        (first(|c| c.content = Some(Content::from("x"))), &[("has.completions", 1), ("completions", 1)]),
        (both(|c| c.content = Some(Content::from("x"))), &[("completions", 1)]),
        (first(|c| c.extra = object(json!({"a": 1}))), &[("extra", 1)]),
        (first(|c| c.fork = Some(Fork { parent: 1, at: 1 })), &[("forks", 2)]),
        (first(|c| c.advantage = Some(Advantage::Sequence(0.5))), &[("has.advantages", 1), ("advantages", 1)]),
        (both(|c| c.advantage = Some(Advantage::Sequence(0.0))), &[("advantages", 1)]),
        (
            first(|c| c.advantage = Some(Advantage::Tokens(vec![0.5; 2]))),
            &[("has.token_advantages", 1), ("token_advantages", 1)],
        ),
        (first(|c| c.mask[1] = false), &[("mask", 1)]),
        (first(|c| (c.mask[1], c.sampled[1]) = (false, false)), &[("inserted", 1)]),
        (first(|c| c.sampled[1] = false), &[("mask", 1), ("inserted", 1)]),
        (first(|c| c.versions = vec![3, 4]), &[("has.versions", 1), ("versions", 1)]),
        (both(|c| c.versions = vec![3; c.ids.len()]), &[("versions", 1)]),
        (first(|c| c.columns.insert("x", column(3, 6))), &[("has.token.x", 1), ("token.x", 3)]),
        (
            both(|c| {
                c.columns.insert("y", column(1, c.ids.len()));
                c.columns.insert("x", Column { width: 2, values: Values::U32(vec![5; 2 * c.ids.len()]) });
            }),
            &[("token.x", 2), ("token.y", 1)],
        ),
    ];
    for (group, more) in cases {
        let written = bytes(&group);
        let always = ["group", "prompt_ids", "lengths", "ids"].map(|name| (name, 1));
        assert_eq!(widths(&written), [&always[..], more].concat());
        let (record, _) = RecordReader::take(&written).unwrap();
        let must_be_known = |name: &str| record.refuse_unknown(|known| known != name).is_err();
        let must: Vec<&str> = record.names().filter(|name| must_be_known(name)).collect();
        assert_eq!(must, ["group", "prompt_ids", "lengths", "ids"]);
        if group.reward_weights.len() == group.reward_names.len() {
            assert_eq!(Group::read(&written).unwrap().0, group);
        }
    }
    let names: Vec<String> = widths(&bytes(&full())).into_iter().map(|(name, _)| name.to_owned()).collect();
    let expected = "group prompt_ids lengths ids step prompt_id prompt_in_batch prompt dataset sampling lineage \
                    prompt.sampler_logps prompt.top_logps problems reward_names reward_weights scored scores \
                    step_scores generations has.finish_reasons finish_reasons has.completions completions extra forks \
                    has.advantages advantages has.token_advantages token_advantages mask inserted has.versions \
                    versions has.token.ref_logps token.ref_logps has.token.sampler_logps token.sampler_logps \
                    has.token.top_ids token.top_ids";
    assert_eq!(names.join(" "), expected);
}

#[test]
fn the_values_of_a_group_are_those_that_the_documentation_names() {
    let written = bytes(&full());
    let (record, _) = RecordReader::take(&written).unwrap();
    let uints = |name: &str| record.uints(name).unwrap().unwrap();
    assert_eq!(
        [uints("group"), uints("step"), uints("prompt_id"), uints("prompt_in_batch")].concat(),
        [u64::MAX, 3, 12, 0]
    );
    assert_eq!((uints("prompt_ids"), uints("lengths")), (vec![1, 2, 300], vec![4, 1, 0]));
    assert_eq!((uints("ids"), uints("generations")), (vec![5, 1 << 31, 0, u64::from(u32::MAX), 5], vec![0, 0, 1]));
    assert_eq!(uints("token.top_ids"), (0..8).collect::<Vec<u64>>());
    let runs = |name: &str, count: usize| record.runs(name, count).unwrap().unwrap();
    assert_eq!((runs("has.finish_reasons", 3), runs("finish_reasons", 2)), (vec![1, 1, 0], vec![1, 0]));
    assert_eq!((runs("scored", 6), record.f64s("scores").unwrap().unwrap().len()), (vec![1, 0, 0, 1, 0, 0], 2));
    assert_eq!((runs("has.advantages", 3), runs("has.token_advantages", 3)), (vec![0, 1, 0], vec![1, 0, 0]));
    assert_eq!((runs("mask", 5), runs("inserted", 5)), (vec![1, 0, 0, 0, 1], vec![0, 1, 1, 0, 0]));
    assert_eq!((runs("has.versions", 3), runs("versions", 5)), (vec![1, 1, 0], vec![7, 7, 8, 8, 8]));
    assert_eq!(record.f32s("token.ref_logps").unwrap().unwrap(), [-1.0, -2.0, -3.0, f32::MIN_POSITIVE / 2.0]);
    let texts = |name: &str| -> Value {
        let texts = record.texts(name).unwrap().unwrap();
        texts.into_iter().map(|text| serde_json::from_str::<Value>(text).unwrap()).collect()
    };
    assert_eq!(texts("prompt"), json!([[{"role": "user", "content": "hi"}]]));
    assert_eq!(texts("completions"), json!(["a \u{10ffff}", [{"role": "assistant", "content": "b"}]]));
    assert_eq!(texts("step_scores"), json!([[[[0, 0.1], [3, -4.0]], null], [], []]));
    assert_eq!(texts("extra"), json!([{"answer": 0.1, "parsed": [null, "x"]}, {}, {}]));
    assert_eq!(texts("problems"), json!([{"reward": "len", "message": "no\nanswer"}]));
    assert_eq!(record.bytes("lineage").unwrap().unwrap(), b"0123456789abcdef");
}

/// Lists that do not fit the tokens are a bug of the caller, and nothing is written.
#[test]
fn what_does_not_fit_the_tokens_is_not_written() {
    let tokens = |x: &str| format!("`{x}` has one kind and one width in all completions");
    let cases: [(Group, String); 11] = [
        (changed(|g| g.reward_names = vec!["r".into()]), "a score, or none, of each reward".into()),
        (first(|c| c.sampled.truncate(1)), "masks have one element per token".into()),
        (first(|c| c.mask.push(true)), "masks have one element per token".into()),
        (changed(|g| g.completions[1].mask.clear()), "masks have one element per token".into()),
        (first(|c| c.versions = vec![1]), "a version of each token".into()),
        (
            changed(|g| {
                g.completions[0].versions = vec![1; 2];
                g.completions[1].versions = vec![1; 2];
            }),
            "a version of each token".into(),
        ),
        (first(|c| c.columns.insert("x", column(2, 2))), "`token.x` has values of each token".into()),
        (first(|c| c.columns.insert("x", column(1, 3))), "`token.x` has values of each token".into()),
        (first(|c| c.advantage = Some(Advantage::Tokens(vec![0.5]))), "an advantage of each token".into()),
        (
            changed(|g| {
                g.completions[0].columns.insert("x", column(1, 2));
                g.completions[1].columns.insert("x", column(2, 2));
            }),
            tokens("token.x"),
        ),
        (
            changed(|g| {
                g.completions.push(Completion::new(2, vec![5]));
                g.completions[0].columns.insert("x", column(1, 2));
                g.completions[1].columns.insert("x", column(1, 1));
                g.completions[2].columns.insert("x", Column { width: 1, values: Values::U32(vec![4]) });
            }),
            tokens("token.x"),
        ),
    ];
    for (group, words) in cases {
        let panic = catch_unwind(AssertUnwindSafe(|| bytes(&group))).expect_err(&words);
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let said = text.or_else(|| panic.downcast_ref::<&str>().copied()).expect("a text");
        assert!(said.contains(&words), "{said}, not {words}");
    }
}
