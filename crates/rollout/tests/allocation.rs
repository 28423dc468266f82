//! Decoding allocates nothing: once all sequences are running, a step makes no allocation on any thread.
//!
//! Requests that have ended or were cancelled leave no memory allocated.
//!
//! This is a separate binary with one test, because it counts the allocations of the whole process.

use kernels::{Context, DType, Isa};
use model::{AdaptedWeights, Adapter, GroupId, LoraConfig, ModelConfig, ModelView, Prompt, TargetModules, Weights};
use rollout::{AdapterVersion, Engine, EngineConfig, ModelVersion, Models, Request, SamplingParams};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const VOCAB: usize = 101;
const PROMPTS: usize = 2;
const GENERATIONS: usize = 3;
/// The length of the prompts: the first page is full after four more tokens, and the second is never full.
const PROMPT: usize = 60;
const NEW_TOKENS: usize = 24;

fn weights(ctx: &Context, compute: DType) -> Weights {
    let json = format!(
        r#"{{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "vocab_size": {VOCAB}, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "tie_word_embeddings": false, "attention_bias": false}}"#
    );
    let config = ModelConfig { compute, ..ModelConfig::parse(&json).unwrap() };
    Weights::random(ctx.memory(), &Arc::new(config), 7).unwrap()
}

/// The same weights with a low-rank adapter on every linear layer.
fn adapted(ctx: &Context, compute: DType) -> AdaptedWeights {
    let weights = weights(ctx, compute);
    let lora = LoraConfig { target_modules: TargetModules::AllLinear, ..LoraConfig::default() };
    let adapter = Adapter::new(ctx.memory(), &weights, &lora, 1).unwrap();
    AdaptedWeights::new(ctx.memory(), weights, Some(adapter))
}

/// Counts allocations and reallocations per step, separately for steps that ended no sequence and steps that ended one.
fn counted(ctx: &Context, model: ModelView<'_>, sampling: SamplingParams, prefix_sharing: bool) -> [Vec<usize>; 2] {
    let config = EngineConfig { prefix_sharing, ..sizes() };
    let mut engine = Engine::new(ctx, model.config(), config).unwrap();
    let sampling = Arc::new(SamplingParams { max_new_tokens: NEW_TOKENS, seed: 5, ..sampling });
    for number in 0..PROMPTS {
        let prompt = Prompt::new((0..PROMPT).map(|i| ((i * 37 + number * 11 + 3) % VOCAB) as u32).collect::<Vec<_>>());
        let (num_generations, group) = (GENERATIONS, GroupId(number as u64));
        let sampling = sampling.clone();
        engine.submit(Request::new(group, prompt, num_generations, sampling)).unwrap();
    }
    counted_steps(&mut engine, model.into())
}

fn sizes() -> EngineConfig {
    EngineConfig { max_batched_tokens: 512, ..EngineConfig::new(PROMPTS * GENERATIONS, 128) }
}

fn counted_steps(engine: &mut Engine, models: Models<'_>) -> [Vec<usize>; 2] {
    let mut steps = [(); 2].map(|()| Vec::with_capacity(2 * NEW_TOKENS));
    while !engine.is_idle() {
        let region = Region::new(ALLOCATOR);
        let ended = engine.step(models).unwrap();
        let change = region.change();
        steps[usize::from(!ended.is_empty())].push(change.allocations + change.reallocations);
    }
    steps
}

/// A load with different adapters per sequence, in which full pages enter the prefix cache.
fn serving(ctx: &Context, base: &Weights, adapters: &[(u64, &Adapter)]) -> Vec<usize> {
    let config = EngineConfig { prefix_caching: true, ..sizes() };
    let mut engine = Engine::new(ctx, &base.config, config).unwrap();
    let sampling = Arc::new(SamplingParams { max_new_tokens: NEW_TOKENS, seed: 5, ..SamplingParams::default() });
    let versions = adapters.iter().map(|&(id, adapter)| AdapterVersion { id, version: adapter.version });
    for (id, adapter) in versions.map(Some).chain([None]).cycle().take(PROMPTS * GENERATIONS).enumerate() {
        let prompt = Prompt::new((0..PROMPT).map(|i| ((i * 37 + id * 11 + 3) % VOCAB) as u32).collect::<Vec<_>>());
        let request = Request::new(GroupId(id as u64), prompt, 1, sampling.clone());
        engine.submit(Request { model: Some(ModelVersion { base: base.version, adapter }), ..request }).unwrap();
    }
    let [others, _] = counted_steps(&mut engine, Models { current: None, bases: &[base], adapters });
    assert!(others.len() > NEW_TOKENS / 2);
    others[3..].to_vec()
}

/// Checks that requests leave no memory allocated. `LOCKSTEP_REQUESTS` sets their number; a million take a minute or
/// two.
fn requests_leave_nothing(ctx: &Context, weights: &Weights) {
    let requests: u64 =
        std::env::var("LOCKSTEP_REQUESTS").map_or(20_000, |n| n.parse().expect("LOCKSTEP_REQUESTS must be a number"));
    let config = EngineConfig { prefix_caching: true, ..EngineConfig::new(64, 128) };
    let mut engine = Engine::new(ctx, &weights.config, config).unwrap();
    let sampling = Arc::new(SamplingParams { max_new_tokens: 2, ..SamplingParams::default() });
    let region = Region::new(ALLOCATOR);
    let (mut ended, mut cancelled, mut held_early) = (0, 0, None);
    for number in 0..requests {
        let prompt = Prompt::new([(number % VOCAB as u64) as u32, (number / 7 % VOCAB as u64) as u32]);
        let id = engine.submit(Request::new(GroupId(number), prompt, 2, sampling.clone())).unwrap();
        cancelled += u64::from(number % 5 == 0 && engine.cancel(id));
        while engine.live().count() >= 128 {
            ended += engine.step(weights).unwrap().len() as u64;
        }
        if ended + cancelled > 1000 {
            let change = region.change();
            // Both counters include reallocations.
            let held = change.bytes_allocated as isize - change.bytes_deallocated as isize;
            let early = *held_early.get_or_insert(held);
            assert!((held - early).abs() < 1 << 17, "after {ended} requests {held} bytes, {early} after a thousand");
        }
    }
    assert!(cancelled > requests / 20 && ended > requests / 2, "{ended} ended, {cancelled} were cancelled");
}

/// The counts without the first few steps, which admit the sequences and size the buffers of threads.
fn decoding(ctx: &Context, model: ModelView<'_>, sampling: &SamplingParams, prefix_sharing: bool) -> Vec<usize> {
    let [others, ending] = counted(ctx, model, sampling.clone(), prefix_sharing);
    // Check the counter: a step that ends sequences allocates their results.
    assert!(ending.iter().all(|&n| n > 0) && others.len() > NEW_TOKENS / 2, "{others:?} {ending:?}");
    others[3..].to_vec()
}

#[test]
fn a_decode_step_allocates_nothing_and_requests_leak_nothing() {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let drawn = SamplingParams { stop_ids: vec![VOCAB as u32], ..SamplingParams::default() };
    let truncated = SamplingParams { top_k: 30, top_p: 0.9, min_p: 0.01, ..SamplingParams::default() };
    let penalised = SamplingParams { repetition_penalty: 1.2, ..SamplingParams::default() };
    let ways = [("T = 1", drawn), ("greedy", greedy), ("truncated", truncated), ("penalised", penalised)];
    let mut wrong = Vec::new();
    for (isa, threads) in Isa::present().into_iter().flat_map(|isa| [(isa, 1), (isa, 2)]) {
        let ctx = Context::cpu(isa, threads);
        for compute in [DType::F32, DType::Bf16] {
            let (whole, adapted) = (weights(&ctx, compute), adapted(&ctx, compute));
            let cases = ways.iter().map(|(way, sampling)| (*way, ModelView::from(&whole), sampling));
            for (case, weights, sampling) in cases.chain([("adapted", ModelView::from(&adapted), &ways[0].1)]) {
                for shared in [true, false] {
                    let count = || decoding(&ctx, weights, sampling, shared);
                    let mut counts = count();
                    // A thread sizes its buffers when it first runs a task of some kind, which may be late on a busy
                    // machine. An allocation that happens in every step shows up in every repetition.
                    for _ in 1..if threads > 1 { 5 } else { 1 } {
                        if counts.iter().any(|&n| n > 0) {
                            counts = count();
                        }
                    }
                    if counts.iter().any(|&n| n > 0) {
                        wrong.push(format!("{isa:?} × {threads}, {compute:?}, {case}, shared {shared}: {counts:?}"));
                    }
                }
            }
        }
    }
    let ctx = Context::cpu(Isa::best(), 1);
    let base = weights(&ctx, DType::F32);
    let lora = LoraConfig { target_modules: TargetModules::AllLinear, ..LoraConfig::default() };
    let adapters = [1, 2].map(|seed| Adapter::new(ctx.memory(), &base, &lora, seed).unwrap());
    let named: Vec<(u64, &Adapter)> = adapters.iter().enumerate().map(|(i, a)| (i as u64, a)).collect();
    let counts = serving(&ctx, &base, &named);
    if counts.iter().any(|&n| n > 0) {
        wrong.push(format!("one adapter per sequence, with the prefix cache: {counts:?}"));
    }
    assert!(wrong.is_empty(), "allocations of each step:\n{}", wrong.join("\n"));
    requests_leave_nothing(&ctx, &base);
}
