//! Files that are deleted during a run, and files that a killed process leaves behind.

use crate::stopping::{reward, start, wait_for};
use crate::support::lockstep;
use crate::support::runs::{arguments, directory, good, listing_names, same};
use std::fs;
use std::io::Read;
use std::process::{Child, Command};

fn ended(mut child: Child) -> (Option<i32>, String) {
    let mut printed = String::new();
    child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    (child.wait().unwrap().code(), printed)
}

/// A resume needs these files. A run that had lost them used to exit with code 0, although it could not be resumed.
#[test]
fn deleted_files_are_rewritten_and_reported() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.2");
    let set = [&*slow, "record_rollouts=true", "save_steps=1", "max_steps=6", "logging_steps=1"];
    good(root, &arguments("train", "whole", &set));
    let child = start(root, &arguments("train", "run", &set));
    wait_for(&root.join("run/checkpoints/step-000002/run_state.json"), true);
    let run = root.join("run");
    let events = listing_names(&run.join("tensorboard")).pop().unwrap();
    let events = format!("tensorboard/{events}");
    let files = ["config.toml", "record.json", "metrics.jsonl", "rollouts.bin", "rollouts.idx", "run.lock", &events];
    for file in files {
        fs::remove_file(run.join(file)).unwrap();
    }
    // One of the files is replaced by another file.
    fs::write(run.join("metrics.jsonl"), "mine\n").unwrap();
    let (code, printed) = ended(child);
    assert_eq!(code, Some(0), "{printed}");
    for file in files.iter().filter(|file| **file != "metrics.jsonl") {
        let words = format!("{file} was deleted ");
        assert!(printed.contains(&words), "`{words}`: {printed}");
    }
    assert!(printed.contains("metrics.jsonl was replaced by another file"), "{printed}");
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl.replaced")).unwrap(), "mine\n");
    let whole = |name: &str| fs::read(root.join(name).join("rollouts.idx")).unwrap();
    assert!(whole("whole").len() > 100 && whole("whole") == whole("run"));
    // The run continues to its last step.
    reward(root, "0");
    good(root, &["train", "--resume", "run", "--set", "max_steps=12"]);
    good(root, &["train", "--resume", "whole", "--set", "max_steps=12"]);
    same(&root.join("whole"), &run);
}

/// Two writers would interleave their logs, so a run that has lost its lock ends.
#[test]
fn a_run_that_loses_its_lock_to_another_process_ends() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.4");
    let set = [&*slow, "save_steps=1", "eval_strategy=no"];
    let first = start(root, &arguments("train", "run", &set));
    wait_for(&root.join("run/checkpoints/step-000001/run_state.json"), true);
    fs::remove_file(root.join("run/run.lock")).unwrap();
    let second = start(root, &["train", "--resume", "run"]);
    wait_for(&root.join("run/run.lock"), true);
    let pid = format!("process {}", second.id());
    let mut outcomes = [ended(first), ended(second)];
    outcomes.sort();
    // The first process that checks the lock takes it back, or finds the other process's entry in it.
    let [(done, _), (failed, printed)] = &outcomes;
    assert!(*done == Some(0) && matches!(failed, Some(1 | 2)), "{outcomes:?}");
    assert!(printed.contains("is in use: process") || printed.contains(&pid), "{printed}");
}

#[test]
fn a_run_whose_directory_is_deleted_ends_and_creates_no_new_one() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.2");
    let run = start(root, &arguments("train", "run", &[&slow, "save_steps=1", "eval_strategy=no"]));
    wait_for(&root.join("run/checkpoints/step-000001/run_state.json"), true);
    fs::rename(root.join("run"), root.join("elsewhere")).unwrap();
    let (code, printed) = ended(run);
    assert!(code == Some(1) && printed.contains("was it moved or deleted?"), "{code:?}: {printed}");
    assert!(!root.join("run").exists());
    reward(root, "0");
    good(root, &["train", "--resume", "elsewhere"]);
}

/// A killed process leaves temporary files and directories.
#[test]
fn the_next_process_removes_temporary_files_of_a_killed_process() {
    let dir = directory();
    let root = dir.path();
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let (gone, alive) = (gone.id(), std::process::id());
    good(root, &arguments("sft", "run", &["max_steps=2", "log_completions=true"]));
    let left = [
        format!("run/.config.toml.{gone}.partial"),
        format!("run/.record.json.{gone}.tmp"),
        format!("run/.record.json.{gone}.partial"),
        format!("run/completions/.completions_00001.parquet.{gone}.tmp"),
        format!(".scores.jsonl.{gone}.x7Yq.partial"),
    ];
    let kept = ["run/.mine.partial".to_owned(), format!(".scores.jsonl.{alive}.x7Yq.partial")];
    for file in left.iter().chain(&kept) {
        fs::write(root.join(file), "half").unwrap();
    }
    let merged = format!(".merged.{gone}.partial");
    let directories = ["run/.unfinished-model", "run/checkpoints/.unfinished-step-000003", &merged];
    for directory in directories {
        fs::create_dir(root.join(directory)).unwrap();
        fs::write(root.join(directory).join("model.safetensors"), "half").unwrap();
    }
    good(root, &["sft", "--resume", "run", "--set", "max_steps=3"]);
    let score = ["score-rewards", "--input", "d.jsonl", "--reward", "unique_chars", "--out", "scores.jsonl"];
    assert_eq!(lockstep(root, &score).code, Some(0));
    fs::write(root.join("config.json"), crate::support::CONFIG).unwrap();
    assert_eq!(lockstep(root, &["init", "--config", "config.json", "--out", "merged"]).code, Some(0));
    let all = left.iter().map(String::as_str).chain(directories);
    let stale: Vec<_> = all.filter(|name| root.join(name).exists()).collect();
    assert!(stale.is_empty(), "{stale:?}");
    for name in &kept {
        assert!(root.join(name).exists(), "{name}");
    }
}
