//! `trace.json` of chosen steps: spans nest, and those of the main track sum to the step.

use crate::support::refused;
use crate::support::runs::{directory, good};
use serde_json::Value;
use std::fs;

#[test]
fn the_spans_of_chosen_steps_nest_and_sum_to_the_step() {
    let Some(model) = testing::shared("models/stories260k") else { return };
    let dir = directory();
    let root = dir.path();
    let model = model.to_str().unwrap();
    let train = ["train", "--model", model, "--dataset", "d.jsonl", "--reward", "unique_chars", "--trace-steps", "3-5"];
    let set = ["per_device_train_batch_size=32", "num_generations=8", "max_completion_length=64", "max_steps=6"];
    let set = set.iter().chain(&["save_strategy=no", "eval_strategy=no", "learning_rate=1e-4"]);
    let all: Vec<&str> =
        train.into_iter().chain(["--out", "run"]).chain(set.flat_map(|pair| ["--set", *pair])).collect();
    good(root, &all);
    let text = fs::read_to_string(root.join("run/trace.json")).unwrap();
    let spans: Vec<Value> = serde_json::from_str::<Vec<Value>>(&text).unwrap();
    let spans: Vec<&Value> = spans.iter().filter(|span| span["ph"] == "X").collect();
    let mut missing = Vec::new();
    for step in 3..=5 {
        let own = |track: &Value| -> Vec<(f64, f64, &str)> {
            let own = spans.iter().copied().filter(|span| span["args"]["step"] == step && span["tid"] == *track);
            own.map(|span| {
                let (start, length) = (span["ts"].as_f64().unwrap(), span["dur"].as_f64().unwrap());
                (start, start + length, span["name"].as_str().unwrap())
            })
            .collect()
        };
        let whole = spans.iter().find(|span| span["args"]["step"] == step && span["name"] == "step").unwrap();
        let main = own(&whole["tid"]);
        // Two spans of a track lie beside each other, or one in the other (to a microsecond).
        for (i, a) in main.iter().enumerate() {
            for b in &main[i + 1..] {
                let apart = a.1 <= b.0 + 1.0 || b.1 <= a.0 + 1.0;
                let inside = a.0 >= b.0 - 1.0 && a.1 <= b.1 + 1.0 || b.0 >= a.0 - 1.0 && b.1 <= a.1 + 1.0;
                assert!(apart || inside, "{a:?} {b:?}");
            }
        }
        // The spans that only the step is around.
        let around = |a: &(f64, f64, &str), b: &(f64, f64, &str)| b.2 != "step" && a != b && a.0 >= b.0 && a.1 <= b.1;
        let outermost = main.iter().filter(|a| a.2 != "step" && !main.iter().any(|b| around(a, b)));
        let (sum, step_us) = (outermost.map(|span| span.1 - span.0).sum::<f64>(), whole["dur"].as_f64().unwrap());
        missing.push((sum - step_us).abs() / step_us);
    }
    // Another process may take the core between two spans, and hardly so in each of the steps.
    assert!(missing.iter().any(|share| *share <= 0.01), "{missing:?} of the steps is in no span");
    assert!(spans.iter().all(|span| (3..=5).contains(&span["args"]["step"].as_u64().unwrap())), "others are traced");
    refused(root, &[&all[..], &["--set", "trace_steps=5-3"]].concat(), &["--trace-steps"]);
    let wrong: Vec<&str> = all.iter().map(|word| if *word == "3-5" { "5-3" } else { *word }).collect();
    refused(root, &wrong, &["trace_steps", "5-3", "\"3-5\""]);
}
