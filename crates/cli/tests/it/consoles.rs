//! Consoles that cannot be written to. If output other than the result cannot be printed, the command continues with an
//! unchanged exit code. If the result cannot be printed, the command fails, unless the reader has closed the pipe.

use crate::support::command;
use crate::support::runs::{arguments, directory, good, same, same_but_workers};
use std::fs::File;
use std::path::Path;
use std::process::Stdio;

/// The state of a console.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Console {
    /// A pipe whose reader has closed it.
    Closed,
    /// A file on a full disk.
    Full,
    /// A console that can be written to.
    Good,
}

impl Console {
    fn stdio(self) -> Stdio {
        match self {
            Console::Closed => std::io::pipe().unwrap().1.into(),
            Console::Full => File::options().write(true).open("/dev/full").unwrap().into(),
            Console::Good => Stdio::null(),
        }
    }
}

/// What a command writes to standard output.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Output {
    /// The result; the number is the exit code if it cannot be written.
    Result(i32),
    /// A table, the name of a result that is written elsewhere, or nothing.
    Mention,
}

fn code(root: &Path, arguments: &[&str], stdout: Console, stderr: Console) -> Option<i32> {
    let mut all = command(root, arguments);
    all.env("TERM", "xterm").stdin(Stdio::null()).stdout(stdout.stdio()).stderr(stderr.stdio());
    all.status().unwrap().code()
}

#[test]
fn every_command_exits_as_it_does_with_a_working_console() {
    use Console::{Closed, Full, Good};
    use Output::{Mention, Result};
    let dir = directory();
    let root = dir.path();
    std::fs::write(root.join("config.json"), crate::support::CONFIG).unwrap();
    std::fs::write(root.join("ids.jsonl"), "{\"prompt_ids\": [3], \"completion_ids\": [4, 5]}\n").unwrap();
    let set = ["record_rollouts=true", "max_steps=2", "save_steps=2", "eval_strategy=no"];
    good(root, &arguments("train", "run", &set));
    let lora = ["use_peft=true", "lora_r=2", "max_steps=1", "eval_strategy=no"];
    good(root, &arguments("sft", "lora", &lora));
    // A run that differs from its record.
    good(root, &["fork", "run", "--at", "2", "--out", "lie"]);
    let metrics = root.join("lie/model/model.safetensors");
    let mut bytes = std::fs::read(&metrics).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&metrics, bytes).unwrap();
    let differs = crate::support::lockstep(root, &["verify", "lie", "--all"]).code.unwrap();
    assert_ne!(differs, 0, "verify must detect the changed result");
    let plan = ["plan", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars"];
    let plan = [&plan[..], &["--set", "max_completion_length=6"]].concat();
    let score = ["score-rewards", "--input", "d.jsonl", "--reward", "unique_chars"];
    let eval = ["eval", "--model", "model", "--dataset", "e.jsonl", "--reward", "unique_chars"];
    let eval = [&eval[..], &["--max-completion-length", "4"]].concat();
    let rows: Vec<(&str, Vec<&str>, Output, i32)> = vec![
        ("config show", vec!["config", "show"], Result(1), 0),
        ("config explain", vec!["config", "explain", "beta"], Result(1), 0),
        ("config schema", vec!["config", "schema"], Result(1), 0),
        ("plan", plan, Result(2), 0),
        ("generate", vec!["generate", "--model", "model", "--prompt", "a", "--max-new-tokens", "4"], Result(1), 0),
        ("generate --json", vec!["generate", "--model", "model", "--prompt", "a", "--json", "--n", "2"], Result(1), 0),
        ("score", vec!["score", "--model", "model", "--input", "ids.jsonl"], Result(1), 0),
        ("score-rewards", score.to_vec(), Result(1), 0),
        ("score-rewards --json", [&score[..], &["--json"]].concat(), Result(1), 0),
        ("eval", eval.clone(), Result(1), 0),
        ("eval --json", [&eval[..], &["--json"]].concat(), Result(1), 0),
        ("rollouts", vec!["rollouts", "run"], Result(1), 0),
        ("rollouts --index", vec!["rollouts", "run", "--index"], Result(1), 0),
        ("outputs", vec!["outputs"], Result(1), 0),
        ("report --print", vec!["report", "run", "--print"], Result(1), 0),
        ("verify", vec!["verify", "run", "--all"], Result(2), 0),
        ("verify --json", vec!["verify", "run", "--all", "--json"], Result(2), 0),
        ("verify of a lie", vec!["verify", "lie", "--all"], Result(differs), differs),
        ("verify of a lie --json", vec!["verify", "lie", "--all", "--json"], Result(differs), differs),
        ("report", vec!["report", "run"], Mention, 0),
        ("board", vec!["board", "run", "--out", "board"], Mention, 0),
        ("help", vec!["train", "--help"], Result(1), 0),
        ("bad usage", vec!["train", "--no-such-flag"], Mention, 2),
        ("bad input", vec!["generate", "--model", "none", "--prompt", "a"], Mention, 2),
    ];
    assert!(rows.len() >= 20);
    let mut wrong = Vec::new();
    for (what, arguments, output, good) in &rows {
        for (stdout, stderr) in [(Closed, Good), (Full, Good), (Good, Closed), (Closed, Full), (Full, Full)] {
            let expected = match (output, stdout) {
                (Result(full), Full) => *full,
                _ => *good,
            };
            let _ = std::fs::remove_dir_all(root.join("board"));
            let found = code(root, arguments, stdout, stderr);
            if found != Some(expected) {
                wrong.push(format!("{what}, {stdout:?} and {stderr:?}: {found:?}, expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs commands that write a result on each console; the result must equal that with a working console.
fn same_results(rows: &[&str]) {
    let dir = directory();
    let root = dir.path();
    std::fs::write(root.join("config.json"), crate::support::CONFIG).unwrap();
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
    let all = |name: &str, out: &'static str| -> Vec<&'static str> {
        let workers =
            |set: &[&'static str]| [&arguments("train", out, set)[..], &["--distributed", "--workers", "2"]].concat();
        match name {
            "sft" => arguments("sft", out, &[]),
            "dpo" => arguments("dpo", out, &pairs),
            "reward" => arguments("reward", out, &pairs),
            "ppo" => arguments("train", out, &["algorithm=ppo", "num_generations=1"]),
            "lora" => arguments("train", out, &["use_peft=true", "lora_r=2", "num_completions_to_print=2"]),
            "workers" => workers(&["max_staleness=0"]),
            "workers ahead" => workers(&["max_staleness=2", "partial_rollout_tokens=2"]),
            "json" => [&arguments("train", out, &[])[..], &["--log-format", "json"]].concat(),
            _ => arguments("train", out, &["num_completions_to_print=2"]),
        }
    };
    use Console::{Closed, Full};
    for name in rows {
        assert_eq!(code(root, &all(name, "good"), Console::Good, Console::Good), Some(0), "{name}");
        for (out, stdout, stderr) in [("closed", Closed, Closed), ("full", Full, Full)] {
            assert_eq!(code(root, &all(name, out), stdout, stderr), Some(0), "{name}: {out}");
            if name.starts_with("workers") {
                same_but_workers(&root.join("good"), &root.join(out))
            } else {
                same(&root.join("good"), &root.join(out))
            }
            std::fs::remove_dir_all(root.join(out)).unwrap();
        }
        std::fs::remove_dir_all(root.join("good")).unwrap();
    }
}

#[test]
fn a_run_has_the_same_bits_on_any_console() {
    same_results(&["train", "workers"]);
}

#[test]
#[ignore = "a minute: cargo xtask nightly terminals"]
fn every_kind_of_run_has_the_same_bits_on_any_console() {
    let all = ["train", "sft", "dpo", "reward", "ppo", "lora", "json", "workers", "workers ahead"];
    same_results(&all);
    println!("{} kinds of runs on closed pipes and full disks: the same bits", all.len());
}
