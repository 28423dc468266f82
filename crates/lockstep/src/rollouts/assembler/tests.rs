//! Requests are split into jobs, and answers assembled in any order. No engine generates anything here.

use super::*;
use crate::config::SamplingPlan;
use crate::rollouts::jobs::score;
use crate::rollouts::scoring::Prompts;
use model::Updates;
use model::columns::SAMPLER_LOGPS;
use model::tokenizer::SpecialTokens;
use rewards::{Content, FunctionReward, GivenScores, RewardBatch, Scores};
use rollout::{Completion, FinishReason};
use serde_json::{Map, json};
use std::sync::Mutex;
use telemetry::{Stages, Step};
use twox_hash::XxHash3_64;

fn tokenizer() -> Tokenizer {
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    Tokenizer::characters("abcdefgh".chars(), &special).unwrap()
}

/// A reward that compares all completions: its score is the number of completions in the call.
struct Whole(Arc<Mutex<Vec<usize>>>);

impl Reward for Whole {
    fn name(&self) -> &str {
        "whole"
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        self.0.lock().unwrap().push(batch.len());
        Scores::new(vec![Some(batch.len() as f64); batch.len()])
    }
}

/// A reward that scores each group separately: a completion's score is its length times `factor`.
fn length(name: &str, factor: f64) -> Box<dyn Reward> {
    Box::new(FunctionReward::new(name, move |input| Some(factor * input.completion_ids().len() as f64)))
}

/// The rewards `here`, `whole` and `there`; workers call the last one.
fn assembler(asked: &Arc<Mutex<Vec<usize>>>) -> Assembler {
    Assembler {
        rewards: vec![length("here", 2.0), Box::new(Whole(asked.clone())), length("there", 3.0)],
        worker_rewards: ["there".to_owned(), "whole".to_owned()].into(),
        tokenizer: Arc::new(tokenizer()),
        stop: StopSignal::new(),
    }
}

/// The rows of the groups 7 and 8. Each lacks a column of the other.
fn prompts() -> Prompts {
    let prompt = |row: usize, column: &str| {
        let columns = Map::from_iter([(column.to_owned(), json!(row))]);
        let (tokens, content) = (model::Prompt::new([row as u32]), Content::Text(format!("q{row}")));
        Arc::new(Prompt { row, tokens, content, columns })
    };
    [(GroupId(7), prompt(1, "a")), (GroupId(8), prompt(2, "b"))].into()
}

fn plan() -> SamplingPlan {
    SamplingPlan::alike(Arc::new(SamplingParams { top_k: 3, max_new_tokens: 4, ..SamplingParams::default() }))
}

fn request(plan: &SamplingPlan) -> CollectRequest<'_> {
    CollectRequest {
        prompts: prompts(),
        num_generations: 2,
        sampling: plan,
        reward_weights: &[1.0, 0.5, 2.0],
        step: Step(5),
        refuse_non_finite: false,
        activations: None,
    }
}

/// The answer to `job`: completions of one and of two tokens, with these log-probabilities.
fn answer(job: &GroupJob, logp: f32) -> GroupAnswer {
    let completion = |generation: usize| Completion {
        generation,
        ids: vec![3; generation + 1],
        sampled: vec![true; generation + 1],
        versions: vec![job.updates; generation + 1],
        columns: model::Columns::of([(SAMPLER_LOGPS, vec![logp; generation + 1])]),
        finish_reason: FinishReason::Stop,
    };
    let group = RolloutGroup::new(job.group, job.prompt.tokens.clone(), vec![completion(0), completion(1)]);
    let scores = Scores::new(vec![Some(job.group.0 as f64), None]);
    GroupAnswer { group, scores: vec![GivenScores { reward: 0, scores, seconds: 0.5 }], rollout_s: 0.25 }
}

#[test]
fn a_request_is_split_into_one_job_per_group() {
    let (plan, asked) = (plan(), Arc::default());
    let assembler = assembler(&asked);
    assert_eq!(assembler.asked_elsewhere(), (vec![2], vec!["there".to_owned()]));
    let jobs = assembler.jobs(&request(&plan), Updates(6));
    let job = |group: GroupId, columns: Value| GroupJob {
        group,
        prompt: Prompt { columns: columns.as_object().unwrap().clone(), ..Prompt::clone(&prompts()[&group]) },
        num_generations: 2,
        sampling: SamplingParams::clone(plan.common()),
        updates: Updates(6),
        step: Step(5),
        rewards: vec!["there".into()],
        so_far: Vec::new(),
        until: None,
    };
    assert_eq!(jobs, [job(GroupId(7), json!({"a": 1, "b": null})), job(GroupId(8), json!({"a": null, "b": 2}))]);
    let begun = GroupJob { so_far: answer(&jobs[0], -0.5).group.completions, until: Some(3), ..jobs[0].clone() };
    let request = begun.request(None);
    assert_eq!((request.group, request.until, request.so_far.len()), (GroupId(7), Some(3), 2));
    assert!(Arc::ptr_eq(&request.prompt, &begun.prompt.tokens) && *request.sampling == begun.sampling);
}

fn collect(answers: &[Vec<u8>], refuse_non_finite: bool) -> (Result<Collected, String>, Vec<usize>) {
    let (plan, asked) = (plan(), Arc::default());
    let mut assembler = assembler(&asked);
    let request = CollectRequest { refuse_non_finite, ..request(&plan) };
    let jobs = assembler.jobs(&request, Updates(6));
    let observer = Observer { stages: &Stages::default(), on_wait: &|_, _| {} };
    let collected = assembler.assemble(request, &jobs, answers, 1.5, &observer);
    let asked = asked.lock().unwrap().clone();
    (collected.map_err(|error| format!("{error:#}")), asked)
}

fn answers(logp: f32) -> Vec<Vec<u8>> {
    let (plan, asked) = (plan(), Arc::default());
    assembler(&asked).jobs(&request(&plan), Updates(6)).iter().map(|job| answer(job, logp).to_bytes()).collect()
}

#[test]
fn answers_are_assembled_in_any_order() {
    let mut bytes = answers(-0.5);
    for _ in 0..2 {
        bytes.reverse();
        let (collected, asked) = collect(&bytes, true);
        let Collected { scored, next_group, rollout_s, overlapped_s, .. } = collected.unwrap();
        assert_eq!((next_group, rollout_s, overlapped_s, asked), (GroupId(9), 1.5, 0.0, vec![4]));
        assert_eq!(scored.rollouts.reward_names, ["here", "whole", "there"]);
        assert_eq!(scored.rollouts.reward_weights, [1.0, 0.5, 2.0]);
        assert_eq!(scored.rollouts.groups.iter().map(|group| group.group.0).collect::<Vec<_>>(), [7, 8]);
        let rewards: Vec<_> = scored.rollouts.completions().map(|c| c.rewards.clone()).collect();
        let of = |here: f64, there: Option<f64>| vec![Some(here), Some(4.0), there];
        assert_eq!(rewards, [of(2.0, Some(7.0)), of(4.0, None), of(2.0, Some(8.0)), of(4.0, None)]);
    }
    assert!(collect(&answers(f32::NAN), false).0.is_ok());
    assert_eq!(collect(&answers(f32::NAN), true).0.err().unwrap(), "a token's log-probability is NaN");
}

#[test]
fn missing_and_duplicate_answers_are_refused() {
    let refused = |answers: &[Vec<u8>]| collect(answers, false).0.err().expect("refused");
    let all = answers(-0.5);
    assert_eq!(refused(&all[..1]), "1 of 2 jobs were answered");
    assert_eq!(refused(&[]), "0 of 2 jobs were answered");
    assert_eq!(refused(&[&all[..], &all[1..]].concat()), "a job was answered twice");
    let (plan, asked) = (plan(), Arc::default());
    let mut jobs = assembler(&asked).jobs(&request(&plan), Updates(6));
    jobs[1].group = GroupId(9);
    let other = answer(&jobs[1], -0.5).to_bytes();
    let none = "a worker answered an unknown job, of group 9";
    assert_eq!(refused(&[all[0].clone(), other]), none);
    jobs[1] = GroupJob { group: GroupId(8), updates: Updates(5), ..jobs[1].clone() };
    let older = answer(&jobs[1], -0.5).to_bytes();
    let version = "the answer to the job of group 8: completion 0 was sampled by weights of version 5, not 6";
    assert_eq!(refused(&[all[0].clone(), older]), version);
    assert!(refused(&[b"rubbish".to_vec()]).starts_with("a worker's answer: 7 bytes are not a record"));
}

#[test]
fn a_worker_scores_with_the_rewards_that_its_job_names() {
    let (plan, asked) = (plan(), Arc::default());
    let mut assembler = assembler(&asked);
    let mut job = assembler.jobs(&request(&plan), Updates(6)).remove(0);
    job.rewards = vec!["there".into(), "here".into()];
    let group = answer(&job, -0.5).group;
    let mut scored = |job: &GroupJob, stop: &StopSignal| {
        let scores = score(&mut assembler.rewards, &assembler.tokenizer, stop, &group, job);
        scores.map(|all| all.into_iter().map(|given| (given.reward, given.scores.values)).collect::<Vec<_>>())
    };
    let stop = StopSignal::new();
    let expected = [(0, vec![Some(3.0), Some(6.0)]), (1, vec![Some(2.0), Some(4.0)])];
    assert_eq!(scored(&job, &stop).unwrap(), expected);
    for name in ["whole", "other"] {
        let error = scored(&GroupJob { rewards: vec![name.into()], ..job.clone() }, &stop).unwrap_err();
        assert_eq!(error.to_string(), format!("this worker has no reward `{name}` that scores each group separately"));
    }
    stop.request();
    assert!(scored(&job, &stop).is_err(), "scores after a stop request may be wrong");
}

/// All workers must compute these bytes. They must never change, since a resumed run may use earlier answers.
#[test]
fn a_fingerprint_covers_tokens_and_log_probabilities() {
    let bytes: Vec<u8> = [
        &2u64.to_le_bytes()[..],
        &5u32.to_le_bytes(),
        &6u32.to_le_bytes(),
        &(-0.5f32).to_le_bytes(),
        &(-1.0f32).to_le_bytes(),
        &0u64.to_le_bytes(),
    ]
    .concat();
    let of = |all: &[(&[u32], &[f32])]| GroupAnswer::fingerprint_of(all.iter().copied());
    let both: [(&[u32], &[f32]); 2] = [(&[5, 6], &[-0.5, -1.0]), (&[], &[])];
    assert_eq!(of(&both), XxHash3_64::oneshot(&bytes));
    let others: [&[(&[u32], &[f32])]; 5] = [
        &both[..1],
        &[(&[5], &[-0.5]), (&[6], &[-1.0])],
        &[(&[5, 7], &[-0.5, -1.0]), (&[], &[])],
        &[(&[5, 6], &[-0.5, -0.5]), (&[], &[])],
        &[(&[], &[]), (&[5, 6], &[-0.5, -1.0])],
    ];
    assert!(others.into_iter().all(|other| of(other) != of(&both)));
    let (plan, asked) = (plan(), Arc::default());
    let job = assembler(&asked).jobs(&request(&plan), Updates(6)).remove(0);
    let group = answer(&job, -0.5).group;
    assert_eq!(GroupAnswer::fingerprint(&group), of(&[(&[3], &[-0.5]), (&[3, 3], &[-0.5, -0.5])]));
}
