//! `trace.json` for chosen steps: the spans of a step, their order, and their nesting.

use crate::support::refused;
use crate::support::runs::{directory, good};
use serde_json::Value;
use std::fs;

/// The spans of the main thread in one step, in order. A step's span starts with the logging and callbacks of the
/// previous step.
const STAGES: [&str; 16] = [
    "log",
    "callbacks",
    "log",
    "callbacks",
    "rollout",
    "rewards",
    "batch",
    "batch",
    "batch",
    "batch",
    "batch",
    "update",
    "log",
    "log",
    "update",
    "log",
];

#[test]
fn the_spans_of_traced_steps_are_nested_and_complete() {
    let dir = directory();
    let root = dir.path();
    let train = ["train", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars"];
    let set = ["per_device_train_batch_size=4", "num_generations=2", "max_completion_length=6", "max_steps=6"];
    let set = set.iter().chain(&["save_strategy=no", "eval_strategy=no", "learning_rate=1e-4", "logging_steps=1"]);
    let all: Vec<&str> = train
        .into_iter()
        .chain(["--trace-steps", "3-5", "--out", "run"])
        .chain(set.flat_map(|pair| ["--set", *pair]))
        .collect();
    good(root, &all);
    let text = fs::read_to_string(root.join("run/trace.json")).unwrap();
    let spans: Vec<Value> = serde_json::from_str::<Vec<Value>>(&text).unwrap();
    let spans: Vec<&Value> = spans.iter().filter(|span| span["ph"] == "X").collect();
    for step in 3..=5 {
        let own = spans.iter().filter(|span| span["args"]["step"] == step);
        let whole = own.clone().find(|span| span["name"] == "step").unwrap();
        let main: Vec<&&Value> = own.filter(|span| span["tid"] == whole["tid"] && span["name"] != "step").collect();
        assert_eq!(main.iter().map(|span| span["name"].as_str().unwrap()).collect::<Vec<_>>(), STAGES, "step {step}");
        // Each span starts after the end of the previous one, and all are within the step (up to a microsecond).
        let times = |span: &Value| {
            let (start, length) = (span["ts"].as_f64().unwrap(), span["dur"].as_f64().unwrap());
            (start, start + length)
        };
        let (begin, end) = times(whole);
        let mut before = begin;
        for span in main {
            let (start, stop) = times(span);
            assert!(before <= start + 1.0 && start <= stop && stop <= end + 1.0, "{span} of {whole}");
            before = stop;
        }
    }
    assert!(
        spans.iter().all(|span| (3..=5).contains(&span["args"]["step"].as_u64().unwrap())),
        "only the chosen steps may be traced"
    );
    refused(root, &[&all[..], &["--set", "trace_steps=5-3"]].concat(), &["--trace-steps"]);
    let wrong: Vec<&str> = all.iter().map(|word| if *word == "3-5" { "5-3" } else { *word }).collect();
    refused(root, &wrong, &["trace_steps", "5-3", "\"3-5\""]);
}
