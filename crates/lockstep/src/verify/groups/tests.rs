//! Every kind of wrong value in a recorded group, and the place of the reported difference.

use super::*;
use crate::rollouts::wire::Fork;
use model::columns::{Column, REF_LOGPS};
use model::{GroupId, Updates};
use rollout::FinishReason;
use telemetry::Step;

fn completion(place: usize, ids: Vec<u32>, advantage: Advantage) -> Completion {
    let tokens = ids.len();
    let logps = |base: f32| (0..tokens).map(|t| base - t as f32).collect::<Vec<f32>>();
    let mut columns = Columns::of([(SAMPLER_LOGPS, logps(-0.5)), (REF_LOGPS, logps(-0.25))]);
    columns.insert("top_ids", Column { width: 2, values: Values::U32(vec![3; 2 * tokens]) });
    Completion {
        versions: vec![Updates(6); tokens],
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
        group: GroupId(7),
        step: Some(Step(3)),
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

/// A difference in the group: the indices of completion and token, the kind, and both values.
fn found(completion: Option<usize>, token: Option<usize>, kind: &str, recorded: &str, remade: &str) -> Difference {
    Difference {
        step: Some(Step(3)),
        group: Some(GroupId(7)),
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

/// Values are compared by bits: NaNs with the same bits are equal, 0 and -0 are not.
#[test]
fn values_are_compared_by_bits() {
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

/// Parts are compared in the order of their computation, over all completions; scores from the record are ignored.
#[test]
fn the_first_difference_in_order_of_computation_is_reported() {
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

/// Each value of a completion is changed in turn. The recorded value is named first.
#[test]
fn the_recorded_value_is_named_before_the_remade_one() {
    type Change = fn(&mut Completion);
    let changes: [(Change, [&str; 3]); 7] = [
        (|c| c.ids[0] = 90, ["token", "90", "5"]),
        (|c| c.versions[1] = Updates(90), ["version of the weights", "90", "6"]),
        (|c| c.finish_reason = Some(FinishReason::Length), ["finish reason", "Some(Length)", "Some(Stop)"]),
        (|c| c.generation = 90, ["generation", "90", "0"]),
        (|c| c.content = Some("90".into()), ["text of the completion", "Some(Text(\"90\"))", "None"]),
        (|c| c.fork = Some(Fork { parent: 1, at: 90 }), ["fork", "Some(Fork { parent: 1, at: 90 })", "None"]),
        (|c| c.rewards[1] = Some(90.0), ["score of `b`", "90", "2"]),
    ];
    for (change, expected) in changes {
        let mut recorded = group();
        change(&mut recorded.completions[0]);
        let Difference { kind, recorded, remade, .. } = difference(&recorded, &group(), LeftOut::default()).unwrap();
        // Numbers are followed by their bits.
        let first = |text: &str| text.split(" (0x").next().unwrap_or_default().to_owned();
        assert_eq!([kind, first(&recorded), first(&remade)], expected);
    }
    let told = |message: &str| serde_json::json!({"reward": "a", "message": message});
    let Difference { kind, recorded, remade, .. } = problems(&[told("x")], &[told("y")], false).unwrap();
    assert_eq!(
        [kind, recorded, remade],
        ["problem of a reward".to_owned(), told("x").to_string(), told("y").to_string()]
    );
}
