//! An adapter may be loaded only on the weights that it was trained on, by any command.

use crate::support::runs::{arguments, directory, good};
use crate::support::{command, refused, without_checksum};
use std::fs;

#[test]
fn an_adapter_on_other_base_weights_needs_the_other_base_flag() {
    let dir = directory();
    let root = dir.path();
    let weights = root.join("model/model.safetensors");
    let old = without_checksum(fs::read(&weights).unwrap());
    fs::write(&weights, &old).unwrap();
    good(root, &arguments("train", "lora", &["use_peft=true", "lora_r=2", "max_steps=2", "save_steps=2"]));
    // One bit of the weights differs, as after a disk fault.
    let mut other = old.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(&weights, &other).unwrap();
    fs::write(root.join("ids.jsonl"), "{\"prompt_ids\": [1], \"completion_ids\": [2]}\n").unwrap();

    let eval = ["eval", "--dataset", "e.jsonl", "--reward", "unique_chars", "--set", "max_completion_length=2"];
    let adapter = ["--model", "model", "--adapter", "lora/model"];
    let words = ["lora/model", "was trained on", "SHA-256", "--other-base", "allow_other_base"];
    let commands = [
        [&eval[..], &adapter].concat(),
        [&eval[..], &["--model", "lora/model"]].concat(),
        [&["generate", "--prompt", "ab", "--max-new-tokens", "2"][..], &adapter].concat(),
        [&["score", "--input", "ids.jsonl"][..], &adapter].concat(),
    ];
    for arguments in &commands {
        refused(root, arguments, &words);
        good(root, &[&arguments[..], &["--other-base"]].concat());
    }
    let train = ["train", "--model", "lora/model", "--dataset", "d.jsonl", "--reward", "unique_chars", "--out", "more"];
    let short = ["--set", "max_completion_length=2", "--set", "num_generations=2", "--steps", "1", "--set"];
    let train = [&train[..], &short, &["per_device_train_batch_size=2"]].concat();
    refused(root, &train, &words);
    good(root, &[&train[..], &["--set", "allow_other_base=true"]].concat());

    // Without the run's record, the checkpoint still has the hash.
    let resume = ["train", "--resume", "lora", "--set", "max_steps=3"];
    for record in [None, Some("{}")] {
        match record {
            None => fs::remove_file(root.join("lora/record.json")).unwrap(),
            Some(text) => fs::write(root.join("lora/record.json"), text).unwrap(),
        }
        let output = command(root, &resume).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && printed.contains("SHA-256"), "{record:?}: {printed}");
    }
    fs::write(&weights, &old).unwrap();
    let printed = good(root, &resume).err;
    assert!(printed.contains("record.json is missing or does not record"), "{printed}");
}

/// An adapter without a recorded base cannot be checked. Every command prints a warning and loads the adapter.
#[test]
fn an_adapter_without_a_recorded_base_gives_a_warning() {
    let dir = directory();
    let root = dir.path();
    let short = ["use_peft=true", "lora_r=2", "max_steps=1", "eval_strategy=no"];
    good(root, &arguments("train", "lora", &short));
    let pairs = [&short[..], &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]].concat();
    good(root, &arguments("reward", "scores", &pairs));
    fs::write(root.join("ids.jsonl"), "{\"prompt_ids\": [1], \"completion_ids\": [2]}\n").unwrap();

    let adapter = ["--model", "model", "--adapter", "lora/model"];
    let eval = ["eval", "--dataset", "e.jsonl", "--set", "max_completion_length=2"];
    let small = ["max_completion_length=2", "num_generations=2", "per_device_train_batch_size=2", "max_steps=1"];
    let small = small.map(|pair| ["--set", pair]).concat();
    let train = |out| [&["train", "--dataset", "d.jsonl", "--out", out][..], &small].concat();
    let (unique, scores) = (["--reward", "unique_chars"], ["--reward", "model:scores/model"]);
    let policy = [
        [&eval[..], &unique, &adapter].concat(),
        [&eval[..], &unique, &["--model", "lora/model"]].concat(),
        [&["generate", "--prompt", "ab", "--max-new-tokens", "2"][..], &adapter].concat(),
        [&["score", "--input", "ids.jsonl"][..], &adapter].concat(),
        [&["merge", "--out", "merged"][..], &adapter].concat(),
        [&train("more")[..], &unique, &["--model", "lora/model"]].concat(),
    ];
    let reward = [
        [&train("rewarded")[..], &scores, &["--model", "model"]].concat(),
        [&eval[..], &scores, &["--model", "model"]].concat(),
        [&["score-rewards", "--input", "d.jsonl"][..], &scores].concat(),
    ];
    // Renames the field of the recorded hash to `name`, and replaces the first digit of the hash.
    let record = |directory: &str, name: &[u8], digit: Option<u8>| {
        let file = root.join(directory).join("adapter_model.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes.windows(16).position(|part| part == b"base_model_sha25").unwrap();
        bytes[at..at + name.len()].copy_from_slice(name);
        let first = &mut bytes[at + name.len() + 3];
        *first = digit.unwrap_or(*first);
        fs::write(file, bytes).unwrap();
    };
    for (directory, commands) in [("lora/model", &policy[..]), ("scores/model", &reward)] {
        let file = root.join(directory).join("adapter_model.safetensors");
        fs::write(&file, without_checksum(fs::read(&file).unwrap())).unwrap();
        record(directory, b"base_model_sha25X", None);
        for arguments in commands {
            let printed = good(root, arguments).err;
            let words = format!("{directory} does not record the weights that it was trained on");
            assert!(printed.contains("warning: ") && printed.contains(&words), "{arguments:?}: {printed}");
            let _ = ["merged", "more", "rewarded"].map(|out| fs::remove_dir_all(root.join(out)));
        }
        // The same adapter, with the recorded hash of different weights.
        record(directory, b"base_model_sha256", Some(b'x'));
        for arguments in commands {
            refused(root, arguments, &[directory, "was trained on", "SHA-256", "allow_other_base"]);
        }
    }
}
