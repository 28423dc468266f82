//! LoRA adapters with DPO and PPO: the files of the result, the unchanged base model, and the exact resume of an
//! interrupted run.

#![allow(clippy::disallowed_methods)]

use crate::support::runs::{arguments, directory, files, good, of_lines, same};
use std::fs;
use std::path::Path;

const LORA: [&str; 3] = ["use_peft=true", "lora_r=4", "lora_target_modules=all-linear"];
const PAIRS: [&str; 2] = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];

/// Resumes a copy of `whole` as if it had been killed after step 4.
fn cut_and_resumed(root: &Path, command: &str, whole: &str, cut: &str) {
    let copied = std::process::Command::new("cp").args(["-r", whole, cut]).current_dir(root).status().unwrap();
    assert!(copied.success());
    for step in [6, 8, 10, 12] {
        fs::remove_dir_all(root.join(cut).join(format!("checkpoints/step-{step:06}"))).unwrap();
    }
    fs::remove_dir_all(root.join(cut).join("model")).unwrap();
    let output = good(root, &[command, "--resume", cut]);
    assert!(output.err.contains("resuming after step 4"), "{}", output.err);
    same(&root.join(whole), &root.join(cut));
}

/// Asserts that the result consists of an adapter's files, and that the base model has not changed.
fn leaves_an_adapter(root: &Path, run: &str, model: &[u8]) {
    let left = files(&root.join(run));
    assert!(left.contains_key("model/adapter_model.safetensors"), "{:?}", left.keys());
    assert!(left.contains_key("checkpoints/step-000012/adapter_model.safetensors"), "{:?}", left.keys());
    let whole = |name: &String| name.ends_with("/model.safetensors") && !name.contains("value_model");
    assert!(!left.keys().any(whole), "{:?}", left.keys());
    assert_eq!(fs::read(root.join("model/model.safetensors")).unwrap(), model);
}

#[test]
fn dpo_trains_and_resumes_an_adapter() {
    let dir = directory();
    let root = dir.path();
    let model = fs::read(root.join("model/model.safetensors")).unwrap();
    let set = [&LORA[..], &PAIRS, &["logging_steps=1", "learning_rate=0.02", "beta=1"]].concat();
    good(root, &arguments("dpo", "whole", &set));
    leaves_an_adapter(root, "whole", &model);
    let losses = of_lines(&root.join("whole"), "loss");
    // A new adapter is zero, so the policy equals its reference.
    assert_eq!(losses[0], 2f64.ln());
    assert_eq!(of_lines(&root.join("whole"), "rewards/margins")[0], 0.0);
    assert!(losses.len() == 12 && losses[11] < 0.8 * losses[0], "{losses:?}");
    assert_eq!(of_lines(&root.join("whole"), "rewards/accuracies")[11], 1.0);
    assert!(of_lines(&root.join("whole"), "eval_rewards/margins").last().unwrap() > &0.1);

    cut_and_resumed(root, "dpo", "whole", "cut");
    let machine = ["threads=2", "max_tokens_per_micro_batch=8", "gradient_checkpointing=true"];
    good(root, &arguments("dpo", "other", &[&set[..], &machine].concat()));
    same(&root.join("whole"), &root.join("other"));

    // After training, the chosen ending is more likely.
    fs::write(root.join("ids.jsonl"), r#"{"prompt_ids": [3, 4, 5], "completion_ids": [29]}"#).unwrap();
    let score = |more: &[&str]| -> f64 {
        let output = good(root, &[&["score", "--model", "model", "--input", "ids.jsonl"], more].concat());
        serde_json::from_str::<serde_json::Value>(output.out.trim()).unwrap()["logprobs"][0].as_f64().unwrap()
    };
    assert!(score(&["--adapter", "whole/model"]) != score(&[]));
}

#[test]
fn ppo_trains_and_resumes_an_adapter() {
    let dir = directory();
    let root = dir.path();
    let model = fs::read(root.join("model/model.safetensors")).unwrap();
    let ppo = ["algorithm=ppo", "num_generations=1", "num_ppo_epochs=2", "kl_coef=0.05", "kl_estimator=k3"];
    let set = [&LORA[..], &ppo, &["logging_steps=1", "eval_strategy=no"]].concat();
    good(root, &arguments("train", "whole", &set));
    leaves_an_adapter(root, "whole", &model);
    let of = |name: &str| of_lines(&root.join("whole"), name);
    assert!(of("sampling/logp_mismatch_tokens").iter().all(|&n| n == 0.0));
    // The reference is the model without its adapter: the policy equals it at first, then diverges.
    let kl = of("objective/kl");
    assert!(kl[0] == 0.0 && kl[1..].iter().all(|&kl| kl > 0.0), "{kl:?}");
    cut_and_resumed(root, "train", "whole", "cut");
    // Loading the model a second time as the reference gives the same bits.
    good(root, &arguments("train", "other", &[&set[..], &["ref_model=model"]].concat()));
    same(&root.join("whole"), &root.join("other"));
}
