//! Runs that train a LoRA adapter: their files, their relation to other runs, and refused settings.

use crate::support::runs::{arguments, directory, files, good, metrics, of_lines, same};
use crate::support::{lockstep, refused};
use serde_json::Value;
use std::fs;

const LORA: [&str; 3] = ["use_peft=true", "lora_r=4", "lora_target_modules=[\"q_proj\", \"v_proj\", \"down_proj\"]"];

#[test]
fn sampler_and_trainer_agree_and_the_base_model_is_the_reference() {
    let dir = directory();
    let root = dir.path();
    let set = [&LORA[..], &["beta=0.04"]].concat();
    good(root, &arguments("train", "own", &set));
    let (run, model) = (root.join("own"), fs::read(root.join("model/model.safetensors")).unwrap());
    let mismatches = of_lines(&run, "sampling/logp_mismatch_tokens");
    assert!(mismatches.len() == 4 && mismatches.iter().all(|&n| n == 0.0), "{mismatches:?}");
    assert!(of_lines(&run, "kl").iter().any(|&kl| kl > 0.0), "the adapter must change");
    assert_eq!(fs::read(root.join("model/model.safetensors")).unwrap(), model);

    let left = files(&run);
    let named = |part: &str| left.keys().filter(|n| n.starts_with(part)).map(|n| &n[part.len()..]).collect::<Vec<_>>();
    assert_eq!(
        named("model/"),
        ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    );
    assert!(!left.keys().any(|n| n.contains("/model.safetensors")), "{:?}", left.keys());
    let moments = &left["checkpoints/step-000012/optimizer_exp_avg.safetensors"];
    let trained = 2 * ((16 * 4 + 4 * 16) + (16 * 4 + 4 * 8) + (24 * 4 + 4 * 16));
    assert!((4 * trained..4 * trained + 4096).contains(&moments.len()), "{}", moments.len());

    // The same model, loaded a second time as the reference, gives the same bits.
    good(root, &arguments("train", "other", &[&set[..], &["ref_model=model"]].concat()));
    same(&run, &root.join("other"));
}

#[test]
fn keys_of_the_machine_change_no_bit_of_an_adapter_run() {
    same_bits("train", &LORA);
}

/// Compares runs that differ only in settings that must not change a bit; the first is in `base`.
fn same_bits(purpose: &str, set: &[&str]) -> tempfile::TempDir {
    let dir = directory();
    let base = [set, &["threads=1"]].concat();
    good(dir.path(), &arguments(purpose, "base", &base));
    let variants: [&[&str]; 2] =
        [&["threads=2", "max_tokens_per_micro_batch=24"], &["gradient_checkpointing=true", "max_num_seqs=3"]];
    for (i, variant) in variants.iter().enumerate() {
        let out = format!("variant-{i}");
        good(dir.path(), &arguments(purpose, &out, &[&base, *variant].concat()));
        same(&dir.path().join("base"), &dir.path().join(&out));
    }
    dir
}

#[test]
fn dropout_affects_the_gradient_but_no_compared_metric() {
    let dropped = [&LORA[..], &["lora_dropout=0.3"]].concat();
    let set = [&dropped[..], &["beta=0.04", "num_iterations=2"]].concat();
    let dir = same_bits("train", &set);
    let root = dir.path();
    let base = root.join("base");
    let mismatches = of_lines(&base, "sampling/logp_mismatch_tokens");
    assert!(mismatches.len() == 4 && mismatches.iter().all(|&n| n == 0.0), "{mismatches:?}");

    // At the first step, a run with dropout has the same metrics as a run without. After it, the weights differ.
    good(root, &arguments("train", "plain", &[&set[..], &["lora_dropout=0"]].concat()));
    good(root, &arguments("train", "off", &[&set[..], &["disable_dropout=true"]].concat()));
    let first = |run: &str, name: &str| {
        good(root, &arguments("train", run, &[&set[..], &["max_steps=1", "logging_steps=1", name]].concat()));
        metrics(&root.join(run)).remove(0)
    };
    let field = |line: &str, name: &str| serde_json::from_str::<Value>(line).unwrap()[name].clone();
    let (a, b) = (first("first", "lora_dropout=0.3"), first("first-plain", "lora_dropout=0"));
    for name in ["loss", "kl", "entropy", "clip_ratio/region_mean", "reward"] {
        assert!(field(&a, name).is_number(), "{name}: {a}");
        assert_eq!(field(&a, name), field(&b, name), "{name}");
    }
    assert_ne!(field(&a, "grad_norm"), field(&b, "grad_norm"));
    let adapter = |run: &str| fs::read(root.join(run).join("model/adapter_model.safetensors")).unwrap();
    assert_ne!(adapter("base"), adapter("plain"));
    assert_eq!(adapter("off"), adapter("plain"));
    // The adapter's configuration records the dropout for PEFT.
    let config = fs::read_to_string(base.join("model/adapter_config.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&config).unwrap()["lora_dropout"], 0.3);

    // The other training commands with an adapter.
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
    for (purpose, more) in [("sft", &[][..]), ("dpo", &pairs[..]), ("train", &["algorithm=ppo"])] {
        let dir = same_bits(purpose, &[&dropped[..], more].concat());
        good(dir.path(), &arguments(purpose, "plain", &[&LORA[..], more].concat()));
        let adapter = |run: &str| fs::read(dir.path().join(run).join("model/adapter_model.safetensors")).unwrap();
        assert_ne!(adapter("base"), adapter("plain"), "{purpose}");
    }
}

#[test]
fn an_adapter_can_be_used_with_its_model_or_merged_into_it() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("sft", "run", &LORA));
    let adapter = ["--adapter", "run/model"];
    let ids = r#"{"prompt_ids": [3, 4, 5], "completion_ids": [6, 7, 8, 9]}"#;
    fs::write(root.join("ids.jsonl"), ids).unwrap();
    let score = |model: &str, more: &[&str]| -> Vec<f64> {
        let output = good(root, &[&["score", "--model", model, "--input", "ids.jsonl"], more].concat());
        let line: Value = serde_json::from_str(output.out.trim()).unwrap();
        line["logprobs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (plain, adapted) = (score("model", &[]), score("model", &adapter));
    good(root, &[&["merge", "--model", "model", "--out", "merged"][..], &adapter].concat());
    let merged = score("merged", &[]);
    let far = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).max_by(f64::total_cmp).unwrap();
    assert!(far(&adapted, &plain) > 0.05, "{adapted:?} {plain:?}");
    assert!(far(&adapted, &merged) < 1e-4, "{adapted:?} {merged:?}");

    let generate = ["generate", "--prompt", "ab", "--max-new-tokens", "5", "--temperature", "0", "--json"];
    let of = |more: &[&str]| good(root, &[&generate, more].concat()).out;
    let ids = |text: &str| serde_json::from_str::<Value>(text.trim()).unwrap()["completion_ids"].clone();
    assert_eq!(ids(&of(&["--model", "model", "--adapter", "run/model"])), ids(&of(&["--model", "merged"])));
    refused(root, &[&generate[..], &["--model", "run/model"]].concat(), &["is an adapter", "--adapter", "merge"]);
    refused(root, &["merge", "--model", "model", "--adapter", "model", "--out", "x"], &["adapter_config.json"]);
    refused(
        root,
        &["merge", "--model", "model", "--adapter", "run/model", "--out", "merged"],
        &["files are not overwritten"],
    );
    // The adapter's configuration does not match its weights.
    let path = root.join("run/model/adapter_config.json");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("\"r\": 4", "\"r\": 5")).unwrap();
    refused(root, &[&generate[..], &["--model", "model", "--adapter", "run/model"]].concat(), &["lora_A", "shape"]);
    fs::write(&path, config.replace("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 2}")).unwrap();
    refused(root, &[&generate[..], &["--model", "model", "--adapter", "run/model"]].concat(), &["`rank_pattern`"]);
}

#[test]
fn contradictory_adapter_keys_are_refused() {
    let dir = directory();
    let refuse = |purpose: &str, set: &[&str], words: &[&str]| {
        refused(dir.path(), &arguments(purpose, "run", &[&["use_peft=true"], set].concat()), words);
    };
    for p in ["1", "-0.1", "1.5"] {
        refuse("train", &[&format!("lora_dropout={p}")], &["`lora_dropout`", "at least 0 and below 1"]);
    }
    refuse("train", &["lora_r=0"], &["`lora_r`"]);
    refuse(
        "train",
        &["lora_target_modules=[\"q_proj\", \"qproj\"]"],
        &["`lora_target_modules`", "`qproj`", "q_proj, k_proj"],
    );
    refuse("sft", &["lora_target_modules=lm_head"], &["`lora_target_modules`", "`lm_head`"]);
    refuse("sft", &["lora_target_modules=.*(k_proj"], &["`lora_target_modules`", "regular expression"]);
    refuse("train", &["beta=0.1", "sync_ref_model=true"], &["`sync_ref_model`"]);
    let output = lockstep(dir.path(), &arguments("sft", "run", &["lora_r=4", "max_steps=1"]));
    assert!(output.err.contains("no effect without use_peft = true: lora_r"), "{}", output.err);
}
