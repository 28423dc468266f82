//! Tests of one engine with several owners: requests arrive, end and pause, and each owner gets only its own outcomes.

use crate::engine::{VOCAB, sampling, small};
use crate::serving::{caching, request};
use crate::*;
use rollout::{Drive, Error, FinishReason, Outcome, Request, RequestId};

/// Runs steps until no sequence runs or waits, and returns all outcomes.
fn settle<O: Clone>(drive: &mut Drive<O>, weights: &Weights) -> Vec<Outcome<O>> {
    let mut outcomes = Vec::new();
    while !drive.is_idle() {
        outcomes.extend(drive.step(weights).unwrap());
    }
    outcomes
}

/// The ended groups with their owners, sorted by group.
fn ended<O: Clone + Ord>(outcomes: Vec<Outcome<O>>) -> Vec<(O, RolloutGroup)> {
    let group = |outcome| match outcome {
        Outcome::Ended { owner, group, .. } => Some((owner, group)),
        Outcome::Paused { .. } => None,
    };
    let mut groups: Vec<_> = outcomes.into_iter().filter_map(group).collect();
    groups.sort_by_key(|(_, group)| group.group);
    groups
}

#[test]
fn owners_share_the_engine_and_get_the_same_results_as_alone() {
    let (ctx, weights) = small();
    let prompts: Vec<_> = (0..4).map(|number| prompt(VOCAB, number, 5 + 9 * number)).collect();
    let alone = |number: usize| {
        let mut engine = poisoned(&ctx, &weights, roomy(96));
        let request = request(number as u64, &prompts[number], 2, sampling(9));
        engine.generate(&weights, vec![request]).unwrap().remove(0)
    };
    let mut drive: Drive<&str> = Drive::new(poisoned(&ctx, &weights, roomy(96)));
    let submit = |drive: &mut Drive<&'static str>, owner, number: usize| -> RequestId {
        drive.submit(owner, request(number as u64, &prompts[number], 2, sampling(9))).unwrap()
    };
    submit(&mut drive, "worker", 0);
    let cancelled = submit(&mut drive, "worker", 1);
    assert!(drive.step(&weights).unwrap().is_empty() && !drive.drawn().is_empty());
    // Further requests arrive while the first ones are computed, and one is cancelled.
    submit(&mut drive, "server", 2);
    submit(&mut drive, "leaves", 3);
    drive.step(&weights).unwrap();
    assert!(drive.cancel(cancelled) && !drive.cancel(cancelled));
    drive.cancel_of(|owner| *owner == "leaves");
    let groups = ended(settle(&mut drive, &weights));
    assert_eq!(groups, [("worker", alone(0)), ("server", alone(2))]);
    // Requests without an owner are also computed, and their results stay in the engine.
    drive.engine().submit(request(1, &prompts[1], 2, sampling(9))).unwrap();
    submit(&mut drive, "server", 3);
    assert_eq!(ended(settle(&mut drive, &weights)), [("server", alone(3))]);
    assert_eq!(drive.engine().step(&weights).unwrap(), [alone(1)]);
    assert_eq!(drive.engine().free_blocks(), drive.engine().config().kv_blocks);
}

#[test]
fn a_request_reports_the_prompt_tokens_that_the_prefix_cache_had() {
    let (ctx, weights) = small();
    let system = prompt(VOCAB, 3, 150);
    let of = |number: usize| Prompt::new([&system.ids[..], &prompt(VOCAB, number, 20).ids].concat());
    let mut drive: Drive<usize> = Drive::new(poisoned(&ctx, &weights, caching(256)));
    let mut cached = |requests: Vec<Request>| {
        for (number, request) in requests.into_iter().enumerate() {
            drive.submit(number, request).unwrap();
        }
        let count = |outcome: &Outcome<usize>| match outcome {
            Outcome::Ended { cached_tokens, .. } => *cached_tokens,
            Outcome::Paused { .. } => panic!("not paused"),
        };
        settle(&mut drive, &weights).iter().map(count).collect::<Vec<_>>()
    };
    // Completions share the pages of their own prompt, which were not in the cache.
    assert_eq!(cached(vec![request(0, &of(0), 4, sampling(9))]), [0]);
    assert_eq!(cached(vec![request(1, &of(1), 4, sampling(9)), request(2, &of(2), 1, sampling(9))]), [128, 128]);
    assert_eq!(cached(vec![request(3, &of(1), 1, sampling(1))]), [128], "a request that ends in its first step");
    let scored = SamplingParams { prompt_logprobs: true, ..sampling(3) };
    assert_eq!(cached(vec![request(4, &of(1), 1, scored)]), [0], "log-probabilities of a prompt need all rows");
}

/// A conversation of two turns waits for its user while another owner collects completions in one call.
#[test]
fn a_paused_conversation_survives_a_collection() {
    let (ctx, weights) = small();
    let stop_ids: Vec<u32> = (0..VOCAB as u32).filter(|id| id % 7 == 0).collect();
    let talk = SamplingParams { stop_ids, ..sampling(200) };
    let (first, answer) = (prompt(VOCAB, 0, 30), prompt(VOCAB, 1, 20).ids.clone());
    let talks = || Request { pause_on_stop: true, ..request(1, &first, 1, talk.clone()) };
    let others = || (5..8).map(|number| request(number, &prompt(VOCAB, number as usize, 40), 2, sampling(9))).collect();
    let conversation = |between: &mut dyn FnMut(&mut Engine)| {
        let mut drive: Drive<u8> = Drive::new(poisoned(&ctx, &weights, roomy(512)));
        drive.submit(7, talks()).unwrap();
        let outcomes = settle(&mut drive, &weights);
        let [Outcome::Paused { owner: 7, sequence, .. }] = outcomes[..] else { panic!("{outcomes:?}") };
        between(drive.engine());
        assert!(drive.step(&weights).unwrap().is_empty(), "a pause is reported once");
        assert!(drive.extend(sequence, &answer));
        let outcomes = settle(&mut drive, &weights);
        assert!(matches!(outcomes[..], [Outcome::Paused { .. }]), "{outcomes:?}");
        assert!(drive.finish(sequence) && !drive.finish(sequence));
        ended(drive.step(&weights).unwrap()).remove(0).1
    };
    let alone = conversation(&mut |_| {});
    let collected = poisoned(&ctx, &weights, roomy(512)).generate(&weights, others()).unwrap();
    let beside = conversation(&mut |engine| {
        assert_eq!(engine.generate(&weights, others()).unwrap(), collected);
    });
    assert_eq!(beside, alone);
    let completion = &beside.completions[0];
    assert_eq!(completion.finish_reason, FinishReason::Stop);
    assert_eq!(completion.sampled.iter().filter(|sampled| !**sampled).count(), answer.len());
    // A request that pauses cannot be generated in one call.
    let refused = poisoned(&ctx, &weights, roomy(512)).generate(&weights, vec![talks()]);
    assert!(matches!(refused, Err(Error::Pauses)));
}
