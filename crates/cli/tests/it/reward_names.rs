//! Names of rewards, of their metrics and of their columns: no name shadows another name, and no name stops a run.

use crate::stopping::{reward, start, wait_for};
use crate::support::refused;
use crate::support::runs::{arguments, directory, good, metrics, of_lines};
use std::fs;

/// A program whose argument is one of the scores.
const SERVE: &str = "while read -r line; do echo \"{\\\"rewards\\\": [$1, 2, 0, 1]}\"; done\n";

#[test]
fn programs_with_different_arguments_get_different_names() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("serve.sh"), SERVE).unwrap();
    let two = "reward_funcs=[\"command:sh serve.sh 5\", \"command:sh serve.sh 9\", \"format:^a\", \"format:b$\"]";
    good(root, &arguments("train", "run", &[two, "logging_steps=1"]));
    let run = root.join("run");
    assert_eq!(of_lines(&run, "rewards/serve_5/mean"), [2.0; 12]);
    assert_eq!(of_lines(&run, "rewards/serve_9/mean"), [3.0; 12]);
    assert_eq!([of_lines(&run, "rewards/format_a/mean").len(), of_lines(&run, "rewards/format_b/mean").len()], [12; 2]);
    assert_eq!(fs::read_dir(run.join("completions")).unwrap().count(), 12);

    let refuse = |rewards: &str, words: &[&str]| {
        let rewards = format!("reward_funcs={rewards}");
        refused(root, &arguments("train", "other", &[&rewards]), words);
    };
    refuse("[\"unique_chars\", \"unique_chars\"]", &["two rewards have the name `unique_chars`", "name = \"my_"]);
    refuse("[{kind = \"length\", target = 3, name = \"prompt\"}]", &["`prompt`", "column of the completions table"]);
}

/// A program may choose any names for its metrics and columns.
#[test]
fn metrics_and_columns_of_a_reward_do_not_replace_those_of_the_run() {
    let dir = directory();
    let root = dir.path();
    let program = "while read -r line; do echo '{\"rewards\": [1, 2, 0, 1], \
        \"metrics\": {\"loss\": 99, \"step\": 99, \"reward\": 99, \"learning_rate\": 99, \"mean\": 99}, \
        \"extra\": {\"prompt\": [1, 2, 3, 4], \"step\": [1, 2, 3, 4], \"advantage\": [1, 2, 3, 4], \"other\": [5, 6, \
        7, 8]}}'\ndone\n";
    for name in ["serve.sh", "other.sh"] {
        fs::write(root.join(name), program).unwrap();
    }
    let set = ["reward_funcs=[\"command:sh serve.sh\", \"command:sh other.sh\"]", "num_completions_to_print=4"];
    let printed = good(root, &arguments("train", "run", &set));
    assert!(!printed.err.contains("without such tables"), "{}", printed.err);
    let run = root.join("run");
    for name in ["loss", "step", "reward", "learning_rate", "metric_mean"] {
        for reward in ["serve", "other"] {
            assert_eq!(of_lines(&run, &format!("rewards/{reward}/{name}")), [99.0; 4], "{name}");
        }
        assert!(of_lines(&run, name).iter().all(|&value| value != 99.0), "{name}");
    }
    assert_eq!(of_lines(&run, "reward"), [2.0; 4]);
    assert_eq!(of_lines(&run, "rewards/serve/mean"), [1.0; 4]);
    // The second line is the alarm `tokens_without_text`: the model's vocabulary is larger than the tokenizer's.
    assert_eq!(of_lines(&run, "step"), [3.0, 3.0, 4.0, 6.0, 8.0, 9.0, 12.0, 12.0]);
    assert_eq!(fs::read_dir(run.join("completions")).unwrap().count(), 4);
}

#[test]
fn a_table_that_cannot_be_written_does_not_stop_the_run() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.1");
    let child = start(root, &arguments("train", "run", &[&slow, "logging_steps=1"]));
    let run = root.join("run");
    wait_for(&run.join("metrics.jsonl"), true);
    // Replaces the directory of tables by a file; the run may write a table in between.
    while fs::write(run.join("completions"), "in the way").is_err() {
        let _ = fs::rename(run.join("completions"), root.join("before"));
    }
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert_eq!(
        printed.matches("the run continues without such tables").count(),
        1,
        "the message must be printed once: {printed}"
    );
    // 12 steps, 3 evaluations, and the alarm `tokens_without_text`.
    assert_eq!(metrics(&run).len(), 12 + 3 + 1);
}
