//! Reward models with a frozen base model: only an adapter and the score head are trained.

#![allow(clippy::disallowed_methods)]

use crate::support::runs::{arguments, directory, files, good, metrics, of_lines, same};
use crate::support::{refused, tensors};
use serde_json::Value;
use std::fs;
use std::path::Path;

const LORA: [&str; 7] = [
    "use_peft=true",
    "lora_r=4",
    "lora_alpha=4",
    "lora_target_modules=all-linear",
    "dataset_name=p.jsonl",
    "eval_dataset_name=q.jsonl",
    "logging_steps=1",
];

fn names(bytes: &[u8]) -> Vec<String> {
    tensors(bytes).into_iter().map(|(name, _)| name).collect()
}

fn cut_and_resumed(root: &Path, whole: &str, cut: &str) {
    let copied = std::process::Command::new("cp").args(["-r", whole, cut]).current_dir(root).status().unwrap();
    assert!(copied.success());
    for step in [6, 8, 10, 12] {
        fs::remove_dir_all(root.join(cut).join(format!("checkpoints/step-{step:06}"))).unwrap();
    }
    fs::remove_dir_all(root.join(cut).join("model")).unwrap();
    let output = good(root, &["reward", "--resume", cut]);
    assert!(output.err.contains("resuming after step 4"), "{}", output.err);
    same(&root.join(whole), &root.join(cut));
}

#[test]
fn only_the_adapter_and_the_head_are_trained() {
    let dir = directory();
    let root = dir.path();
    let model = fs::read(root.join("model/model.safetensors")).unwrap();
    let with = |dtype: &'static str| [&LORA[..], &[dtype]].concat();
    for (whole, cut, dtype) in [("f32", "f32-cut", "dtype=f32"), ("bf16", "bf16-cut", "dtype=bf16")] {
        good(root, &arguments("reward", whole, &with(dtype)));
        let losses = of_lines(&root.join(whole), "loss");
        // The score head starts at 0, and a new adapter changes nothing.
        assert!((losses[0] - 2f64.ln()).abs() < 1e-6 && losses[11] < 0.8 * losses[0], "{losses:?}");
        let left = files(&root.join(whole));
        let of = |file: &str| &left[&format!("checkpoints/step-000012/{file}")];
        let head = |names: &[String]| names.iter().filter(|n| n.ends_with("score.weight")).count();
        // Two layers have seven modules each, with matrices A and B; the frozen weights have neither moments nor master
        // weights.
        for file in ["adapter_model.safetensors", "optimizer_exp_avg.safetensors", "optimizer_exp_avg_sq.safetensors"] {
            let names = names(of(file));
            assert_eq!((names.len(), head(&names)), (2 * 2 * 7 + 1, 1), "{file}: {names:?}");
        }
        if whole == "bf16" {
            assert_eq!(names(of("optimizer_masters.safetensors")), ["score.weight"]);
        }
        let adapter = tensors(&left["model/adapter_model.safetensors"]);
        let (name, score) = &adapter[adapter.len() - 1];
        assert!(name == "base_model.model.score.weight" && score.len() == 16 && score.iter().all(|&w| w != 0.0));
        let moved = |which: &str| {
            adapter.iter().filter(|(n, _)| n.contains(which)).all(|(_, data)| data.iter().any(|&x| x != 0.0))
        };
        assert!(moved("lora_B") && moved("lora_A"));
        assert!(!left.keys().any(|n| n.ends_with("/model.safetensors")), "{:?}", left.keys());
        let config: Value = serde_json::from_slice(&left["model/adapter_config.json"]).unwrap();
        assert_eq!((&config["task_type"], &config["modules_to_save"][0]), (&"SEQ_CLS".into(), &"score".into()));
        cut_and_resumed(root, whole, cut);
    }
    assert_eq!(fs::read(root.join("model/model.safetensors")).unwrap(), model);
    let machine = ["threads=2", "max_tokens_per_micro_batch=8", "gradient_checkpointing=true"];
    good(root, &arguments("reward", "other", &[&LORA[..], &machine].concat()));
    same(&root.join("f32"), &root.join("other"));
    good(root, &arguments("reward", "dropped", &[&LORA[..], &["lora_dropout=0.3"]].concat()));
    assert!(
        fs::read(root.join("dropped/model/adapter_model.safetensors")).unwrap()
            != fs::read(root.join("f32/model/adapter_model.safetensors")).unwrap()
    );

    // Gradients and optimizer state take less than a quarter of those of full fine-tuning in the plan.
    let planned = |more: &[&str]| -> Value {
        let plan = ["plan", "--for", "reward", "--json", "--model", "model", "--dataset", "p.jsonl"];
        serde_json::from_str(&good(root, &[&plan, more].concat()).out).unwrap()
    };
    let part = |plan: &Value, name: &str| {
        let parts = plan["parts"].as_array().unwrap();
        parts.iter().find(|p| p["part"] == name).map_or(0, |p| p["bytes"].as_u64().unwrap())
    };
    let (full, own) = (
        planned(&[]),
        planned(&["--set", "use_peft=true", "--set", "lora_r=1", "--set", "lora_target_modules=q_proj"]),
    );
    for name in ["training: gradients", "training: optimizer"] {
        assert!(part(&own, name) > 0 && 4 * part(&own, name) < part(&full, name), "{name}: {own} {full}");
    }
    assert!(part(&own, "adapter") > 0 && part(&own, "weights") == part(&full, "weights"));
}

#[test]
fn an_adapter_of_a_reward_model_can_be_continued_merged_and_used() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("reward", "rm", &LORA));
    good(root, &["merge", "--model", "model", "--adapter", "rm/model", "--out", "merged"]);
    let config = fs::read_to_string(root.join("merged/config.json")).unwrap();
    assert!(config.contains("Qwen3ForSequenceClassification") && config.contains("LABEL_0"), "{config}");
    let merged = names(&fs::read(root.join("merged/model.safetensors")).unwrap());
    assert!(merged.contains(&"score.weight".to_owned()) && !merged.iter().any(|n| n.contains("lora")), "{merged:?}");

    // A continued adapter starts where it ended, and the merged model gives the same scores.
    let first = |model: &str, out: &str, set: &[&str]| -> f64 {
        let mut all = arguments("reward", out, set);
        all[2] = model;
        good(root, &[&all[..], &["--set", "eval_on_start=true", "--set", "max_steps=1"]].concat());
        of_lines(&root.join(out), "eval_margin")[0]
    };
    let last = *of_lines(&root.join("rm"), "eval_margin").last().unwrap();
    let still = ["learning_rate=0"];
    let set = [&LORA[4..], &still].concat();
    assert_eq!(first("rm/model", "on", &set), last);
    let adapter = |run: &str| fs::read(root.join(run).join("model/adapter_model.safetensors")).unwrap();
    assert!(adapter("on") == adapter("rm"));
    let other = first("merged", "whole", &set);
    assert!(last.abs() > 0.1 && (other / last - 1.0).abs() < 1e-4, "{other} {last}");
    // A new adapter on a model that already has a score head.
    let anew = first("merged", "anew", &[&LORA[..], &still].concat());
    assert_eq!(anew, other);

    // The adapter and the merged model both serve as a reward.
    let rewards = |reward: &str, out: &str| {
        let set = [format!("reward_funcs=[\"{reward}\"]"), "max_steps=2".into(), "logging_steps=1".into()];
        good(root, &arguments("train", out, &set.iter().map(String::as_str).collect::<Vec<_>>()));
        of_lines(&root.join(out), "rewards/model/mean")
    };
    let (a, b) = (rewards("model:rm/model", "by-adapter"), rewards("model:merged", "by-merged"));
    assert!(a.len() == 2 && a[0] != 0.0 && (a[0] - b[0]).abs() < 1e-4, "{a:?} {b:?}");

    let adapter = ["generate", "--model", "model", "--adapter", "rm/model", "--prompt", "ab"];
    refused(root, &adapter, &["adapter_config.json", "belongs to a reward model"]);
    let mut sft = arguments("sft", "out", &[]);
    sft[2] = "rm/model";
    refused(root, &sft, &["rm/model is an adapter of a reward model", "language model is needed"]);
    assert!(metrics(&root.join("rm")).len() >= 12);
}
