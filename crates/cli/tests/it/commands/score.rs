#![allow(clippy::disallowed_methods)]

use super::*;
use serde_json::Value;

fn score(dir: &Path, input: &str) -> Ran {
    lockstep(dir, &["score", "--model", "model", "--input", "-"], input)
}

#[test]
fn probabilities_of_every_next_token_sum_to_1_and_give_the_entropy() {
    let dir = model();
    let lines: String = (0..40).map(|id| format!("{{\"prompt_ids\":[1,5,9],\"completion_ids\":[{id}]}}\n")).collect();
    let out = score(dir.path(), &lines).ok();
    let number = |line: &str, key: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line[key].as_array().expect("an array").len(), 1);
        line[key][0].as_f64().expect("a number")
    };
    let logprobs: Vec<f64> = out.lines().map(|l| number(l, "logprobs")).collect();
    assert_eq!(logprobs.len(), 40);
    let sum: f64 = logprobs.iter().map(|p| p.exp()).sum();
    let entropy: f64 = -logprobs.iter().map(|p| p.exp() * p).sum::<f64>();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    assert!(logprobs.iter().any(|p| (p - logprobs[0]).abs() > 0.1), "the model must not be uniform: {logprobs:?}");
    for line in out.lines() {
        assert!((number(line, "entropies") - entropy).abs() < 1e-5, "{line} {entropy}");
    }
}

#[test]
fn lines_keep_their_order_and_do_not_depend_on_each_other() {
    let dir = model();
    let lines = [
        r#"{"prompt_ids":[1,5,9],"completion_ids":[3,4,5]}"#,
        r#"{"completion_ids":[],"prompt_ids":[1],"more":0}"#,
        r#"{"prompt_ids":[1,5,9],"completion_ids":[3]}"#,
    ];
    let all = score(dir.path(), &lines.join("\n")).ok();
    let alone: String = lines.iter().map(|l| score(dir.path(), l).ok()).collect();
    assert_eq!(all, alone);
    assert_eq!(all.lines().nth(1), Some(r#"{"logprobs":[],"entropies":[]}"#));
    let whole: Value = serde_json::from_str(all.lines().next().unwrap()).unwrap();
    let short: Value = serde_json::from_str(all.lines().nth(2).unwrap()).unwrap();
    assert_eq!(whole["logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(whole["logprobs"][0], short["logprobs"][0]);
}

#[test]
fn broken_lines_are_refused_with_file_and_line() {
    let dir = model();
    let good = r#"{"prompt_ids":[1],"completion_ids":[2]}"#;
    for (bad, says) in [
        ("{\"prompt_ids\":[1],", "EOF"),
        ("", "EOF"),
        (r#"{"prompt_ids":[1]}"#, "completion_ids"),
        (r#"{"prompt_ids":[-1],"completion_ids":[2]}"#, "-1"),
        (r#"{"prompt_ids":[],"completion_ids":[2]}"#, "prompt_ids must have at least one token"),
        (r#"{"prompt_ids":[1],"completion_ids":[2,40]}"#, "completion_ids[1] = 40"),
    ] {
        std::fs::write(dir.path().join("in.jsonl"), format!("{good}\n{bad}\n{good}\n")).unwrap();
        let message = lockstep(dir.path(), &["score", "--model", "model", "--input", "in.jsonl"], "").refused();
        assert!(message.contains("in.jsonl, line 2: ") && message.contains(says), "{message}");
    }
}

#[test]
fn bf16_scores_equal_f32_scores_up_to_rounding() {
    let dir = model();
    let line = r#"{"prompt_ids":[1,7,9],"completion_ids":[2,5,3]}"#;
    let score = |dtype: &str| -> Vec<f64> {
        let args = ["score", "--model", "model", "--input", "-", "--dtype", dtype];
        let out: Value = serde_json::from_str(&lockstep(dir.path(), &args, line).ok()).unwrap();
        out["logprobs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (exact, rounded) = (score("f32"), score("bf16"));
    assert_ne!(exact, rounded);
    assert!(exact.iter().zip(&rounded).all(|(a, b)| (a - b).abs() < 0.15), "{exact:?} {rounded:?}");
}

/// The input has more tokens than the model's 128 positions: a warning names the line.
#[test]
fn a_line_longer_than_the_context_gives_a_warning() {
    let dir = model();
    let line = |completion: usize| format!("{{\"prompt_ids\":[1],\"completion_ids\":{:?}}}\n", vec![5; completion]);
    let output = score(dir.path(), &(line(3) + &line(127)));
    assert!(output.code == Some(0) && output.err.is_empty(), "{}", output.err);
    let output = score(dir.path(), &(line(3) + &line(128)));
    assert!(output.code == Some(0) && output.out.lines().count() == 2, "{}", output.err);
    for words in ["warning", "line 2", "129 tokens", "context of 128"] {
        assert!(output.err.contains(words), "{}", output.err);
    }
}
