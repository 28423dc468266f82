//! Packing, micro-batch size, threads, the engine's batch size and activation checkpointing change memory and time, but
//! no bit of a run.

use crate::support::runs::{arguments, directory, files, good, metrics, of_lines, same};
use std::path::Path;

#[test]
fn keys_of_the_machine_change_no_bit_of_a_grpo_run() {
    let dir = directory();
    let base = ["num_generations=4", "per_device_train_batch_size=8", "beta=0.04", "threads=1"];
    good(dir.path(), &arguments("train", "base", &base));
    let variants: [&[&str]; 7] = [
        &["threads=2"],
        &["max_tokens_per_micro_batch=24"],
        &["max_tokens_per_micro_batch=70", "threads=2"],
        &["gradient_checkpointing=true"],
        &["gradient_checkpointing=true", "threads=2", "max_tokens_per_micro_batch=24"],
        &["packing=false"],
        &["threads=2", "max_num_seqs=3", "kv_cache_blocks=2"],
    ];
    for (i, variant) in variants.iter().enumerate() {
        let out = format!("variant-{i}");
        eprintln!("{variant:?}");
        good(dir.path(), &arguments("train", &out, &[&base, *variant].concat()));
        same(&dir.path().join("base"), &dir.path().join(&out));
    }
}

#[test]
fn keys_of_the_machine_change_no_bit_of_a_bf16_run() {
    let dir = directory();
    let base = ["dtype=bf16", "num_generations=4", "per_device_train_batch_size=8", "beta=0.04", "threads=1"];
    good(dir.path(), &arguments("train", "base", &base));
    for (out, variant) in [
        ("threads", &["threads=2", "gradient_checkpointing=true"][..]),
        ("budget", &["max_tokens_per_micro_batch=24", "max_num_seqs=3", "kv_cache_blocks=2"]),
        ("packing", &["packing=false", "threads=2"]),
    ] {
        good(dir.path(), &arguments("train", out, &[&base[..], variant].concat()));
        same(&dir.path().join("base"), &dir.path().join(out));
    }
}

#[test]
fn keys_of_the_machine_change_no_bit_of_bf16_moments() {
    let dir = directory();
    let base = ["adam_moments_dtype=bf16", "num_generations=4", "per_device_train_batch_size=8"];
    good(dir.path(), &arguments("train", "base", &[&base[..], &["threads=1"]].concat()));
    good(
        dir.path(),
        &arguments("train", "other", &[&base[..], &["threads=2", "max_tokens_per_micro_batch=24"]].concat()),
    );
    same(&dir.path().join("base"), &dir.path().join("other"));
    good(dir.path(), &arguments("train", "f32", &base[1..]));
    let moments =
        |run: &str| files(&dir.path().join(run))["checkpoints/step-000012/optimizer_exp_avg.safetensors"].len();
    assert!(moments("base") < moments("f32") * 3 / 4, "{} of {}", moments("base"), moments("f32"));
}

#[test]
fn keys_of_the_machine_change_no_bit_of_a_ppo_run() {
    let dir = directory();
    let base = ["algorithm=ppo", "per_device_train_batch_size=8", "num_ppo_epochs=2", "threads=1"];
    good(dir.path(), &arguments("train", "base", &base));
    for (out, variant) in [
        ("threads", ["threads=2", "gradient_checkpointing=true"]),
        ("budget", ["max_tokens_per_micro_batch=24", "max_num_seqs=3"]),
        ("packing", ["packing=false", "threads=2"]),
    ] {
        good(dir.path(), &arguments("train", out, &[&base[..], &variant].concat()));
        same(&dir.path().join("base"), &dir.path().join(out));
    }
}

#[test]
fn keys_of_the_machine_change_no_bit_of_an_sft_run() {
    let dir = directory();
    good(dir.path(), &arguments("sft", "base", &["threads=1"]));
    for (out, variant) in [
        ("threads", ["threads=2", "gradient_checkpointing=false"]),
        ("budget", ["max_tokens_per_micro_batch=20", "gradient_checkpointing=true"]),
    ] {
        good(dir.path(), &arguments("sft", out, &variant));
        same(&dir.path().join("base"), &dir.path().join(out));
    }
}

/// The device `cpu-checked` has opaque handles, and refuses every access to memory except copies and operations. Every
/// kind of run gives the CPU's bits on it.
#[test]
fn runs_on_the_checked_device_match_the_cpu() {
    let dir = directory();
    let adapter =
        ["use_peft=true", "lora_r=2", "lora_dropout=0.1", "num_generations=4", "per_device_train_batch_size=8"];
    let ways: [(&str, &str, &[&str]); 5] = [
        ("train", "f32", &["num_generations=4", "per_device_train_batch_size=8", "beta=0.04"]),
        ("train", "bf16", &["dtype=bf16", "num_generations=4", "per_device_train_batch_size=8"]),
        ("train", "adapter", &adapter),
        ("train", "ppo", &["algorithm=ppo", "per_device_train_batch_size=8"]),
        ("sft", "sft", &[]),
    ];
    for (purpose, out, set) in ways {
        let checked = format!("{out}-checked");
        good(dir.path(), &arguments(purpose, out, set));
        let mut command = crate::support::command(dir.path(), &arguments(purpose, &checked, set));
        let run = command.env("LOCKSTEP_DEVICE", "cpu-checked").output().unwrap();
        let printed = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && printed.contains("cpu-checked"), "{out}: {printed}");
        same(&dir.path().join(out), &dir.path().join(&checked));
    }
}

/// CUDA kernels that the CPU emulates give the CPU's bits in whole runs: rollout, update, evaluation, adapters. The
/// sampler's recorded log-probabilities equal the trainer's.
#[test]
fn runs_on_emulated_cuda_match_the_cpu() {
    let dir = directory();
    let short = ["max_steps=2", "save_steps=2", "logging_steps=1", "eval_steps=2", "per_device_train_batch_size=8"];
    let truncated = ["temperature=0.9", "top_k=12", "top_p=0.9", "min_p=0.02", "repetition_penalty=1.2"];
    let adapter = ["num_generations=4", "use_peft=true", "lora_r=2", "lora_dropout=0.1"];
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
    let ways: [(&str, &str, &[&str]); 7] = [
        ("train", "grpo", &["num_generations=4", "beta=0.04"]),
        ("train", "truncated", &truncated),
        ("train", "adapter", &adapter),
        ("train", "ppo", &["algorithm=ppo"]),
        ("train", "rloo", &["algorithm=rloo", "adam_moments_dtype=bf16"]),
        ("sft", "sft", &[]),
        ("dpo", "dpo", &pairs),
    ];
    for (purpose, out, set) in ways {
        let set = [&short[..], set].concat();
        let emulated = format!("{out}-emulated");
        let mut command = crate::support::command(dir.path(), &arguments(purpose, &emulated, &set));
        let run = command.env("LOCKSTEP_DEVICE", "cuda-emulated").output().unwrap();
        let printed = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        if printed.contains("no C++ compiler was found") {
            testing::skip::<()>("no C++ compiler to emulate CUDA with");
            return;
        }
        assert!(run.status.success() && printed.contains("cuda-emulated"), "{out}: {printed}");
        good(dir.path(), &arguments(purpose, out, &set));
        same_on_another_device(&dir.path().join(out), &dir.path().join(&emulated));
        let mismatches = of_lines(&dir.path().join(&emulated), "sampling/logp_mismatch_tokens");
        assert_eq!(mismatches, if purpose == "train" { &[0.0; 2][..] } else { &[] }, "{out}");
    }
}

/// Compares everything except the name of the device.
#[track_caller]
fn same_on_another_device(expected: &Path, found: &Path) {
    let (left, right) = (files(expected), files(found));
    assert!(left.contains_key("checkpoints/step-000002/optimizer_exp_avg.safetensors"));
    assert!(left.keys().eq(right.keys()));
    for (name, bytes) in &left {
        assert!(*bytes == right[name], "{}: {name}", expected.display());
    }
    assert_eq!(metrics(expected), metrics(found));
}

/// Checks that the comparison notices a difference.
#[test]
fn runs_with_different_seeds_differ() {
    let dir = directory();
    good(dir.path(), &arguments("train", "one", &[]));
    good(dir.path(), &arguments("train", "two", &["seed=7"]));
    let (one, two) = (files(&dir.path().join("one")), files(&dir.path().join("two")));
    for name in ["model/model.safetensors", "checkpoints/step-000012/optimizer_exp_avg.safetensors"] {
        assert_ne!(one[name], two[name], "{name}");
    }
    assert_ne!(metrics(&dir.path().join("one")), metrics(&dir.path().join("two")));
}
