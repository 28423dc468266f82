//! Runs that train a low-rank adapter: what they leave, what they share with other runs, and what is refused.

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::runs::{arguments, directory, files, good, metrics, same};
use support::{lockstep, refused};

const LORA: [&str; 3] = ["use_peft=true", "lora_r=4", "lora_target_modules=[\"q_proj\", \"v_proj\", \"down_proj\"]"];

/// The value of `name` in every line that has it.
fn of_lines(run: &Path, name: &str) -> Vec<f64> {
    let lines = metrics(run).into_iter().map(|l| serde_json::from_str::<Value>(&l).unwrap());
    lines.filter_map(|l| l[name].as_f64()).collect()
}

#[test]
fn the_sampler_agrees_with_the_trainer_and_the_model_without_its_adapter_is_the_reference() {
    let dir = directory();
    let root = dir.path();
    let set = [&LORA[..], &["beta=0.04"]].concat();
    good(root, &arguments("train", "own", &set));
    let (run, model) = (root.join("own"), fs::read(root.join("model/model.safetensors")).unwrap());
    let mismatches = of_lines(&run, "sampling/logp_mismatch_tokens");
    assert!(mismatches.len() == 4 && mismatches.iter().all(|&n| n == 0.0), "{mismatches:?}");
    assert!(of_lines(&run, "kl").iter().any(|&kl| kl > 0.0), "the adapter moves");
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
fn no_bit_depends_on_the_machine_keys() {
    let dir = directory();
    let base = [&LORA[..], &["threads=1"]].concat();
    good(dir.path(), &arguments("train", "base", &base));
    let variants: [&[&str]; 2] =
        [&["threads=2", "max_tokens_per_micro_batch=24"], &["gradient_checkpointing=true", "max_num_seqs=3"]];
    for (i, variant) in variants.iter().enumerate() {
        let out = format!("variant-{i}");
        good(dir.path(), &arguments("train", &out, &[&base, *variant].concat()));
        same(&dir.path().join("base"), &dir.path().join(&out));
    }
}

#[test]
fn an_adapter_is_used_with_its_model_or_merged_into_it() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("sft", "run", &LORA));
    let adapter = ["--adapter", "run/model"];
    let ids = r#"{"prompt_ids": [3, 4, 5], "completion_ids": [6, 7, 8, 9]}"#;
    fs::write(root.join("ids.jsonl"), ids).unwrap();
    let score = |model: &str, more: &[&str]| -> Vec<f64> {
        let said = good(root, &[&["score", "--model", model, "--input", "ids.jsonl"], more].concat());
        let line: Value = serde_json::from_str(said.out.trim()).unwrap();
        line["logprobs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (plain, adapted) = (score("model", &[]), score("model", &adapter));
    good(root, &[&["merge", "--model", "model", "--out", "merged"][..], &adapter].concat());
    let merged = score("merged", &[]);
    let far = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
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
        &["nothing is overwritten"],
    );
    // Of another model.
    let path = root.join("run/model/adapter_config.json");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("\"r\": 4", "\"r\": 5")).unwrap();
    refused(root, &[&generate[..], &["--model", "model", "--adapter", "run/model"]].concat(), &["lora_A", "shape"]);
    fs::write(&path, config.replace("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 2}")).unwrap();
    refused(root, &[&generate[..], &["--model", "model", "--adapter", "run/model"]].concat(), &["`rank_pattern`"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let dir = directory();
    let refuse = |purpose: &str, set: &[&str], words: &[&str]| {
        refused(dir.path(), &arguments(purpose, "run", &[&["use_peft=true"], set].concat()), words);
    };
    refuse("train", &["lora_dropout=0.05"], &["lora_dropout", "set lora_dropout = 0"]);
    refuse("train", &["lora_r=0"], &["`lora_r`"]);
    refuse("train", &["lora_target_modules=[\"q_proj\", \"qproj\"]"], &["`qproj`", "q_proj, k_proj"]);
    refuse("sft", &["lora_target_modules=lm_head"], &["`lm_head`"]);
    refuse("sft", &["lora_target_modules=.*(k_proj"], &["regular expression"]);
    refuse("train", &["beta=0.1", "sync_ref_model=true"], &["`sync_ref_model`"]);
    let said = lockstep(dir.path(), &arguments("sft", "run", &["lora_r=4", "max_steps=1"]));
    assert!(said.err.contains("lora_r without use_peft"), "{}", said.err);
}
