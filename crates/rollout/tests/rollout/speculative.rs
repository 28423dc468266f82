//! Draft tokens from the engine and from callers are verified in one step. They change no bit.

use crate::engine::{Letters, VOCAB, sampling, small};
use crate::serving::{adapter, caching, conversation, request, run};
use crate::*;
use rollout::{AdapterVersion, Drawn, ModelVersion, Models, Speculative};

/// The engine's own draft tokens, automatic or forced, change only counters: with and without random sampling, with
/// penalties, truncation, stops, entropies and alternatives, and with few pages and rows.
#[test]
fn drafts_from_the_engine_change_no_bit() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 60), prompt(VOCAB, 1, 5)];
    let generate = |sampling: &SamplingParams, config: EngineConfig, speculative: Speculative| {
        let mut engine = poisoned(&ctx, &weights, EngineConfig { speculative, ..config });
        let groups = engine.generate(&weights, requests(&prompts, 2, sampling.clone())).unwrap();
        assert_eq!(engine.free_blocks(), engine.config().kv_blocks);
        (groups, engine.counters())
    };
    let few = EngineConfig { max_num_seqs: 3, kv_blocks: 4, max_batched_tokens: 7, ..caching(128) };
    let greedy = SamplingParams { temperature: 0.0, ..sampling(60) };
    let stop = generate(&greedy, roomy(128), Speculative::Off).0[0].completions[0].ids[30];
    let samplings = [
        greedy.clone(),
        SamplingParams { stop_ids: vec![stop], ..greedy.clone() },
        SamplingParams { repetition_penalty: 1.2, ..greedy.clone() },
        sampling(60),
        SamplingParams { temperature: 0.2, top_k: 5, top_p: 0.9, min_p: 0.02, ..sampling(60) },
        SamplingParams { entropies: true, top_logprobs: 3, prompt_logprobs: true, ..greedy.clone() },
    ];
    for (i, sampling) in samplings.iter().enumerate() {
        let (expected, plain) = generate(sampling, roomy(128), Speculative::Off);
        assert_eq!((plain.drafted_tokens, plain.draft_passes), (0, 0));
        for speculative in [Speculative::Auto, Speculative::Always(1), Speculative::Always(5)] {
            let (groups, counters) = generate(sampling, roomy(128), speculative);
            assert!(groups == expected, "{i}, {speculative:?}");
            assert!(counters.accepted_tokens <= counters.drafted_tokens, "{counters:?}");
            assert!(generate(sampling, few.clone(), speculative).0 == expected, "{i}, {speculative:?}: few pages");
            // The engine measures whether draft tokens are worth their rows. For this small model they hardly ever are.
            let least = if speculative == Speculative::Auto { 0 } else { 20 };
            assert!(i > 1 || counters.drafted_tokens > least, "{i}, {speculative:?}: {counters:?}");
            // The greedy text of a small model repeats itself, so that guesses succeed.
            assert!(i > 0 || counters.accepted_tokens > least, "{speculative:?}: {counters:?}");
        }
    }
}

/// Returns the tokens that are guessed to follow a drawn token.
type Guess<'a> = &'a dyn Fn(&Drawn) -> Vec<u32>;

/// Right guesses are accepted together, and wrong ones cost only their rows. The drawn tokens, and where they stop, do
/// not change.
#[test]
fn drafts_from_the_caller_change_only_the_number_of_steps() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 60), prompt(VOCAB, 1, 5)];
    let plain = SamplingParams { repetition_penalty: 1.2, ..sampling(40) };
    let generate = |sampling: &SamplingParams, config: EngineConfig, guess: Guess<'_>| {
        let mut engine = poisoned(&ctx, &weights, config);
        for request in requests(&prompts, 2, sampling.clone()) {
            engine.submit(request).unwrap();
        }
        let (mut steps, mut groups) = (0, Vec::new());
        while !engine.is_idle() {
            groups.extend(engine.step(&weights).unwrap());
            steps += 1;
            for drawn in engine.drawn().to_vec() {
                engine.draft(drawn.sequence, &guess(&drawn));
            }
        }
        groups.sort_by_key(|group| group.group);
        assert_eq!(engine.free_blocks(), engine.config().kv_blocks);
        (groups, steps)
    };
    let (expected, steps) = generate(&plain, roomy(128), &|_| Vec::new());
    assert_eq!(steps, 40);
    let truth = |d: &Drawn, n: usize| -> Vec<u32> {
        let ids = &expected[(d.group.0 - 1000) as usize].completions[d.generation].ids;
        ids[(d.index + 1).min(ids.len())..].iter().copied().take(n).collect()
    };
    let all_right = |d: &Drawn| truth(d, 4);
    let partly = |d: &Drawn| {
        let mut guess = truth(d, 6);
        if let Some(wrong) = guess.get_mut(d.index % 5) {
            *wrong = (*wrong + 1) % VOCAB as u32;
        }
        guess
    };
    let too_long = |d: &Drawn| truth(d, 100);
    let nonsense = |d: &Drawn| vec![d.id; 3];
    let guesses: [(Guess<'_>, usize); 4] = [(&all_right, 9), (&partly, 39), (&too_long, 9), (&nonsense, 40)];
    let few = EngineConfig { max_num_seqs: 3, kv_blocks: 4, max_batched_tokens: 7, ..caching(128) };
    for (i, (guess, most)) in guesses.into_iter().enumerate() {
        let (groups, steps) = generate(&plain, roomy(128), guess);
        assert!(groups == expected && steps <= most, "{i}: {steps}");
        assert!(generate(&plain, few.clone(), guess).0 == expected, "{i}, few pages and rows");
    }
    // The stop is in the middle of draft tokens that are right.
    let stop = expected[0].completions[0].ids[17];
    let stopping = SamplingParams { stop_ids: vec![stop], ..plain.clone() };
    let (cut, _) = generate(&stopping, roomy(128), &|_| Vec::new());
    assert_eq!(generate(&stopping, roomy(128), &all_right).0, cut);
    assert_eq!(generate(&stopping, roomy(128), &too_long).0, cut);
}

/// Tests draft tokens together with stop strings, adapters of several versions, changing weights and turns, with many
/// and with few pages and rows.
#[test]
fn drafts_work_with_stops_adapters_new_weights_and_turns() {
    let (ctx, weights) = small();
    let ways = [Speculative::Off, Speculative::Auto, Speculative::Always(3)];
    let with = |config: EngineConfig, speculative| {
        let mut engine = poisoned(&ctx, &weights, EngineConfig { speculative, ..config });
        engine.set_detokenizer(Arc::new(Letters));
        engine
    };
    let few =
        |max_model_len| EngineConfig { max_num_seqs: 3, kv_blocks: 5, max_batched_tokens: 9, ..caching(max_model_len) };
    let greedy = SamplingParams { temperature: 0.0, ..sampling(60) };
    let prompts = [prompt(VOCAB, 0, 60), prompt(VOCAB, 1, 5)];

    // A stop string ends a completion in the middle of draft tokens.
    let text = {
        let groups = with(roomy(128), Speculative::Off).generate(&weights, requests(&prompts, 1, greedy.clone()));
        rollout::Detokenize::decode(&Letters, &groups.unwrap()[0].completions[0].ids[20..23])
    };
    let stopping = SamplingParams { stop_strings: vec![text], ..greedy.clone() };
    let stopped = ways.map(|way| {
        [roomy(128), few(128)]
            .map(|config| with(config, way).generate(&weights, requests(&prompts, 2, stopping.clone())).unwrap())
    });
    assert!(stopped.iter().flatten().all(|groups| *groups == stopped[0][0]));
    assert_eq!(stopped[0][0][0].completions[0].finish_reason, rollout::FinishReason::Stop);

    // One of these adapters changes version while its completion is generated.
    let named = [(7, 1), (7, 2), (9, 1)];
    let ctx101 = Context::cpu(Isa::best(), 1);
    let base = qwen3(&ctx101, 64, 2, 101);
    let adapters: Vec<(u64, Adapter)> =
        named.map(|(id, version)| (id, adapter(&ctx101, 10 * id + version, version))).into();
    let listed: Vec<(u64, &Adapter)> = adapters.iter().map(|(id, adapter)| (*id, adapter)).collect();
    let models = Models { current: Some((&base).into()), bases: &[], adapters: &listed };
    let of = |id, version| ModelVersion {
        base: Updates(0),
        adapter: Some(AdapterVersion { id, version: Updates(version) }),
    };
    let adapted = ways.map(|way| {
        let mut engine = poisoned(&ctx101, &base, EngineConfig { speculative: way, ..few(160) });
        for (i, (id, version)) in [(7, 1), (9, 1)].into_iter().enumerate() {
            let wanted =
                request(i as u64, &prompt(101, i, 20), 2, SamplingParams { max_new_tokens: 40, ..greedy.clone() });
            engine.submit(Request { model: Some(of(id, version)), ..wanted }).unwrap();
        }
        // The weights change after a number of tokens, not of steps, because a step with draft tokens draws several.
        let (mut groups, mut changed) = (Vec::new(), false);
        while !engine.is_idle() {
            groups.extend(engine.step(models).unwrap());
            let first = engine.drawn().iter().find(|d| d.group.0 == 0 && d.generation == 0 && d.index == 0);
            if let Some(id) = first.map(|d| d.sequence).filter(|_| !changed) {
                changed = engine.set_model(id, of(7, 2));
            }
        }
        groups.sort_by_key(|group| group.group);
        assert!(changed && (way != Speculative::Always(3) || engine.counters().draft_passes > 0));
        groups
    });
    assert!(adapted.iter().all(|groups| *groups == adapted[0]));
    assert!(adapted[0][0].completions[0].versions.ends_with(&[Updates(2); 30]));

    // Turns: tokens inserted between them are not guessed, and draft tokens beyond the end of a turn are dropped.
    let stop_ids: Vec<u32> = (0..VOCAB as u32).filter(|id| id % 7 == 0).collect();
    let talk = SamplingParams { stop_ids, temperature: 0.6, ..sampling(400) };
    let turns = ways.map(|way| {
        let mut engine = with(roomy(512), way);
        let first = request(1, &prompt(VOCAB, 0, 30), 1, talk.clone());
        engine.submit(Request { pause_on_stop: true, ..first }).unwrap();
        let (group, _) = conversation(&mut engine, &weights, 6);
        assert_eq!(engine.free_blocks(), engine.config().kv_blocks);
        (group, engine.counters().drafted_tokens)
    });
    assert!(turns.iter().all(|(group, _)| *group == turns[0].0) && turns[2].1 > 0);
}

/// When a prompt is sampled again, the completion of the earlier request is guessed, even by another engine that has
/// restored the earlier texts. Restored texts never change the bits.
#[test]
fn the_completion_of_an_earlier_request_is_guessed() {
    let (ctx, weights) = small();
    // Random sampling, so that no text repeats itself, with the same random numbers, so that the same text is drawn
    // again.
    let prompts = [prompt(VOCAB, 0, 60), prompt(VOCAB, 1, 7)];
    let always = EngineConfig { speculative: Speculative::Always(4), ..roomy(128) };
    let all = |engine: &mut Engine| {
        let before = engine.counters();
        let groups = engine.generate(&weights, requests(&prompts, 2, sampling(50))).unwrap();
        (groups, engine.counters() - before)
    };
    let expected = all(&mut poisoned(&ctx, &weights, roomy(128))).0;
    let mut engine = poisoned(&ctx, &weights, always.clone());
    assert!(engine.drafts().is_empty());
    let (first, cold) = all(&mut engine);
    let (again, warm) = all(&mut engine);
    assert!(first == expected && again == expected);
    // One completion per group is kept.
    assert!(warm.accepted_tokens > cold.accepted_tokens + 60, "{cold:?}\n{warm:?}");
    assert!(warm.decode_passes < cold.decode_passes && warm.decoded_tokens + 4 >= cold.decoded_tokens);
    let bytes = engine.drafts();
    let told = |bytes: &[u8]| {
        let mut engine = poisoned(&ctx, &weights, always.clone());
        engine.restore_drafts(bytes);
        let (groups, counters) = all(&mut engine);
        assert!(groups == expected);
        counters.accepted_tokens
    };
    assert_eq!(told(&bytes), warm.accepted_tokens);
    assert!(told(&[]) < warm.accepted_tokens && told(&bytes[..bytes.len() / 2]) < warm.accepted_tokens);
    // Token ids outside the vocabulary are not accepted.
    let mut spoiled = bytes.clone();
    spoiled.chunks_exact_mut(4).skip(4).step_by(9).for_each(|word| word.fill(0xff));
    told(&spoiled);
    // Engines without speculative decoding keep no texts.
    let mut off = poisoned(&ctx, &weights, roomy(128));
    off.restore_drafts(&bytes);
    all(&mut off);
    assert!(off.drafts().is_empty());
    let groups = run(&mut off, &weights);
    assert!(groups.is_empty());
}
