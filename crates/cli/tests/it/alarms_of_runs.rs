//! Faulty runs of every kind raise the expected alarm, and healthy runs raise none.

use crate::alarms::{alarms, arguments, directory};
use crate::support::lockstep;
use crate::support::runs::{self, good};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The ids of the alarms that the run raised.
fn raised(run: &Path) -> BTreeSet<String> {
    alarms(run).into_iter().map(|(_, alarm)| alarm["id"].as_str().unwrap().to_owned()).collect()
}

/// A reward program with 64 scores, each computed by the awk expression `score`.
fn reward(root: &Path, name: &str, score: &str) -> String {
    let program = format!(
        "n=0\nwhile read -r line; do n=$((n + 1)); awk -v n=$n 'BEGIN {{ srand(n); printf \"{{\\\"rewards\\\": [\"; \
         for (i = 0; i < 64; i++) printf \"%s%s\", i ? \", \" : \"\", {score}; print \"]}}\" }}'; done\n"
    );
    fs::write(root.join(name), program).unwrap();
    format!("reward_funcs=[\"command:sh {name}\"]")
}

#[test]
fn a_reward_without_information_raises_an_alarm() {
    let dir = directory();
    let root = dir.path();
    let random = reward(root, "random.sh", "int(rand() * 2)");
    good(root, &arguments("random", &[&random, "max_steps=30"]));
    let found = raised(&root.join("random"));
    // If equal completions get different scores, the alarm is raised at once; otherwise it needs a statistical test.
    assert!(found.contains("contradiction") || found.contains("reward_is_noise"), "{found:?}");

    let none = reward(root, "none.sh", "\"null\"");
    let output = lockstep(root, &arguments("silent", &[&none]));
    let found = raised(&root.join("silent"));
    assert!(output.code == Some(1) && found.contains("unscored"), "{:?} {found:?}\n{}", output.code, output.err);

    let same = reward(root, "same.sh", "1");
    good(root, &arguments("same", &[&same]));
    let found = raised(&root.join("same"));
    assert!(found.contains("constant_reward") && found.contains("zero_variance"), "{found:?}");
}

/// A model that cannot end its completions, with a reward for their length. If the configuration makes truncation
/// intentional, the alarm is reported once, as a note.
#[test]
fn a_run_in_which_every_completion_is_truncated_raises_alarms() {
    let dir = directory();
    let root = dir.path();
    for name in ["config.json", "generation_config.json", "tokenizer_config.json"] {
        let path = root.join("model").join(name);
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        // A missing file is replaced by defaults.
        let key = if name == "tokenizer_config.json" { "eos_token" } else { "eos_token_id" };
        json[key] = Value::Null;
        fs::write(path, json.to_string()).unwrap();
    }
    let Some(()) = testing::program("python3") else { return };
    fs::write(root.join("r.py"), "def f(completions, **kwargs):\n    return [len(c) for c in completions]\n").unwrap();
    let length = "reward_funcs=[\"python:r.py:f\"]";
    let output = good(root, &arguments("chars", &[length, "max_steps=25"])).err;
    let found = alarms(&root.join("chars"));
    let of = |id: &str| found.iter().filter(|(_, alarm)| alarm["id"] == id).count();
    let cut = runs::of_lines(&root.join("chars"), "completions/clipped_ratio");
    assert!(of("length_is_paid") > 0, "{found:?} {cut:?}\n{output}");
    assert!(of("truncated") == 1 && !output.contains("warning: alarm truncated"), "{found:?}\n{output}");
}

#[test]
fn diverging_runs_raise_an_alarm() {
    let dir = runs::directory();
    let root = dir.path();
    let steps = ["max_steps=20", "logging_steps=1", "save_strategy=no", "eval_strategy=no"];
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
    let sick: [(&str, &str, &[&str], &[&str]); 3] = [
        ("sft", "sft", &["learning_rate=1000"], &["diverged"]),
        ("dpo", "dpo", &["learning_rate=10", pairs[0], pairs[1]], &["margin", "diverged"]),
        ("grpo", "train", &["learning_rate=10", "beta=0.04"], &["entropy_collapse", "kl_blow_up", "not_finite"]),
    ];
    for (run, purpose, own, expected) in sick {
        let output = lockstep(root, &runs::arguments(purpose, run, &[&steps[..], own].concat()));
        let found = raised(&root.join(run));
        assert!(expected.iter().any(|id| found.contains(*id)), "{run}: {found:?}\n{}", output.err);
    }
}

/// The same and further kinds of runs, with an ordinary learning rate.
#[test]
fn healthy_runs_raise_no_alarm() {
    let dir = runs::directory();
    let root = dir.path();
    let steps = ["max_steps=30", "logging_steps=1", "save_strategy=no", "eval_strategy=no"];
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
    // An untrained model also samples ids that its tokenizer does not have.
    let untrained: &[&str] = &["tokens_without_text"];
    let healthy: [(&str, &str, &[&str], &[&str]); 5] = [
        ("sft", "sft", &["learning_rate=0.003"], &[]),
        ("dpo", "dpo", &["learning_rate=0.001", pairs[0], pairs[1]], &[]),
        ("reward", "reward", &["learning_rate=0.003", pairs[0], pairs[1]], &[]),
        ("rloo", "train", &["algorithm=rloo", "learning_rate=0.001", "max_completion_length=12"], untrained),
        ("ppo", "train", &["algorithm=ppo", "learning_rate=0.001", "max_completion_length=12"], untrained),
    ];
    for (run, purpose, own, alarms) in healthy {
        let output = good(root, &runs::arguments(purpose, run, &[&steps[..], own].concat())).err;
        let expected = alarms.iter().map(|&alarm| alarm.to_owned()).collect();
        assert_eq!(raised(&root.join(run)), expected, "{run}: {output}");
    }
}

/// A model pretrained on stories, with a reward for letters.
#[test]
fn a_healthy_run_of_a_pretrained_model_raises_no_alarm() {
    let Some(model) = testing::shared("models/stories260k") else { return };
    let dir = runs::directory();
    let root = dir.path();
    let model = model.to_str().unwrap();
    let train = ["train", "--model", model, "--dataset", "d.jsonl", "--reward", "unique_chars", "--out", "run"];
    let set = ["per_device_train_batch_size=8", "num_generations=4", "max_completion_length=32", "max_steps=15"];
    let set = set.iter().chain(&["learning_rate=1e-4", "save_strategy=no", "logging_steps=1"]);
    let all: Vec<&str> = train.into_iter().chain(set.flat_map(|pair| ["--set", *pair])).collect();
    let output = good(root, &all).err;
    let found: Vec<_> = alarms(&root.join("run"));
    let notes = found.iter().filter(|(_, alarm)| alarm["id"] != "truncated").count();
    assert!(notes == 0 && !output.contains("warning: alarm"), "{found:?}\n{output}");
}
