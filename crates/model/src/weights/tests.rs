//! Names, rows and files of parameters.

mod parameters;
mod patterns;
mod slots;
mod views;

use super::*;
use crate::io::{TensorSink, TensorSource, load_tensors, save_tensors};
use kernels::Device;
use std::path::Path;

fn config(family: &str) -> Arc<ModelConfig> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family).join("config.json");
    Arc::new(ModelConfig::load(&path).unwrap())
}

#[test]
fn saved_tensors_equal_the_parameters() {
    for family in ["llama3", "qwen2", "qwen3", "mistral"] {
        let (config, memory) = (config(family), Memory::new(Device::Cpu));
        let mut weights = Weights::zeros(&memory, &config);
        // Every element gets a different number, so that a misplaced row is detected.
        let mut next = 0.0;
        for spec in tensor_specs(&config) {
            let data: Vec<f32> = (0..spec.shape.iter().product()).map(|i| next + i as f32).collect();
            next += data.len() as f32;
            weights.put(&spec.name, &data).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.safetensors");
        save_tensors(&path, &weights, crate::FileDType::F32).unwrap();
        let mut again = Weights::zeros(&memory, &config);
        load_tensors(&path, &mut again).unwrap();
        for (a, b) in weights.params.tensors().iter().zip(again.params.tensors()) {
            assert_eq!(a.to_vec_f32(), b.to_vec_f32());
        }
        assert_eq!(weights.get("model.norm.weight").unwrap(), again.params.norm.to_vec_f32());
        assert!(again.put("model.nothing", &[]).is_err());
    }
}

#[test]
fn a_fused_matrix_stacks_the_rows_of_its_parts() {
    let (config, memory) = (config("qwen2"), Memory::new(Device::Cpu));
    let mut weights = Weights::zeros(&memory, &config);
    let (h, f) = (config.hidden_size, config.intermediate_size);
    weights.put("model.layers.1.mlp.up_proj.weight", &vec![1.0; f * h]).unwrap();
    let layer = &weights.params.layers[1];
    assert_eq!(layer.gate_up.matrix.unpack_rows(0..f), vec![0.0; f * h]);
    assert_eq!(layer.gate_up.matrix.unpack_rows(f..2 * f), vec![1.0; f * h]);
    let kv = config.num_kv_heads * config.head_dim;
    weights.put("model.layers.0.self_attn.k_proj.bias", &vec![2.0; kv]).unwrap();
    let bias = weights.params.layers[0].qkv.bias.as_ref().unwrap().to_vec_f32();
    let first = config.num_heads * config.head_dim;
    assert!((0..bias.len()).all(|i| bias[i] == if (first..first + kv).contains(&i) { 2.0 } else { 0.0 }));
}

#[test]
fn specs_are_in_the_order_of_the_tensors() {
    for family in ["llama3", "qwen2", "qwen3", "mistral"] {
        let config = config(family);
        let weights = Weights::zeros(&Memory::new(Device::Meta), &config);
        let (specs, tensors) = (weights.params.specs(), weights.params.tensors());
        assert_eq!(specs.len(), tensors.len());
        for (spec, tensor) in specs.iter().zip(tensors) {
            let rows = spec.parts.last().unwrap().rows.end;
            if spec.matrix {
                assert_eq!(tensor.shape()[..2], [rows.div_ceil(32), spec.parts[0].shape[1]], "{spec:?}");
            } else {
                assert_eq!(tensor.shape(), [rows], "{spec:?}")
            }
        }
    }
}

#[test]
fn planned_weights_allocate_no_memory() {
    let (config, memory) = (config("qwen2"), Memory::new(Device::Meta));
    let weights = Weights::zeros(&memory, &config);
    let mut grads = Grads::zeros(&memory, &config);
    let usage = memory.usage();
    let bytes: usize = weights.params.tensors().iter().map(|t| t.bytes()).sum();
    assert_eq!(usage["weights"].bytes, bytes);
    assert_eq!(usage["gradients"].bytes, grads.bytes());
    assert_eq!(grads.bytes(), bytes, "the gradients of a tied embedding allocate memory when tokens occur");
    let (v, h) = (config.vocab_size, config.hidden_size);
    for (tokens, rows) in [(5, 5), (3, 5), (v + 1, v)] {
        grads.reserve(tokens);
        assert_eq!(grads.bytes(), bytes + 4 * rows * h);
        assert_eq!(memory.usage()["gradients"].bytes, grads.bytes());
    }
}
