//! Tests of the complete decoder: against transformers, against other ways of computing it, and on a pretrained model.

mod adapters;
mod bf16;
mod dropout;
mod fixtures;
mod gradients;
mod logits;
mod lora;
mod parity;
mod score;
mod score_fixtures;
mod stories;

use kernels::{Context, DType, Isa, Tensor};
use model::io::{TensorSink, TensorSource};
use model::net::{self, Rope, Tape};
use model::{
    AdaptedWeights, Adapter, Batch, BatchTensors, Grads, GroupSegment, ModelConfig, ModelView, Scorer, Weights,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FAMILIES: [&str; 8] = ["llama3", "qwen2", "qwen3", "mistral", "smollm3", "olmo2", "olmo3", "gemma3"];

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

fn context(threads: usize) -> Context {
    Context::cpu(Isa::best(), threads)
}

fn load(ctx: &Context, family: &str) -> Weights {
    let config = Arc::new(ModelConfig::load(&folder(family).join("config.json")).unwrap());
    Weights::load(ctx.memory(), &folder(family), &config).unwrap()
}

/// The adapter of adapted weights.
fn adapter(weights: &AdaptedWeights) -> &Adapter {
    weights.adapter.as_ref().unwrap().current()
}

/// Changes the adapter.
fn change<R>(weights: &mut AdaptedWeights, change: impl FnOnce(&mut Adapter) -> R) -> R {
    weights.adapter.as_mut().unwrap().overwrite(change)
}

/// The same weights in a model with a different configuration. Tensors that the new model lacks are dropped.
fn with_config(ctx: &Context, weights: &Weights, config: ModelConfig) -> Weights {
    let mut other = Weights::zeros(ctx.memory(), &Arc::new(config));
    for spec in TensorSink::tensors(&other) {
        other.put(&spec.name, &weights.get(&spec.name).unwrap()).unwrap();
    }
    other
}

/// The results of a forward and backward pass over a batch.
struct Outcome {
    logps: Vec<f32>,
    entropies: Vec<f32>,
    hidden: Vec<f32>,
    grads: Grads,
}

/// The forward and backward pass of the sum over `batches` of Σ (weightᵢ · logpᵢ + ½ weightᵢ · entropyᵢ), one batch
/// after another.
fn gradients<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    batches: &[Batch],
    weight: &[f32],
    checkpointing: bool,
) -> Outcome {
    gradients_with(ctx, model, batches, weight, checkpointing, None)
}

/// Like `gradients`, with dropout of this probability, seed and step. The branches have the sequence indices 100, 103,
/// 106, …
fn gradients_with<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    batches: &[Batch],
    weight: &[f32],
    checkpointing: bool,
    dropout: Option<(f64, u64, u64)>,
) -> Outcome {
    let model = model.into();
    let (config, memory) = (model.config(), ctx.memory());
    let capacity = batches.iter().map(Batch::capacity).reduce(|a, b| a.max(b)).unwrap();
    let mut tape = Tape::new(memory, config, capacity, checkpointing);
    let rope = Rope::new(memory, config, 256);
    let mut grads = Grads::trained(memory, config, model.lora());
    let (mut logps, mut entropies, mut hidden, mut branches) = (vec![], vec![], vec![], (100u32..).step_by(3));
    for batch in batches {
        let mut tensors = BatchTensors::new(memory, batch);
        let places: Vec<u32> = branches.by_ref().take(batch.scores_of_branches.len()).collect();
        let noise = |(p, seed, step)| model::batch::Dropout::new(memory, p, seed, step, batch, &places);
        tensors.set_dropout(dropout.map(noise));
        net::forward(ctx, model, &rope, &tensors, &mut tape).unwrap();
        net::head_forward(ctx, model, &tensors, 1.0, &mut tape).unwrap();
        let batch_weight = &weight[logps.len()..logps.len() + batch.targets.len()];
        let d_logps = Tensor::from_f32(memory, &[batch_weight.len()], batch_weight);
        let halves: Vec<f32> = batch_weight.iter().map(|w| 0.5 * w).collect();
        let d_entropies = Tensor::from_f32(memory, &[batch_weight.len()], &halves);
        logps.extend(tape.logps().to_vec_f32());
        entropies.extend(tape.entropies().to_vec_f32());
        hidden.extend(tape.hidden().to_vec_f32());
        let (d_logps, d_entropies) = (d_logps.view(), Some(d_entropies.view()));
        net::head_backward(ctx, model, &tensors, d_logps, d_entropies, &mut tape, &mut grads).unwrap();
        net::backward(ctx, model, &rope, &tensors, &mut tape, &mut grads).unwrap();
    }
    grads.finish(ctx).unwrap();
    Outcome { logps, entropies, hidden, grads }
}

/// Logits `[T, V]` of a sequence, or scores `[T, n]`.
fn logits<'a>(ctx: &Context, model: impl Into<ModelView<'a>>, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    Scorer::new(ctx.memory(), 64, true).logits(ctx, model, &[ids], |_, rows| all.extend_from_slice(rows)).unwrap();
    all
}

/// Bits of all gradients.
fn bits(grads: &Grads) -> Vec<Vec<u32>> {
    grads.params.tensors().iter().map(|t| t.to_vec_f32().into_iter().map(f32::to_bits).collect()).collect()
}
