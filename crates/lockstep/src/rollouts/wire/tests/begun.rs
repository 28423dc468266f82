//! The bytes of batches that are generated in chunks.

use super::super::begun::groups_of_begun;
use super::*;
use crate::config::SamplingPlan;
use crate::data::prompts::Prompt;
use crate::rollouts::collector::CollectRequest;
use crate::rollouts::jobs::{BegunBatch, GroupAnswer};
use rewards::{GivenScores, Scores};
use rollout::{RolloutGroup, SamplingParams};
use telemetry::Step;

fn row(row: u64) -> Option<Arc<Prompt>> {
    let (tokens, content) = (model::Prompt::new([row as u32, 9]), Content::Text(row.to_string()));
    (row < 6).then(|| Arc::new(Prompt { row: row as usize, tokens, content, columns: Map::new() }))
}

/// The answer of group `number` with two completions of `tokens` tokens, unfinished or scored by one reward.
fn answer(number: u64, row_number: u64, tokens: usize, ended: bool) -> GroupAnswer {
    let completion = |generation: usize| rollout::Completion {
        generation,
        ids: vec![4 + generation as u32; tokens],
        sampled: vec![true; tokens],
        versions: vec![Updates(8); tokens],
        columns: Columns::of([(SAMPLER_LOGPS, vec![-0.5; tokens])]),
        finish_reason: if ended { FinishReason::Stop } else { FinishReason::Unfinished },
    };
    let group =
        RolloutGroup::new(GroupId(number), row(row_number).unwrap().tokens.clone(), vec![completion(0), completion(1)]);
    let scores = Scores::new(vec![Some(0.5), Some(1.5)]);
    let scores = if ended { vec![GivenScores { reward: 0, scores, seconds: 0.25 }] } else { Vec::new() };
    GroupAnswer { group, scores, rollout_s: 0.75 }
}

/// The groups 7 and 8, of the rows 3 and 1.
fn batch() -> BegunBatch {
    BegunBatch {
        step: Step(5),
        prompts: [(GroupId(7), row(3).unwrap()), (GroupId(8), row(1).unwrap())].into(),
        answers: vec![answer(7, 3, 2, false), answer(8, 1, 3, true)],
        rewards: vec!["a".into()],
    }
}

fn take(bytes: &[u8]) -> Result<(BegunBatch, usize), String> {
    let sampling = SamplingPlan::alike(Arc::new(SamplingParams::default()));
    let like = CollectRequest {
        prompts: Default::default(),
        num_generations: 2,
        sampling: &sampling,
        reward_weights: &[1.0],
        step: Step(0),
        refuse_non_finite: false,
        activations: None,
    };
    let taken = BegunBatch::take(bytes, &like, row);
    taken.map(|(batch, rest)| (batch, rest.len())).map_err(|error| error.to_string())
}

#[test]
fn a_begun_batch_is_read_back_unchanged() {
    let bytes = batch().to_bytes();
    assert_eq!(widths(&bytes), [("begun", 1), ("rows", 1), ("rewards", 1)]);
    let (head, _) = RecordReader::take(&bytes).unwrap();
    assert_eq!(head.uints("begun").unwrap().unwrap(), [5, 7, 2]);
    assert_eq!(head.uints("rows").unwrap().unwrap(), [3, 1]);
    assert_eq!(head.texts("rewards").unwrap().unwrap(), ["a"]);
    let unknown = |name: &str| head.refuse_unknown(|known| known != name).is_err();
    assert_eq!(["begun", "rows", "rewards"].map(unknown), [true, true, false]);
    assert_eq!(take(&bytes), Ok((batch(), 0)));
    let mut second = batch();
    second.prompts = [(GroupId(9), row(0).unwrap())].into();
    second.answers = vec![answer(9, 0, 1, false)];
    let both = [bytes.clone(), second.to_bytes()].concat();
    assert_eq!(take(&both), Ok((batch(), both.len() - bytes.len())));
    let ids: Vec<u64> = groups_of_begun(&both).unwrap().iter().map(|group| group.group.0).collect();
    assert_eq!(ids, [7, 8, 9]);
    assert!(groups_of_begun(&[]).unwrap().is_empty());
    let none = BegunBatch { step: Step(0), prompts: Default::default(), answers: Vec::new(), rewards: Vec::new() };
    assert_eq!(take(&none.to_bytes()), Ok((none, 0)));
    // One group ended before workers scored it.
    let mut unscored = batch();
    unscored.answers[1].scores.clear();
    assert_eq!(take(&unscored.to_bytes()), Ok((unscored, 0)));
}

#[test]
fn a_begun_batch_that_does_not_fit_the_data_is_refused() {
    let bytes = batch().to_bytes();
    let refused = |name: &str, put: &dyn Fn(&mut RecordWriter)| take(&with_column(&bytes, name, put)).unwrap_err();
    let begun = |values: [u64; 3]| refused("begun", &|r| r.uints("begun", 1, values));
    assert_eq!(refused("begun", &|r| r.uints("begun", 1, [5, 7])), "column `begun` must have 3 numbers");
    let rows = "column `rows` must have one row per group";
    for wrong in [vec![3], vec![3, 1, 1], vec![]] {
        assert_eq!(refused("rows", &|r| r.uints("rows", 1, wrong.clone())), rows);
    }
    assert_eq!(refused("rows", &|_| {}), rows);
    assert_eq!((begun([5, 7, 1]), begun([5, 7, 3]), begun([5, u64::MAX, 2])), (rows.into(), rows.into(), rows.into()));
    let no_row = refused("rows", &|r| r.uints("rows", 1, [3, 6]));
    assert_eq!(no_row, "group 8: column `rows` names a row that the data lacks");
    assert_eq!(begun([5, 8, 2]), "the answer belongs to another job");
    // The tokens differ from the row's.
    assert_eq!(refused("rows", &|r| r.uints("rows", 1, [1, 3])), "the answer belongs to another job");
    let other = refused("rewards", &|r| r.texts("rewards", ["a", "b"]));
    assert_eq!(other, "the answer must have 2 completions with scores of 2 rewards");
    assert!(refused("", &|r| r.must_be_known().bytes("later", &[])).contains("column `later`"));
    assert!(groups_of_begun(&with_column(&bytes, "begun", |r| r.uints("begun", 1, [5, 7, 3]))).is_err());
    assert!(groups_of_begun(&with_column(&bytes, "begun", |_| {})).is_err());
}
