//! Packing, the size of micro-batches, threads, the engine's room and activation checkpointing change memory and time,
//! and no bit of a run.

use crate::support::runs::{arguments, directory, good, same};

#[test]
fn no_bit_depends_on_the_machine_keys() {
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
fn nor_in_bf16() {
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
fn nor_with_bf16_moments() {
    let dir = directory();
    let base = ["adam_moments_dtype=bf16", "num_generations=4", "per_device_train_batch_size=8"];
    good(dir.path(), &arguments("train", "base", &[&base[..], &["threads=1"]].concat()));
    good(
        dir.path(),
        &arguments("train", "other", &[&base[..], &["threads=2", "max_tokens_per_micro_batch=24"]].concat()),
    );
    same(&dir.path().join("base"), &dir.path().join("other"));
    good(dir.path(), &arguments("train", "f32", &base[1..]));
    let moments = |run: &str| {
        crate::support::runs::files(&dir.path().join(run))["checkpoints/step-000012/optimizer_exp_avg.safetensors"]
            .len()
    };
    assert!(moments("base") < moments("f32") * 3 / 4, "{} of {}", moments("base"), moments("f32"));
}

#[test]
fn nor_in_ppo() {
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
fn nor_in_supervised_fine_tuning() {
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

/// Behind opaque handles, where every access but a copy or an operation is refused, every kind of run gives the CPU's
/// bits.
#[test]
fn nor_on_the_checked_device() {
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
        let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && said.contains("cpu-checked"), "{out}: {said}");
        same(&dir.path().join(out), &dir.path().join(&checked));
    }
}

/// CUDA kernels that the CPU emulates give the CPU's bits of whole runs: rollout, update, evaluation, adapters.
#[test]
fn nor_on_emulated_cuda() {
    let dir = directory();
    let short = ["max_steps=2", "save_steps=2", "logging_steps=1", "eval_steps=2", "per_device_train_batch_size=8"];
    let ways: [(&str, &[&str]); 2] = [
        ("grpo", &["num_generations=4", "beta=0.04"]),
        ("adapter", &["num_generations=4", "use_peft=true", "lora_r=2", "lora_dropout=0.0"]),
    ];
    for (out, set) in ways {
        let set = [&short[..], set].concat();
        let emulated = format!("{out}-emulated");
        good(dir.path(), &arguments("train", out, &set));
        let mut command = crate::support::command(dir.path(), &arguments("train", &emulated, &set));
        let run = command.env("LOCKSTEP_DEVICE", "cuda-emulated").output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        if said.contains("no C++ compiler was found") {
            testing::skip::<()>("no C++ compiler to emulate CUDA with");
            return;
        }
        assert!(run.status.success() && said.contains("cuda-emulated"), "{out}: {said}");
        let files = |out: &str| crate::support::runs::files(&dir.path().join(out));
        let (expected, found) = (files(out), files(&emulated));
        assert!(expected.contains_key("checkpoints/step-000002/optimizer_exp_avg.safetensors"));
        assert!(expected.keys().eq(found.keys()));
        for (name, bytes) in &expected {
            // The state names what computed; everything else is the same.
            let state = |bytes: &[u8]| -> serde_json::Value {
                let mut state: serde_json::Value = serde_json::from_slice(bytes).unwrap();
                assert!(state.as_object_mut().unwrap().remove("isa").is_some());
                state
            };
            let same = match name.ends_with("run_state.json") {
                true => state(bytes) == state(&found[name]),
                false => *bytes == found[name],
            };
            assert!(same, "{out}: {name}");
        }
        let metrics = |out: &str| crate::support::runs::metrics(&dir.path().join(out));
        assert_eq!(metrics(out), metrics(&emulated));
    }
}

/// The comparison would see a difference.
#[test]
fn another_seed_is_another_run() {
    let dir = directory();
    good(dir.path(), &arguments("train", "one", &[]));
    good(dir.path(), &arguments("train", "two", &["seed=7"]));
    let files = |out: &str| crate::support::runs::files(&dir.path().join(out));
    let (one, two) = (files("one"), files("two"));
    for name in ["model/model.safetensors", "checkpoints/step-000012/optimizer_exp_avg.safetensors"] {
        assert_ne!(one[name], two[name], "{name}");
    }
    let metrics = |out: &str| crate::support::runs::metrics(&dir.path().join(out));
    assert_ne!(metrics("one"), metrics("two"));
}
