//! Decoding allocates nothing: once the sequences run, a step asks the allocator for no memory, on any thread.
//!
//! A binary of its own, with one test: the counts are those of the process.

use kernels::{Context, DType, Isa};
use model::{AdaptedWeights, Adapter, LoraConfig, ModelConfig, ModelView, Prompt, TargetModules, Weights};
use rollout::{Engine, EngineConfig, Request, SamplingParams};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const VOCAB: usize = 101;
const PROMPTS: usize = 2;
const GENERATIONS: usize = 3;
/// Prompts of 60 tokens: the first page ends after four more, the second never.
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

/// The same with a low-rank adapter on every linear layer.
fn adapted(ctx: &Context, compute: DType) -> AdaptedWeights {
    let weights = weights(ctx, compute);
    let lora = LoraConfig { target_modules: TargetModules::AllLinear, ..LoraConfig::default() };
    let adapter = Adapter::new(ctx.memory(), &weights, &lora, 1).unwrap();
    AdaptedWeights::new(ctx.memory(), weights, Some(adapter))
}

/// Allocations and reallocations of each step that ended no sequence, and of those that did.
fn counted(ctx: &Context, model: ModelView<'_>, sampling: SamplingParams, prefix_sharing: bool) -> [Vec<usize>; 2] {
    let sizes = EngineConfig::new(PROMPTS * GENERATIONS, 128);
    let config = EngineConfig { max_batched_tokens: 512, prefix_sharing, ..sizes };
    let mut engine = Engine::new(ctx, model.config(), config).unwrap();
    let sampling = Arc::new(SamplingParams { max_new_tokens: NEW_TOKENS, seed: 5, ..sampling });
    for number in 0..PROMPTS {
        let prompt = Prompt::new((0..PROMPT).map(|i| ((i * 37 + number * 11 + 3) % VOCAB) as u32).collect::<Vec<_>>());
        let (num_generations, id) = (GENERATIONS, number as u64);
        let sampling = sampling.clone();
        engine.submit(Request { id, prompt, num_generations, sampling, pause_on_stop: false }).unwrap();
    }
    let mut steps = [(); 2].map(|()| Vec::with_capacity(2 * NEW_TOKENS));
    while !engine.is_idle() {
        let region = Region::new(ALLOCATOR);
        let ended = engine.step(model).unwrap();
        let change = region.change();
        steps[usize::from(!ended.is_empty())].push(change.allocations + change.reallocations);
    }
    steps
}

/// What was counted in the steps after the first few, which admit the sequences and size what threads keep.
fn decoding(ctx: &Context, model: ModelView<'_>, sampling: &SamplingParams, prefix_sharing: bool) -> Vec<usize> {
    let [others, ending] = counted(ctx, model, sampling.clone(), prefix_sharing);
    // What is counted can be seen: a step that ends sequences gives their tokens away.
    assert!(ending.iter().all(|&n| n > 0) && others.len() > NEW_TOKENS / 2, "{others:?} {ending:?}");
    others[3..].to_vec()
}

#[test]
fn a_decode_step_allocates_nothing() {
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
                    // A thread sizes its own memory when it first gets a task of a kind, which may be late on a busy
                    // machine: what allocates in every step does so in every generation, too.
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
    assert!(wrong.is_empty(), "allocations of each step:\n{}", wrong.join("\n"));
}
