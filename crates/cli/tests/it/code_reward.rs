//! Rewards that run programs are refused without a sandbox. If the user explicitly allows them, the run records that.

use crate::support::lockstep;
use crate::support::runs::{arguments, directory, good};
use serde_json::{Value, json};
use std::fs;

#[test]
fn programs_without_a_sandbox_are_refused_or_recorded() {
    if testing::program("prlimit").is_none() {
        return;
    }
    let dir = directory();
    let root = dir.path();
    let row = json!({"prompt": "ab ", "completion": "x", "tests": [{"input": "", "output": "8"}]}).to_string() + "\n";
    fs::write(root.join("d.jsonl"), row.repeat(4)).unwrap();
    fs::write(root.join("e.jsonl"), &row).unwrap();
    let reward = |more: &str| {
        let own = "kind = \"code\", language = \"shell\", isolation = \"bubblewrap\", bwrap = \"/no/such/bwrap\"";
        format!("reward_funcs=[{{{own}{more}}}]")
    };
    let output = lockstep(root, &arguments("train", "run", &[&reward("")]));
    assert_eq!(output.code, Some(2), "{}", output.err);
    for words in ["bubblewrap is not installed", "apt install bubblewrap", "unsafe_no_sandbox = true"] {
        assert!(output.err.contains(words), "`{words}`: {}", output.err);
    }
    assert!(!root.join("run").exists());

    let output = good(root, &arguments("train", "run", &[&reward(", unsafe_no_sandbox = true"), "max_steps=2"]));
    assert!(output.err.contains("reward `code` runs programs WITHOUT ISOLATION"), "{}", output.err);
    let record: Value = serde_json::from_slice(&fs::read(root.join("run/record.json")).unwrap()).unwrap();
    assert_eq!(record["isolation"], json!({"code": "none (unsafe_no_sandbox)"}));
}
