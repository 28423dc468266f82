//! The course of a run as its user sees it: signals, early stopping, which checkpoints stay, what is printed and logged.

use crate::support::runs::{arguments, directory, good, metrics, same};
use crate::support::{command, refused};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A reward program that takes `seconds` for each batch of four completions, notes that it was asked, and always says the same.
fn reward(directory: &Path, seconds: &str) -> String {
    let program =
        format!("while read -r line; do touch asked; sleep {seconds}; echo '{{\"rewards\": [1, 2, 0, 1]}}'; done\n");
    fs::write(directory.join("reward.sh"), program).unwrap();
    "reward_funcs=[\"command:sh reward.sh\"]".to_owned()
}

/// Waits until a file is there and not empty, or only there.
fn wait_for(file: &Path, full: bool) {
    let started = Instant::now();
    while !fs::metadata(file).is_ok_and(|m| !full || m.len() > 0) {
        assert!(started.elapsed() < Duration::from_secs(60), "{} does not come", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(directory: &Path, arguments: &[&str]) -> Child {
    command(directory, arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_signal_ends_the_step_and_the_run_goes_on_with_the_same_bits() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.05");
    let set = [&*slow, "save_steps=1"];
    good(root, &arguments("train", "whole", &set));
    for name in ["INT", "TERM", "USR1"] {
        let all = arguments("train", name, &set);
        let child = start(root, &all);
        // After the third step.
        wait_for(&root.join(name).join("metrics.jsonl"), true);
        signal(&child, name);
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.success() && said.contains("stopped as asked after step"), "{name}: {said}");
        assert!(!root.join(name).join("model").exists(), "{name}: unfinished, and has a result");
        good(root, &[&all[..], &["--resume", "latest"]].concat());
        same(&root.join("whole"), &root.join(name));
    }
}

#[test]
fn a_second_signal_exits_at_once() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "20");
    let mut child = start(root, &arguments("train", "run", &[&slow]));
    wait_for(&root.join("asked"), false);
    signal(&child, "INT");
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "the first signal waits for the step");
    signal(&child, "INT");
    let started = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn it_stops_early_and_leaves_the_best() {
    let dir = directory();
    let root = dir.path();
    // The same reward at each evaluation: none after the first is better.
    let constant = reward(root, "0");
    let best = ["save_steps=4", "save_total_limit=1", "load_best_model_at_end=true", "metric_for_best_model=reward"];
    let set = [&[&*constant, "early_stopping_patience=1"], &best[..]].concat();
    let said = good(root, &arguments("train", "run", &set));
    for words in ["stopped early after step 8", "the best checkpoint, of step 4"] {
        assert!(said.err.contains(words), "`{words}`: {}", said.err);
    }
    let weights = |of: &str| fs::read(root.join("run").join(of).join("model.safetensors")).unwrap();
    assert_eq!(weights("model"), weights("checkpoints/step-000004"));
    assert_ne!(weights("model"), weights("checkpoints/step-000008"));

    let misspelt = [&set[..], &["metric_for_best_model=rewrad"]].concat();
    refused(root, &arguments("train", "other", &misspelt), &["`metric_for_best_model` = rewrad", "eval_reward"]);
    let unnamed = [&set[..], &["metric_for_best_model=none"]].concat();
    refused(root, &arguments("train", "other", &unnamed), &["`load_best_model_at_end`", "metric_for_best_model"]);
    let supervised = ["early_stopping_patience=1", "metric_for_best_model=reward"];
    refused(root, &arguments("sft", "other", &supervised), &["`metric_for_best_model` = reward", "eval_loss"]);
}

#[test]
fn the_oldest_checkpoints_go() {
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
fn without_checkpoints_only_a_signal_leaves_one() {
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
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(fs::read_dir(root.join("stopped/checkpoints")).unwrap().count(), 1);
    good(root, &[&all[..], &["--resume", "latest"]].concat());
    assert!(root.join("stopped/model/model.safetensors").is_file());
}

#[test]
fn completions_are_printed_and_the_log_has_it_all() {
    let dir = directory();
    let root = dir.path();
    let said = good(root, &arguments("train", "run", &["num_completions_to_print=1", "log_completions_steps=6"]));
    for words in ["Step 6", "Step 12", "unique_chars", "Advantage"] {
        assert!(said.out.contains(words), "`{words}`: {}", said.out);
    }
    assert!(!said.out.contains("Step 3"), "{}", said.out);
    let log = fs::read_to_string(root.join("run/lockstep-0.log")).unwrap();
    for words in ["qwen3", "prompts shared", "grpo 12/12, loss", "Step 12", "done: 12 steps"] {
        assert!(log.contains(words), "`{words}`: {log}");
    }
    let record: serde_json::Value = serde_json::from_slice(&fs::read(root.join("run/record.json")).unwrap()).unwrap();
    assert_eq!((&record["kind"], record["model"].as_array().unwrap().len()), (&"train".into(), 3), "{record}");
    refused(root, &["sft", "--resume", "run"], &["run of `lockstep train`"]);
}

/// Every reward may say that it cannot judge: that is no zero, and is said.
#[test]
fn completions_that_nobody_judges_are_said() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("null.sh"), "while read -r line; do echo '{\"rewards\": [null, null, null, null]}'; done\n")
        .unwrap();
    let said = good(root, &arguments("train", "run", &["reward_funcs=[\"command:sh null.sh\"]"]));
    assert!(said.err.contains("no reward gave a score for 4 of 4 completions"), "{}", said.err);
    assert!(metrics(&root.join("run")).iter().all(|line| !line.contains("\"reward\"")));
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
