//! Optimizers other than AdamW, with all features of a run.

use crate::support::runs::{arguments, directory, files, good, metrics, same};

#[test]
fn muon_trains_resumes_and_is_planned() {
    trains_is_resumed_and_is_planned("muon", "momentum=0.9", "momentum_buffer");
}

/// `tree` is one of the optimizer's state trees.
fn trains_is_resumed_and_is_planned(optim: &str, optim_args: &str, tree: &str) {
    let dir = directory();
    let (optim, optim_args) = (format!("optim={optim}"), format!("optim_args={optim_args}"));
    let base = [&optim, &optim_args, "weight_decay=0.1", "threads=1"];
    good(dir.path(), &arguments("train", "whole", &base));
    let whole = dir.path().join("whole");
    let tree = format!("checkpoints/step-000012/optimizer_{tree}.safetensors");
    assert!(files(&whole).contains_key(&tree), "{:?}", files(&whole).keys());

    // The run is resumed from an older checkpoint, with different numbers of threads and micro-batches.
    let other = [&base[..3], &["threads=2", "max_tokens_per_micro_batch=24"]].concat();
    good(dir.path(), &arguments("train", "again", &other));
    good(dir.path(), &["train", "--resume", "again/checkpoints/step-000004"]);
    same(&whole, &dir.path().join("again"));

    good(dir.path(), &arguments("train", "adamw", &base[2..]));
    assert_ne!(metrics(&whole), metrics(&dir.path().join("adamw")));
    // The plan includes the optimizer's state trees and the memory of its steps.
    let planned = |set: &[&str]| {
        let base = ["plan", "--json", "--model", "model", "--set", "max_completion_length=8"];
        let output = good(dir.path(), &[&base, set].concat());
        let plan: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        let parts = plan["parts"].as_array().unwrap();
        let part = parts.iter().find(|part| part["part"] == "training: optimizer").unwrap();
        part["bytes"].as_u64().unwrap()
    };
    assert_ne!(planned(&["--set", &optim]), planned(&[]));
}
