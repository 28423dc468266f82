//! Activations kept from the rollout replace forward passes in training, without changing a bit of a run.

use crate::support::runs::{arguments, directory, good, same};
use serde_json::Value;
use std::ops::RangeInclusive;
use std::path::Path;

/// The metric with the share of rows whose activations are kept; missing if none can be kept.
const SHARE: &str = "rollout_activations_share";

/// The logged values of a metric.
fn logged(run: &Path, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line[name].as_f64()).collect()
}

/// The size of the kept activations in the run's memory plan.
fn planned_bytes(root: &Path, set: &[&str]) -> u64 {
    let mut arguments = arguments("train", "unused", set);
    arguments[0] = "plan";
    let at = arguments.iter().position(|argument| *argument == "--out").unwrap();
    arguments.drain(at..at + 2);
    arguments.push("--json");
    let plan: Value = serde_json::from_str(&good(root, &arguments).out).unwrap();
    let parts = plan["parts"].as_array().unwrap();
    let part = parts.iter().find(|part| part["part"] == "generation: rollout activations");
    part.map_or(0, |part| part["bytes"].as_u64().unwrap())
}

#[test]
fn kept_activations_change_no_bit_of_any_kind_of_run() {
    let dir = directory();
    let root = dir.path();
    // With one optimizer step per generation, all rows are kept, except those of groups that are computed again for
    // comparison. Rows of rejected draft tokens and of preempted sequences also take up memory.
    let (all, first) = (0.8..=1.0, 0.3..=0.5);
    let kinds: [(&str, &RangeInclusive<f64>, &[&str]); 10] = [
        ("grpo", &all, &["beta=0.04"]),
        ("bf16", &all, &["dtype=bf16", "skip_zero_gradients=false"]),
        ("lora", &all, &["use_peft=true", "lora_r=2"]),
        ("ppo", &first, &["algorithm=ppo", "num_ppo_epochs=2"]),
        ("iterations", &first, &["num_iterations=2"]),
        ("steps", &first, &["steps_per_generation=2"]),
        ("dynamic", &all, &["dynamic_sampling=true"]),
        ("quantile", &all, &["top_entropy_quantile=0.5"]),
        ("separate", &all, &["prefix_sharing=false", "packing=false"]),
        (
            "small",
            &(0.3..=1.0),
            &["max_num_seqs=3", "kv_cache_blocks=2", "speculative=auto", "max_tokens_per_micro_batch=24"],
        ),
    ];
    for (kind, range, set) in kinds {
        let common =
            ["num_generations=4", "per_device_train_batch_size=8", "threads=1", "logging_steps=2", "save_steps=6"];
        let set = [&common, set].concat();
        let with = |value: &str| [&set[..], &[&*format!("rollout_activations={value}")]].concat().join("\n");
        let run = |name: &str, value: &str| {
            let out = format!("{kind}-{name}");
            let set = with(value);
            good(root, &arguments("train", &out, &set.lines().collect::<Vec<_>>()));
            root.join(out)
        };
        let off = run("off", "off");
        assert!(logged(&off, SHARE).is_empty(), "{kind}");
        let whole = planned_bytes(root, &set);
        for (name, value, range) in [
            ("auto", "auto".to_owned(), range.clone()),
            ("half", format!("{}B", whole / 2), 0.0..=0.9 * range.end()),
            ("nothing", "1kB".to_owned(), 0.0..=0.0),
        ] {
            // With too little memory, a run only looks for room and keeps nothing, so one kind of run is enough.
            if name == "nothing" && kind != "grpo" {
                continue;
            }
            let kept = run(name, &value);
            same(&off, &kept);
            let shares = logged(&kept, SHARE);
            let found = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
            assert!(range.contains(&found), "{kind} {name}: {shares:?}");
            let mismatches = logged(&kept, "sampling/activation_mismatch_rows");
            assert!(!mismatches.is_empty() && mismatches.iter().all(|&rows| rows == 0.0), "{kind} {name}");
        }
    }
}
