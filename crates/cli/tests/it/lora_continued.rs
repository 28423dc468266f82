//! Runs that continue training an existing adapter: `--model` is a PEFT directory.

use crate::support::refused;
use crate::support::runs::{arguments, directory, files, good, of_lines, same};
use std::fs;
use std::path::Path;

const LORA: [&str; 5] =
    ["use_peft=true", "lora_r=4", "lora_alpha=6", "use_rslora=true", "lora_target_modules=[\"down_proj\", \"q_proj\"]"];
const PAIRS: [&str; 2] = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
const STILL: &str = "learning_rate=0";

/// The arguments of a run that continues training the adapter in `from`.
fn with_adapter<'a>(purpose: &'a str, from: &'a str, out: &'a str, set: &[&'a str]) -> Vec<&'a str> {
    let mut all = arguments(purpose, out, set);
    let model = all.iter().position(|a| *a == "model").unwrap();
    all[model] = from;
    all
}

/// A directory with two trained adapters, in `first/model` and `second/model`.
fn with_two_adapters() -> tempfile::TempDir {
    let dir = directory();
    good(dir.path(), &arguments("sft", "first", &LORA));
    good(dir.path(), &arguments("sft", "second", &[&LORA[..], &["seed=7"]].concat()));
    dir
}

fn adapter(root: &Path, run: &str) -> [Vec<u8>; 2] {
    let of = |file: &str| fs::read(root.join(run).join("model").join(file)).unwrap();
    [of("adapter_model.safetensors"), of("adapter_config.json")]
}

/// The policy's logged KL distances from its reference.
fn from_reference(run: &Path) -> Vec<f64> {
    ["kl", "objective/kl", "rewards/margins"].iter().flat_map(|name| of_lines(run, name)).collect()
}

/// Tests `ref_adapter` and `ref_model` with every method that has a reference: which runs get the same weights, and
/// whether the policy initially equals its reference.
#[test]
fn the_reference_of_a_continued_adapter_follows_ref_adapter_and_ref_model() {
    let dir = with_two_adapters();
    let root = dir.path();
    let initial: [&[&str]; 3] = [&[], &["ref_adapter=initial"], &["ref_model=first/model"]];
    let base: [&[&str]; 3] = [&["ref_adapter=none"], &["ref_model=model"], &["ref_adapter=initial", "ref_model=model"]];
    let other: [&[&str]; 2] = [&["ref_model=second/model"], &["ref_adapter=none", "ref_model=second/model"]];
    let methods: [(&str, &[&str]); 5] = [
        ("train", &["beta=0.3"]),
        ("train", &["algorithm=rloo", "beta=0.3"]),
        ("train", &["algorithm=ppo", "kl_coef=0.3", "kl_estimator=k3"]),
        ("train", &["beta=0.3", "num_iterations=2", "max_staleness=1"]),
        ("dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "beta=1"]),
    ];
    for (i, (purpose, set)) in methods.into_iter().enumerate() {
        let mut firsts = Vec::new();
        for (kind, ways) in [(0, &initial[..]), (1, &base[..]), (2, &other[..])] {
            for (j, way) in ways.iter().enumerate() {
                let out = format!("run-{i}-{kind}-{j}");
                let few = ["max_steps=4", "logging_steps=1", "learning_rate=0.02", "eval_strategy=no"];
                good(root, &with_adapter(purpose, "first/model", &out, &[set, &few, way].concat()));
                let begins = from_reference(&root.join(&out))[0];
                assert_eq!(begins == 0.0, kind == 0, "{purpose} {set:?} {way:?}: {begins}");
                match j {
                    0 => firsts.push(adapter(root, &out)),
                    _ => assert!(adapter(root, &out) == firsts[kind], "{purpose} {set:?} {way:?}"),
                }
            }
        }
        assert!(firsts[0] != firsts[1] && firsts[1] != firsts[2] && firsts[0] != firsts[2], "{purpose} {set:?}");
    }
}

/// A run of an older version has no `ref_adapter` key: its reference was the model without an adapter.
#[test]
fn an_older_run_keeps_its_reference_on_resume() {
    let dir = with_two_adapters();
    let root = dir.path();
    for (i, (purpose, set)) in [("train", &["beta=0.3"][..]), ("dpo", &PAIRS[..])].into_iter().enumerate() {
        let [new, none, older] = ["new", "none", "older"].map(|name| format!("{name}-{i}"));
        let few = ["save_steps=1", "save_total_limit=9", "max_steps=4", "logging_steps=1", "learning_rate=0.02"];
        let run = |out: &str, more: &[&str]| {
            good(root, &with_adapter(purpose, "first/model", out, &[set, &few, more].concat()));
        };
        run(&new, &[]);
        run(&none, &["ref_adapter=none"]);
        assert!(adapter(root, &new) != adapter(root, &none), "{purpose}");
        let cut = |from: &str| {
            let copied =
                std::process::Command::new("cp").args(["-r", from, &older]).current_dir(root).status().unwrap();
            assert!(copied.success());
            for step in [2, 3, 4] {
                let _ = fs::remove_dir_all(root.join(&older).join(format!("checkpoints/step-{step:06}")));
            }
            fs::remove_dir_all(root.join(&older).join("model")).unwrap();
        };
        cut(&none);
        let path = root.join(&older).join("config.toml");
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("ref_adapter"));
        let without: String = lines.map(|line| format!("{line}\n")).collect();
        assert_ne!(text, without, "new runs must record ref_adapter");
        fs::write(&path, without).unwrap();
        let output = good(root, &[purpose, "--resume", &older]);
        assert!(!output.err.contains("ref_adapter"), "{}", output.err);
        assert!(adapter(root, &older) == adapter(root, &none), "{purpose}");
        // A new run keeps its initial reference, and requires an unchanged initial adapter.
        fs::remove_dir_all(root.join(&older)).unwrap();
        cut(&new);
        fs::rename(root.join("first/model"), root.join("first/kept")).unwrap();
        fs::rename(root.join("second/model"), root.join("first/model")).unwrap();
        refused(root, &[purpose, "--resume", &older], &["adapter_model.safetensors", "reference model"]);
        fs::rename(root.join("first/model"), root.join("second/model")).unwrap();
        fs::rename(root.join("first/kept"), root.join("first/model")).unwrap();
        good(root, &[purpose, "--resume", &older]);
        assert!(adapter(root, &older) == adapter(root, &new), "{purpose}");
    }
}

#[test]
fn every_command_continues_with_an_adapter() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("sft", "first", &LORA));
    let model = fs::read(root.join("model/model.safetensors")).unwrap();
    let (first, from) = (adapter(root, "first"), "first/model");
    let other: [(&str, &[&str]); 4] =
        [("sft", &[]), ("dpo", &PAIRS), ("train", &["beta=0.04"]), ("train", &["algorithm=ppo", "kl_coef=0.1"])];
    for (i, (purpose, set)) in other.into_iter().enumerate() {
        // With learning rate 0, the adapter's weights and configuration stay the same.
        let [still, moved, cut] = ["still", "moved", "cut"].map(|name| format!("{name}-{i}"));
        good(root, &with_adapter(purpose, from, &still, &[set, &[STILL, "max_steps=1", "logging_steps=1"]].concat()));
        assert!(adapter(root, &still) == first, "{purpose}");
        let told = fs::read_to_string(root.join(&still).join("config.toml")).unwrap();
        for line in ["use_peft = true  # the adapter", "lora_r = 4  # the adapter", "use_rslora = true  # the adapter"]
        {
            assert!(told.contains(line), "{line}: {told}");
        }
        // The reference is the initial adapter.
        assert!(from_reference(&root.join(&still)).iter().all(|&x| x == 0.0), "{purpose}");
        assert!(of_lines(&root.join(&still), "sampling/logp_mismatch_tokens").iter().all(|&n| n == 0.0), "{purpose}");

        // The adapter is trained, and the run resumes exactly.
        good(root, &with_adapter(purpose, from, &moved, set));
        let now = adapter(root, &moved);
        assert!(now[0] != first[0] && now[1] == first[1], "{purpose}");
        let copied = std::process::Command::new("cp").args(["-r", &moved, &cut]).current_dir(root).status().unwrap();
        assert!(copied.success());
        for step in [4, 6, 8, 10, 12] {
            fs::remove_dir_all(root.join(&cut).join(format!("checkpoints/step-{step:06}"))).unwrap();
        }
        let output = good(root, &[purpose, "--resume", &cut]);
        assert!(output.err.contains("resuming after step 2"), "{}", output.err);
        same(&root.join(&moved), &root.join(&cut));
        assert!(!files(&root.join(&moved)).keys().any(|n| n.ends_with("000012/model.safetensors")), "{purpose}");
    }
    assert_eq!(fs::read(root.join("model/model.safetensors")).unwrap(), model);
    assert!(adapter(root, "first") == first);
    // Repeating the adapter's own keys is allowed.
    let again = with_adapter("sft", from, "again", &[&LORA[..], &["max_steps=2"]].concat());
    good(root, &again);
    good(root, &[&again[..], &["--resume", "latest"]].concat());
    let output = good(root, &["plan", "--for", "sft", "--model", from, "--dataset", "d.jsonl"]);
    assert!(output.out.contains("adapter"), "{}", output.out);
}

#[test]
fn keys_that_contradict_the_adapter_are_refused() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("sft", "first", &[&LORA[..], &["max_steps=1"]].concat()));
    let refuse = |purpose: &str, set: &[&str], words: &[&str]| {
        refused(root, &with_adapter(purpose, "first/model", "out", set), words);
    };
    refuse("sft", &["lora_r=8"], &["`lora_r` = 8", "first/model is an adapter", "adapter_config.json has 4"]);
    refuse("dpo", &[&PAIRS[..], &["lora_alpha=32"]].concat(), &["`lora_alpha` = 32", "has 6.0"]);
    refuse("train", &["use_rslora=false"], &["`use_rslora` = false", "has true"]);
    refuse("train", &["lora_dropout=0.1"], &["`lora_dropout` = 0.1", "has 0", "disable_dropout"]);
    refuse("sft", &["lora_target_modules=all-linear"], &["`lora_target_modules`", "all-linear", "down_proj"]);
    refuse("sft", &["use_peft=false"], &["`use_peft` = false", "lockstep merge"]);
    refuse("train", &["beta=0.1", "sync_ref_model=true"], &["`sync_ref_model`"]);
    refuse("reward", &PAIRS, &["first/model is an adapter of a language model", "lockstep merge"]);

    let path = root.join("first/model/adapter_config.json");
    let config = fs::read_to_string(&path).unwrap();
    let below = format!("\"{}\"", root.join("model").display());
    for (base, words) in [("\"nowhere/at/all\"", "nowhere/at/all"), ("null", "is missing")] {
        fs::write(&path, config.replace(&below, base)).unwrap();
        refuse("sft", &[], &["adapter_config.json", "`base_model_name_or_path`", words]);
    }
    fs::write(&path, config.replace("\"r\": 4", "\"r\": 3")).unwrap();
    refuse("sft", &[], &["lora_A", "shape"]);
    fs::write(&path, config.replace("\"down_proj\"", "\"lm_head\"")).unwrap();
    refuse("sft", &[], &["lora_target_modules", "`lm_head`"]);
}
