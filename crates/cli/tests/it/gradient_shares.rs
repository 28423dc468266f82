//! `gradient_shares`: the gradient of a step is summed as a tree over the gradients of its shares. The bits of a run
//! depend on the number of shares, but not on any other setting that divides its work.

use crate::support::lockstep;
use crate::support::runs::{arguments, directory, files, good, same, same_but_workers};
use serde_json::Value;
use std::path::Path;

/// Kinds of runs: the command, a name and keys.
const KINDS: [(&str, &str, &[&str]); 7] = [
    ("train", "grpo", &["beta=0.04", "per_device_train_batch_size=8"]),
    ("train", "iterations", &["num_iterations=2", "per_device_train_batch_size=8", "optim=muon"]),
    ("train", "bf16", &["dtype=bf16", "dynamic_sampling=true", "per_device_train_batch_size=8"]),
    ("train", "lora", &["use_peft=true", "lora_r=2", "per_device_train_batch_size=16"]),
    ("train", "ppo", &["algorithm=ppo", "num_ppo_epochs=2", "num_mini_batches=2", "per_device_train_batch_size=8"]),
    ("sft", "sft", &[]),
    ("dpo", "dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]),
];

/// The optimizer's first moments. (In bf16, rounding hides differences of the weights.)
fn moments(run: &Path) -> Vec<u8> {
    files(run).remove("checkpoints/step-000012/optimizer_exp_avg.safetensors").unwrap()
}

#[test]
fn the_bits_of_a_run_in_shares_do_not_depend_on_its_division() {
    let dir = directory();
    let root = dir.path();
    for (command, kind, set) in KINDS {
        let is_online = command == "train";
        let recorded: &[&str] = if is_online { &["record_rollouts=true"] } else { &[] };
        let run = |name: &str, own: &[&str]| {
            let out = format!("{kind}-{name}");
            good(root, &arguments(command, &out, &[set, recorded, own].concat()));
            root.join(out)
        };
        let whole = run("whole", &["gradient_shares=4", "threads=1"]);
        let mut divided = vec!["gradient_shares=4", "threads=2", "packing=false", "gradient_checkpointing=true"];
        divided.extend(is_online.then_some("rollout_activations=off"));
        same(&whole, &run("divided", &divided));
        let one = run("one", &["threads=1"]);
        assert!(moments(&whole) != moments(&one), "{kind}: shares must change the order of the sums");
        if is_online {
            good(root, &["verify", &format!("{kind}-whole"), "--all"]);
        }
    }
}

#[test]
fn a_run_in_shares_with_workers_matches_a_single_process() {
    let dir = directory();
    let set = ["gradient_shares=2", "per_device_train_batch_size=8", "max_staleness=1"];
    good(dir.path(), &arguments("train", "alone", &set));
    let mut with_workers = arguments("train", "workers", &set);
    with_workers.extend(["--distributed", "--workers", "2"]);
    good(dir.path(), &with_workers);
    same_but_workers(&dir.path().join("alone"), &dir.path().join("workers"));
}

#[test]
fn the_number_of_shares_is_a_power_of_two_and_fixed() {
    let dir = directory();
    let refused = |arguments: &[&str], why: &str| {
        let output = lockstep(dir.path(), arguments);
        assert_eq!(output.code, Some(2), "{}{}", output.out, output.err);
        assert!(output.err.contains(why), "{}", output.err);
    };
    let with = |shares| arguments("sft", "run", &[shares]);
    let why = "`gradient_shares` must be a power of two (1, 2, 4, …), since shares are added in pairs, but is 3";
    refused(&with("gradient_shares=3"), why);
    refused(&with("gradient_shares=128"), "gradient_shares");
    good(dir.path(), &with("gradient_shares=2"));
    refused(&["sft", "--resume", "run", "--set", "gradient_shares=4"], "gradient_shares");
}

/// S shares need memory for log₂(S) additional gradients.
#[test]
fn the_plan_counts_the_gradients_of_shares() {
    let dir = directory();
    let gradients = |shares: &str| {
        let set = ["num_generations=2", "max_completion_length=6", shares].map(|set| ["--set", set]).concat();
        let data = ["plan", "--json", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars"];
        let plan: Value = serde_json::from_str(&good(dir.path(), &[&data[..], &set].concat()).out).unwrap();
        let parts = plan["parts"].as_array().unwrap().iter();
        let named = parts.filter(|part| part["part"].as_str().is_some_and(|name| name.ends_with("gradients")));
        named.map(|part| part["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    let [one, two, eight] = ["gradient_shares=1", "gradient_shares=2", "gradient_shares=8"].map(gradients);
    assert!(one > 0 && two > one);
    // The gradients of a micro-batch are a small part, which depends on how the shares cut the batch.
    let (three, expected) = (eight - one, 3 * (two - one));
    assert!(three.abs_diff(expected) * 20 < expected, "three more gradients: {three}, expected about {expected}");
}
