//! A run that combines an adapter with bf16 moments and dropout, recorded rollouts and dynamic sampling resumes and
//! replays exactly.

use crate::support::runs::{arguments, directory, good};
use std::fs;

#[test]
fn an_adapter_run_with_bf16_moments_resumes_and_replays_exactly() {
    let dir = directory();
    let root = dir.path();
    let set = [
        "use_peft=true",
        "lora_r=4",
        "lora_dropout=0.1",
        "lora_target_modules=all-linear",
        "adam_moments_dtype=bf16",
        "beta=0.04",
        "num_iterations=2",
        "record_rollouts=true",
    ];
    let dynamic = ["dynamic_sampling=true", "reward_funcs=[\"format:^[a-j]\"]"];
    let all = [&set[..], &dynamic].concat();
    good(root, &arguments("train", "whole", &all));
    good(root, &arguments("train", "cut", &all));
    let checkpoint = |run: &str, step| root.join(run).join(format!("checkpoints/step-{step:06}"));
    for step in [8, 10, 12] {
        fs::remove_dir_all(checkpoint("cut", step)).unwrap();
    }
    good(root, &["train", "--resume", "cut"]);
    let names = |run: &str| -> Vec<String> {
        let mut names: Vec<String> = crate::support::runs::files(&root.join(run)).into_keys().collect();
        names.sort();
        names
    };
    assert_eq!(names("whole"), names("cut"));
    let (whole, cut) =
        (crate::support::runs::files(&root.join("whole")), crate::support::runs::files(&root.join("cut")));
    let differing: Vec<_> = whole.iter().filter(|(name, bytes)| cut[*name] != **bytes).map(|(name, _)| name).collect();
    assert!(differing.is_empty(), "{differing:?}");

    let replay = [&set[..7], &["replay=whole/rollouts.bin"]].concat();
    good(root, &arguments("train", "replayed", &replay));
    let adapter = |run: &str| {
        let found = crate::support::runs::files(&root.join(run));
        found.into_iter().filter(|(name, _)| name.ends_with("adapter_model.safetensors")).collect::<Vec<_>>()
    };
    assert!(!adapter("whole").is_empty());
    assert_eq!(adapter("whole"), adapter("replayed"));
}
