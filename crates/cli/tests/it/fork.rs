//! `lockstep fork`: a fork has the original's bits up to a step, and also after it if nothing is changed.

use crate::support::runs::{arguments, directory, good, metrics, rollouts};
use crate::support::{lockstep, refused};
use lockstep::wire::file::GroupFile;
use lockstep::wire::{Completion, Group};
use serde_json::Value;
use std::fs;
use std::path::Path;
use train::Advantage;

const RECORDED: &[&str] =
    &["record_rollouts=true", "max_steps=8", "eval_strategy=no", "logging_steps=1", "save_steps=4"];

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("model/model.safetensors")).unwrap()
}

fn record(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("record.json")).unwrap()).unwrap()
}

#[test]
fn a_fork_without_changes_equals_the_original() {
    let dir = directory();
    let root = dir.path();
    let stale = ["max_staleness=2", "num_iterations=2", "partial_rollout_tokens=2"];
    for (out, set) in [("run", &["beta=0.1"][..]), ("stale", &stale[..2]), ("chunks", &stale)] {
        good(root, &arguments("train", out, &[RECORDED, set].concat()));
        for at in ["0", "3", "4", "6"] {
            let fork = format!("{out}-{at}");
            good(root, &["fork", out, "--at", at, "--out", &fork]);
            let (run, fork) = (root.join(out), root.join(&fork));
            assert!(weights(&run) == weights(&fork), "{out} {at}");
            assert_eq!(metrics(&run), metrics(&fork), "{out} {at}");
            assert_eq!(rollouts(&run), rollouts(&fork), "{out} {at}");
            let of = &record(&fork)["forked_from"];
            assert!(of["run"].as_str().unwrap().ends_with(out) && of["step"] == at.parse::<u64>().unwrap(), "{of}");
            assert_eq!(of["lineage"].is_string(), at != "0", "{of}");
        }
    }
    // A fork is a normal run: it can be verified and resumed.
    good(root, &["verify", "run-3", "--all"]);
    assert_eq!(lockstep(root, &["train", "--resume", "run-3"]).code, Some(0));
}

/// Forks of forks of a run with workers, each with a changed key, can be verified.
#[test]
fn a_fork_of_a_fork_of_a_distributed_run_can_be_verified() {
    let dir = directory();
    let root = dir.path();
    let set = [
        "save_steps=2",
        "max_staleness=1",
        "eval_strategy=steps",
        "eval_steps=2",
        "load_best_model_at_end=true",
        "metric_for_best_model=reward",
    ];
    let set = [RECORDED, &set].concat();
    good(root, &[&arguments("train", "run", &set)[..], &["--distributed", "--workers", "2"]].concat());
    for (of, at, rate, out) in [("run", "4", "3e-4", "a"), ("a", "7", "1e-4", "b"), ("b", "7", "2e-4", "c")] {
        good(root, &["fork", of, "--at", at, "--set", &format!("learning_rate={rate}"), "--out", out]);
        let printed = good(root, &["verify", out, "--all"]).out;
        assert!(printed.contains("equal  the result") && printed.contains("proven: 8 steps"), "{printed}");
    }
}

/// Removing a group without a gradient must not change the run.
#[test]
fn removing_a_group_without_a_gradient_changes_no_bit() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", RECORDED));
    let file = GroupFile::open(&root.join("run/rollouts.bin")).unwrap();
    let is_zero = |c: &Completion| matches!(c.advantage, Some(Advantage::Sequence(0.0)));
    let of = |group: Group| (group.group.0, group.step.unwrap().0, group.completions.iter().all(is_zero));
    let groups: Vec<(u64, u64, bool)> = file.groups().map(|group| of(group.unwrap())).collect();
    for taught_nothing in [true, false] {
        let which = groups.iter().find(|(_, step, zero)| *zero == taught_nothing && *step > 1);
        let &(group, step, _) = which.unwrap_or_else(|| panic!("{groups:?}"));
        let (group, at, out) = (group.to_string(), (step - 1).to_string(), format!("without-{group}"));
        good(root, &["fork", "run", "--at", &at, "--without-group", &group, "--out", &out]);
        assert_eq!(weights(&root.join("run")) == weights(&root.join(&out)), taught_nothing, "group {group}");
        let starts = &record(&root.join(&out))["starts"];
        assert!(starts.to_string().contains(&format!("now [{group}]")), "{starts}");
    }
}

#[test]
fn a_fork_with_a_wrong_run_step_or_key_is_refused() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", RECORDED));
    refused(root, &["fork", "nowhere", "--at", "1", "--out", "x"], &["nowhere"]);
    let late = lockstep(root, &["fork", "run", "--at", "9", "--out", "late"]);
    assert_eq!(late.code, Some(2), "{}", late.err);
    let fixed = lockstep(root, &["fork", "run", "--at", "4", "--set", "num_generations=4", "--out", "fixed"]);
    assert!(fixed.code == Some(2) && fixed.err.contains("num_generations"), "{}", fixed.err);
    refused(root, &["fork", "run", "--at", "4", "--out", "run"], &["already holds a run"]);
    // A run with a missing file cannot be copied exactly.
    std::os::unix::fs::symlink("nowhere", root.join("run/tensorboard/gone")).unwrap();
    let torn = lockstep(root, &["fork", "run", "--at", "4", "--out", "torn"]);
    assert!(torn.code != Some(0) && torn.err.contains("tensorboard/gone"), "{}", torn.err);
    assert!(!root.join("torn/config.toml").exists());
}
