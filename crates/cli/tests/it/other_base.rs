//! An adapter is for the weights that it was trained on, wherever it is loaded.

use crate::support::runs::{arguments, directory, good};
use crate::support::{command, refused, without_checksum};
use std::fs;

#[test]
fn an_adapter_on_other_weights_is_refused_everywhere_unless_one_insists() {
    let dir = directory();
    let root = dir.path();
    let weights = root.join("model/model.safetensors");
    let old = without_checksum(fs::read(&weights).unwrap());
    fs::write(&weights, &old).unwrap();
    good(root, &arguments("train", "lora", &["use_peft=true", "lora_r=2", "max_steps=2", "save_steps=2"]));
    // A bit of the last weight, as a disk or another download may change it.
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

    // Without the run's record its checkpoint still knows.
    let resume = ["train", "--resume", "lora", "--set", "max_steps=3"];
    for record in [None, Some("{}")] {
        match record {
            None => fs::remove_file(root.join("lora/record.json")).unwrap(),
            Some(text) => fs::write(root.join("lora/record.json"), text).unwrap(),
        }
        let output = command(root, &resume).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("SHA-256"), "{record:?}: {said}");
    }
    fs::write(&weights, &old).unwrap();
    let said = good(root, &resume).err;
    assert!(said.contains("record.json is missing, or does not say"), "{said}");
}
