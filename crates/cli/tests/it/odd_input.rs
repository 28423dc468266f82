//! Unusual input: megabytes of text, devices instead of files, and formats of other programs.

use crate::support::runs::{directory, good};
use crate::support::{RunOutput, command, lockstep, refused};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the program with an address space limit of `kib` KiB.
#[cfg(target_os = "linux")]
fn within(directory: &Path, kib: u32, arguments: &[&str]) -> RunOutput {
    let program = command(directory, arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\"")]);
    shell.arg(program.get_program()).args(program.get_args()).current_dir(directory);
    let output = shell.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    RunOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Megabytes of text are rejected as too long before they are tokenised: tokenising would take sixty times their
/// memory.
#[cfg(target_os = "linux")]
#[test]
fn a_far_too_long_row_is_refused_without_tokenising_it() {
    let dir = directory();
    let root = dir.path();
    let long = "ab ".repeat(7_000_000);
    let rows = |row: &dyn Fn(&str) -> String| ["sun ", &long, "moon "].map(row).concat();
    fs::write(root.join("long.jsonl"), rows(&|text| format!("{{\"prompt\": \"{text}\", \"completion\": \"a.\"}}\n")))
        .unwrap();
    let completed = |text: &str| format!("{{\"prompt\": \"a \", \"completion\": \"{text}\"}}\n");
    fs::write(root.join("answers.jsonl"), rows(&completed)).unwrap();
    let pair = |text: &str| format!("{{\"prompt\": \"a \", \"chosen\": \"{text}\", \"rejected\": \"b\"}}\n");
    fs::write(root.join("pairs.jsonl"), rows(&pair)).unwrap();
    let arguments = |command: &'static str, dataset: &'static str, set: &[&'static str]| {
        let mut all = vec![command, "--model", "model", "--dataset", dataset, "--out", "out", "--steps", "1"];
        all.extend(["--set", "threads=1", "--set", "per_device_train_batch_size=2"]);
        for pair in set {
            all.extend(["--set", *pair]);
        }
        all
    };
    let online = ["reward_funcs=[\"unique_chars\"]", "max_completion_length=4", "num_generations=2"];
    let fits = [&online[..], &["max_prompt_length=20"]].concat();
    for (arguments, code, words) in [
        (arguments("train", "long.jsonl", &online), 2, "row 2: the prompt has 21000000 bytes"),
        (arguments("train", "long.jsonl", &fits), 0, ""),
        (arguments("sft", "long.jsonl", &[]), 0, "left out: 1 row"),
        (arguments("sft", "answers.jsonl", &[]), 0, "left out: 1 row"),
        (arguments("sft", "answers.jsonl", &["completion_only_loss=false"]), 0, "left out: 1 row"),
        (arguments("dpo", "pairs.jsonl", &[]), 0, "left out: 1"),
        (arguments("reward", "pairs.jsonl", &[]), 0, "left out: 1"),
    ] {
        let printed = within(root, 600_000, &arguments);
        assert!(
            printed.code == Some(code) && printed.err.contains(words),
            "{arguments:?}: {:?}\n{}",
            printed.code,
            printed.err
        );
        let _ = fs::remove_dir_all(root.join("out"));
    }
}

/// The tokenizers library panics on contradictory settings.
#[test]
fn a_panic_of_the_tokenizers_library_becomes_an_error() {
    let dir = directory();
    let root = dir.path();
    let path = root.join("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {}});
    fs::write(&path, tokenizer.to_string()).unwrap();
    let printed = lockstep(root, &["generate", "--model", "model", "--prompt", "ab"]);
    assert_eq!(printed.code, Some(2), "{}", printed.err);
    assert!(printed.err.contains("tokenizer.json: the tokenizers library cannot load it: "), "{}", printed.err);
    assert!(!printed.err.contains("panicked") && !printed.err.contains("contradict"), "{}", printed.err);
}

#[test]
fn standard_input_is_read_and_a_device_is_refused() {
    let dir = directory();
    let root = dir.path();
    let score = ["score-rewards", "--reward", "unique_chars", "--json", "--input"];
    let mut child = command(root, &[&score[..], &["-"]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{\"completion\": \"ab\"}\n{\"completion\": \"aa\"}\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.to_string().contains("unique_chars"), "{report}");
    refused(root, &[&score[..], &["/dev/null"]].concat(), &["/dev/null is a device, not a regular file"]);
    let train = ["train", "--model", "model", "--reward", "unique_chars", "--out", "out", "--dataset"];
    for device in ["/dev/null", "/dev/zero"] {
        refused(root, &[&train[..], &[device]].concat(), &[device, "is a device, not a regular file"]);
    }
    refused(root, &[&train[..], &["none.jsonl"]].concat(), &["none.jsonl"]);
}

/// Without quotes, the last word of a reward's command becomes a positional argument.
#[test]
fn a_script_passed_as_the_configuration_is_reported() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("reward.py"), "import sys\n").unwrap();
    let train = ["train", "--model", "model", "--reward", "command:python3", "reward.py", "--out", "out"];
    refused(root, &train, &["reward.py, line 1", "read as a configuration file", "quoted"]);
}

/// A byte order mark, which Windows editors put first, is ignored.
#[test]
fn a_byte_order_mark_is_ignored() {
    let dir = directory();
    let root = dir.path();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let path = root.join("model").join(name);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, format!("\u{feff}{text}")).unwrap();
    }
    fs::write(root.join("list.json"), "\u{feff}[{\"prompt\": \"a \"}, {\"prompt\": \"b \"}]").unwrap();
    let eval = ["eval", "--model", "model", "--dataset", "list.json", "--reward", "unique_chars"];
    good(root, &[&eval[..], &["--max-completion-length", "2"]].concat());
}

#[test]
fn invalid_numbers_and_lists_have_clear_errors() {
    let dir = directory();
    let root = dir.path();
    let show = |pairs: &[&'static str]| -> Vec<&'static str> {
        ["config", "show"].into_iter().chain(pairs.iter().flat_map(|pair| ["--set", *pair])).collect()
    };
    for seed in ["seed=9223372036854775808", "data_seed=18446744073709551615"] {
        refused(root, &show(&[seed]), &["an integer up to 9223372036854775807"]);
    }
    refused(root, &show(&["seed=many"]), &["expected an integer, got \"many\""]);
    let small = ["train", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars", "--out", "out"];
    let with = |pairs: &[&'static str]| {
        small.into_iter().chain(pairs.iter().flat_map(|pair| ["--set", *pair])).collect::<Vec<_>>()
    };
    let both = ["top_k=5", "repetition_penalty=1.1", "max_steps=1", "max_completion_length=2"];
    let one = [both[0], both[2], both[3]];
    let printed = good(root, &with(&both)).err;
    assert!(printed.contains("top_k, repetition_penalty change the sampling distribution"), "{printed}");
    fs::remove_dir_all(root.join("out")).unwrap();
    assert!(good(root, &with(&one)).err.contains("top_k changes the sampling distribution"));
    fs::remove_dir_all(root.join("out")).unwrap();
    let tight = with(&["max_model_len=2", "max_completion_length=6"]);
    refused(root, &tight, &["lower max_completion_length below 2", "raise max_model_len"]);
}
