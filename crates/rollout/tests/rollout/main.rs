//! Tests of the complete engine: its results depend only on weights, prompts, sampling and seed, and its
//! log-probabilities equal the trainer's, bit for bit.

mod chunks;
mod copies;
mod drive;
mod engine;
mod faults;
mod parity;
mod serving;
mod speculative;

use kernels::{Context, Isa};
use model::net::{self, Rope, Tape};
use model::{AdaptedWeights, Adapter, Batch, GroupId, GroupSegment, ModelConfig, ModelView, Prompt, Updates, Weights};
use rollout::{Completion, Engine, EngineConfig, Request, RolloutGroup, SamplingParams};
use std::sync::Arc;

/// Random weights of a Qwen 3 shape, with an `initializer_range` so large that every layer affects the logits.
fn qwen3(ctx: &Context, hidden: usize, layers: usize, vocab: usize) -> Weights {
    qwen3_of(ctx, hidden, layers, vocab, 24)
}

/// As [`qwen3`], with heads of size `head_dim`.
fn qwen3_of(ctx: &Context, hidden: usize, layers: usize, vocab: usize, head_dim: usize) -> Weights {
    let json = format!(
        r#"{{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu",
            "hidden_size": {hidden}, "intermediate_size": 72, "num_hidden_layers": {layers}, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": {head_dim}, "vocab_size": {vocab}, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "attention_bias": false,
            "initializer_range": {}}}"#,
        1.2 / (hidden as f64).sqrt()
    );
    let config = Arc::new(ModelConfig::parse(&json).unwrap());
    Weights::random(ctx.memory(), &config, 7).unwrap()
}

/// The same weights with a low-rank adapter on some parts of the fused matmuls.
fn adapted(ctx: &Context) -> AdaptedWeights {
    use model::io::{TensorSink, TensorSource};
    use model::weights::{Named, NamedMut};
    let weights = qwen3(ctx, 64, 2, 101);
    let names = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"].map(str::to_owned).to_vec();
    let lora = model::LoraConfig { target_modules: model::TargetModules::Names(names), ..Default::default() };
    let mut adapter = Adapter::new(ctx.memory(), &weights, &lora, 1).unwrap();
    let all = Named { params: &adapter.params }.tensors();
    for (i, spec) in all.into_iter().filter(|s| s.name.contains("lora_B")).enumerate() {
        let data: Vec<f32> = kernels::check::normal(i as u64, spec.shape.iter().product());
        NamedMut { params: &mut adapter.params }
            .put(&spec.name, &data.iter().map(|x| 0.1 * x).collect::<Vec<_>>())
            .unwrap();
    }
    AdaptedWeights::new(ctx.memory(), weights, Some(adapter))
}

/// The same weights, rounded to compute in bf16.
fn in_bf16(ctx: &Context, weights: &Weights) -> Weights {
    use model::io::{TensorSink, TensorSource};
    let config = ModelConfig { compute: kernels::DType::Bf16, ..(*weights.config).clone() };
    let mut narrow = Weights::zeros(ctx.memory(), &Arc::new(config));
    for spec in TensorSink::tensors(&narrow) {
        narrow.put(&spec.name, &weights.get(&spec.name).unwrap()).unwrap();
    }
    narrow
}

/// The pretrained model in `../shared`, if it exists.
fn stories(ctx: &Context) -> Option<Weights> {
    let folder = testing::shared("models/stories260k")?;
    let config = Arc::new(ModelConfig::load(&folder.join("config.json")).unwrap());
    Some(Weights::load(ctx.memory(), &folder, &config).unwrap())
}

/// A context in which the CPU runs the CUDA kernels. `None` without a C++ compiler.
fn emulated() -> Option<Context> {
    Context::cuda_emulated().map_or_else(|why| testing::skip(&why.to_string()), Some)
}

fn portable() -> Context {
    Context::cpu(Isa::PORTABLE, 1)
}

/// A prompt of `len` ids, which are different for each `number`.
fn prompt(vocab: usize, number: usize, len: usize) -> Arc<Prompt> {
    Prompt::new((0..len).map(|i| ((i * 37 + number * 101 + i * i * number + 3) % vocab) as u32).collect::<Vec<_>>())
}

/// One request per prompt.
fn requests(prompts: &[Arc<Prompt>], num_generations: usize, sampling: SamplingParams) -> Vec<Request> {
    let sampling = Arc::new(sampling);
    let request = |(i, prompt): (usize, &Arc<Prompt>)| {
        Request::new(GroupId(1000 + i as u64), prompt.clone(), num_generations, sampling.clone())
    };
    prompts.iter().enumerate().map(request).collect()
}

/// A configuration with room for the sequences of all tests.
fn roomy(max_model_len: usize) -> EngineConfig {
    EngineConfig { max_batched_tokens: 512, ..EngineConfig::new(64, max_model_len) }
}

/// An engine with all KV-cache pages filled with NaN.
fn poisoned(ctx: &Context, weights: &Weights, config: EngineConfig) -> Engine {
    let mut engine = Engine::new(ctx, &weights.config, config).unwrap();
    engine.fill_pages(f32::NAN);
    engine
}

/// The completions of all groups.
fn completions(groups: &[RolloutGroup]) -> impl Iterator<Item = &Completion> {
    groups.iter().flat_map(|group| &group.completions)
}

/// The ids and the bits of the log-probabilities of each completion.
fn bits(groups: &[RolloutGroup]) -> Vec<(Vec<u32>, Vec<u32>)> {
    completions(groups).map(|c| (c.ids.clone(), c.logps().iter().map(|l| l.to_bits()).collect())).collect()
}

/// The recorded log-probabilities.
fn recorded(groups: &[RolloutGroup]) -> Vec<f32> {
    completions(groups).flat_map(Completion::logps).copied().collect()
}

/// The layout in which the trainer scores the completions.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// All groups in one batch; the prompt of each group is computed once.
    Shared,
    /// All completions in one batch, each with its own copy of the prompt.
    Packed,
    /// One completion at a time.
    Alone,
}

/// The trainer's log-probabilities of the completions, in order.
fn scored(ctx: &Context, model: ModelView<'_>, groups: &[RolloutGroup], temperature: f64, layout: Layout) -> Vec<f32> {
    let branches: Vec<Vec<&[u32]>> =
        groups.iter().map(|group| group.completions.iter().map(|c| &c.ids[..]).collect()).collect();
    let groups: Vec<GroupSegment<'_>> = groups
        .iter()
        .zip(&branches)
        .map(|(group, branches)| GroupSegment { prefix: &group.prompt.ids, branches })
        .collect();
    let batches = match layout {
        Layout::Shared => vec![Batch::new(&groups, true)],
        Layout::Packed => vec![Batch::new(&groups, false)],
        Layout::Alone => groups
            .iter()
            .flat_map(|g| {
                g.branches.iter().map(|b| GroupSegment { prefix: g.prefix, branches: std::slice::from_ref(b) })
            })
            .map(|g| Batch::new(&[g], true))
            .collect(),
    };
    let capacity = batches.iter().map(Batch::capacity).reduce(|a, b| a.max(b)).unwrap();
    let mut tape = Tape::forward_only(ctx.memory(), model.config(), capacity);
    let rope = Rope::new(ctx.memory(), model.config(), 512);
    let score = |batch: &Batch| net::score(ctx, model, &rope, batch, &mut tape, temperature).unwrap().logps;
    batches.iter().flat_map(score).collect()
}
