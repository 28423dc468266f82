//! Alarms of whole runs: a reward that can be gamed raises an alarm during the run, a healthy run raises none, and a
//! resumed run raises the same alarms.

use crate::support::runs::{good, metrics, of_lines};
use crate::support::{RunOutput, model_of};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

const LLAMA: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 16,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 0}"#;

/// The vocabulary: each word is a token.
const WORDS: [&str; 16] =
    ["<e>", "<answer>", "</answer>", "(", ")", " ", "a", "b", "c", "d", "1", "2", "3", "4", "5", "6"];

/// A random model with a vocabulary of sixteen words, and four prompts whose answer is the prompt's own letter.
pub fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    model_of(&model, LLAMA);
    let vocabulary: Map<String, Value> = WORDS.iter().zip(0..).map(|(w, id)| ((*w).to_owned(), id.into())).collect();
    let token = |(id, word): (usize, &&str)| {
        json!({"id": id, "content": word, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": id == 0})
    };
    let added: Vec<Value> = WORDS.iter().enumerate().map(token).collect();
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""}});
    fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let row = |letter: &str| format!("{{\"prompt\": \"{letter}{letter} \", \"answer\": \"{letter}\"}}\n");
    fs::write(dir.path().join("d.jsonl"), ["a", "b", "c", "d"].map(row).concat().repeat(4)).unwrap();
    dir
}

pub fn arguments<'a>(out: &'a str, set: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["train", "--model", "model", "--dataset", "d.jsonl", "--out", out];
    let common = [
        "per_device_train_batch_size=64",
        "num_generations=8",
        "max_completion_length=12",
        "max_steps=20",
        "logging_steps=1",
        "learning_rate=0.01",
    ];
    common.iter().chain(set).for_each(|pair| all.extend(["--set", *pair]));
    all
}

fn train(directory: &Path, out: &str, set: &[&str]) -> RunOutput {
    good(directory, &arguments(out, set))
}

/// The alarms in metrics.jsonl, with their steps.
pub fn alarms(run: &Path) -> Vec<(u64, Value)> {
    let lines = metrics(run).into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line.get("alarm")?.clone()))).collect()
}

#[test]
fn rewards_for_empty_answers_or_syntax_errors_raise_an_alarm_within_twenty_steps() {
    let dir = directory();
    for (hack, id, exploit) in [
        ("format:<answer></answer>", "empty_answer_wins", "<answer></answer>"),
        ("format:\\\\($", "broken_text_wins", "(\""),
    ] {
        let reward = format!("reward_funcs=[\"{hack}\"]");
        let output = train(dir.path(), id, &[&reward]);
        let found = alarms(&dir.path().join(id));
        let (step, alarm) = found.iter().find(|(_, alarm)| alarm["id"] == id).unwrap_or_else(|| panic!("{found:?}"));
        assert!(*step <= 20 && alarm["since"].as_u64().unwrap() <= *step, "{alarm}");
        let examples = alarm["examples"].as_array().unwrap();
        assert!(!examples.is_empty() && examples.iter().all(|e| e.as_str().unwrap().contains(exploit)), "{alarm}");
        assert!(alarm["remedy"].as_str().unwrap().contains("fix it"), "{alarm}");
        // The console shows the alarm with examples, and again in the final summary.
        let line = format!("warning: alarm {id} since step {}: ", alarm["since"]);
        let (_, rest) = output.err.split_once(&line).unwrap_or_else(|| panic!("`{line}`: {}", output.err));
        assert!(rest.lines().nth(1).unwrap().contains(exploit), "{}", output.err);
        let (_, summary) =
            output.err.split_once(" raised (docs/alarms.md):").unwrap_or_else(|| panic!("{}", output.err));
        assert!(summary.contains(&format!("  {id}, from step {}", alarm["since"])), "{summary}");
        // The verdict also mentions the alarm, and equals the report's verdict.
        let (_, verdict) = summary.lines().rev().nth(1).unwrap().split_once("s] ").unwrap();
        assert!(verdict.contains("ut the winners ") && verdict.contains("(since step "), "{verdict}");
        let report = good(dir.path(), &["report", id, "--print"]).out;
        assert!(report.starts_with(&format!("# {id}\n\n{verdict}\n")), "{verdict}: {report}");
    }
}

#[test]
fn a_healthy_run_raises_no_alarm() {
    let dir = directory();
    let reward = "reward_funcs=[{kind = \"exact_match\", extract = \"^(.)\"}]";
    let output = train(dir.path(), "run", &[reward, "max_steps=40"]);
    let run = dir.path().join("run");
    assert_eq!(alarms(&run), [], "{}", output.err);
    assert!(!output.err.contains("alarm"), "{}", output.err);
    let rewards = of_lines(&run, "reward");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&rewards[30..]) > mean(&rewards[..10]) + 0.1, "the reward must rise: {rewards:?}");
}

#[test]
fn a_resumed_run_raises_the_same_alarms() {
    let dir = directory();
    let root = dir.path();
    let set = ["reward_funcs=[\"format:<answer></answer>\"]", "save_steps=1"];
    train(root, "whole", &set);
    train(root, "cut", &set);
    // The run is interrupted between the step at which the alarm's condition first holds and the step that raises the
    // alarm.
    let found = alarms(&root.join("whole"));
    let since = found.iter().find_map(|(step, alarm)| alarm["since"].as_u64().filter(|since| since < step));
    let checkpoint = format!("cut/checkpoints/step-{:06}", since.unwrap_or_else(|| panic!("{found:?}")));
    good(root, &["train", "--resume", &checkpoint]);
    assert_eq!(metrics(&root.join("whole")), metrics(&root.join("cut")));
    let state = |run: &str| {
        let text = fs::read_to_string(root.join(run).join("checkpoints/step-000020/run_state.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["alarms"].clone()
    };
    assert!(state("whole") == state("cut") && state("cut")["raised"][0]["id"].is_string(), "{}", state("cut"));
}
