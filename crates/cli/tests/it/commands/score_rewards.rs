#![allow(clippy::disallowed_methods)]

use super::*;
use serde_json::{Value, json};

fn directory(rows: &[Value]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(dir.path().join("c.jsonl"), lines).unwrap();
    dir
}

fn score(dir: &Path, arguments: &[&str]) -> Ran {
    lockstep(dir, &[&["score-rewards", "--input", "c.jsonl"], arguments].concat(), "")
}

fn solutions() -> tempfile::TempDir {
    directory(&[
        json!({"prompt": "9 * 2?", "completion": "#### 18", "answer": "18"}),
        json!({"prompt": "9 * 2?", "completion": "#### 1,234", "answer": "18"}),
        json!({"prompt": "1 + 1?", "completion": "two", "answer": "2"}),
        json!({"prompt": "why?", "completion": "5", "answer": "because"}),
    ])
}

#[test]
fn scores_are_summarised_with_failures_and_examples() {
    let dir = solutions();
    let printed =
        score(dir.path(), &["--reward", "gsm8k", "--reward", "keyword:two", "--json", "--out", "s.jsonl"]).ok();
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["rows"], 4);
    let [gsm8k, keyword] = [0, 1].map(|i| &report["rewards"][i]);
    assert_eq!((&gsm8k["judged"], &gsm8k["of"], &gsm8k["median"]), (&json!(3), &json!(4), &json!(0.0)));
    assert!((gsm8k["mean"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-12);
    assert!((gsm8k["std"].as_f64().unwrap() - (1.0f64 / 3.0).sqrt()).abs() < 1e-12);
    let bins = json!([{"from": 0.0, "to": 0.0, "count": 2}, {"from": 1.0, "to": 1.0, "count": 1}]);
    assert_eq!(gsm8k["distribution"], bins);
    let examples: Vec<_> = gsm8k["examples"].as_array().unwrap().iter().map(|e| (&e["of"], &e["row"])).collect();
    assert_eq!(
        examples,
        [(&json!("highest"), &json!(0)), (&json!("lowest"), &json!(2)), (&json!("not scored"), &json!(3))]
    );
    assert_eq!((&keyword["judged"], &keyword["mean"]), (&json!(4), &json!(0.25)));
    let problem = &report["problems"][0];
    assert_eq!((&problem["reward"], &problem["rows"]), (&json!("gsm8k"), &json!(1)));
    let written = std::fs::read_to_string(dir.path().join("s.jsonl")).unwrap();
    let rows: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0]["rewards"], json!({"gsm8k": 1.0, "keyword": 0.0}));
    assert_eq!(rows[3]["rewards"], json!({"gsm8k": null, "keyword": 0.0}));

    let text = score(dir.path(), &["--reward", "gsm8k"]).ok();
    for words in ["4 completions", "3/4", "not scored: reward `gsm8k` gave no score", "highest, row 1: 1: \"#### 18\""]
    {
        assert!(text.contains(words), "`{words}`: {text}");
    }
}

/// A program gets the same groups as in a training run: consecutive lines with the same prompt.
#[test]
fn a_program_is_called_once_per_group() {
    let dir = solutions();
    let table = r#"reward_funcs = [{ kind = "command", command = "sh sizes.sh", name = "sizes", by_group = true }]"#;
    std::fs::write(dir.path().join("c.toml"), table).unwrap();
    // The score of each completion is the size of its batch.
    let script = r#"while read -r line; do
        case "$line" in *'"18","18"'*) echo '{"rewards": [2, 2]}';; *) echo '{"rewards": [1]}';; esac
    done"#;
    std::fs::write(dir.path().join("sizes.sh"), script).unwrap();
    let ran = score(dir.path(), &["c.toml", "--json", "--out", "s.jsonl"]);
    assert!(ran.err.contains("completion_ids are empty"), "{}", ran.err);
    ran.ok();
    let written = std::fs::read_to_string(dir.path().join("s.jsonl")).unwrap();
    let scores: Vec<Value> =
        written.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["rewards"]["sizes"].clone()).collect();
    assert_eq!(scores, [2.0, 2.0, 1.0, 1.0].map(Value::from));
}

#[test]
fn token_ids_come_from_the_file_or_from_a_tokenizer() {
    let dir = model();
    let row = json!({"completion": "hello"});
    std::fs::write(dir.path().join("c.jsonl"), format!("{row}\n")).unwrap();
    let message = score(dir.path(), &["--reward", "length:5"]).refused();
    assert!(message.contains("length") && message.contains("--tokenizer"), "{message}");
    let mean = |arguments: &[&str]| {
        let printed: Value = serde_json::from_str(&score(dir.path(), &[arguments, &["--json"]].concat()).ok()).unwrap();
        printed["rewards"][0]["mean"].as_f64().unwrap()
    };
    assert_eq!(mean(&["--reward", "length:5", "--tokenizer", "words"]), 1.0);
    let row = json!({"completion": "hello", "completion_ids": [7, 8, 9, 9, 9, 9, 9, 9, 9, 9]});
    std::fs::write(dir.path().join("c.jsonl"), format!("{row}\n")).unwrap();
    assert_eq!(mean(&["--reward", "length:5"]), 0.0);
}

#[test]
fn bad_input_is_refused_by_name() {
    let dir = solutions();
    let refused = |arguments: &[&str]| score(dir.path(), arguments).refused();
    assert!(refused(&[]).contains("no reward: use --reward"));
    assert!(refused(&["--reward", "gsm8"]).contains("did you mean `gsm8k`?"));
    let missing = refused(&["--reward", "gsm8k:solution"]);
    assert!(missing.contains("`solution`") && missing.contains("c.jsonl, row 1"), "{missing}");
    assert!(refused(&["--reward", "gsm8k", "--set", "completion_column=text"]).contains("`text`"));
    let absent = lockstep(dir.path(), &["score-rewards", "--input", "no.jsonl", "--reward", "gsm8k"], "").refused();
    assert!(absent.contains("no.jsonl"), "{absent}");
    // A reward that scores no completion is a failure.
    let unscored = directory(&[json!({"completion": "5", "answer": "because"})]);
    let ran = score(unscored.path(), &["--reward", "gsm8k"]);
    assert!(ran.code == Some(1) && ran.err.contains("scored no completion"), "{}", ran.err);
}

/// An exception is printed without escape sequences, even if it quotes a completion.
#[test]
fn a_functions_exception_is_printed_without_escape_sequences() {
    let Some(()) = testing::program("python3") else { return };
    let dir = directory(&[json!({"prompt": "q", "completion": "\u{1b}]0;owned\u{7}\u{1b}[2J"})]);
    let function = "def f(completions, **kwargs):\n    raise ValueError('cannot parse ' + completions[0])\n";
    std::fs::write(dir.path().join("r.py"), function).unwrap();
    let ran = score(dir.path(), &["--reward", "python:r.py:f"]);
    assert!(ran.out.contains("it raised ValueError: cannot parse \\u{1b}]0;owned\\u{7}"), "{}", ran.out);
    for text in [&ran.out, &ran.err] {
        assert!(!text.chars().any(|c| c.is_control() && c != '\n') && !text.contains("IndexError"), "{text:?}");
    }
    // Escape sequences in an argument that clap quotes, and in a file name.
    for arguments in [&["--no-\u{1b}[2Jsuch"][..], &["--reward", "python:\u{1b}[2J.py:f"]] {
        let ran = score(dir.path(), arguments);
        assert!(ran.code == Some(2) && !ran.err.contains('\u{1b}'), "{:?}", ran.err);
    }
}
