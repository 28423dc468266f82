//! `files.json` lists the files of a checkpoint; a command that finds a file from a different step fails with an error
//! that names the file.

use crate::support::runs::{arguments, directory, good, same};
use crate::support::{lockstep, refused};
use std::fs;
use std::path::Path;

/// Replaces each file that differs between two checkpoints of a run, one at a time, by the older version. The older
/// file is complete and has a correct checksum. Returns the names of the files.
fn files_of_another_step(root: &Path, run: &str, purpose: &str) -> Vec<String> {
    let [older, newer] = [2, 6].map(|step| root.join(run).join(format!("checkpoints/step-{step:06}")));
    let list: serde_json::Value = serde_json::from_slice(&fs::read(newer.join("files.json")).unwrap()).unwrap();
    let names: Vec<String> = list["files"].as_object().unwrap().keys().cloned().collect();
    let differing = |name: &String| fs::read(older.join(name)).unwrap() != fs::read(newer.join(name)).unwrap();
    let names: Vec<_> = names.into_iter().filter(differing).collect();
    for name in &names {
        let own = fs::read(newer.join(name)).unwrap();
        fs::copy(older.join(name), newer.join(name)).unwrap();
        refused(
            root,
            &[purpose, "--resume", run, "--set", "max_steps=8"],
            &[name, "written at step 6", "--resume", "checkpoints/step-000004"],
        );
        fs::write(newer.join(name), own).unwrap();
    }
    names
}

#[test]
fn a_checkpoint_file_of_another_step_is_refused_by_name() {
    let dir = directory();
    let root = dir.path();
    let short = ["max_steps=6", "eval_strategy=no", "tensorboard=false"];
    let kinds: [(&str, &str, &[&str], usize); 3] = [
        ("grpo", "train", &["num_iterations=2", "steps_per_generation=2"], 5),
        ("ppo", "train", &["algorithm=ppo"], 7),
        ("lora", "sft", &["use_peft=true", "lora_r=2"], 4),
    ];
    for (run, purpose, own, count) in kinds {
        good(root, &arguments(purpose, run, &[&short[..], own].concat()));
        let names = files_of_another_step(root, run, purpose);
        assert!(names.len() >= count && names.contains(&"run_state.json".to_owned()), "{run}: {names:?}");
        good(root, &[purpose, "--resume", run, "--set", "max_steps=7"]);
    }
}

/// Every command that reads a checkpoint's model checks the files, not only a resume.
#[test]
fn a_model_is_not_loaded_with_files_of_another_step() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", &["max_steps=4", "eval_strategy=no"]));
    let lora = ["max_steps=4", "eval_strategy=no", "use_peft=true", "lora_r=2"];
    good(root, &arguments("train", "lora", &lora));
    let (model, adapter) = ("run/checkpoints/step-000004", "lora/checkpoints/step-000004");
    fs::write(root.join("ids.jsonl"), "{\"prompt_ids\": [1], \"completion_ids\": [2]}\n").unwrap();
    let data = ["--dataset", "e.jsonl", "--reward", "unique_chars"];
    let short = ["--set", "max_completion_length=2"];
    let readers = |named: &[&'static str]| {
        [
            [&["eval"][..], named, &data, &short].concat(),
            [&["generate", "--prompt", "ab", "--max-new-tokens", "2"][..], named].concat(),
            [&["score", "--input", "ids.jsonl"][..], named].concat(),
        ]
    };
    for (named, checkpoint, file) in [
        (vec!["--model", model], model, "model.safetensors"),
        (vec!["--model", "model", "--adapter", adapter], adapter, "adapter_model.safetensors"),
    ] {
        let path = root.join(checkpoint).join(file);
        let own = fs::read(&path).unwrap();
        fs::copy(root.join(checkpoint.replace('4', "2")).join(file), &path).unwrap();
        for arguments in readers(&named) {
            refused(root, &arguments, &[file, "written at step 4", "files.json"]);
        }
        fs::write(&path, own).unwrap();
        good(root, &readers(&named)[1]);
    }
    // The file is truncated or deleted, and otherwise unchanged.
    let path = root.join(model).join("generation_config.json");
    let own = fs::read_to_string(&path).unwrap();
    for (text, words) in [(Some(own.trim_end()), "expected"), (None, "missing")] {
        text.map_or_else(|| fs::remove_file(&path), |text| fs::write(&path, text)).unwrap();
        refused(root, &readers(&["--model", model])[1], &["generation_config.json", words]);
    }
    // The final model is not a checkpoint, so its files may be changed.
    fs::remove_file(root.join("run/model/generation_config.json")).unwrap();
    good(root, &readers(&["--model", "run/model"])[1]);
}

#[test]
fn a_checkpoint_of_an_older_version_resumes_with_a_note() {
    let dir = directory();
    let root = dir.path();
    let set = ["log_completions=false"];
    good(root, &arguments("sft", "whole", &set));
    good(root, &arguments("sft", "older", &set));
    let output = good(root, &["sft", "--resume", "older/checkpoints/step-000010"]).err;
    assert!(!output.contains("files.json"), "{output}");
    for step in [2, 4, 6, 8, 10, 12] {
        fs::remove_file(root.join(format!("older/checkpoints/step-{step:06}/files.json"))).unwrap();
    }
    let output = good(root, &["sft", "--resume", "older/checkpoints/step-000008"]).err;
    assert!(output.contains("step-000008 has no files.json") && output.contains("no check that"), "{output}");
    for step in [2, 4, 6, 8] {
        let of = |run: &str| root.join(run).join(format!("checkpoints/step-{step:06}/files.json"));
        fs::copy(of("whole"), of("older")).unwrap();
    }
    same(&root.join("whole"), &root.join("older"));
}

/// Missing master weights are refused even without `files.json`, which older versions did not write.
#[test]
fn a_checkpoint_without_its_master_weights_is_refused() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("sft", "run", &["log_completions=false", "dtype=bf16"]));
    let checkpoint = root.join("run/checkpoints/step-000010");
    for name in ["files.json", "optimizer_masters.safetensors"] {
        fs::remove_file(checkpoint.join(name)).unwrap();
    }
    let output = lockstep(root, &["sft", "--resume", "run/checkpoints/step-000010"]);
    assert!(output.code == Some(2) && output.err.contains("optimizer_masters.safetensors"), "{}", output.err);
}
