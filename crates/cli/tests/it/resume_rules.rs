//! Files that a resume keeps or sets aside, and its errors and messages.

use crate::stopping::{reward, start, wait_for};
use crate::support::runs::{arguments, directory, events, good, metrics, of_lines, rollouts, same};
use crate::support::{command, listing, lockstep, refused};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

fn copy(root: &Path, from: &str, to: &str) {
    assert!(Command::new("cp").args(["-r", from, to]).current_dir(root).status().unwrap().success());
}

fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn record(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("record.json")).unwrap()).unwrap()
}

#[test]
fn an_older_checkpoint_sets_later_ones_aside() {
    let dir = directory();
    let root = dir.path();
    let set = ["record_rollouts=true", "logging_steps=1", "save_total_limit=5"];
    good(root, &arguments("train", "whole", &set));
    copy(root, "whole", "run");
    let run = root.join("run");
    let printed = good(root, &["train", "--resume", "run/checkpoints/step-000006"]);
    assert!(printed.err.contains("abandoned/after-step-000006"), "{}", printed.err);
    same(&root.join("whole"), &run);
    // The files that were set aside are a complete run with all its logs.
    let kept = run.join("abandoned/after-step-000006");
    assert_eq!(checkpoints(&kept), ["step-000008", "step-000010", "step-000012"]);
    assert_eq!(metrics(&kept), metrics(&root.join("whole")));
    assert_eq!(events(&kept), events(&root.join("whole")));
    assert!(
        kept.join("model/model.safetensors").exists() && kept.join("completions/completions_00007.parquet").exists()
    );
    assert!(good(root, &["train", "--resume", kept.to_str().unwrap()]).err.contains("already ended"));

    // The limit counts only new checkpoints, and the newest checkpoint is the one written last.
    let relative = ["train", "--resume", "step-000004", "--set", "save_total_limit=2", "--set", "max_steps=8"];
    assert_eq!(lockstep(&run.join("checkpoints"), &relative).code, Some(0));
    assert_eq!(checkpoints(&run), ["step-000006", "step-000008"]);
    let later = run.join("abandoned/after-step-000004");
    assert_eq!(checkpoints(&later), ["step-000006", "step-000008", "step-000010", "step-000012"]);
    assert_eq!(of_lines(&run, "loss").len(), 8);
    // The directory's name is taken, so a new one is chosen.
    good(root, &["train", "--resume", "run/checkpoints/step-000006"]);
    assert_eq!(checkpoints(&run.join("abandoned/after-step-000006-2")), ["step-000008"]);
    assert!(good(root, &["train", "--resume", "run"]).err.contains("resuming after step 8"));
}

/// If all checkpoints are deleted, a run starts again, but its logs are kept.
#[test]
fn logs_of_deleted_checkpoints_are_set_aside() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("sft", "run", &["max_steps=4"]));
    let run = root.join("run");
    let logged = metrics(&run);
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    fs::remove_dir_all(run.join("model")).unwrap();
    let printed = good(root, &["sft", "--resume", "run"]);
    assert!(printed.err.contains("abandoned/after-step-000000"), "{}", printed.err);
    assert_eq!((metrics(&run.join("abandoned/after-step-000000")), metrics(&run)), (logged.clone(), logged));
}

/// Checks that each log starts with the record of the format's version.
fn begins_with_its_version(run: &Path) {
    let (file, _) = listing(&run.join("tensorboard")).pop().unwrap();
    let bytes = fs::read(file).unwrap();
    let version = b"brain.Event:2";
    let at: Vec<_> = bytes.windows(version.len()).enumerate().filter(|(_, w)| w == version).map(|(at, _)| at).collect();
    assert!(at.len() == 1 && at[0] < 40, "{at:?}");
}

#[test]
fn logs_that_are_switched_off_and_on_are_kept() {
    let dir = directory();
    let root = dir.path();
    let run = root.join("run");
    let base = ["lr_scheduler_type=constant", "logging_steps=1", "record_rollouts=true"];
    good(root, &arguments("train", "run", &[&base[..], &["max_steps=4"]].concat()));
    let resume = |set: &[&str]| {
        let pairs = set.iter().flat_map(|pair| ["--set", pair]);
        good(root, &["train", "--resume", "run"].into_iter().chain(pairs).collect::<Vec<_>>()).err
    };
    let recorded = || {
        let mut steps: Vec<u64> = rollouts(&run).iter().map(|line| line["step"].as_u64().unwrap()).collect();
        steps.dedup();
        steps
    };
    let logged = || {
        let mut steps: Vec<u64> = events(&run).into_iter().map(|(step, ..)| step).collect();
        steps.dedup();
        steps
    };
    resume(&["max_steps=6", "record_rollouts=false", "tensorboard=false"]);
    assert_eq!((recorded(), logged()), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    resume(&["max_steps=8", "record_rollouts=true", "tensorboard=true"]);
    assert_eq!((recorded(), logged()), (vec![1, 2, 3, 4, 7, 8], vec![1, 2, 3, 4, 7, 8]));
    begins_with_its_version(&run);
    // The file is truncated although nothing is appended, because step 7 belongs to a discarded continuation.
    good(
        root,
        &[
            "train",
            "--resume",
            "run/checkpoints/step-000006",
            "--set",
            "record_rollouts=false",
            "--set",
            "tensorboard=false",
        ],
    );
    assert_eq!((recorded(), logged()), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));

    // Deleted logs are reported and created again.
    fs::remove_file(run.join("metrics.jsonl")).unwrap();
    fs::remove_file(run.join("rollouts.bin")).unwrap();
    fs::remove_dir_all(run.join("tensorboard")).unwrap();
    let printed = resume(&["max_steps=10", "record_rollouts=true", "tensorboard=true"]);
    assert!(printed.contains("metrics.jsonl was deleted or shortened"), "{printed}");
    assert_eq!((recorded(), logged(), of_lines(&run, "loss").len()), (vec![9, 10], vec![9, 10], 2));
    begins_with_its_version(&run);

    // record.json lists every start with its command and its changes.
    let record = record(&run);
    let starts = record["starts"].as_array().unwrap();
    assert_eq!(starts.iter().map(|s| s["step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 4, 6, 6, 8]);
    assert!(
        record["command"].to_string().contains("max_steps=4")
            && starts[4]["command"].to_string().contains("max_steps=10")
    );
    let changed: Vec<&str> = starts[1]["changed"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(changed.len(), 3, "{changed:?}");
    assert!(
        changed.contains(&"max_steps was 4, now 6") && starts[0]["changed"] == serde_json::json!([]),
        "{changed:?}"
    );
}

#[test]
fn a_finished_run_prints_that_it_has_ended() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("sft", "done", &[]));
    copy(root, "done", "again");
    let printed = good(root, &["sft", "--resume", "again"]);
    assert!(printed.err.contains("already ended: it has done 12 of 12 steps"), "{}", printed.err);
    same(&root.join("done"), &root.join("again"));

    // With learning rate 0, no evaluation is better than the first.
    let patience = ["learning_rate=0", "early_stopping_patience=1", "metric_for_best_model=loss"];
    let early = good(root, &arguments("sft", "early", &patience));
    assert!(early.err.contains("stopped early after step 8"), "{}", early.err);
    let lines = metrics(&root.join("early"));
    let again = good(root, &["sft", "--resume", "early"]);
    for words in ["stopped early after step 8 of 12", "early_stopping_patience"] {
        assert!(again.err.contains(words), "`{words}`: {}", again.err);
    }
    assert_eq!(metrics(&root.join("early")), lines, "no step may be added");
    // With more patience the run continues, and earlier evaluations without an improvement still count.
    let more = good(root, &["sft", "--resume", "early", "--set", "early_stopping_patience=2"]);
    // At the last step, early stopping has no effect.
    assert!(more.err.contains("done: 12 steps") && !more.err.contains("stopped early"), "{}", more.err);
}

/// A refused resume changes nothing: neither configuration, logs nor checkpoints.
#[test]
fn a_refused_resume_changes_nothing() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", &["max_steps=4"]));
    let again = |more: &[&str], words: &[&str]| {
        let arguments = [&["train", "--resume", "run", "--set", "max_steps=8"][..], more].concat();
        refused(root, &arguments, words);
    };
    again(&["--set", "num_generations=4"], &["num_generations was 2, now 4"]);
    fs::create_dir(root.join("run/checkpoints/.unfinished-step-000006")).unwrap();
    let data = fs::read_to_string(root.join("d.jsonl")).unwrap();
    let sha256 = |text: &str| telemetry::record::sha256(text.as_bytes());
    let other = data.replace("sun", "son");
    fs::write(root.join("d.jsonl"), &other).unwrap();
    again(&[], &["d.jsonl", "training data", &sha256(&data), &sha256(&other)]);
    fs::write(root.join("d.jsonl"), data).unwrap();

    // Checks each file that a checkpoint needs.
    let checkpoint = root.join("run/checkpoints/step-000004");
    for name in ["run_state.json", "optimizer_exp_avg.safetensors", "model.safetensors"] {
        let whole = fs::read(checkpoint.join(name)).unwrap();
        fs::write(checkpoint.join(name), &whole[..whole.len() / 2]).unwrap();
        again(&[], &[name]);
        fs::write(checkpoint.join(name), whole).unwrap();
    }
    // From here on the state differs, not the files.
    fs::remove_file(checkpoint.join("files.json")).unwrap();
    let state = fs::read_to_string(checkpoint.join("run_state.json")).unwrap();
    let mut broken: Value = serde_json::from_str(&state).unwrap();
    broken["task"]["rollout_number"] = "three".into();
    broken.as_object_mut().unwrap().shift_remove("xxh3");
    fs::write(checkpoint.join("run_state.json"), broken.to_string()).unwrap();
    again(&[], &["run_state.json"]);
    let mut elsewhere: Value = serde_json::from_str(&state).unwrap();
    elsewhere["arithmetic"] = "another-formula".into();
    elsewhere.as_object_mut().unwrap().shift_remove("xxh3");
    fs::write(checkpoint.join("run_state.json"), elsewhere.to_string()).unwrap();
    again(&[], &["another-formula", "allow_other_isa"]);
    fs::write(checkpoint.join("run_state.json"), state).unwrap();
    again(&["--set", "metric_for_best_model=rewrad"], &["rewrad"]);
    good(root, &["train", "--resume", "run", "--set", "max_steps=8"]);
}

/// The base model of an adapter and the reference of a KL term must be unchanged since the run started.
#[test]
fn changed_base_and_reference_weights_are_refused() {
    let dir = directory();
    let root = dir.path();
    let weights = root.join("model/model.safetensors");
    let old = fs::read(&weights).unwrap();
    crate::support::model_of(&root.join("other"), &fs::read_to_string(root.join("model/config.json")).unwrap());
    good(root, &arguments("sft", "tuned", &["max_steps=1", "dataset_name=d.jsonl"]));
    let other = fs::read(root.join("tuned/model/model.safetensors")).unwrap();
    assert!(old != other && old.len() == other.len());
    let lora = ["use_peft=true", "lora_r=2"];
    let kinds = [
        ("train", "lora", &lora[..]),
        ("train", "kl", &["beta=0.1"]),
        ("sft", "full", &[]),
        ("dpo", "dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]),
    ];
    for (purpose, out, set) in kinds {
        good(root, &arguments(purpose, out, &[set, &["max_steps=2"]].concat()));
    }
    fs::write(&weights, &other).unwrap();
    for (purpose, out, _) in kinds {
        let resume = [purpose, "--resume", out, "--set", "max_steps=4"];
        match out {
            // With full fine-tuning, all weights are in the checkpoint.
            "full" => drop(good(root, &resume)),
            _ => refused(root, &resume, &["model.safetensors", "SHA-256", "since the run began"]),
        }
    }
    let merge = |more: &[&'static str]| {
        [&["merge", "--model", "model", "--adapter", "lora/model", "--out", "merged"], more].concat()
    };
    refused(root, &merge(&[]), &["lora/model", "was trained on", "model", "SHA-256"]);
    good(root, &merge(&["--other-base"]));
    fs::remove_dir_all(root.join("merged")).unwrap();
    fs::write(&weights, &old).unwrap();
    good(root, &merge(&[]));
    // The tokenizer in the checkpoint also determines how prompts are encoded.
    let tokenizer = root.join("model/tokenizer.json");
    let words = fs::read_to_string(&tokenizer).unwrap();
    fs::write(&tokenizer, format!("{words} ")).unwrap();
    refused(root, &["sft", "--resume", "full", "--set", "max_steps=6"], &["tokenizer.json", "SHA-256"]);
    fs::write(&tokenizer, words).unwrap();

    // The model was only moved, so it is the same.
    fs::rename(root.join("model"), root.join("moved")).unwrap();
    let moved = ["train", "--resume", "lora", "--set", "max_steps=4", "--model", "moved"];
    assert!(good(root, &moved).err.contains("changed on resume: model_name_or_path"));
}

/// The result is complete even if the original model is deleted before the run ends.
#[test]
fn the_result_is_complete_without_the_initial_model() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("model/chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    for (purpose, out, set) in
        [("train", "full", &[][..]), ("train", "lora", &["use_peft=true"]), ("train", "ppo", &["algorithm=ppo"])]
    {
        good(root, &arguments(purpose, &format!("{out}-whole"), set));
        fs::rename(root.join("model"), root.join("aside")).ok();
        copy(root, "aside", "model");
        let slow = reward(root, "0.1");
        let mut child = start(root, &arguments(purpose, out, &[set, &[&slow, "save_steps=1"]].concat()));
        wait_for(&root.join(out).join("checkpoints/step-000001/run_state.json"), true);
        fs::remove_dir_all(root.join("model")).unwrap();
        assert!(child.wait().unwrap().success(), "{out}");
        let names = |run: &str| {
            let files = listing(&root.join(run).join("model")).into_iter();
            files.map(|(path, _)| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(out), names(&format!("{out}-whole")));
        assert!(root.join(out).join("model/chat_template.jinja").exists());
        copy(root, "aside", "model");
    }
}

/// A flipped bit in any file of a checkpoint is detected when the file is read, and the error names the previous
/// checkpoint.
#[test]
fn a_flipped_bit_in_a_checkpoint_is_detected() {
    let dir = directory();
    let root = dir.path();
    let set = ["algorithm=ppo", "beta=0", "dtype=bf16", "max_steps=4"];
    good(root, &arguments("train", "run", &set));
    let checkpoint = root.join("run/checkpoints/step-000004");
    let mut checked = 0;
    for (path, length) in listing(&checkpoint) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            continue;
        }
        // A flipped bit in the list of files is reported, too.
        let name = if name == "files.json" { "checkpoints/step-000004" } else { name };
        let whole = fs::read(&path).unwrap();
        // Flips bits in the header or the first fields, in the middle, and at the end.
        for at in [100, length as usize / 2, length as usize - 3] {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            fs::write(&path, &flipped).unwrap();
            let words = ["train", "--resume", "run", "--set", "max_steps=6"];
            refused(root, &words, &[name, "--resume", "checkpoints/step-000002"]);
            checked += 1;
        }
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(checked, 3 * 18, "two models with master weights and moments, tokenizers, the state, the list");
    good(root, &["train", "--resume", "run", "--set", "max_steps=6"]);
    // The same holds for the final model of a run, for every command that reads it.
    let model = root.join("run/model/model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&model, bytes).unwrap();
    let printed = lockstep(root, &["generate", "--model", "run/model", "--prompt", "ab"]);
    assert!(printed.code == Some(2) && printed.err.contains("safetensors: the file is damaged"), "{}", printed.err);
}

/// Paths in a file are relative to the file, and paths on the command line to the working directory. A run finds all of
/// them, from any directory and after it was moved.
#[test]
fn a_run_resumes_from_anywhere() {
    let dir = directory();
    let root = dir.path();
    let whole = arguments("sft", "whole", &[]);
    let work = root.join("work");
    fs::create_dir_all(work.join("configs")).unwrap();
    fs::create_dir(work.join("elsewhere")).unwrap();
    let paths = ["model_name_or_path=../../model", "dataset_name=../../d.jsonl", "output_dir=../run"];
    let keys = whole.iter().filter(|word| word.contains('=')).chain(&paths).map(|pair| pair.split_once('=').unwrap());
    let mut keys: BTreeMap<&str, &str> = keys.collect();
    keys.extend([("max_steps", "2"), ("eval_dataset_name", "../../e.jsonl")]);
    let line = |(key, value): (&&str, &&str)| match value.parse::<f64>() {
        Ok(_) => format!("{key} = {value}\n"),
        Err(_) => format!("{key} = \"{value}\"\n"),
    };
    let toml: String = keys.iter().map(line).collect();
    fs::write(work.join("configs/run.toml"), toml).unwrap();
    good(&work, &["sft", "configs/run.toml"]);
    let resolved = fs::read_to_string(work.join("run/config.toml")).unwrap();
    for (key, path) in [("model_name_or_path", "model"), ("dataset_name", "d.jsonl"), ("output_dir", "work/run")] {
        let value: toml::Table = resolved.parse().unwrap();
        let found = Path::new(value[key].as_str().unwrap());
        assert!(
            found.is_absolute() && found.canonicalize().unwrap() == root.join(path).canonicalize().unwrap(),
            "{found:?}"
        );
    }
    let elsewhere = work.join("elsewhere");
    good(&elsewhere, &["sft", "../configs/run.toml", "--resume", "latest", "--set", "max_steps=3"]);
    good(&elsewhere, &["sft", "--resume", "../run", "--set", "max_steps=4"]);
    assert!(!elsewhere.join("run").exists() && listing(&elsewhere).is_empty());

    // Paths on the command line are relative to the working directory.
    let flags = ["sft", "../configs/run.toml", "--out", "mine", "--model", "../../model"];
    good(&elsewhere, &flags);
    assert!(elsewhere.join("mine/model/model.safetensors").exists());
    // A path that exists only relative to the working directory is not guessed.
    fs::write(work.join("configs/other.toml"), "model_name_or_path = \"model\"\n").unwrap();
    let guess = ["sft", "work/configs/other.toml", "--dataset", "d.jsonl", "--out", "other"];
    refused(root, &guess, &["other.toml", "`model_name_or_path` = model", "relative to", "command line"]);

    fs::rename(work.join("run"), root.join("moved")).unwrap();
    let printed = good(&elsewhere, &["sft", "--resume", "../../moved", "--set", "max_steps=5"]);
    assert!(printed.err.contains("the run's directory was") && printed.err.contains("moved"), "{}", printed.err);
    assert!(root.join("moved/checkpoints/step-000005").is_dir() && !work.join("run").exists());
}

/// In bf16, all instruction sets without tiles share one arithmetic, and tiles use a second one; in f32 all share one.
#[test]
fn a_run_resumes_only_on_a_matching_arithmetic() {
    let dir = directory();
    let root = dir.path();
    let on = |isa: &str, arguments: &[&str]| {
        let output = command(root, arguments).env("LOCKSTEP_ISA", isa).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (out, dtype, formula) in [("narrow", "dtype=bf16", "bf16-chain"), ("wide", "dtype=f32", "f32")] {
        good(root, &arguments("train", out, &[dtype, "max_steps=2", "save_steps=2"]));
        let there = on("portable", &["train", "--resume", out, "--set", "max_steps=3"]);
        if record(&root.join(out))["starts"][0]["isa"] == "amx" && dtype == "dtype=bf16" {
            assert_eq!(there.0, Some(2), "{}", there.1);
            continue;
        }
        assert_eq!(there.0, Some(0), "{}", there.1);
        assert_eq!(record(&root.join(out))["arithmetic"], formula);
    }
    let (code, printed) = on("amx-emulated", &["train", "--resume", "narrow", "--set", "max_steps=4"]);
    if record(&root.join("narrow"))["arithmetic"] == "bf16-chain" {
        assert_eq!(code, Some(2), "{printed}");
        for word in ["bf16-chain", "portable", "bf16-amx", "amx-emulated", "allow_other_isa"] {
            assert!(printed.contains(word), "{word}: {printed}");
        }
    }
}

/// Negating a reward script makes the reward fall from step to step; a warning reports the changed script.
#[test]
fn a_reward_that_changed_before_a_resume_gives_a_warning() {
    let dir = directory();
    let root = dir.path();
    let script = "while read -r line; do echo '{\"rewards\": [1, 2, 0, 1]}'; done\n";
    fs::write(root.join("reward.sh"), script).unwrap();
    fs::write(root.join("r.py"), "def f(completions, **kwargs):\n    return [len(c) for c in completions]\n").unwrap();
    good(root, &arguments("reward", "scores", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "max_steps=1"]));
    let rewards = "reward_funcs=[\"command:sh reward.sh\", \"python:r.py:f\", \"model:scores/model\"]";
    good(root, &arguments("train", "run", &[rewards, "max_steps=2", "eval_strategy=no"]));
    let resumed = |steps: &str| good(root, &["train", "--resume", "run", "--set", &format!("max_steps={steps}")]).err;
    let warning = "a reward differs from the reward that the run was trained with";
    assert!(!resumed("3").contains(warning));
    fs::write(root.join("reward.sh"), script.replace("[1,", "[-1,")).unwrap();
    let mut python = fs::read_to_string(root.join("r.py")).unwrap();
    python += "\n";
    fs::write(root.join("r.py"), python).unwrap();
    let weights = root.join("scores/model/model.safetensors");
    let mut bytes = crate::support::without_checksum(fs::read(&weights).unwrap());
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let printed = resumed("4");
    assert_eq!(printed.matches(warning).count(), 3, "{printed}");
    for file in ["reward.sh: its SHA-256 is", "r.py: its", "scores/model/model.safetensors: its"] {
        assert!(printed.contains(file), "`{file}`: {printed}");
    }
    // The warning is printed once, and is in the record of that start.
    assert!(!resumed("5").contains(warning));
    let record: Value = serde_json::from_slice(&fs::read(root.join("run/record.json")).unwrap()).unwrap();
    let changed = |start: usize| record["starts"][start]["changed"].to_string();
    assert!(changed(2).contains("reward.sh: its SHA-256 is") && !changed(3).contains("reward.sh"), "{record}");
}
