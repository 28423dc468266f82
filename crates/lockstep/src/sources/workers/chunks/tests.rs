use super::*;
use crate::data::prompts::Prompt;
use fleet::{Lineage, WorkerName};
use model::Columns;
use rewards::Content;
use rollout::{FinishReason, RolloutGroup, SamplingParams};
use std::sync::Arc;
use telemetry::Step;

/// Chunks of three tokens, groups that may be two versions old, and two groups per batch.
fn chunks(is_on: bool) -> Chunks {
    let plan = Plan { chunks: is_on, ..Plan::new(9, 2, 2) };
    Chunks::new(&plan, is_on.then_some(3), 40)
}

fn whole(group: u64) -> GroupJob {
    let (tokens, content) = (model::Prompt::new([1, 2]), Content::from("ab"));
    GroupJob {
        group: GroupId(group),
        prompt: Prompt { row: 0, tokens, content, columns: serde_json::Map::new() },
        num_generations: 1,
        sampling: SamplingParams { max_new_tokens: 9, ..SamplingParams::default() },
        updates: Updates(77),
        step: Step(0),
        rewards: Vec::new(),
        so_far: Vec::new(),
        until: None,
    }
}

fn completion(ids: &[u32], finish_reason: FinishReason) -> Completion {
    Completion {
        generation: 0,
        ids: ids.to_vec(),
        sampled: vec![true; ids.len()],
        versions: vec![Updates(5); ids.len()],
        columns: Columns::of([(model::columns::SAMPLER_LOGPS, vec![-0.5; ids.len()])]),
        finish_reason,
    }
}

fn name(group: u64, chunk: u32) -> JobName {
    job_name(GroupId(group), chunk)
}

#[test]
fn chunks_of_a_group_become_jobs_with_their_versions() {
    let mut on = chunks(true);
    assert!(on.are_on() && !chunks(false).are_on());
    assert_eq!([0, 1, 2].map(|chunk| on.until(chunk)), [Some(3), Some(6), None]);
    // Nothing is published yet. Group 7 is in batch 3, and its chunks need the versions 1, 2 and 3.
    assert_eq!(on.job(name(7, 0), &whole(7), Vec::new()), None);
    (1..=3).for_each(|version| on.published(Version(version), Updates(10 * version)));
    let so_far = vec![completion(&[1], FinishReason::Unfinished)];
    for (chunk, updates, until) in [(0, 10, Some(3)), (1, 20, Some(6)), (2, 30, None)] {
        let job = on.job(name(7, chunk), &whole(7), so_far.clone()).unwrap();
        assert_eq!(job, GroupJob { updates: Updates(updates), until, so_far: so_far.clone(), ..whole(7) });
    }
    // The chunks of batch 2 need the versions 0, 1 and 2. Version 0 was not published.
    assert!(on.job(name(4, 0), &whole(4), Vec::new()).is_none() && on.job(name(4, 1), &whole(4), Vec::new()).is_some());
    // The next version drops versions that no batch needs: the current version needs the two before it.
    on.published(Version(4), Updates(40));
    assert_eq!(on.updates.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4].map(Version));
    on.published(Version(5), Updates(50));
    assert_eq!(on.updates.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 5].map(Version));
    // A whole group is one job, whatever is published.
    assert_eq!(chunks(false).job(name(7, 0), &whole(7), so_far), Some(whole(7)));
}

#[test]
fn answers_are_reconstructed_from_completions() {
    let (ids, logps) = ([1u32, 2, 3, 4, 5, 6, 7], [-0.5f32; 7]);
    let of = |lengths: &[(usize, bool)], chunks: &Chunks| -> Vec<(u64, bool)> {
        let all: Vec<_> = lengths.iter().map(|&(n, unfinished)| (&ids[..n], &logps[..n], unfinished)).collect();
        chunks.answers(&all).into_iter().map(|answer| (answer.fingerprint, answer.more)).collect()
    };
    let fingerprint =
        |lengths: &[usize]| GroupAnswer::fingerprint_of(lengths.iter().map(|&n| (&ids[..n], &logps[..n])));
    let on = chunks(true);
    assert_eq!(of(&[(2, false), (3, false)], &on), [(fingerprint(&[2, 3]), false)]);
    let two = [(fingerprint(&[2, 3]), true), (fingerprint(&[2, 4]), false)];
    assert_eq!(of(&[(2, false), (4, false)], &on), two);
    let three = [(fingerprint(&[2, 3]), true), (fingerprint(&[2, 6]), true), (fingerprint(&[2, 7]), false)];
    assert_eq!(of(&[(2, false), (7, false)], &on), three);
    // Six tokens without an end: the last chunk has not been generated.
    assert_eq!(of(&[(2, false), (6, true)], &on), [(fingerprint(&[2, 3]), true), (fingerprint(&[2, 6]), true)]);
    assert_eq!(of(&[(2, false), (7, true)], &chunks(false)), [(fingerprint(&[2, 7]), true)]);
}

fn result(number: u64, chunk: u32, bytes: Vec<u8>, more: bool) -> JobResult {
    let fingerprint = |answer: GroupAnswer| GroupAnswer::fingerprint(&answer.group);
    let fingerprint = GroupAnswer::believed(&bytes, &whole(number)).map_or(0, fingerprint);
    JobResult {
        job: name(number, chunk),
        lineage: Lineage([0; 16]),
        worker: WorkerName::new("w").unwrap(),
        answer: Answer { fingerprint, more },
        bytes,
    }
}

fn answered(number: u64, ids: &[u32], reason: FinishReason) -> Vec<u8> {
    let prompt: Arc<model::Prompt> = whole(number).prompt.tokens;
    let group = RolloutGroup::new(GroupId(number), prompt, vec![completion(ids, reason)]);
    GroupAnswer { group, scores: Vec::new(), rollout_s: 1.0 }.to_bytes()
}

#[test]
fn each_chunk_must_continue_the_answer_before() {
    let mut on = chunks(true);
    (1..=3).for_each(|version| on.published(Version(version), Updates(5)));
    let first = result(7, 0, answered(7, &[1, 2, 3], FinishReason::Unfinished), true);
    let second = result(7, 1, answered(7, &[1, 2, 3, 4], FinishReason::Stop), false);
    let chain = on.chain(&whole(7), &[&first, &second]).unwrap();
    assert_eq!(chain.len(), 2);
    assert_eq!((chain[0].job.until, chain[0].job.so_far.len()), (Some(3), 0));
    assert_eq!((chain[1].job.until, chain[1].job.so_far.clone()), (Some(6), chain[0].answer.group.completions.clone()));
    assert_eq!(chain[1].answer.group.completions[0].ids, [1, 2, 3, 4]);
    // A result without bytes comes from a checkpoint, which keeps only the last answer.
    let kept = JobResult { worker: WorkerName::new(CHECKPOINT).unwrap(), ..result(7, 0, Vec::new(), true) };
    assert_eq!(on.chain(&whole(7), &[&kept]).unwrap().len(), 0);
    let refused = |more| {
        let wrong = result(7, 0, answered(7, &[1, 2, 3], FinishReason::Unfinished), more);
        on.chain(&whole(7), &[&wrong]).err().map(|error| format!("{error:#}"))
    };
    let words = "worker w's answer to the job 000007.0: it is inconsistent about whether it continues";
    assert_eq!((refused(true), refused(false).as_deref()), (None, Some(words)));
    let broken = on.chain(&whole(7), &[&result(7, 0, vec![1, 2, 3], true)]).err().unwrap();
    assert!(format!("{broken:#}").starts_with("worker w's answer to the job 000007.0: "), "{broken:#}");
    // The weights of this answer were published before this learner started. Its job is then taken to continue the
    // answer's own completions.
    let believed = chunks(true).chain(&whole(7), &[&second]).unwrap();
    assert_eq!(
        (believed[0].job.until, believed[0].job.so_far.clone()),
        (Some(6), believed[0].answer.group.completions.clone())
    );
}
