//! docs/outputs.md is complete: the tables that it is generated from name every metric and file of every kind of run.

use crate::support::listing;
use crate::support::runs::{arguments, directory, good};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use telemetry::outputs::{file, metric};

/// Logged metrics and written files that the tables do not name.
fn unnamed(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Map<String, Value>>(line).unwrap());
    let keys: BTreeSet<String> = lines.flat_map(|line| line.into_iter().map(|(key, _)| key)).collect();
    assert!(keys.len() > 15, "{keys:?}");
    let metrics = keys.into_iter().filter(|key| !["step", "alarm"].contains(&key.as_str()) && metric(key).is_none());
    let paths = listing(run).into_iter().map(|(path, _)| path.strip_prefix(run).unwrap().display().to_string());
    // Directories that only contain other entries have no row.
    let files = paths.filter(|path| !["checkpoints", "completions"].contains(&path.as_str()) && file(path).is_none());
    metrics.chain(files).collect()
}

#[test]
fn all_metrics_and_files_of_all_kinds_of_runs_are_documented() {
    let dir = directory();
    let root = dir.path();
    let short = "max_steps=4";
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", short, "dpo_loss_type=sigmoid"];
    let sets = "eval_datasets={ my_set = \"e.jsonl\", other = \"e.jsonl\" }";
    let ppo = ["algorithm=ppo", "num_generations=1", "num_mini_batches=2", "target_kl=0.01", short];
    let runs: [(&str, &str, &[&str]); 8] = [
        ("train", "grpo", &["beta=0.1", "record_rollouts=true", "record_entropies=true", sets, short]),
        ("train", "sampled", &["dynamic_sampling=true", "eval_pass_at_k=[1]", "entropy_coef=0.01", short]),
        ("train", "stale", &["max_staleness=1", "num_iterations=2", short]),
        ("train", "rloo", &["algorithm=rloo", "beta=0.1", short]),
        ("train", "ppo", &ppo),
        ("sft", "sft", &[short]),
        ("dpo", "dpo", &pairs),
        ("reward", "reward", &pairs[..3]),
    ];
    for (command, out, set) in runs {
        good(root, &arguments(command, out, set));
        assert_eq!(unnamed(&root.join(out)), Vec::<String>::new(), "{out}");
    }
    for (name, _) in train::LossType::NAMES {
        let (set, out) = (format!("loss_type={name}"), format!("loss_{name}"));
        good(root, &arguments("train", &out, &[&set, short]));
        assert_eq!(unnamed(&root.join(out)), Vec::<String>::new(), "{set}");
    }
    // A report is a file of the run, too. The test also notices a metric that is not in the table.
    good(root, &["report", "grpo"]);
    assert_eq!(unnamed(&root.join("grpo")), Vec::<String>::new());
    let log = root.join("sft/metrics.jsonl");
    fs::write(&log, fs::read_to_string(&log).unwrap() + "{\"step\":9,\"lossy\":1}\n").unwrap();
    fs::write(root.join("sft/left.txt"), "").unwrap();
    assert_eq!(unnamed(&root.join("sft")), ["lossy", "left.txt"]);
}
