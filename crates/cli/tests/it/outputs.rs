//! Commands never overwrite an input, and overwrite other files only with a flag.

use crate::support::runs::{arguments, directory, good};
use crate::support::{command, refused};
use std::fs::{self, File};
use std::process::Stdio;

/// Before this check, commands destroyed the dataset, the scored file or the model by overwriting them, with exit code
/// 0.
#[test]
fn an_output_never_overwrites_an_input() {
    let dir = directory();
    let root = dir.path();
    let small = ["--max-samples", "1", "--max-completion-length", "4", "--reward", "unique_chars"];
    let eval = |more: &[&'static str]| {
        [&["eval", "--model", "model", "--dataset", "e.jsonl"][..], &small, &["--out"], more].concat()
    };
    fs::hard_link(root.join("e.jsonl"), root.join("hard.jsonl")).unwrap();
    std::os::unix::fs::symlink("e.jsonl", root.join("soft.jsonl")).unwrap();
    for out in ["e.jsonl", "./model/../e.jsonl", "hard.jsonl", "soft.jsonl"] {
        refused(root, &eval(&[out]), &["--out", "is an input of this command", "--overwrite"]);
    }
    for more in [&["model/config.json"][..], &["model/model.safetensors", "--overwrite"]] {
        refused(root, &eval(more), &["--out", "belongs to", "is never overwritten"]);
    }
    let score = |more: &[&'static str]| {
        [&["score-rewards", "--input", "d.jsonl", "--reward", "unique_chars", "--out"][..], more].concat()
    };
    refused(root, &score(&["d.jsonl"]), &["--out d.jsonl", "is an input of this command"]);
    // The file belongs to another program.
    refused(root, &score(&["p.jsonl"]), &["--out p.jsonl", "exists", "--overwrite"]);
    refused(root, &eval(&["p.jsonl"]), &["--out p.jsonl", "exists", "--overwrite"]);

    // With the flag, the whole file is replaced.
    good(root, &score(&["d.jsonl", "--overwrite"]));
    assert!(fs::read_to_string(root.join("d.jsonl")).unwrap().contains("\"rewards\""));
    good(root, &eval(&["p.jsonl", "--overwrite"]));
    assert_eq!(fs::read_to_string(root.join("p.jsonl")).unwrap().lines().count(), 1);
    let left: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

/// Names that are too long, circular links and dangling links have separate errors.
#[test]
fn a_directory_that_cannot_be_created_is_an_error_with_the_reason() {
    let dir = directory();
    let root = dir.path();
    std::os::unix::fs::symlink("circle", root.join("circle")).unwrap();
    std::os::unix::fs::symlink("nowhere", root.join("dangling")).unwrap();
    let long = "x".repeat(300);
    let words = [(&*long, "too long"), ("circle", "symbolic link"), ("dangling", "link without a target")];
    fs::write(root.join("config.json"), crate::support::CONFIG).unwrap();
    for (out, word) in words {
        let train = ["train", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars", "--out", out];
        refused(root, &train, &["output_dir", word]);
        refused(root, &["init", "--config", "config.json", "--out", out], &["--out", word]);
    }
}

/// A closed pipe is not a failure. A full disk is a failure, and is reported. Nothing panics.
#[test]
fn no_command_panics_if_standard_output_is_closed_or_full() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("ids.jsonl"), "{\"prompt_ids\": [1], \"completion_ids\": [2]}\n").unwrap();
    fs::write(root.join("trl.py"), "GRPOConfig(beta=0.1)\n").unwrap();
    fs::write(root.join("config.json"), crate::support::CONFIG).unwrap();
    let recorded = ["max_steps=1", "eval_strategy=no", "record_rollouts=true", "use_peft=true", "lora_r=2"];
    good(root, &arguments("train", "run", &recorded));
    let bench = |what| vec!["bench", what, "--shape", "tiny", "--threads", "1"];
    let eval = ["eval", "--model", "model", "--dataset", "e.jsonl", "--reward", "unique_chars", "--set"];
    let eval = [&eval[..], &["max_completion_length=2"]].concat();
    let score = ["score-rewards", "--input", "d.jsonl", "--reward", "unique_chars"];
    let commands = [
        eval.clone(),
        [&eval[..], &["--json"]].concat(),
        score.to_vec(),
        [&score[..], &["--json"]].concat(),
        vec!["generate", "--model", "model", "--prompt", "ab", "--max-new-tokens", "2"],
        vec!["generate", "--model", "model", "--prompt", "ab", "--max-new-tokens", "2", "--json", "--n", "2"],
        vec!["score", "--model", "model", "--input", "ids.jsonl"],
        vec!["plan", "--model", "model", "--set", "max_completion_length=4"],
        vec!["plan", "--model", "model", "--set", "max_completion_length=4", "--json"],
        vec!["config", "show"],
        vec!["config", "explain", "beta"],
        vec!["config", "schema"],
        vec!["config", "markdown"],
        vec!["bench", "shape", "--shape", "tiny"],
        bench("step"),
        bench("memory"),
        bench("parity"),
        vec!["doctor", "--threads", "1"],
        vec!["doctor", "--threads", "1", "--json"],
        vec!["rollouts", "run"],
        vec!["rollouts", "run", "--index"],
        vec!["rollouts", "run", "--group", "0"],
        vec!["--help"],
        vec!["--version"],
    ];
    let from_trl = testing::program("python3").map(|()| vec!["config", "from-trl", "trl.py"]);
    for arguments in commands.into_iter().chain(from_trl) {
        let run = |out: Stdio, err: Stdio| {
            let output = command(root, &arguments).stdout(out).stderr(err).spawn().unwrap().wait_with_output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
        let closed = || {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            Stdio::from(writer)
        };
        let (code, printed) = run(closed(), Stdio::piped());
        assert!(
            code == Some(0) && !printed.contains("panicked") && !printed.contains("error:"),
            "{arguments:?}: {printed}"
        );
        let (code, printed) = run(full(), Stdio::piped());
        // `plan` uses exit code 1 for a run that does not fit.
        let cannot_print = Some(if arguments[0] == "plan" { 2 } else { 1 });
        assert_eq!(code, cannot_print, "{arguments:?}: {printed}");
        let words = printed.contains("No space left on device") || arguments[0].starts_with("--");
        assert!(words && !printed.contains("panicked"), "{arguments:?}: {printed}");
        // Standard error is full, too, so the error cannot be printed.
        assert_eq!(run(full(), full()).0, cannot_print, "{arguments:?}");
        assert_eq!(run(Stdio::null(), closed()).0, Some(0), "{arguments:?}");
    }
}

/// Commands that print nothing on standard output (they train or write a model) do not fail if a console is closed or
/// full.
#[test]
fn a_closed_console_ends_no_run() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("config.json"), crate::support::CONFIG).unwrap();
    let short = ["max_steps=2", "eval_strategy=no", "use_peft=true", "lora_r=2"];
    let pairs = [&short[..], &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]].concat();
    good(root, &arguments("sft", "lora", &short));
    for arguments in [
        arguments("train", "out", &short),
        arguments("sft", "out", &short),
        arguments("dpo", "out", &pairs),
        arguments("reward", "out", &pairs),
        vec!["merge", "--model", "model", "--adapter", "lora/model", "--out", "out"],
        vec!["init", "--config", "config.json", "--out", "out"],
    ] {
        let gone = || {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            Stdio::from(writer)
        };
        let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
        for (out, err) in [(gone(), gone()), (full(), full())] {
            let status = command(root, &arguments).stdout(out).stderr(err).status().unwrap();
            assert_eq!(status.code(), Some(0), "{arguments:?}");
            assert!(root.join("out").is_dir());
            fs::remove_dir_all(root.join("out")).unwrap();
        }
    }
}
