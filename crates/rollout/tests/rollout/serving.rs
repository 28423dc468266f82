//! Tests of the engine as a server uses it: requests arrive and end, with several adapters and versions in one batch,
//! cached prefixes, and conversations of several turns. The bits stay the same.

use crate::engine::{VOCAB, sampling, small};
use crate::*;
use model::columns::{ENTROPIES, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, Values};
use model::{ModelView, Updates};
use rollout::{AdapterVersion, Counters, Drawn, FinishReason, ModelVersion, Models, RequestId, SequenceId};
use std::collections::HashMap;

pub(crate) fn request(group: u64, prompt: &Arc<Prompt>, generations: usize, sampling: SamplingParams) -> Request {
    Request::new(GroupId(group), prompt.clone(), generations, Arc::new(sampling))
}

pub(crate) fn caching(max_model_len: usize) -> EngineConfig {
    EngineConfig { prefix_caching: true, ..roomy(max_model_len) }
}

/// Runs steps until no sequence is running or waiting. Returns the groups, sorted by number.
pub(crate) fn run<'a>(engine: &mut Engine, models: impl Into<Models<'a>>) -> Vec<RolloutGroup> {
    let models = models.into();
    let mut groups = Vec::new();
    while !engine.is_idle() {
        groups.extend(engine.step(models).unwrap());
    }
    groups.sort_by_key(|group| group.group);
    groups
}

/// The tokens of each request and generation, as they are drawn.
#[derive(Default)]
struct Streams(HashMap<(RequestId, usize), Vec<Drawn>>);

impl Streams {
    fn see(&mut self, engine: &Engine) {
        for drawn in engine.drawn() {
            let stream = self.0.entry((drawn.request, drawn.generation)).or_default();
            assert_eq!(drawn.index, stream.len());
            stream.push(*drawn);
        }
    }
}

#[test]
fn tokens_are_streamed_as_they_are_drawn() {
    let (ctx, weights) = small();
    let mut engine = poisoned(&ctx, &weights, EngineConfig { max_num_seqs: 2, ..roomy(64) });
    let prompts = [prompt(VOCAB, 0, 9), prompt(VOCAB, 1, 4)];
    let ids: Vec<RequestId> =
        requests(&prompts, 3, sampling(7)).into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let (mut streams, mut groups) = (Streams::default(), Vec::new());
    while !engine.is_idle() {
        groups.extend(engine.step(&weights).unwrap());
        streams.see(&engine);
    }
    groups.sort_by_key(|group| group.group);
    for (id, group) in ids.iter().zip(&groups) {
        for completion in &group.completions {
            let stream = &streams.0[&(*id, completion.generation)];
            assert_eq!(stream.iter().map(|d| d.id).collect::<Vec<_>>(), completion.ids);
            assert_eq!(stream.iter().map(|d| d.logp).collect::<Vec<_>>(), completion.logps());
            let reasons: Vec<_> = stream.iter().map(|d| d.finish_reason).collect();
            assert_eq!(reasons[6], Some(FinishReason::Length));
            assert!(reasons[..6].iter().all(Option::is_none) && stream.iter().all(|d| d.group == group.group));
        }
    }
    engine.step(&weights).unwrap();
    assert!(engine.drawn().is_empty());
}

/// A request that is cancelled at any step of a load that preempts, shares and pauses must leave nothing behind, and
/// must not change the bits of other requests.
#[test]
fn cancelling_at_any_step_frees_every_page() {
    let (ctx, weights) = small();
    let config = EngineConfig { kv_blocks: 7, max_num_seqs: 4, max_batched_tokens: 24, ..caching(160) };
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 5), prompt(VOCAB, 2, 64)];
    let whole = |number: usize| {
        let mut engine = poisoned(&ctx, &weights, config.clone());
        engine.submit(request(1000 + number as u64, &prompts[number], 3, sampling(9))).unwrap();
        bits(&run(&mut engine, &weights))
    };
    let whole: Vec<_> = (0..3).map(whole).collect();
    for cancelled in 0..3 {
        for at in 0.. {
            let mut engine = poisoned(&ctx, &weights, config.clone());
            let ids: Vec<RequestId> =
                requests(&prompts, 3, sampling(9)).into_iter().map(|r| engine.submit(r).unwrap()).collect();
            let mut groups = Vec::new();
            for _ in 0..at {
                groups.extend(engine.step(&weights).unwrap());
            }
            let over = engine.is_idle();
            let there = engine.cancel(ids[cancelled]);
            assert_eq!(there, !groups.iter().any(|group| group.group.0 == 1000 + cancelled as u64));
            groups.extend(run(&mut engine, &weights));
            for group in &groups {
                let number = (group.group.0 - 1000) as usize;
                assert!(bits(std::slice::from_ref(group)) == whole[number], "{cancelled} at {at}: {number}");
            }
            assert_eq!(groups.len(), if there { 2 } else { 3 });
            assert_eq!((engine.free_blocks(), engine.live().count()), (7, 0), "{cancelled} at {at}");
            if over {
                break;
            }
        }
    }
}

/// An adapter like that of [`adapted`], with values from `seed`, as version `version`.
pub(crate) fn adapter(ctx: &Context, seed: u64, version: u64) -> Adapter {
    use model::io::{TensorSink, TensorSource};
    use model::weights::{Named, NamedMut};
    let made = adapted(ctx);
    let (base, lora) = (made.base.current(), made.adapter.as_ref().unwrap().current().lora.clone());
    let mut adapter = Adapter::new(ctx.memory(), base, &lora, seed).unwrap();
    let all = Named { params: &adapter.params }.tensors();
    for (i, spec) in all.into_iter().filter(|s| s.name.contains("lora_B")).enumerate() {
        let data: Vec<f32> = kernels::check::normal(100 * seed + i as u64, spec.shape.iter().product());
        let data: Vec<f32> = data.iter().map(|x| 0.3 * x).collect();
        NamedMut { params: &mut adapter.params }.put(&spec.name, &data).unwrap();
    }
    adapter.version = Updates(version);
    adapter
}

/// One batch mixes two adapters, three versions of one of them, and sequences without an adapter. Each sequence has the
/// same bits as when computed alone.
#[test]
fn each_sequence_can_have_its_own_adapter_and_version() {
    for isa in [Isa::best(), Isa::PORTABLE] {
        let ctx = Context::cpu(isa, 2);
        let base = qwen3(&ctx, 64, 2, 101);
        let named = [(7, 1), (7, 2), (7, 3), (9, 2)];
        let adapters: Vec<(u64, Adapter)> =
            named.map(|(id, version)| (id, adapter(&ctx, 10 * id + version, version))).into();
        let listed: Vec<(u64, &Adapter)> = adapters.iter().map(|(id, adapter)| (*id, adapter)).collect();
        let models = Models { current: Some((&base).into()), bases: &[], adapters: &listed };
        let of = |id, version| ModelVersion {
            base: Updates(0),
            adapter: Some(AdapterVersion { id, version: Updates(version) }),
        };
        let choices: Vec<Option<ModelVersion>> =
            named.iter().map(|&(id, version)| Some(of(id, version))).chain([None]).collect();
        let shared = prompt(101, 0, 70);
        let requests: Vec<Request> = (0..10)
            .map(|i| Request { model: choices[i % 5], ..request(i as u64, &shared, 1 + i % 2, sampling(12)) })
            .collect();
        let mut alone = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let request = Request { model: None, ..request.clone() };
            let adapter = named.get(i % 5).map(|_| &adapters[i % 5].1);
            let mut engine = poisoned(&ctx, &base, roomy(96));
            alone.extend(engine.generate(ModelView::new(&base, adapter), vec![request]).unwrap());
        }
        assert!(alone.windows(2).all(|pair| pair[0].completions[0].logps() != pair[1].completions[0].logps()));
        for config in [roomy(96), caching(96), EngineConfig { max_num_seqs: 3, kv_blocks: 5, ..caching(96) }] {
            let mut engine = poisoned(&ctx, &base, config.clone());
            for request in &requests {
                engine.submit(request.clone()).unwrap();
            }
            let groups = run(&mut engine, models);
            assert!(bits(&groups) == bits(&alone), "{isa:?} {config:?}");
            // Each token records the version of the trained weights.
            let versions: Vec<u64> = groups.iter().map(|group| group.completions[0].versions[0].0).collect();
            assert_eq!(versions, [1, 2, 3, 2, 0, 1, 2, 3, 2, 0]);
        }

        // A new version of one adapter does not affect the others. Errors name missing weights.
        let mut engine = poisoned(&ctx, &base, caching(96));
        let lost = Request { model: Some(of(8, 1)), ..request(50, &shared, 1, sampling(3)) };
        let lost = engine.submit(lost).unwrap();
        let error = engine.step(models).unwrap_err().to_string();
        assert!(error.contains("version 1 of adapter 8"), "{error}");
        assert!(engine.cancel(lost));
        engine.submit(requests[0].clone()).unwrap();
        run(&mut engine, models);
        let before = engine.counters();
        let other = Request { group: GroupId(77), ..requests[0].clone() };
        engine.submit(Request { model: Some(of(9, 2)), ..other.clone() }).unwrap();
        engine.submit(other).unwrap();
        run(&mut engine, models);
        assert_eq!(
            engine.counters().cached_tokens - before.cached_tokens,
            64,
            "only pages of its own version are found"
        );
    }
}

/// Several versions of the full weights are in flight. A step computes with one, and a sequence may switch versions.
#[test]
fn several_versions_of_the_full_weights_can_be_in_flight() {
    let (ctx, old) = small();
    let mut new = Weights::random(ctx.memory(), &old.config, 8).unwrap();
    new.publish();
    let bases = [&old, &new];
    let models = Models { bases: &bases, ..Models::default() };
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 6)];
    let version = |base| Some(ModelVersion { base: Updates(base), adapter: None });
    let mut alone = Vec::new();
    for (base, weights) in [(0, &old), (1, &new)] {
        let mut engine = poisoned(&ctx, &old, roomy(128));
        alone.push(engine.generate(weights, vec![request(base, &prompts[base as usize], 2, sampling(10))]).unwrap());
    }
    let mut engine = poisoned(&ctx, &old, EngineConfig { max_num_seqs: 3, ..roomy(128) });
    for base in [0, 1] {
        let wanted = request(base, &prompts[base as usize], 2, sampling(10));
        engine.submit(Request { model: version(base), ..wanted }).unwrap();
    }
    let groups = run(&mut engine, models);
    for (base, group) in groups.iter().enumerate() {
        assert_eq!(bits(std::slice::from_ref(group)), bits(&alone[base]), "{base}");
        assert!(group.completions.iter().all(|c| c.versions.iter().all(|&v| v.0 == base as u64)));
    }

    // Ten tokens come from the old weights and the rest from the new ones, as if the new weights had computed all keys.
    let expected = {
        let mut engine = poisoned(&ctx, &old, roomy(128));
        engine.submit(request(0, &prompts[0], 1, sampling(10))).unwrap();
        let mut groups = Vec::new();
        for step in 0.. {
            if engine.is_idle() {
                break;
            }
            groups.extend(engine.step(if step < 4 { &old } else { &new }).unwrap());
        }
        groups
    };
    engine.submit(Request { model: version(0), ..request(0, &prompts[0], 1, sampling(10)) }).unwrap();
    let mut groups = Vec::new();
    for step in 0.. {
        if engine.is_idle() {
            break;
        }
        if step == 4 {
            let id = engine.drawn()[0].sequence;
            assert!(engine.set_model(id, version(1).unwrap()));
        }
        groups.extend(engine.step(models).unwrap());
    }
    assert_eq!(groups, expected);
    // The old weights are not passed to the step any more, but a request still names them.
    engine.submit(Request { model: version(0), ..request(0, &prompts[0], 1, sampling(10)) }).unwrap();
    let error = engine.step(&new).unwrap_err().to_string();
    assert!(error.contains("version 0 of the weights"), "{error}");
    let mut engine = poisoned(&ctx, &old, roomy(128));
    engine.submit(request(0, &prompts[0], 1, sampling(10))).unwrap();
    assert!(engine.step(models).unwrap_err().to_string().contains("no current weights"));
}

/// A prefix that one request has computed is reused by other requests.
#[test]
fn a_shared_prefix_is_computed_once() {
    let (ctx, weights) = small();
    let system = prompt(VOCAB, 3, 150);
    let prompts: Vec<Arc<Prompt>> =
        (0..5).map(|i| Prompt::new([&system.ids[..], &prompt(VOCAB, i, 10 + i).ids].concat())).collect();
    let one = |config: EngineConfig, others: usize| {
        let mut engine = poisoned(&ctx, &weights, config);
        let mut groups = Vec::new();
        // The requests first run one after another, with unrelated ones in between, then all at once.
        for (i, shared) in prompts.iter().enumerate() {
            engine.submit(request(i as u64, shared, 2, sampling(8))).unwrap();
            groups.extend(run(&mut engine, &weights));
            engine.submit(request(0, &prompt(VOCAB, 20 + i, others), 1, sampling(1))).unwrap();
            run(&mut engine, &weights);
        }
        for (i, prompt) in prompts.iter().enumerate() {
            engine.submit(request(10 + i as u64, prompt, 1, sampling(8))).unwrap();
        }
        groups.extend(run(&mut engine, &weights));
        (bits(&groups), engine.counters())
    };
    let (plain, cold) = one(roomy(256), 5);
    let (cached, warm) = one(caching(256), 5);
    assert_eq!(plain, cached);
    // The shared 150 tokens fill two pages, which every request but the first finds. The prompts of 160 to 164 tokens
    // fill only these two pages, so requests for the same prompt find no more.
    assert_eq!((cold.cached_tokens, warm.cached_tokens), (0, 9 * 128));
    assert_eq!(cold.computed_tokens - warm.computed_tokens, 9 * 128);
    // With few pages, the least recently used pages are evicted, and recomputed with the same bits.
    let (few, counters) = one(EngineConfig { kv_blocks: 5, ..caching(256) }, 250);
    assert_eq!(few, plain);
    assert!(counters.cached_tokens < warm.cached_tokens, "{counters:?}");
}

/// Plays `turns` turns of a conversation. Each turn pauses at its end and is extended by the user's tokens.
pub(crate) fn conversation(engine: &mut Engine, weights: &Weights, turns: usize) -> (RolloutGroup, Vec<Counters>) {
    let mut counters = vec![engine.counters()];
    let mut turn = 0;
    loop {
        let mut ended = Vec::new();
        while !engine.is_idle() {
            ended.extend(engine.step(weights).unwrap());
        }
        counters.push(engine.counters());
        if let Some(group) = ended.pop() {
            return (group, counters);
        }
        let paused: Vec<SequenceId> = engine.paused().iter().map(|p| p.0).collect();
        for id in paused {
            turn += 1;
            let end = turn == turns;
            assert!(if end { engine.finish(id) } else { engine.extend(id, &prompt(VOCAB, turn, 20).ids) });
            assert!(!end || !engine.extend(id, &[1]), "the completion has ended");
        }
        if turn == turns {
            let group = engine.step(weights).unwrap().pop().unwrap();
            return (group, counters);
        }
    }
}

/// A turn computes only the tokens since the last turn, with the bits of a prefill of the whole conversation.
#[test]
fn a_turn_computes_only_its_new_tokens() {
    let (ctx, weights) = small();
    const TURNS: usize = 8;
    // Many stop ids, so that turns are short.
    let stop_ids: Vec<u32> = (0..VOCAB as u32).filter(|id| id % 7 == 0).collect();
    let talk = SamplingParams { stop_ids, ..sampling(400) };
    let first = prompt(VOCAB, 0, 30);
    let submit = |engine: &mut Engine| {
        let talk = Request { pause_on_stop: true, ..request(1, &first, 1, talk.clone()) };
        engine.submit(talk).unwrap()
    };
    let mut engine = poisoned(&ctx, &weights, roomy(512));
    submit(&mut engine);
    let (group, counters) = conversation(&mut engine, &weights, TURNS);
    assert_eq!(group.completions[0].finish_reason, FinishReason::Stop);
    let c = &group.completions[0];
    let inserted = c.sampled.iter().filter(|&&sampled| !sampled).count();
    assert_eq!((inserted, counters.len()), (20 * (TURNS - 1), TURNS + 1));
    // Every token except the last was computed once.
    let total = first.ids.len() + c.ids.len() - 1;
    assert_eq!(counters.last().unwrap().computed_tokens as usize, total);
    // The trainer computes the whole conversation at once.
    let trainer = scored(&ctx, (&weights).into(), std::slice::from_ref(&group), 1.0, Layout::Shared);
    for ((trainer, recorded), sampled) in trainer.iter().zip(c.logps()).zip(&c.sampled) {
        assert_eq!(if *sampled { trainer.to_bits() } else { 0 }, recorded.to_bits());
    }
    assert_eq!(engine.free_blocks(), engine.config().kv_blocks);

    // Other sequences need the pages of the paused one, which loses them and still gets the same bits.
    let mut engine = poisoned(&ctx, &weights, EngineConfig { kv_blocks: 9, ..roomy(512) });
    submit(&mut engine);
    let mut crowded = None;
    while crowded.is_none() {
        while !engine.is_idle() {
            crowded = engine.step(&weights).unwrap().pop();
        }
        let Some(&(id, ..)) = engine.paused().first() else { break };
        let drawn = 1 + engine.paused()[0].3.iter().zip(&c.ids).take_while(|(a, b)| a == b).count();
        let turn = c.sampled[..drawn - 1].windows(2).filter(|pair| pair[0] && !pair[1]).count() + 1;
        engine.submit(request(9, &prompt(VOCAB, 50 + turn, 500), 1, sampling(5))).unwrap();
        run(&mut engine, &weights);
        if turn == TURNS {
            assert!(engine.finish(id))
        } else {
            assert!(engine.extend(id, &prompt(VOCAB, turn, 20).ids))
        }
        if turn == TURNS {
            crowded = engine.step(&weights).unwrap().pop();
        }
    }
    assert!(engine.counters().computed_tokens as usize > total + TURNS * 500, "the turns must have been recomputed");
    assert_eq!(crowded.unwrap(), group);

    // A client that sends the whole conversation at each turn gets its beginning from the prefix cache.
    let mut engine = poisoned(&ctx, &weights, caching(512));
    let whole = [&first.ids[..], &c.ids].concat();
    let starts: Vec<usize> = (1..c.sampled.len()).filter(|&i| c.sampled[i] && !c.sampled[i - 1]).collect();
    for &start in &starts {
        let before = engine.counters();
        let prompt = Prompt::new(&whole[..first.ids.len() + start]);
        engine.submit(request(1, &prompt, 1, sampling(1))).unwrap();
        run(&mut engine, &weights);
        let after = engine.counters();
        let (computed, cached) =
            (after.computed_tokens - before.computed_tokens, after.cached_tokens - before.cached_tokens);
        assert_eq!((computed + cached) as usize, prompt.ids.len());
        assert!(start == starts[0] || (computed as usize) < 64 + 60, "{computed} of {}", prompt.ids.len());
    }
}

/// Entropies equal those of the trainer's forward pass, bit for bit. Requesting them changes nothing else.
#[test]
fn entropies_equal_the_trainers() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 6)];
    let of = |entropies: bool| {
        let sampling = SamplingParams { temperature: 0.7, entropies, ..sampling(6) };
        let mut engine = poisoned(&ctx, &weights, roomy(128));
        engine.generate(&weights, requests(&prompts, 20, sampling)).unwrap()
    };
    let (groups, without) = (of(true), of(false));
    assert_eq!(bits(&groups), bits(&without));
    assert!(completions(&without).all(|c| c.columns.f32(ENTROPIES).is_none()));
    let mut scorer = model::Scorer::new(ctx.memory(), 512, true);
    let mut compared = 0;
    for group in &groups {
        for completion in &group.completions {
            let sequence = model::PromptCompletion { prompt: &group.prompt.ids, completion: &completion.ids };
            let scores = scorer.score(&ctx, &weights, &[sequence], 0.7).unwrap().pop().unwrap();
            assert_eq!(completion.columns.f32(ENTROPIES).unwrap(), scores.entropies);
            compared += scores.entropies.len();
        }
    }
    assert_eq!(compared, 2 * 20 * 6);
}

/// Log-probabilities of prompts and of alternatives come from the trainer's lm head.
#[test]
fn prompt_and_alternative_log_probabilities_equal_the_trainers() {
    let (ctx, weights) = small();
    let prompts = [prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 6)];
    let wanted = SamplingParams { temperature: 0.7, prompt_logprobs: true, top_logprobs: 5, ..sampling(6) };
    let narrow = EngineConfig { max_num_seqs: 2, max_batched_tokens: 24, kv_blocks: 4, ..caching(128) };
    let mut all = Vec::new();
    for config in [roomy(128), narrow] {
        let mut engine = poisoned(&ctx, &weights, config);
        // Other requests have already computed the prompt, without prompt log-probabilities.
        engine.generate(&weights, requests(&prompts, 1, sampling(3))).unwrap();
        all.push(engine.generate(&weights, requests(&prompts, 2, wanted.clone())).unwrap());
    }
    assert_eq!(all[0], all[1]);
    for group in &all[0] {
        // The trainer scores the prompt without its first token as a completion.
        let rest = group.prompt.ids[1..].to_vec();
        let as_completion = Completion {
            generation: 0,
            sampled: vec![true; rest.len()],
            versions: vec![Updates(0); rest.len()],
            ids: rest,
            columns: Default::default(),
            finish_reason: FinishReason::Stop,
        };
        let whole = RolloutGroup::new(GroupId(0), Prompt::new(&group.prompt.ids[..1]), vec![as_completion]);
        let trainer = scored(&ctx, (&weights).into(), &[whole], 0.7, Layout::Shared);
        assert_eq!(group.prompt_columns.f32(SAMPLER_LOGPS).unwrap(), trainer);
        let columns = group.completions.iter().map(|c| (&c.columns, c.ids.len()));
        for (columns, tokens) in columns.chain([(&group.prompt_columns, group.prompt.ids.len() - 1)]) {
            let (ids, logps) = (columns.get(TOP_IDS).unwrap(), columns.get(TOP_LOGPS).unwrap());
            assert_eq!((ids.width, ids.tokens(), logps.width, logps.tokens()), (5, tokens, 5, tokens));
            let (Values::U32(ids), Values::F32(logps)) = (&ids.values, &logps.values) else {
                panic!("ids must be u32 and log-probabilities f32")
            };
            assert!(logps.chunks(5).all(|top| top.is_sorted_by(|a, b| a >= b)));
            assert!(ids.chunks(5).all(|top| (0..5).all(|i| !top[..i].contains(&top[i]))));
        }
        for completion in &group.completions {
            let Values::U32(ids) = &completion.columns.get(TOP_IDS).unwrap().values else { panic!("ids") };
            let Values::F32(logps) = &completion.columns.get(TOP_LOGPS).unwrap().values else { panic!("logps") };
            let mut found = 0;
            for (i, (id, logp)) in completion.ids.iter().zip(completion.logps()).enumerate() {
                let top = i * 5..i * 5 + 5;
                assert!(logp <= &logps[top.start], "no token may be more likely than the first alternative");
                if let Some(at) = ids[top.clone()].iter().position(|other| other == id) {
                    assert_eq!(logps[top.start + at], *logp);
                    found += 1;
                }
            }
            assert!(found > 0);
        }
    }
}
