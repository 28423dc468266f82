//! A run from the user's view: early stopping, kept checkpoints, printed and logged output.

use crate::stopping::{reward, signal, start, wait_for};
use crate::support::runs::{arguments, directory, good, metrics};
use crate::support::{lockstep, refused};
use std::fs;

#[test]
fn a_run_stops_early_and_keeps_the_best_checkpoint() {
    let dir = directory();
    let root = dir.path();
    // Each evaluation gives the same reward, so none is better than the first.
    let constant = reward(root, "0");
    let best = ["save_steps=4", "save_total_limit=1", "load_best_model_at_end=true", "metric_for_best_model=reward"];
    let set = [&[&*constant, "early_stopping_patience=1"], &best[..]].concat();
    let output = good(root, &arguments("train", "run", &set));
    for words in ["stopped early after step 8", "the best checkpoint, of step 4"] {
        assert!(output.err.contains(words), "`{words}`: {}", output.err);
    }
    let weights = |of: &str| fs::read(root.join("run").join(of).join("model.safetensors")).unwrap();
    assert_eq!(weights("model"), weights("checkpoints/step-000004"));
    assert_ne!(weights("model"), weights("checkpoints/step-000008"));

    let misspelt = [&set[..], &["metric_for_best_model=rewrad"]].concat();
    refused(root, &arguments("train", "other", &misspelt), &["`metric_for_best_model` = rewrad", "eval_reward"]);
    let unnamed = [&set[..], &["metric_for_best_model=none"]].concat();
    refused(root, &arguments("train", "other", &unnamed), &["`load_best_model_at_end`", "metric_for_best_model"]);
    let unused = ["metric_for_best_model=rewrad", "eval_strategy=no"];
    refused(root, &arguments("train", "other", &unused), &["`metric_for_best_model` = rewrad"]);
    let supervised = ["early_stopping_patience=1", "metric_for_best_model=reward"];
    refused(root, &arguments("sft", "other", &supervised), &["`metric_for_best_model` = reward", "eval_loss"]);
}

#[test]
fn the_oldest_checkpoints_are_deleted() {
    let dir = directory();
    good(dir.path(), &arguments("train", "run", &["save_total_limit=2"]));
    let mut left: Vec<_> = fs::read_dir(dir.path().join("run/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["step-000010", "step-000012"]);
}

#[test]
fn only_a_signal_leaves_a_checkpoint_if_saving_is_off() {
    let dir = directory();
    let root = dir.path();
    for purpose in ["train", "sft"] {
        good(root, &arguments(purpose, purpose, &["save_strategy=no"]));
        let checkpoints = root.join(purpose).join("checkpoints");
        assert!(fs::read_dir(&checkpoints).map_or(0, Iterator::count) == 0, "{purpose}: {checkpoints:?}");
        assert!(root.join(purpose).join("model/model.safetensors").is_file());
        refused(root, &[purpose, "--resume", purpose], &["left no checkpoint", "save_strategy"]);
    }
    let slow = reward(root, "0.05");
    let all = arguments("train", "stopped", &[&slow, "save_strategy=no"]);
    let child = start(root, &all);
    wait_for(&root.join("stopped/metrics.jsonl"), true);
    signal(&child, "INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(fs::read_dir(root.join("stopped/checkpoints")).unwrap().count(), 1);
    good(root, &[&all[..], &["--resume", "latest"]].concat());
    assert!(root.join("stopped/model/model.safetensors").is_file());
}

#[test]
fn completions_are_printed_and_logged() {
    let dir = directory();
    let root = dir.path();
    let output = good(root, &arguments("train", "run", &["num_completions_to_print=1", "log_completions_steps=6"]));
    for words in ["Step 6", "Step 12", "unique_chars", "Advantage"] {
        assert!(output.out.contains(words), "`{words}`: {}", output.out);
    }
    assert!(!output.out.contains("Step 3"), "{}", output.out);
    let log = fs::read_to_string(root.join("run/lockstep-0.log")).unwrap();
    for words in ["qwen3", "prompts shared", "step  ", "Step 12", "done: 12 steps"] {
        assert!(log.contains(words), "`{words}`: {log}");
    }
    let record: serde_json::Value = serde_json::from_slice(&fs::read(root.join("run/record.json")).unwrap()).unwrap();
    assert_eq!((&record["kind"], record["model"].as_array().unwrap().len()), (&"train".into(), 3), "{record}");
    refused(root, &["sft", "--resume", "run"], &["run of `lockstep train`"]);
}

/// Every reward may abstain: the missing score is not treated as 0, and a message is printed.
#[test]
fn unscored_completions_are_reported() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("null.sh"), "while read -r line; do echo '{\"rewards\": [null, null, null, null]}'; done\n")
        .unwrap();
    let null = "reward_funcs=[\"command:sh null.sh\"]";
    let output = good(root, &arguments("train", "run", &[null, "reward_errors=continue"]));
    assert!(output.err.contains("no reward gave a score for 4 of 4 completions"), "{}", output.err);
    let without = |line: &String| !line.contains("\"reward\"") && !line.contains("frac_reward_zero_std");
    assert!(metrics(&root.join("run")).iter().all(without), "the metric is unknown, and must not be 0");
    let output = lockstep(root, &arguments("train", "other", &[null]));
    assert!(output.code == Some(1) && output.err.contains("it returned null for every completion"), "{}", output.err);
}

#[test]
fn held_out_data_must_have_the_columns_that_rewards_read() {
    let dir = directory();
    let root = dir.path();
    let rows = "{\"prompt\": \"ab\", \"answer\": \"c\"}\n".repeat(8);
    fs::write(root.join("answers.jsonl"), rows).unwrap();
    let set = ["dataset_name=answers.jsonl", "reward_funcs=exact_match"];
    refused(root, &arguments("train", "run", &set), &["exact_match", "`answer`", "e.jsonl"]);
    good(root, &arguments("train", "run", &[&set[..], &["eval_dataset_name=answers.jsonl"]].concat()));
}
