//! Tests of single completions and of the engine's pages.

use crate::*;
use rollout::{Detokenize, Error, FinishReason};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const VOCAB: usize = 97;

pub(crate) fn small() -> (Context, Weights) {
    let ctx = Context::cpu(Isa::best(), 1);
    let weights = qwen3(&ctx, 24, 2, VOCAB);
    (ctx, weights)
}

pub(crate) fn sampling(max_new_tokens: usize) -> SamplingParams {
    SamplingParams { max_new_tokens, seed: 5, ..SamplingParams::default() }
}

/// A detokenizer that maps each id to a letter.
pub(crate) struct Letters;

impl Detokenize for Letters {
    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|&id| char::from(b' ' + id as u8 % 94)).collect()
    }
}

/// Generates one completion of one prompt.
fn one(engine: &mut Engine, weights: &Weights, prompts: &[Arc<Prompt>], sampling: SamplingParams) -> Completion {
    engine.generate(weights, requests(prompts, 1, sampling)).unwrap().remove(0).completions.remove(0)
}

#[test]
fn a_completion_has_a_finish_reason() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 5)];
    let mut engine = poisoned(&ctx, &weights, roomy(64));
    let whole = one(&mut engine, &weights, &prompts, sampling(20));
    assert_eq!((whole.ids.len(), whole.finish_reason), (20, FinishReason::Length));
    assert_eq!((whole.logps().len(), whole.sampled.len(), whole.versions.len()), (20, 20, 20));
    assert!(whole.sampled.iter().all(|&sampled| sampled) && whole.logps().iter().all(|l| l.is_finite() && *l < 0.0));

    let stop = whole.ids[7];
    let end = whole.ids.iter().position(|&id| id == stop).unwrap() + 1;
    let stopping = SamplingParams { stop_ids: vec![stop], ..sampling(20) };
    let stopped = one(&mut engine, &weights, &prompts, stopping);
    assert_eq!((&stopped.ids[..], stopped.finish_reason), (&whole.ids[..end], FinishReason::Stop));

    engine.set_detokenizer(Arc::new(Letters));
    let text = Letters.decode(&whole.ids);
    let stopping = SamplingParams { stop_strings: vec!["none".into(), text[8..11].into()], ..sampling(20) };
    let stopped = one(&mut engine, &weights, &prompts, stopping);
    let end = text.find(&text[8..11]).unwrap() + 3;
    assert_eq!((&stopped.ids[..], stopped.finish_reason), (&whole.ids[..end], FinishReason::Stop));

    // The end of the context also ends a completion.
    let mut short = poisoned(&ctx, &weights, roomy(12));
    let cut = one(&mut short, &weights, &prompts, sampling(20));
    assert_eq!((&cut.ids[..], cut.finish_reason), (&whole.ids[..7], FinishReason::Length));
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let (ctx, weights) = small();
    let mut engine = poisoned(&ctx, &weights, roomy(64));
    let message = |e: Error| e.to_string();
    // A prompt that fills the context leaves no room for a sampled token.
    for len in [64, 70] {
        let long = requests(&[prompt(VOCAB, 0, len)], 1, sampling(5)).remove(0);
        let refused = message(engine.submit(long).unwrap_err());
        assert!(refused.contains(&len.to_string()) && refused.contains("64"), "{refused}");
    }
    engine.submit(requests(&[prompt(VOCAB, 0, 63)], 1, sampling(5)).remove(0)).unwrap();
    let empty = requests(&[prompt(VOCAB, 0, 0)], 1, sampling(5)).remove(0);
    assert!(message(engine.submit(empty).unwrap_err()).contains("prompt is empty"));
    // A sequence of 128 tokens needs two pages, plus one for the copy of the prompt's last page.
    for kv_blocks in [1, 2] {
        let config = EngineConfig { kv_blocks, ..roomy(128) };
        let refused = message(Engine::new(&ctx, &weights.config, config).err().unwrap());
        assert!(refused.contains(&format!("{kv_blocks} pages")), "{refused}");
    }
    assert!(Engine::new(&ctx, &weights.config, EngineConfig { kv_blocks: 3, ..roomy(128) }).is_ok());
}

/// If a request is rejected, or a kernel fails midway, the requests that were accepted earlier in the same call are
/// also dropped.
#[test]
fn a_failed_call_drops_all_its_requests() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 5)];
    let whole =
        bits(&poisoned(&ctx, &weights, roomy(96)).generate(&weights, requests(&prompts, 2, sampling(6))).unwrap());
    let mut engine = poisoned(&ctx, &weights, roomy(96));
    for (bad, why) in
        [(prompt(VOCAB, 2, 0), "prompt is empty"), (prompt(VOCAB, 2, 96), "96"), (Prompt::new([97]), "97")]
    {
        let mixed = [prompts[0].clone(), bad, prompts[1].clone()];
        let error = engine.generate(&weights, requests(&mixed, 2, sampling(6))).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
        assert!(engine.is_idle() && engine.live().next().is_none(), "{why}");
        assert_eq!(engine.free_blocks(), engine.config().kv_blocks, "{why}");
        assert_eq!(bits(&engine.generate(&weights, requests(&prompts, 2, sampling(6))).unwrap()), whole, "{why}");
    }
}

/// A prompt is computed in several steps or, if it may not be split, in one step with enough rows.
#[test]
fn the_number_of_rows_per_step_changes_no_bit() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 40), prompt(VOCAB, 1, 6)];
    let generate = |config: EngineConfig| {
        bits(&poisoned(&ctx, &weights, config).generate(&weights, requests(&prompts, 1, sampling(3))).unwrap())
    };
    for chunked_prefill in [true, false] {
        let narrow = EngineConfig { max_num_seqs: 2, max_batched_tokens: 8, chunked_prefill, ..roomy(64) };
        assert_eq!(generate(narrow), generate(roomy(64)), "{chunked_prefill}");
    }
}

/// At the end every page is free again, with or without preemption and sharing.
#[test]
fn all_pages_are_freed() {
    let (ctx, weights) = small();
    let prompts: Vec<_> = [64, 3, 130, 63, 65].iter().enumerate().map(|(i, &n)| prompt(VOCAB, i, n)).collect();
    for kv_blocks in [4, 5, 9, 200] {
        for (prefix_sharing, max_num_seqs) in [(true, 1), (true, 7), (false, 7)] {
            let config = EngineConfig { kv_blocks, prefix_sharing, max_num_seqs, max_batched_tokens: 32, ..roomy(160) };
            let mut engine = poisoned(&ctx, &weights, config);
            let groups = engine.generate(&weights, requests(&prompts, 3, sampling(9))).unwrap();
            assert_eq!(completions(&groups).count(), 15);
            assert_eq!(engine.free_blocks(), kv_blocks, "{prefix_sharing} {max_num_seqs}");
            let expected = match kv_blocks {
                4 | 5 => max_num_seqs > 1,
                200 => false,
                _ => continue,
            };
            assert_eq!(engine.counters().preemptions > 0, expected, "{kv_blocks} {prefix_sharing} {max_num_seqs}");
        }
    }
}

/// Random numbers depend only on seed, group, completion and token, not on other sequences.
#[test]
fn random_numbers_do_not_depend_on_other_sequences() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 9), prompt(VOCAB, 1, 4), prompt(VOCAB, 0, 9)];
    let mut engine = poisoned(&ctx, &weights, roomy(64));
    let all = engine.generate(&weights, requests(&prompts, 2, sampling(12))).unwrap();
    let mut alone = requests(&prompts, 2, sampling(12));
    let alone = engine.generate(&weights, vec![alone.remove(1)]).unwrap();
    assert_eq!(bits(&all[1..2]), bits(&alone), "the same request alone");
    let [first, second] = &all[0].completions[..] else { panic!("two") };
    assert_ne!(first.ids, second.ids, "another completion of the group");
    assert_ne!(first.ids, all[2].completions[0].ids, "the same prompt in another group");
    let seeded = SamplingParams { seed: 6, ..sampling(12) };
    assert_ne!(bits(&engine.generate(&weights, requests(&prompts, 2, seeded)).unwrap()), bits(&all), "another seed");
}

/// Generates the groups of all requests, in order. `weights` returns the weights for each step.
fn generate_by_steps<'a>(
    engine: &mut Engine,
    requests: Vec<Request>,
    mut weights: impl FnMut(usize, &mut Engine) -> &'a Weights,
) -> Vec<RolloutGroup> {
    for request in requests {
        engine.submit(request).unwrap();
    }
    let mut groups = Vec::new();
    for step in 0.. {
        if engine.is_idle() {
            break;
        }
        let weights = weights(step, engine);
        groups.extend(engine.step(weights).unwrap());
    }
    groups.sort_by_key(|group| group.group);
    groups
}

/// New weights are published midway. All keys and values become stale, and every token records its version.
#[test]
fn a_new_version_of_the_weights_takes_effect_at_once() {
    let (ctx, weights) = small();
    // With the same weights under a different version number, keys and values are recomputed, with the same bits.
    let mut published = qwen3(&ctx, 24, 2, VOCAB);
    published.publish();
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 6)];
    let mut engine = poisoned(&ctx, &weights, roomy(128));
    let before = engine.generate(&weights, requests(&prompts, 2, sampling(10))).unwrap();
    let groups = generate_by_steps(&mut engine, requests(&prompts, 2, sampling(10)), |step, engine| {
        if step == 5 {
            engine.fill_pages(f32::NAN);
        }
        if step < 5 { &weights } else { &published }
    });
    assert_eq!(bits(&groups), bits(&before));
    assert!(completions(&groups).all(|c| c.versions.is_sorted() && c.versions[0].0 == 0 && c.versions[9].0 == 1));
}

/// After the weights have changed midway, keys and values of the older weights are not used any more.
#[test]
fn keys_and_values_of_older_weights_are_recomputed() {
    let ctx = Context::cpu(Isa::best(), 1);
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 6)];
    let generate = |forget: bool| {
        let weights = qwen3(&ctx, 24, 2, VOCAB);
        let mut other = Weights::random(ctx.memory(), &weights.config, 8).unwrap();
        other.publish();
        let mut engine = poisoned(&ctx, &weights, roomy(128));
        bits(&generate_by_steps(&mut engine, requests(&prompts, 2, sampling(10)), |step, engine| {
            if step == 5 && forget {
                engine.fill_pages(f32::NAN);
            }
            if step < 5 { &weights } else { &other }
        }))
    };
    assert_eq!(generate(false), generate(true));
}

/// A flag stops a generation before its next step, and its sequences and their pages are dropped.
#[test]
fn a_stopped_engine_can_be_used_again() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 6)];
    let mut engine = poisoned(&ctx, &weights, roomy(128));
    let whole = engine.generate(&weights, requests(&prompts, 2, sampling(10))).unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    engine.stop_with(stopped.clone());
    let mut mixed = requests(&prompts, 2, sampling(10));
    mixed[1].sampling = Arc::new(sampling(3));
    let ended = engine.generate_with(&weights, mixed, |_| stopped.store(true, Ordering::Relaxed));
    assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
    assert_eq!((engine.free_blocks(), engine.is_idle()), (engine.config().kv_blocks, true));
    stopped.store(false, Ordering::Relaxed);
    let again = engine.generate(&weights, requests(&prompts, 2, sampling(10))).unwrap();
    assert_eq!(bits(&again), bits(&whole));
}

/// Tokens that the model did not sample are inserted, and the tokens that are sampled after them depend on them.
#[test]
fn a_sequence_can_be_extended_with_tokens_that_were_not_sampled() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 60)];
    let mut engine = poisoned(&ctx, &weights, roomy(160));
    engine.set_detokenizer(Arc::new(Letters));
    let whole = engine.generate(&weights, requests(&prompts, 2, sampling(12))).unwrap();
    let whole = &whole[0].completions[0];
    let text = Letters.decode(&whole.ids);
    let stopping = SamplingParams { stop_strings: vec![text[4..6].into()], ..sampling(24) };
    let mut pausing = requests(&prompts, 2, stopping);
    pausing[0].pause_on_stop = true;
    engine.submit(pausing.remove(0)).unwrap();
    let (mut done, mut extended) = (Vec::new(), 0);
    while done.is_empty() {
        done.extend(engine.step(&weights).unwrap());
        for sequence in engine.paused().iter().map(|p| p.0).collect::<Vec<_>>() {
            engine.extend(sequence, &[7, 8, 9]);
            extended += 1;
        }
    }
    assert!(extended > 0);
    let first = &done[0].completions[0];
    assert_eq!((done[0].group.0, first.generation, first.ids.len()), (1000, 0, 24));
    let at = first.sampled.iter().position(|&sampled| !sampled).unwrap();
    assert_eq!(
        (&first.ids[at..at + 3], &first.sampled[at..at + 4]),
        (&[7, 8, 9][..], &[false, false, false, true][..])
    );
    assert_eq!(first.ids[..at], whole.ids[..at]);
    // Compare with the trainer's log-probabilities at the tokens that the model sampled.
    let trainer = scored(&ctx, (&weights).into(), &done, 1.0, Layout::Shared);
    let recorded: Vec<(f32, bool)> =
        completions(&done).flat_map(|c| c.logps().iter().copied().zip(c.sampled.iter().copied())).collect();
    for (trainer, (recorded, sampled)) in trainer.iter().zip(recorded) {
        assert_eq!(if sampled { trainer.to_bits() } else { 0 }, recorded.to_bits());
    }
    assert_eq!(engine.free_blocks(), engine.config().kv_blocks);
}

/// A caller may end a paused completion, which is then reported as ended by its stop string.
#[test]
fn a_paused_sequence_can_be_finished() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 60)];
    let mut engine = poisoned(&ctx, &weights, roomy(160));
    engine.set_detokenizer(Arc::new(Letters));
    let whole = engine.generate(&weights, requests(&prompts, 1, sampling(12))).unwrap();
    let text = Letters.decode(&whole[0].completions[0].ids);
    let stopping = SamplingParams { stop_strings: vec![text[4..6].into()], ..sampling(24) };
    let mut pausing = requests(&prompts, 1, stopping);
    pausing[0].pause_on_stop = true;
    engine.submit(pausing.remove(0)).unwrap();
    while engine.paused().is_empty() {
        assert!(engine.step(&weights).unwrap().is_empty());
    }
    let sequence = engine.paused()[0].0;
    engine.finish(sequence);
    let done = engine.step(&weights).unwrap();
    let completion = &done[0].completions[0];
    assert_eq!(completion.finish_reason, FinishReason::Stop);
    assert!(Letters.decode(&completion.ids).ends_with(&text[4..6]) && completion.ids.len() < 24);
    assert_eq!((engine.free_blocks(), engine.is_idle()), (engine.config().kv_blocks, true));
}

/// Penalty and truncation affect the drawn tokens, but not their recorded log-probabilities.
#[test]
fn recorded_log_probabilities_ignore_penalty_and_truncation() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 9), prompt(VOCAB, 1, 66)];
    let mut engine = poisoned(&ctx, &weights, roomy(128));
    let plain = sampling(10);
    let variants = [
        SamplingParams { temperature: 0.0, ..plain.clone() },
        SamplingParams { temperature: 0.8, top_k: 5, top_p: 0.9, ..plain.clone() },
        SamplingParams { min_p: 0.2, repetition_penalty: 1.5, ..plain },
    ];
    for sampling in variants {
        let temperature = if sampling.temperature == 0.0 { 1.0 } else { sampling.temperature };
        let groups = engine.generate(&weights, requests(&prompts, 3, sampling)).unwrap();
        assert_eq!(recorded(&groups), scored(&ctx, (&weights).into(), &groups, temperature, Layout::Shared));
    }
}

/// Greedy sampling from the BOS token gives the documented story and its log-probabilities.
#[test]
fn the_pretrained_model_generates_its_documented_story() {
    let ctx = Context::cpu(Isa::best(), 1);
    let Some(weights) = stories(&ctx) else { return };
    let greedy = SamplingParams { temperature: 0.0, ..sampling(12) };
    let mut engine = poisoned(&ctx, &weights, roomy(64));
    let story =
        engine.generate(&weights, requests(&[Prompt::new([1])], 1, greedy)).unwrap().remove(0).completions.remove(0);
    assert_eq!(story.ids, [403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421]);
    for (logp, documented) in story.logps().iter().zip([-0.24374, -0.01751, -0.01211, -0.00072, -0.0317, -0.06842]) {
        assert!((logp - documented).abs() < 2e-4, "{logp} {documented}");
    }
}
