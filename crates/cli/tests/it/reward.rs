//! `lockstep reward`: training a reward model, and using it as a reward.

#![allow(clippy::disallowed_methods)]

use crate::support::runs::{directory, good, metrics};
use crate::support::{lockstep, refused};
use std::fs;
use std::path::Path;

fn value(line: &str, name: &str) -> Option<f64> {
    serde_json::from_str::<serde_json::Value>(line).unwrap()[name].as_f64()
}

/// Pairs in which answers with an `x` are better; the other letters do not matter.
fn pairs(root: &Path) {
    let mut text = String::new();
    for (i, prompt) in ["ab ", "sun ", "moon ", "tree "].iter().enumerate() {
        for word in ["road", "sky", "ice", "oak"] {
            let (good, bad) = (format!("{word}x"), format!("{word}{}", ["e", "n", "d", "o"][i]));
            text += &format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"{good}\", \"rejected\": \"{bad}\"}}\n");
        }
    }
    fs::write(root.join("x.jsonl"), text).unwrap();
    let held_out = "{\"prompt\": \"sea \", \"chosen\": \"hillx\", \"rejected\": \"hilln\", \"margin\": 1.5}\n";
    fs::write(root.join("y.jsonl"), held_out).unwrap();
}

const TRAIN: &[&str] = &[
    "reward",
    "--model",
    "model",
    "--dataset",
    "x.jsonl",
    "--out",
    "rm",
    "--steps",
    "60",
    "--set",
    "learning_rate=0.02",
    "--set",
    "eval_dataset_name=y.jsonl",
    "--set",
    "logging_steps=1",
    "--set",
    "center_rewards_coefficient=0.01",
];

#[test]
fn a_trained_reward_model_prefers_and_rewards_better_answers() {
    let dir = directory();
    let root = dir.path();
    pairs(root);
    good(root, TRAIN);
    let lines = metrics(&root.join("rm"));
    let (first, last) = (&lines[0], &lines[lines.len() - 1]);
    // The score head starts at 0: all scores are equal, and the loss is ln 2.
    assert_eq!((value(first, "accuracy"), value(first, "margin")), (Some(0.0), Some(0.0)));
    assert!((value(first, "loss").unwrap() - 2f64.ln()).abs() < 1e-6, "{first}");
    assert_eq!(value(first, "entropy"), None, "{first}");
    for name in ["mean_reward", "min_reward", "max_reward", "num_tokens", "grad_norm"] {
        assert!(value(first, name).is_some(), "{name}: {first}");
    }
    assert_eq!(value(last, "eval_accuracy"), Some(1.0), "{last}");
    assert!(value(last, "eval_margin").unwrap() > 1.0, "{last}");
    assert!(
        value(last, "eval_brier_score").unwrap() < 0.1 && value(last, "eval_calibration_error").is_some(),
        "{last}"
    );
    let config = fs::read_to_string(root.join("rm/model/config.json")).unwrap();
    assert!(config.contains("ForSequenceClassification") && config.contains("LABEL_0"), "{config}");
    assert!(root.join("rm/model/tokenizer.json").is_file());

    // As a reward, the model gives completions that end in an x higher scores.
    let grpo = [
        "train",
        "--model",
        "model",
        "--dataset",
        "d.jsonl",
        "--reward",
        "model:rm/model",
        "--out",
        "grpo",
        "--steps",
        "2",
        "--set",
        "num_generations=4",
        "--set",
        "max_completion_length=4",
        "--set",
        "logging_steps=1",
    ];
    good(root, &grpo);
    let lines = metrics(&root.join("grpo"));
    assert!(value(&lines[0], "rewards/model/std").unwrap() > 0.0, "{}", lines[0]);
    // Training continues from the weights of a model that already has a score head.
    let further = ["reward", "--model", "rm/model", "--dataset", "x.jsonl", "--out", "more", "--steps", "1"];
    good(root, &[&further[..], &["--set", "logging_steps=1"]].concat());
    assert_eq!(value(&metrics(&root.join("more"))[0], "accuracy"), Some(1.0));
}

#[test]
fn invalid_pairs_and_reward_models_are_refused() {
    let dir = directory();
    let root = dir.path();
    pairs(root);
    let with = |dataset: &'static str, more: &[&'static str]| -> Vec<&'static str> {
        [&["reward", "--model", "model", "--dataset", dataset, "--out", "out"], more].concat()
    };
    refused(root, &with("d.jsonl", &[]), &["d.jsonl, line 1", "no column `chosen`", "`completion`"]);
    let x = fs::read_to_string(root.join("x.jsonl")).unwrap();
    fs::write(root.join("same.jsonl"), x.clone() + "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}")
        .unwrap();
    refused(root, &with("same.jsonl", &[]), &["same.jsonl, line 17", "are the same"]);
    refused(
        root,
        &with("x.jsonl", &["--set", "max_length=3"]),
        &["x.jsonl", "every pair", "max_length = 3", "raise max_length"],
    );
    refused(
        root,
        &with("x.jsonl", &["--set", "center_rewards_coefficient=-1"]),
        &["center_rewards_coefficient", "at least 0"],
    );
    refused(root, &with("x.jsonl", &["--set", "per_device_train_batch_size=17"]), &["17 rows", "16"]);
    refused(root, &with("x.jsonl", &["--set", "replay=r.jsonl"]), &["`replay`", "reward models"]);
    refused(root, &with("x.jsonl", &["--task", "gsm8k_solutions"]), &["line 1", "`question`"]);
    let reward = |reward: &'static str| {
        ["train", "--model", "model", "--dataset", "d.jsonl", "--reward", reward, "--out", "out"]
    };
    refused(root, &reward("model:model"), &["language model", "gives no scores", "lockstep reward"]);
    refused(root, &reward("model:nowhere"), &["nowhere"]);
    refused(root, &reward("model:"), &["directory of the reward model is missing"]);
    let config = fs::read_to_string(root.join("model/config.json")).unwrap();
    let two = config.replace("Qwen3ForCausalLM", "Qwen3ForSequenceClassification");
    fs::create_dir(root.join("two")).unwrap();
    fs::write(root.join("two/config.json"), two).unwrap();
    refused(root, &reward("model:two"), &["two", "2 labels", "must have 1"]);
    assert!(
        lockstep(root, &["plan", "--for", "reward", "--model", "model", "--dataset", "x.jsonl"]).out.contains("fits")
    );
}
