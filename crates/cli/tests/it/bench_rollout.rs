//! `lockstep bench rollout` with one group, as `bench/peers` calls it: counts, and refused input.

use crate::support::{lockstep, model, refused};
use serde_json::Value;
use std::fs;

#[test]
fn a_group_with_a_given_model_and_prompt_is_timed() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("model"));
    fs::write(dir.path().join("prompt.json"), "[3, 1, 4, 1, 5]").unwrap();
    let group = ["bench", "rollout", "--model", "model", "--prompt-ids", "prompt.json", "--new-tokens", "6", "--json"];
    let output = lockstep(dir.path(), &[&group[..], &["--completions", "1,3", "--threads", "1"]].concat());
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let json: Value = serde_json::from_str(&output.out).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["completions"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        assert_eq!((number("prompt_tokens"), number("new_tokens")), (5.0, 6.0));
        assert!(0.0 < number("decode_s") && number("decode_s") < number("rollout_s"), "{row}");
        let tokens = number("tokens_per_s") * number("rollout_s") / number("completions");
        let decoded = number("decode_tokens_per_s") * number("decode_s") / number("completions");
        assert!((tokens - 6.0).abs() < 1e-9 && (decoded - 5.0).abs() < 1e-9, "{row}");
    }
}

#[test]
fn prompts_that_cannot_be_generated_from_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("model"));
    fs::write(dir.path().join("unknown.json"), "[3, 40]").unwrap();
    fs::write(dir.path().join("text.json"), "{\"ids\": 1}").unwrap();
    let refuse = |more: &[&str], words: &[&str]| {
        let group = ["bench", "rollout", "--model", "model", "--completions", "2"];
        refused(dir.path(), &[&group[..], more].concat(), words);
    };
    refuse(&["--prompt-ids", "unknown.json"], &["token 40", "vocabulary of 40"]);
    refuse(&["--prompt-ids", "text.json"], &["text.json", "array of token ids"]);
    refuse(&["--prompt-ids", "none.json"], &["none.json"]);
    refuse(&["--prompt-length", "60", "--new-tokens", "5"], &["60", "--new-tokens 5", "context of 64"]);
    refuse(&["--new-tokens", "0"], &["--new-tokens 0", "at least 1"]);
    refuse(&["--temperature", "nan"], &["--temperature"]);
    refused(dir.path(), &["bench", "step", "--completions", "12"], &["--completions 12", "multiple"]);
}
