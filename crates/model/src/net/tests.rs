//! The memory of buffers, worked out from the shapes that their fields are documented with, and what does not fit them.

use super::*;
use crate::batch::{Batch, Capacity, GroupSegment, StepRows};
use crate::{ModelConfig, StopCheck};
use kernels::ops::attention::BLOCK;
use kernels::{DType, Device, Isa, Memory};
use std::sync::Arc;

fn config(more: &str) -> ModelConfig {
    let json = format!(
        r#"{{"hidden_size": 6, "intermediate_size": 70, "num_hidden_layers": 3, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 50, {more}}}"#
    );
    ModelConfig::parse(&json).unwrap()
}

/// Models that differ in their norms: none but before, on each head, on all heads and after, all of them.
fn configs() -> [ModelConfig; 4] {
    ["llama", "qwen3", "olmo2", "gemma3_text"].map(|family| config(&format!(r#""model_type": "{family}""#)))
}

/// Elements of the activations of one layer: in f32, and in the dtype that matmuls read.
fn of_layer(c: &ModelConfig, rows: usize, gates: bool) -> (usize, usize) {
    let qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    let mut f32s = rows * (1 + 1 + c.num_heads + c.hidden_size);
    if let Some((_, _, norms)) = c.qk_norm_widths() {
        f32s += rows * (qkv + norms);
    }
    let after = [c.norms.attention.after, c.norms.mlp.after].into_iter().flatten().count();
    f32s += after * rows * (c.hidden_size + 1);
    let read = rows * (qkv + c.num_heads * c.head_dim) + if gates { rows * 2 * c.intermediate_size } else { 0 };
    (f32s, read)
}

/// Bytes of activations and of scratch, for a pass that keeps `inputs` inputs and `layers` layers' activations.
fn activations(c: &ModelConfig, rows: usize, inputs: usize, layers: usize, gates: bool) -> [usize; 2] {
    let read = c.compute.bytes();
    let (f32s, of_dtype) = of_layer(c, rows, gates);
    let kept = inputs * rows * c.hidden_size + layers * f32s + 2 * rows * c.hidden_size + rows;
    let kept = 4 * kept + read * (layers * of_dtype + rows * c.hidden_size);
    let qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    let at_once = 2 * c.intermediate_size * rows.min(256);
    let wide = match c.compute {
        DType::F32 => {
            if gates {
                0
            } else {
                at_once
            }
        }
        _ => at_once.max(rows * qkv),
    };
    [kept, read * rows * (c.hidden_size + c.intermediate_size) + 4 * wide]
}

fn pages(c: &ModelConfig, blocks: usize, bytes: usize) -> usize {
    2 * blocks * c.num_kv_heads * c.head_dim * BLOCK * bytes
}

/// Bytes of the head's buffers for the scored tokens.
fn head(c: &ModelConfig, score_rows: usize) -> usize {
    score_rows * (c.hidden_size * c.compute.bytes() + 3 * 4)
}

fn backward(c: &ModelConfig, capacity: Capacity) -> usize {
    let (rows, bf16) = (capacity.tokens, c.compute != DType::F32);
    let qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    let after = c.norms.attention.after.is_some() || c.norms.mlp.after.is_some();
    let narrow =
        c.intermediate_size.max(c.num_heads * c.head_dim).max(if c.qk_norm_widths().is_some() { qkv } else { 0 });
    let gates = if bf16 { rows.min(256) } else { rows };
    let f32s = (2 + usize::from(after)) * rows * c.hidden_size
        + rows * narrow
        + (rows * qkv).max(2 * c.intermediate_size * gates)
        + (rows + capacity.score_rows) * c.hidden_size;
    4 * f32s + if bf16 { 2 * rows * 2 * c.intermediate_size } else { 0 } + pages(c, capacity.blocks, 4)
}

#[test]
fn buffers_take_the_memory_of_their_shapes() {
    for config in configs() {
        for compute in [DType::F32, DType::Bf16] {
            // Rows below and above the number that are computed at once, and heads wider than the MLP.
            for (tokens, intermediate_size) in [(10, 70), (600, 70), (600, 8)] {
                let c = &ModelConfig { compute, intermediate_size, ..config.clone() };
                let capacity = Capacity { tokens, blocks: 7, score_rows: 5 };
                let usage = |build: &dyn Fn(&Memory)| {
                    let memory = Memory::new(Device::Meta);
                    build(&memory);
                    let usage = memory.usage();
                    ["activations", "workspace", "kv cache"].map(|part| usage.get(part).map_or(0, |u| u.peak_bytes))
                };
                let what = format!("{} {compute:?} {tokens} {intermediate_size}", c.family.model_type);
                for (checkpointing, layers) in [(false, 3), (true, 1)] {
                    let [kept, scratch] = activations(c, tokens, 3, layers, true);
                    let rest = pages(c, 7, compute.bytes()) + head(c, 5) + backward(c, capacity);
                    let found = usage(&|memory| drop(Tape::new(memory, c, capacity, checkpointing)));
                    assert_eq!(found, [kept, scratch + rest, 0], "{what} {checkpointing}");
                }
                let alone = activations(c, tokens, 1, 1, false).iter().sum::<usize>();
                let found = usage(&|memory| drop(Tape::forward_only(memory, c, capacity)));
                assert_eq!(found, [0, alone + pages(c, 7, compute.bytes()) + head(c, 5), 0], "{what}");
                let found = usage(&|memory| drop(Workspace::new(memory, c, tokens)));
                assert_eq!(found, [0, alone, 0], "{what}");
                let found = usage(&|memory| drop(KvCache::new(memory, c, 7)));
                assert_eq!(found, [0, 0, 3 * pages(c, 7, compute.bytes())], "{what}");
                assert_eq!(7 * KvCache::block_bytes(c), found[2], "{what}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_the_buffers_is_refused_with_its_size() {
    let ctx = Context::cpu(Isa::best(), 1);
    let c = Arc::new(config(r#""model_type": "llama""#));
    let weights = Weights::random(ctx.memory(), &c, 1).unwrap();
    let rope = Rope::new(ctx.memory(), &c, 100);
    let completion: Vec<u32> = (0..70).map(|i| i % 50).collect();
    let batch = Batch::new(&[GroupSegment { prefix: &[1, 2], branches: &[&completion, &[5]] }], true);
    let room = batch.capacity();
    assert_eq!((room.tokens, room.blocks, room.score_rows), (71, 2, 71));
    let tensors = BatchTensors::new(ctx.memory(), &batch);
    let go = |room: Capacity| {
        let mut tape = Tape::forward_only(ctx.memory(), &c, room);
        assert_eq!(tape.capacity(), room);
        forward(&ctx, &weights, &rope, &tensors, &mut tape).map_err(|e| e.to_string())
    };
    assert_eq!(go(room), Ok(()));
    for (smaller, why) in [
        (Capacity { tokens: 70, ..room }, "71 rows, and buffers for 70"),
        (Capacity { blocks: 1, ..room }, "2 pages, and buffers for 1"),
        (Capacity { score_rows: 70, ..room }, "71 scored tokens, and buffers for 70"),
    ] {
        assert!(go(smaller).unwrap_err().contains(why), "{smaller:?}");
    }
    let mut tape = Tape::forward_only(ctx.memory(), &c, room);
    forward(&ctx, &weights, &rope, &tensors, &mut tape).unwrap();
    assert_eq!((tape.hidden().shape(), tape.logps().shape()), (&[71, 6][..], &[0][..]));
    head_forward(&ctx, &weights, &tensors, 1.0, &mut tape).unwrap();
    assert_eq!((tape.logps().shape(), tape.entropies().shape()), (&[71][..], &[71][..]));
    assert_eq!(tape.scored_hidden().shape(), [71, 6]);
    let mut grads = Grads::zeros(ctx.memory(), &c);
    let error = super::backward(&ctx, &weights, &rope, &tensors, &mut tape, &mut grads).unwrap_err().to_string();
    assert!(error.contains("backward: the tape is for forward only"), "{error}");
    let d = kernels::Tensor::zeros(ctx.memory(), &[71], DType::F32);
    let error = head_backward(&ctx, &weights, &tensors, d.view(), None, &mut tape, &mut grads).unwrap_err();
    assert!(error.to_string().contains("the tape is for forward only"), "{error}");
    // A check that says stop ends a pass before it computes.
    let mut tape = Tape::forward_only(ctx.memory(), &c, room).stop_with(StopCheck::new(|| true));
    assert!(matches!(forward(&ctx, &weights, &rope, &tensors, &mut tape), Err(crate::Error::Stopped)));
    let mut tape = tape.stop_with(StopCheck::default());
    forward(&ctx, &weights, &rope, &tensors, &mut tape).unwrap();
    let mut tape = tape.stop_with(StopCheck::new(|| true));
    let stopped = head_forward(&ctx, &weights, &tensors, 1.0, &mut tape);
    assert!(matches!(stopped, Err(crate::Error::Stopped)));
    // In inference.
    let mut workspace = Workspace::new(ctx.memory(), &c, 2);
    let mut kv = KvCache::new(ctx.memory(), &c, 3);
    let mut rows = InferRows::new(ctx.memory(), 3, 1, 1);
    let ids = [1, 2, 3];
    let mut step = |n: usize| {
        let all = [0, 1, 2];
        let (write_rows, write_slots) = (&all[..n], &all[..n]);
        let of = StepRows { ids: &ids[..n], positions: &all[..n], tables_of_rows: &[0; 3][..n], ..StepRows::default() };
        rows.set(StepRows { write_rows, write_slots, ..of });
        let done = infer(&ctx, &weights, &rope, &rows, &mut kv, &mut workspace);
        (done.map_err(|e| e.to_string()), workspace.hidden().shape().to_vec())
    };
    assert_eq!(step(2), (Ok(()), vec![2, 6]));
    assert!(step(3).0.unwrap_err().contains("3 rows, and buffers for 2"));
}

#[test]
fn gradients_are_of_the_adapter_that_computed_them() {
    let ctx = Context::cpu(Isa::best(), 1);
    let c = Arc::new(config(r#""model_type": "llama""#));
    let weights = Weights::random(ctx.memory(), &c, 1).unwrap();
    let lora = crate::LoraConfig { r: 1, ..crate::LoraConfig::default() };
    let adapter = crate::Adapter::new(ctx.memory(), &weights, &lora, 1).unwrap();
    let rope = Rope::new(ctx.memory(), &c, 10);
    let batch = Batch::new(&[GroupSegment { prefix: &[1, 2], branches: &[&[5, 6]] }], true);
    let tensors = BatchTensors::new(ctx.memory(), &batch);
    for (adapted, trained) in [(false, false), (true, true), (true, false), (false, true)] {
        let model = ModelView::new(&weights, adapted.then_some(&adapter));
        let mut grads = Grads::trained(ctx.memory(), &c, trained.then_some(&lora));
        let mut tape = Tape::new(ctx.memory(), &c, batch.capacity(), false);
        forward(&ctx, model, &rope, &tensors, &mut tape).unwrap();
        assert_eq!(tape.d_hidden_mut().shape(), [3, 6]);
        tape.d_hidden_mut().fill(1.0);
        let done = super::backward(&ctx, model, &rope, &tensors, &mut tape, &mut grads);
        if adapted == trained {
            assert!(done.is_ok())
        } else {
            let error = done.unwrap_err().to_string();
            assert!(error.contains("backward: weights and gradients are not of the same adapter"), "{error}");
        }
    }
}

#[test]
fn an_inverse_temperature_is_rounded_to_f32() {
    assert_eq!([1.0, 0.5, 4.0, 0.7].map(inv_temperature), [1.0, 2.0, 0.25, (1.0 / 0.7) as f32]);
}
