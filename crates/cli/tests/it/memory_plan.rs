//! The memory that `lockstep plan` predicts matches the memory that the run takes. Each run is a separate process, so
//! that its peak of resident memory can be measured.

use crate::support::{lockstep, model_of};
use serde_json::Value;
use std::path::Path;

/// The model is wide, so that tensors dominate the process's memory. Completions seldom end early: only one of 32,768
/// tokens ends a completion.
const SHAPE: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 32768,
"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8,
"num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
"hidden_act": "silu", "tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

/// Tolerance as a fraction of the peak, and in bytes: the memory of threads and of the allocator varies by this much in
/// small runs.
const TOLERANCE: (f64, f64) = (0.02, 8e6);

/// The number of prompt tokens and the keys of each run. In runs that keep activations, step 18 computes a whole
/// group's forward pass for the comparison, after the buffers have reached their size.
const RUNS: [(usize, &[&str]); 6] = [
    (40, &["beta=0.04", "num_generations=4", "speculative=auto", "rollout_activations=off"]),
    (30, &["algorithm=ppo", "kl_coef=0.05", "num_generations=1"]),
    (59, &["algorithm=ppo", "kl_coef=0.05", "num_generations=1"]),
    (40, &["use_peft=true", "num_generations=4", "rollout_activations=off"]),
    (40, &["optim=muon", "num_generations=4", "rollout_activations=off"]),
    (40, &["use_peft=true", "num_generations=4", "max_steps=18"]),
];
/// A slow run.
const LONG: (usize, &[&str]) = (40, &["num_generations=4", "max_steps=18"]);

#[test]
#[cfg(target_os = "linux")]
fn the_peak_of_resident_memory_is_within_2_percent_of_the_plan() {
    compare(&RUNS);
}

#[test]
#[ignore = "a minute of a core: `cargo xtask nightly memory_plan` runs it"]
#[cfg(target_os = "linux")]
fn the_peak_of_a_whole_model_with_kept_activations_is_within_2_percent_of_the_plan() {
    compare(&[LONG]);
}

fn compare(runs: &[(usize, &[&str])]) {
    let dir = tempfile::tempdir().unwrap();
    model_of(&dir.path().join("model"), SHAPE);
    let runs = runs.iter().enumerate().map(|(i, &(prompt, sets))| peak(dir.path(), i, prompt, sets));
    let wrong: Vec<String> = runs
        .filter(|&(_, planned, held)| (planned - held).abs() > TOLERANCE.1.max(TOLERANCE.0 * held))
        .map(|(what, planned, held)| format!("{what}: planned {planned}, used {held}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The run's name, its planned memory and its peak, in bytes.
fn peak(root: &Path, i: usize, prompt: usize, sets: &[&str]) -> (String, f64, f64) {
    let letters = |i: usize| ('a'..='z').cycle().skip(i).take(prompt).collect::<String>();
    let rows: String = (0..8).map(|i| format!("{{\"prompt\": \"{}\"}}\n", letters(i))).collect();
    std::fs::write(root.join("data.jsonl"), rows).unwrap();
    let out = format!("run-{i}");
    // A run that skips groups may never need the memory for updating all groups.
    let base = [
        "per_device_train_batch_size=8",
        "max_completion_length=64",
        "max_steps=2",
        "threads=1",
        "save_strategy=no",
        "skip_zero_gradients=false",
    ];
    let sets: Vec<&str> = base.iter().chain(sets).flat_map(|set| ["--set", set]).collect();
    let given = [&["--model", "model", "--dataset", "data.jsonl", "--reward", "length:10"][..], &sets].concat();
    let run = |more: &[&str]| {
        let output = lockstep(root, &[more, &given].concat());
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        output.out
    };
    let plan: Value = serde_json::from_str(&run(&["plan", "--json"])).unwrap();
    run(&["train", "--out", &out]);
    let metrics = std::fs::read_to_string(root.join(out).join("metrics.jsonl")).unwrap();
    let last =
        metrics.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).unwrap()["peak_bytes"].as_f64());
    let (planned, held) = (plan["total_bytes"].as_f64().unwrap(), last.unwrap());
    eprintln!(
        "prompts of {prompt}, {sets:?}: planned {planned}, used {held}, {:+.2} %",
        100.0 * (planned / held - 1.0)
    );
    (format!("prompts of {prompt}, {sets:?}"), planned, held)
}
