//! Rewards that crash or score nothing: the run ends with the cause and a checkpoint, and continues once the reward is
//! fixed.

use crate::support::runs::{arguments, directory, good, metrics, same};
use crate::support::{RunOutput, lockstep};
use std::fs;
use std::path::Path;

/// A program that starts, and crashes at its first batch, like a script with a missing module.
fn broken(directory: &Path) {
    let program = "sleep 0.4; read -r line; echo 'ModuleNotFoundError: No module named x' >&2; exit 1\n";
    fs::write(directory.join("serve.sh"), program).unwrap();
}

fn fixed(directory: &Path) {
    fs::write(directory.join("serve.sh"), "while read -r line; do echo '{\"rewards\": [1, 2, 0, 1]}'; done\n").unwrap();
}

/// The error at the end of the output.
fn failed(output: &RunOutput, words: &[&str]) -> String {
    assert_eq!(output.code, Some(1), "{}{}", output.out, output.err);
    let error = &output.err[output.err.find("\nerror: ").expect(&output.err) + 1..];
    for word in words {
        assert!(error.contains(word), "`{word}`: {}", output.err);
    }
    assert_eq!(
        output.err.matches("error: ").count() - output.err.matches("standard error: ").count(),
        1,
        "{}",
        output.err
    );
    error.to_owned()
}

#[test]
fn a_reward_that_scores_nothing_ends_the_run_and_prints_the_cause_once() {
    let dir = directory();
    let root = dir.path();
    broken(root);
    let command = "reward_funcs=[\"command:sh serve.sh\"]";
    let output = lockstep(root, &arguments("train", "run", &[command]));
    let error = failed(
        &output,
        &[
            "stopped after step 2",
            "--resume /",
            "/run, or",
            "reward_errors = \"continue\"",
            "reward `serve` scored nothing in 3 batches in a row (reward_patience): the program exited (exit status: \
             1)",
            "\n  | ModuleNotFoundError: No module named x",
        ],
    );
    // The cause is printed when the reward first fails, and in the final error.
    assert_eq!(output.err.matches("ModuleNotFoundError").count(), 2, "{}", output.err);
    assert!(!output.err.contains("done:") && !root.join("run/model").exists(), "{}", output.err);
    let log = fs::read_to_string(root.join("run/lockstep-0.log")).unwrap();
    assert!(log.ends_with(&error), "the log file must have the error: {log}");
    let names = |run: &str| -> Vec<String> {
        fs::read_dir(root.join(run)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names("run/checkpoints"), ["step-000002"]);
    fixed(root);
    assert!(good(root, &["train", "--resume", "run"]).err.contains("done: 12 steps"));

    // With this setting the run continues without scores, and messages are not repeated.
    broken(root);
    let set = [command, "reward_errors=continue", "logging_steps=1"];
    let output = good(root, &arguments("train", "on", &set));
    assert!(output.err.contains("done: 12 steps"), "{}", output.err);
    let message = "not restarted after 3 restarts without a successful batch: the program exited (exit status: 1)";
    // The failure occurs in 9 of 12 steps and in 3 evaluations; each kind is reported once, and again in the summary.
    assert_eq!(output.err.matches(message).count(), 4, "{}", output.err);
    let lines = metrics(&root.join("on"));
    let alarms: Vec<&String> = lines.iter().filter(|line| line.contains("\"alarm\":{\"id\":\"reward_")).collect();
    assert!(alarms[0].contains("reward_crashed") && alarms[0].contains("ModuleNotFoundError"), "{alarms:?}");
    assert!(alarms[1].contains("reward_given_up") && alarms[1].contains("\"since\":4"), "{alarms:?}");
    assert!(alarms[2].contains("\"subject\":\"serve in evaluation\""), "{alarms:?}");
    assert!(
        alarms.len() == 4 && alarms[3].contains("reward_crashed") && alarms[3].contains("\"until\":8"),
        "{alarms:?}"
    );
    assert!(output.err.lines().all(|line| line.len() < 300), "{}", output.err);
    // Each kind of failure is reported once.
    assert_eq!(output.err.matches("ModuleNotFoundError").count(), 3, "{}", output.err);
    assert!(
        metrics(&root.join("on")).iter().all(|line| !line.contains("frac_reward_zero_std")),
        "the metric is unknown, and must not be 0"
    );
}

#[test]
fn a_reward_without_restarts_left_ends_the_run_with_a_json_error() {
    let dir = directory();
    let root = dir.path();
    broken(root);
    let command = "reward_funcs=[{kind = \"command\", command = \"sh serve.sh\", max_restarts = 0}]";
    let all = arguments("train", "run", &[command]);
    let output = lockstep(root, &[&all[..], &["--log-format", "json"]].concat());
    assert_eq!(output.code, Some(1), "{}", output.err);
    let lines: Vec<serde_json::Value> = output.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    let message = last["message"].as_str().unwrap();
    assert!(last["level"] == "error" && message.contains("reward `serve` no longer scores"), "{last}");
    assert_eq!(output.err.matches("ModuleNotFoundError").count(), 1, "the cause must be printed once: {}", output.err);
    let log = fs::read_to_string(root.join("run/lockstep-0.log")).unwrap();
    assert_eq!(log.lines().last(), output.err.lines().last());
    // Bad input is reported as JSON, too.
    let output = lockstep(root, &["train", "--log-format", "json", "--model", "nowhere", "--dataset", "d.jsonl"]);
    let line: serde_json::Value = serde_json::from_str(output.err.lines().last().unwrap()).unwrap();
    assert_eq!((output.code, &line["level"]), (Some(2), &"error".into()), "{}", output.err);
}

/// The batch without scores is sampled again: the run equals, bit for bit, a run whose reward never failed.
#[test]
fn a_run_resumes_at_the_batch_whose_reward_failed() {
    let dir = directory();
    let root = dir.path();
    let program = "while read -r line; do\ncase \"$line\" in *'\"global_step\":5,'*) [ -e fixed ] || exit 3;; esac\n\
                   echo '{\"rewards\": [1, 2, 0, 1], \"metrics\": {\"length\": 3}}'\ndone\n";
    fs::write(root.join("serve.sh"), program).unwrap();
    let command = "reward_funcs=[{kind = \"command\", command = \"sh serve.sh\", max_restarts = 0}]";
    let set = [command, "save_steps=1", "record_rollouts=true"];
    // Evaluations have a different number of completions per prompt.
    let set = [&set[..], &["num_generations_eval=2"]].concat();
    let output = lockstep(root, &arguments("train", "cut", &set));
    failed(&output, &["stopped after step 5", "exit status: 3"]);
    fs::write(root.join("fixed"), "").unwrap();
    good(root, &["train", "--resume", "cut"]);
    good(root, &arguments("train", "whole", &set));
    same(&root.join("whole"), &root.join("cut"));
}

#[test]
fn an_evaluation_without_scores_fails() {
    let dir = directory();
    let root = dir.path();
    let all =
        ["eval", "--model", "model", "--dataset", "a.jsonl", "--task", "prompt_answer", "--max-completion-length", "4"];
    fs::write(root.join("a.jsonl"), "{\"prompt\": \"ab\", \"answer\": \"c\"}\n".repeat(3)).unwrap();
    let eval = |rewards: &str, more: &[&str]| {
        let rewards = format!("reward_funcs={rewards}");
        lockstep(root, &[&all[..], &["--set", &rewards], more].concat())
    };
    let output = eval("[\"unique_chars\"]", &[]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let row = |output: &RunOutput, name: &str, share: &str| {
        let row = output.out.lines().find(|line| line.contains(&format!(" {name} "))).expect(&output.out);
        assert!(row.contains(share), "{row}");
    };
    row(&output, "unique_chars", "3/3");

    broken(root);
    let both = "[\"unique_chars\", {kind = \"command\", command = \"sh serve.sh\", max_restarts = 0}]";
    let output = eval(both, &[]);
    assert!(
        output.code == Some(1) && output.err.contains("error: reward `serve` scored no completion"),
        "{}",
        output.err
    );
    row(&output, "unique_chars", "3/3");
    row(&output, "serve", "0/3");
    let output = eval(both, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let judged: Vec<_> = (0..2).map(|k| [&json["rewards"][k]["judged"], &json["rewards"][k]["of"]]).collect();
    assert_eq!((output.code, judged), (Some(1), vec![[&3.into(), &3.into()], [&0.into(), &3.into()]]));
}

/// The progress output counts completions that time out.
#[test]
fn progress_counts_completions_that_timed_out() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("serve.sh"), "while read -r line; do sleep 5; done\n").unwrap();
    let late = "{kind = \"command\", command = \"sh serve.sh\", timeout_s = 0.2}";
    let rewards = format!("reward_funcs=[\"unique_chars\", {late}]");
    let output = good(root, &arguments("train", "run", &[&rewards, "max_steps=2", "logging_steps=1", "save_steps=2"]));
    let last =
        output.err.lines().rfind(|line| line.contains("timed out so far")).unwrap_or_else(|| panic!("{}", output.err));
    assert!(last.ends_with("timed out so far: serve 8"), "{last}");
}
