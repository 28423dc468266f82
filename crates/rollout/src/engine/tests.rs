//! Tests of the requests that an engine accepts, and of its page counts.

use super::*;
use kernels::Isa;
use model::{GroupId, Prompt, Updates, Weights};

fn model() -> (Context, Weights) {
    let json = r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 16}"#;
    let ctx = Context::cpu(Isa::best(), 1);
    let weights = Weights::random(ctx.memory(), &Arc::new(ModelConfig::parse(json).unwrap()), 1).unwrap();
    (ctx, weights)
}

fn engine(config: EngineConfig) -> Result<Engine> {
    let (ctx, weights) = model();
    Engine::new(&ctx, &weights.config, config)
}

fn request(prompt: usize, tokens: usize) -> Request {
    let sampling = SamplingParams { max_new_tokens: tokens, ..SamplingParams::default() };
    Request::new(GroupId(1), Prompt::new(vec![1; prompt]), 1, Arc::new(sampling))
}

#[test]
fn a_pool_must_have_pages_for_a_sequence_and_a_copy() {
    let of = |kv_blocks, max_model_len| {
        let config = EngineConfig { kv_blocks, ..EngineConfig::new(2, max_model_len) };
        engine(config).map(|engine| engine.free_blocks()).map_err(|e| e.to_string())
    };
    let small = |blocks: usize, len: usize, needed: usize| {
        let why = format!(
            "a KV cache of {blocks} pages cannot hold one sequence of {len} tokens: it must have at least {needed} \
             pages"
        );
        Err(why)
    };
    assert_eq!((of(2, 64), of(1, 64)), (Ok(2), small(1, 64, 2)));
    assert_eq!((of(3, 65), of(2, 65)), (Ok(3), small(2, 65, 3)));
    let most = u32::MAX as usize / 64;
    let why = format!(
        "a KV cache of {} pages is too large: it may have at most {most} pages (max_num_seqs, kv_cache_blocks)",
        most + 1
    );
    assert_eq!(of(most + 1, 64), Err(why));
}

#[test]
fn a_request_needs_a_prompt_and_room_for_a_token() {
    let mut engine = engine(EngineConfig::new(2, 10)).unwrap();
    let submitted = |engine: &mut Engine, request| engine.submit(request).map(drop).map_err(|e| e.to_string());
    let empty = "the prompt is empty: it must have at least one token, such as BOS";
    assert_eq!(submitted(&mut engine, request(0, 3)), Err(empty.to_owned()));
    let long = |n| {
        let why = "leaves no room in a context of 10: raise max_model_len or shorten the prompt";
        Err(format!("a prompt of {n} tokens {why}"))
    };
    assert_eq!((submitted(&mut engine, request(10, 3)), submitted(&mut engine, request(11, 3))), (long(10), long(11)));
    assert!(engine.is_idle());
    assert_eq!((submitted(&mut engine, request(9, 3)), engine.is_idle()), (Ok(()), false));
}

#[test]
fn a_generation_counts_its_work_and_frees_its_pages() {
    let (ctx, weights) = model();
    let config = EngineConfig::new(2, 100);
    let mut engine = Engine::new(&ctx, &weights.config, config.clone()).unwrap();
    assert_eq!((engine.config(), engine.free_blocks()), (&config, 6));
    let requests = vec![
        Request { group: GroupId(5), ..request(3, 4) },
        Request { group: GroupId(4), num_generations: 2, ..request(70, 2) },
    ];
    let mut seen = Vec::new();
    let groups = engine.generate_with(&weights, requests, |group| seen.push(group.group.0)).unwrap();
    assert_eq!(
        groups.iter().map(|g| g.group.0).collect::<Vec<_>>(),
        [5, 4],
        "groups must be in the order of the requests"
    );
    assert_eq!(seen, [4, 5], "the callback must get groups as they end");
    let lengths: Vec<Vec<usize>> = groups.iter().map(|g| g.completions.iter().map(|c| c.ids.len()).collect()).collect();
    assert_eq!(lengths, [vec![4], vec![2, 2]]);
    let counters = engine.counters();
    // The first request computes 3 + 3 rows. The second computes 70 rows once, and one more row for each completion.
    assert_eq!((counters.computed_tokens, counters.cached_tokens, counters.preemptions), (78, 0, 0));
    assert_eq!((engine.counters().preemptions, engine.free_blocks(), engine.is_idle()), (0, 6, true));
    assert_eq!((counters.drafted_tokens, engine.drafts()), (0, vec![]));
    assert_eq!(counters.prefill_steps + counters.decode_steps, 4);
    assert!(engine.step(&weights).unwrap().is_empty() && engine.drawn().is_empty(), "an idle engine computes nothing");
}

#[test]
fn a_flag_stops_a_generation_and_a_step_without_weights_is_an_error() {
    let (ctx, weights) = model();
    let mut engine = Engine::new(&ctx, &weights.config, EngineConfig::new(2, 100)).unwrap();
    let flag = Arc::new(AtomicBool::new(true));
    engine.stop_with(flag.clone());
    assert!(matches!(engine.generate(&weights, vec![request(3, 4)]), Err(Error::Stopped)));
    assert!(engine.is_idle() && engine.free_blocks() == 6, "the stopped request must be removed");
    flag.store(false, Ordering::Relaxed);
    assert_eq!(engine.generate(&weights, vec![request(3, 4)]).unwrap().len(), 1);
    let id = engine.submit(request(3, 4)).unwrap();
    // The earlier weights stay current, so the step needs them.
    assert!(matches!(engine.step(Models::default()), Err(Error::NoSuchBase { version: Updates(0) })));
    assert!(engine.drawn().is_empty());
    assert!(engine.cancel(id) && !engine.cancel(id) && engine.is_idle());
    let mut fresh = Engine::new(&ctx, &weights.config, EngineConfig::new(2, 100)).unwrap();
    fresh.submit(request(3, 4)).unwrap();
    assert!(matches!(fresh.step(Models::default()), Err(Error::NoCurrentWeights)));
}

#[test]
fn drafts_of_an_earlier_process_are_restored_if_guessing_is_on() {
    let (ctx, weights) = model();
    let on = EngineConfig { speculative: Speculative::Auto, ..EngineConfig::new(2, 100) };
    let mut engine = Engine::new(&ctx, &weights.config, on.clone()).unwrap();
    engine.generate(&weights, vec![request(3, 4)]).unwrap();
    let bytes = engine.drafts();
    assert!(!bytes.is_empty());
    let mut later = Engine::new(&ctx, &weights.config, on).unwrap();
    later.restore_drafts(&bytes);
    assert_eq!(later.drafts(), bytes);
    let mut off = Engine::new(&ctx, &weights.config, EngineConfig::new(2, 100)).unwrap();
    off.restore_drafts(&bytes);
    assert!(off.drafts().is_empty());
}

#[test]
fn paused_completions_are_listed_extended_and_ended() {
    let (ctx, weights) = model();
    let mut engine = Engine::new(&ctx, &weights.config, EngineConfig::new(4, 100)).unwrap();
    let sampling = SamplingParams { max_new_tokens: 5, stop_ids: (0..16).collect(), ..SamplingParams::default() };
    let sampling = Arc::new(sampling);
    for id in [7, 8] {
        let request = Request::new(GroupId(id), Prompt::new([1, 2]), 2, sampling.clone());
        engine.submit(Request { pause_on_stop: true, ..request }).unwrap();
    }
    assert!(engine.step(&weights).unwrap().is_empty() && engine.is_idle());
    let paused: Vec<(GroupId, usize, usize)> = engine.paused().iter().map(|p| (p.1, p.2, p.3.len())).collect();
    let expected = [(7, 0, 1), (7, 1, 1), (8, 0, 1), (8, 1, 1)].map(|(group, g, tokens)| (GroupId(group), g, tokens));
    assert_eq!(paused, expected);
    assert_eq!(engine.live().map(|(group, g, ids)| (group, g, ids.len())).collect::<Vec<_>>(), paused);
    let ids: Vec<SequenceId> = engine.paused().iter().map(|p| p.0).collect();
    assert!(engine.extend(ids[0], &[3]) && !engine.extend(ids[0], &[3]), "an extended completion is not paused");
    assert!(engine.finish(ids[1]) && !engine.finish(ids[1]) && !engine.extend(ids[1], &[]));
    let gone = SequenceId { serial: ids[2].serial + 99, ..ids[2] };
    assert!(
        !engine.finish(gone)
            && !engine.extend(gone, &[])
            && !engine.set_model(gone, ModelVersion { base: Updates(0), adapter: None })
    );
    // One drawn token and four inserted tokens fill the completion.
    assert!(engine.extend(ids[2], &[3, 3, 3, 3]));
    assert_eq!(engine.paused().len(), 1);
    assert!(engine.finish(ids[3]));
    let ended = engine.step(&weights).unwrap();
    assert_eq!(ended.iter().map(|g| g.group).collect::<Vec<_>>(), [GroupId(8)]);
    let reasons: Vec<_> = ended[0].completions.iter().map(|c| (c.ids.len(), c.finish_reason)).collect();
    assert_eq!(reasons, [(5, crate::FinishReason::Length), (1, crate::FinishReason::Stop)]);
    assert_eq!(ended[0].completions[0].sampled, [true, false, false, false, false]);
    assert_eq!(engine.drawn().len(), 1);
    assert_eq!((engine.drawn()[0].group, engine.drawn()[0].index), (GroupId(7), 2));
}

/// The store has room for the first step of one group and for all of another group.
#[test]
fn a_group_is_kept_in_the_space_of_a_cancelled_one() {
    let (ctx, weights) = model();
    let mut engine = Engine::new(&ctx, &weights.config, EngineConfig::new(2, 10)).unwrap();
    let activations = RolloutActivations::new(ctx.memory(), &weights.config, 4 + 4 + 5, 4, 4 + 4 + 5);
    engine.keep_activations(Some(activations.clone()));
    let first = engine.submit(request(4, 5)).unwrap();
    engine.step(&weights).unwrap();
    assert!(engine.cancel(first) && !engine.cancel(first));
    engine.submit(Request { group: GroupId(2), ..request(4, 5) }).unwrap();
    let mut groups = Vec::new();
    while !engine.is_idle() {
        groups.extend(engine.step(&weights).unwrap());
    }
    let version = ModelView::from(&weights).version();
    let completion = &groups[0].completions[0].ids;
    assert!(activations.lock().find((version, 1.0), GroupId(2), &[1; 4], completion).is_some());
}
