//! Jobs and answers as bytes: they are read back unchanged, and invalid ones are refused.

mod refused;

use crate::data::prompts::Prompt;
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use model::columns::{Column, ENTROPIES, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, Values};
use model::{Columns, GroupId, Updates};
use proptest::prelude::*;
use rewards::{Content, GivenScores, Problem, ProblemKind, Scores, StepEnd, StepScore};
use rollout::{FinishReason, RolloutGroup, SamplingParams};
use serde_json::{Map, Value, json};
use telemetry::Step;
use testing::foreign;

fn job() -> GroupJob {
    let mut columns = Map::new();
    columns.insert("answer".into(), json!([0.1, null]));
    GroupJob {
        group: GroupId(9),
        prompt: Prompt { row: 3, tokens: model::Prompt::new([7, 300]), content: Content::from("é?"), columns },
        num_generations: 2,
        sampling: SamplingParams {
            temperature: 0.7,
            top_k: 5,
            top_p: 0.1 + 0.2,
            min_p: 0.01,
            repetition_penalty: 1.1,
            max_new_tokens: 4,
            stop_ids: vec![0, 2],
            stop_strings: vec!["\n".into()],
            seed: u64::MAX,
            prompt_logprobs: false,
            top_logprobs: 1,
            entropies: true,
        },
        updates: Updates(6),
        step: Step(8),
        rewards: vec!["a".into(), "b".into()],
        so_far: Vec::new(),
        until: None,
    }
}

/// A job that continues the answer's completions. The first of these is unfinished.
fn later() -> GroupJob {
    let mut so_far = answer().group.completions;
    so_far[0].finish_reason = FinishReason::Unfinished;
    GroupJob { so_far, until: Some(3), updates: Updates(7), ..job() }
}

fn answer_to_later() -> GroupAnswer {
    let GroupJob { group, prompt, mut so_far, .. } = later();
    so_far[0].ids.push(9);
    so_far[0].sampled.push(true);
    so_far[0].versions.push(Updates(7));
    so_far[0].columns = recorded(vec![-0.3, -0.3, -1.5]);
    GroupAnswer { group: RolloutGroup::new(group, prompt.tokens, so_far), scores: Vec::new(), rollout_s: 0.5 }
}

/// The columns that an engine records under the job's sampling parameters.
fn recorded(logps: Vec<f32>) -> Columns {
    let tokens = logps.len();
    let mut columns = Columns::of([(SAMPLER_LOGPS, logps)]);
    if tokens > 0 {
        columns.set(ENTROPIES, vec![0.5; tokens]);
        columns.insert(TOP_IDS, Column { width: 1, values: Values::U32(vec![4; tokens]) });
        columns.insert(TOP_LOGPS, Column { width: 1, values: Values::F32(vec![-0.3; tokens]) });
    }
    columns
}

fn answer() -> GroupAnswer {
    let completion = |generation: usize, ids: Vec<u32>| rollout::Completion {
        generation,
        sampled: vec![true; ids.len()],
        versions: vec![Updates(6); ids.len()],
        columns: recorded(vec![-0.3; ids.len()]),
        finish_reason: FinishReason::Stop,
        ids,
    };
    let problem = Problem { example: Some("x".into()), ..Problem::new("a", 1, "no\nnumber") };
    let first = Scores {
        values: vec![Some(0.1 + 0.2), None],
        steps: vec![Some(vec![StepScore { end: StepEnd::Char(2), score: -0.0 }]), None],
        problems: vec![problem.with_kind(ProblemKind::TimedOut).at(vec![1])],
        extra: vec![("note".into(), vec![json!(0.1), Value::Null])],
        metrics: vec![("m".into(), 1e300), ("l".into(), 5e-324)],
        timed_out: 1,
    };
    let second = Scores::new(vec![Some(f64::INFINITY), Some(f64::MIN_POSITIVE)]);
    let given = |reward, scores| GivenScores { reward, scores, seconds: 0.25 };
    let completions = vec![completion(0, vec![4, 0]), completion(1, Vec::new())];
    let group = RolloutGroup::new(GroupId(9), model::Prompt::new([7, 300]), completions);
    GroupAnswer { group, scores: vec![given(0, first), given(1, second)], rollout_s: 1.5 }
}

#[test]
fn a_job_and_its_answer_are_read_back_unchanged() {
    let bytes = job().to_bytes();
    assert_eq!(GroupJob::from_bytes(&bytes).unwrap(), job());
    let bytes = answer().to_bytes();
    assert_eq!(GroupAnswer::group_of(&bytes).unwrap(), GroupId(9));
    let found = GroupAnswer::from_bytes(&bytes, &job()).unwrap();
    assert_eq!((&found, found.to_bytes()), (&answer(), bytes));
    let bytes = later().to_bytes();
    assert_eq!(GroupJob::from_bytes(&bytes).unwrap(), later());
    let bytes = answer_to_later().to_bytes();
    assert_eq!(GroupAnswer::from_bytes(&bytes, &later()).unwrap(), answer_to_later());
}

#[test]
fn an_answer_that_does_not_continue_the_job_is_refused() {
    let refused = |spoil: fn(&mut GroupAnswer), word: &str| {
        let mut answer = answer_to_later();
        spoil(&mut answer);
        let error = GroupAnswer::from_bytes(&answer.to_bytes(), &later()).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(|answer| answer.group.completions[0].ids[0] = 5, "does not continue");
    refused(|answer| answer.group.completions[0].versions[1] = Updates(7), "does not continue");
    refused(|answer| answer.group.completions[1].finish_reason = FinishReason::Length, "does not continue");
    refused(|answer| answer.group.completions[0].versions[2] = Updates(6), "version 6, not 7");
    refused(|given| given.scores = answer().scores, "0 rewards");
    refused(|given| *given = answer(), "does not continue");
    // The completion stops one token early and is marked as unfinished.
    refused(
        |answer| {
            let c = &mut answer.group.completions[0];
            c.ids.truncate(2);
            c.sampled.truncate(2);
            c.versions.truncate(2);
            c.columns = recorded(vec![-0.3; 2]);
        },
        "does not match the job",
    );
}

#[test]
fn an_answer_to_another_job_is_refused() {
    let refused = |change: fn(&mut GroupJob), spoil: fn(&mut GroupAnswer), word: &str| {
        let (mut job, mut answer) = (job(), answer());
        change(&mut job);
        spoil(&mut answer);
        let error = GroupAnswer::from_bytes(&answer.to_bytes(), &job).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(|job| job.group = GroupId(8), |_| {}, "another job");
    refused(|job| job.prompt.tokens = model::Prompt::new([7]), |_| {}, "another job");
    refused(|job| job.num_generations = 3, |_| {}, "3 completions");
    refused(|job| job.rewards.truncate(1), |_| {}, "1 rewards");
    refused(|job| job.updates = Updates(5), |_| {}, "version 6, not 5");
    refused(|job| job.sampling.max_new_tokens = 1, |_| {}, "completion 0");
    refused(|_| {}, |answer| answer.group.completions[0].columns = Columns::default(), "sampler_logps");
    refused(
        |_| {},
        |answer| drop(answer.group.completions[0].columns.remove(ENTROPIES)),
        "lacks a column that its sampling",
    );
    refused(
        |_| {},
        |answer| drop(answer.group.completions[0].columns.remove(TOP_IDS)),
        "lacks a column that its sampling",
    );
    refused(|_| {}, |answer| answer.scores[1].scores.values = vec![None], "1.scored");
    refused(|_| {}, |answer| answer.scores[0].scores.problems[0].completions = vec![2], "0.problems");
    refused(|_| {}, |answer| answer.scores[0].scores.extra[0].1.truncate(1), "0.extra");
    refused(|_| {}, |answer| answer.scores[0].scores.timed_out = 3, "0.timed_out");
}

proptest! {
    #![proptest_config(foreign::few())]

    #[test]
    fn parsing_arbitrary_bytes_as_a_job_never_panics(bytes in foreign::bytes(job().to_bytes())) {
        let _ = GroupJob::from_bytes(&bytes);
    }
    #[test]
    fn parsing_arbitrary_bytes_as_a_continued_job_never_panics(bytes in foreign::bytes(later().to_bytes())) {
        let _ = GroupJob::from_bytes(&bytes);
    }
    #[test]
    fn parsing_arbitrary_bytes_as_an_answer_never_panics(bytes in foreign::bytes(answer().to_bytes())) {
        let _ = GroupAnswer::from_bytes(&bytes, &job());
    }
}
