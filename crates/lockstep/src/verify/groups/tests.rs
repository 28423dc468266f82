//! Every kind of lie in a recorded group, and the place at which it is found.

use super::*;
use crate::rollouts::wire::Lineage;
use model::columns::{Column, REF_LOGPS};
use rollout::FinishReason;
use serde_json::json;

fn completion(place: usize, ids: Vec<u32>, advantage: Advantage) -> Completion {
    let tokens = ids.len();
    let logps = |base: f32| (0..tokens).map(|t| base - t as f32).collect::<Vec<f32>>();
    let mut columns = Columns::of([(SAMPLER_LOGPS, logps(-0.5)), (REF_LOGPS, logps(-0.25))]);
    columns.insert("top_ids", Column { width: 2, values: Values::U32(vec![3; 2 * tokens]) });
    Completion {
        versions: vec![6; tokens],
        columns,
        finish_reason: Some(FinishReason::Stop),
        advantage: Some(advantage),
        rewards: vec![Some(0.5), Some(2.0)],
        steps: vec![None, Some(vec![(0, 2.0)])],
        ..Completion::new(place, ids)
    }
}

fn group() -> Group {
    Group {
        id: 7,
        step: Some(3),
        prompt_ids: vec![1, 2],
        prompt_id: Some(4),
        reward_names: vec!["a".into(), "b".into()],
        reward_weights: vec![1.0, 0.5],
        completions: vec![
            completion(0, vec![5, 6, 7], Advantage::Tokens(vec![0.5, 1.0, 1.5])),
            completion(1, vec![8, 9], Advantage::Sequence(-0.5)),
        ],
        ..Group::default()
    }
}

/// A difference of the group: the index of its completion and of its token, its kind, and the two values.
fn found(completion: Option<usize>, token: Option<usize>, kind: &str, recorded: &str, remade: &str) -> Difference {
    Difference {
        step: Some(3),
        group: Some(7),
        completion,
        token,
        kind: kind.into(),
        recorded: recorded.into(),
        remade: remade.into(),
        ..Difference::default()
    }
}

fn set(completion: &mut Completion, name: &'static str, token: usize, to: f32) {
    let mut values = completion.columns.f32(name).unwrap().to_vec();
    values[token] = to;
    completion.columns.set(name, values);
}

type Case = (fn(&mut Group), Difference);

/// Checks what is found where the record has been changed like this.
#[track_caller]
fn all<const N: usize>(cases: [Case; N]) {
    for (lie, expected) in cases {
        let mut recorded = group();
        lie(&mut recorded);
        assert_eq!(difference(&recorded, &group(), LeftOut::default()), Some(expected));
    }
    assert_eq!(difference(&group(), &group(), LeftOut::default()), None);
}

#[test]
fn lies_about_the_whole_group() {
    let none = None::<usize>;
    let whole = |kind: &str, recorded: &str, remade: &str| found(none, none, kind, recorded, remade);
    let lineage = "Some(07070707070707070707070707070707)";
    all([
        (|g| g.lineage = Some(Lineage([7; 16])), whole("lineage", lineage, "None")),
        (|g| g.step = Some(2), whole("step", "Some(2)", "Some(3)")),
        (|g| g.prompt_id = None, whole("row of the data", "None", "Some(4)")),
        (|g| g.prompt_ids[1] = 9, found(none, Some(1), "token of the prompt", "9", "2")),
        (|g| g.prompt_ids.truncate(1), found(none, Some(1), "token of the prompt", "none", "2")),
        (|g| g.prompt_ids.push(3), found(none, Some(2), "token of the prompt", "3", "none")),
        (
            |g| drop(g.sampling.insert("top_k".into(), json!(3))),
            whole("sampling settings", "{\"top_k\": Number(3)}", "{}"),
        ),
        (
            |g| drop(g.dataset.insert("answer".into(), json!("x"))),
            whole("columns of the data", "{\"answer\": String(\"x\")}", "{}"),
        ),
        (|g| g.reward_names[0] = "c".into(), whole("names of rewards", r#"["c", "b"]"#, r#"["a", "b"]"#)),
        (
            |g| g.reward_weights[1] = 0.75,
            found(none, Some(1), "weight of a reward", "0.75 (0x3fe8000000000000)", "0.5 (0x3fe0000000000000)"),
        ),
        (|g| g.completions.truncate(1), whole("number of completions", "1", "2")),
    ]);
}

#[test]
fn lies_about_tokens() {
    all([
        (|g| g.completions[1].ids[1] = 4, found(Some(1), Some(1), "token", "4", "9")),
        (
            |g| {
                let c = &mut g.completions[0];
                c.ids.pop();
            },
            found(Some(0), Some(2), "token", "none", "7"),
        ),
        (
            |g| set(&mut g.completions[0], SAMPLER_LOGPS, 2, f32::from_bits((-2.5f32).to_bits() + 1)),
            found(Some(0), Some(2), "log-probability", "-2.5000002 (0xc0200001)", "-2.5 (0xc0200000)"),
        ),
        (
            |g| drop(g.completions[1].columns.remove(SAMPLER_LOGPS)),
            found(Some(1), Some(0), "log-probability", "none", "-0.5 (0xbf000000)"),
        ),
        (|g| g.completions[0].versions[1] = 5, found(Some(0), Some(1), "version of the weights", "5", "6")),
        (|g| g.completions[1].sampled[0] = false, found(Some(1), Some(0), "sampled", "false", "true")),
        (
            |g| g.completions[1].finish_reason = Some(FinishReason::Length),
            found(Some(1), None, "finish reason", "Some(Length)", "Some(Stop)"),
        ),
        (|g| g.completions[1].generation = 0, found(Some(1), None, "generation", "0", "1")),
        (|g| g.completions[0].mask[2] = false, found(Some(0), Some(2), "mask", "false", "true")),
    ]);
}

#[test]
fn lies_about_scores_columns_and_advantages() {
    all([
        (
            |g| g.completions[1].rewards[0] = None,
            found(Some(1), None, "score of `a`", "none", "0.5 (0x3fe0000000000000)"),
        ),
        (
            |g| g.completions[0].rewards[1] = Some(-0.0),
            found(Some(0), None, "score of `b`", "-0 (0x8000000000000000)", "2 (0x4000000000000000)"),
        ),
        (|g| g.completions[0].rewards.truncate(1), found(Some(0), None, "number of scores", "1", "2")),
        (
            |g| g.completions[1].steps = Vec::new(),
            found(Some(1), None, "scores of steps", r#""[]""#, r#""[None, Some([(0, 2.0)])]""#),
        ),
        (
            |g| drop(g.completions[1].columns.remove(REF_LOGPS)),
            found(
                Some(1),
                None,
                "columns",
                r#"["sampler_logps", "top_ids"]"#,
                r#"["ref_logps", "sampler_logps", "top_ids"]"#,
            ),
        ),
        (
            |g| set(&mut g.completions[0], REF_LOGPS, 1, -1.5),
            found(Some(0), Some(1), "ref_logps", "-1.5 (0xbfc00000)", "-1.25 (0xbfa00000)"),
        ),
        (
            |g| g.completions[1].columns.insert("top_ids", Column { width: 2, values: Values::U32(vec![3, 3, 3, 4]) }),
            found(Some(1), Some(3), "top_ids", "4", "3"),
        ),
        (
            |g| g.completions[1].columns.insert(REF_LOGPS, Column { width: 1, values: Values::U32(vec![3, 3]) }),
            found(Some(1), None, "ref_logps", "values of another type", ""),
        ),
        (
            |g| g.completions[0].advantage = Some(Advantage::Tokens(vec![0.5, 2.0, 1.5])),
            found(Some(0), Some(1), "advantage", "2 (0x40000000)", "1 (0x3f800000)"),
        ),
        (
            |g| g.completions[1].advantage = Some(Advantage::Sequence(0.5)),
            found(Some(1), None, "advantage", "0.5 (0x3f000000)", "-0.5 (0xbf000000)"),
        ),
        (|g| g.completions[1].advantage = None, found(Some(1), None, "advantage", "none", "-0.5 (0xbf000000)")),
        (
            |g| g.completions[1].advantage = Some(Advantage::Tokens(vec![-0.5, -0.5])),
            found(Some(1), Some(1), "advantage", "-0.5 (0xbf000000)", "none"),
        ),
    ]);
}

/// Values are compared by their bits: two NaN of the same bits are equal, 0 and -0 are not.
#[test]
fn bits_are_compared() {
    let nan = |g: &mut Group| {
        set(&mut g.completions[0], SAMPLER_LOGPS, 0, f32::NAN);
        set(&mut g.completions[0], REF_LOGPS, 0, f32::NAN);
        g.completions[0].rewards[0] = Some(f64::NAN);
        g.completions[1].advantage = Some(Advantage::Sequence(f32::NAN));
    };
    let (mut one, mut other) = (group(), group());
    nan(&mut one);
    nan(&mut other);
    assert_eq!(difference(&one, &other, LeftOut::default()), None);
    for name in [SAMPLER_LOGPS, REF_LOGPS] {
        let (mut zero, mut minus) = (group(), group());
        set(&mut zero.completions[0], name, 1, 0.0);
        set(&mut minus.completions[0], name, 1, -0.0);
        let kind = if name == SAMPLER_LOGPS { "log-probability" } else { name };
        let expected = found(Some(0), Some(1), kind, "0 (0x00000000)", "-0 (0x80000000)");
        assert_eq!(difference(&zero, &minus, LeftOut::default()), Some(expected));
    }
}

/// What is made first is compared first, in all completions; scores that were not asked again are left out.
#[test]
fn the_first_lie_is_named() {
    let mut recorded = group();
    let kind = |recorded: &Group| {
        difference(recorded, &group(), LeftOut::default()).map(|found| (found.kind, found.completion))
    };
    recorded.completions[0].advantage = None;
    assert_eq!(kind(&recorded), Some(("advantage".into(), Some(0))));
    set(&mut recorded.completions[1], REF_LOGPS, 0, 0.0);
    assert_eq!(kind(&recorded), Some(("ref_logps".into(), Some(1))));
    recorded.completions[1].rewards[1] = None;
    assert_eq!(kind(&recorded), Some(("score of `b`".into(), Some(1))));
    let without = |name: &str| {
        difference(&recorded, &group(), LeftOut { rewards: &[name.to_owned()], words: false }).map(|found| found.kind)
    };
    assert_eq!((without("b"), without("a")), (Some("ref_logps".into()), Some("score of `b`".into())));
    recorded.completions[1].ids[0] = 0;
    recorded.completions[0].rewards[0] = None;
    assert_eq!(kind(&recorded), Some(("token".into(), Some(1))));
    recorded.prompt_id = None;
    assert_eq!(kind(&recorded), Some(("row of the data".into(), None)));
}
