//! A tiny Gemma 3 from `init` to trained weights, in every part of a run. Unlike Qwen 3 it has a different activation,
//! more norms, scaled embeddings and two rotary bases.

use crate::support::runs::{arguments, directory_of, files, good, of_lines, same};
use crate::support::tensors;
use std::fs;
use std::path::Path;

const GEMMA3: &str = r#"{"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 40,
"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "query_pre_attn_scalar": 8, "sliding_window": 5,
"sliding_window_pattern": 2, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
"hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.1, "bos_token_id": null, "eos_token_id": [0, 1],
"pad_token_id": null}"#;

fn model(run: &Path) -> Vec<(String, Vec<f32>)> {
    tensors(&fs::read(run.join("model/model.safetensors")).unwrap())
}

#[test]
fn initial_norms_are_the_identity() {
    let dir = directory_of(GEMMA3);
    fs::write(dir.path().join("config.json"), GEMMA3).unwrap();
    good(dir.path(), &["init", "--config", "config.json", "--out", "made"]);
    let made = tensors(&fs::read(dir.path().join("made/model.safetensors")).unwrap());
    let norms: Vec<_> = made.iter().filter(|(name, _)| name.ends_with("norm.weight")).collect();
    assert_eq!(norms.len(), 2 * 6 + 1);
    assert!(norms.iter().all(|(_, weight)| weight.iter().all(|&w| w == 0.0)));
}

#[test]
fn fine_tuning_lowers_the_loss_and_moves_every_weight() {
    let dir = directory_of(GEMMA3);
    for dtype in ["dtype=f32", "dtype=bf16"] {
        let out = &dtype[6..];
        good(dir.path(), &arguments("sft", out, &[dtype, "max_steps=24", "logging_steps=1"]));
        let losses = of_lines(&dir.path().join(out), "loss");
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&losses[20..]) < 0.7 * mean(&losses[..4]), "{out}: {losses:?}");
        let before = model(dir.path());
        let after = model(&dir.path().join(out));
        assert_eq!(before.len(), 1 + 2 * 13 + 1);
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            assert!(before.iter().zip(after).any(|(a, b)| a != b), "{out}: {name} has not changed");
        }
        let config = |of: &Path| -> serde_json::Value {
            serde_json::from_slice(&fs::read(of.join("model/config.json")).unwrap()).unwrap()
        };
        let (theirs, ours) = (config(dir.path()), config(&dir.path().join(out)));
        for key in ["model_type", "architectures", "hidden_activation", "rope_local_base_freq", "eos_token_id"] {
            assert_eq!(ours[key], theirs[key], "{out}: {key}");
        }
    }
}

#[test]
fn sampler_and_trainer_agree_with_and_without_adapters() {
    let dir = directory_of(GEMMA3);
    let root = dir.path();
    let lora = ["use_peft=true", "lora_r=4", "lora_target_modules=all-linear"];
    for (out, set) in [("full", &["dtype=f32"][..]), ("bf16", &["dtype=bf16"]), ("lora", &lora)] {
        let base = [set, &["beta=0.04", "threads=1"]].concat();
        good(root, &arguments("train", out, &base));
        let mismatches = of_lines(&root.join(out), "sampling/logp_mismatch_tokens");
        assert!(mismatches.len() == 4 && mismatches.iter().all(|&n| n == 0.0), "{out}: {mismatches:?}");
        // Threads, micro-batches and activation checkpointing change no bit.
        let other = format!("{out}-other");
        let variant = ["threads=2", "max_tokens_per_micro_batch=24", "gradient_checkpointing=true"];
        good(root, &arguments("train", &other, &[&base[..], &variant].concat()));
        same(&root.join(out), &root.join(&other));
    }
    assert!(files(&root.join("lora")).contains_key("model/adapter_model.safetensors"));
}
