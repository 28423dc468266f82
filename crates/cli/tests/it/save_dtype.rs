//! The dtype of a run's result is that of the loaded model, or `save_dtype`; checkpoints keep every bit.

use crate::support::runs::{arguments, directory, good};
use crate::support::{lockstep, model_of, refused};
use model::FileDType;
use model::io::convert_weights;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The dtype of the loaded files, the command, its keys, and the expected dtypes of the result and of the last
/// checkpoint.
type Row = (&'static str, &'static str, &'static [&'static str], &'static str, &'static str);

#[rustfmt::skip]
const ROWS: [Row; 26] = [
    ("BF16", "train", &[], "BF16", "F32"),
    ("F32", "train", &[], "F32", "F32"),
    ("F16", "train", &[], "F16", "F32"),
    ("mixed", "train", &[], "F32", "F32"),
    ("BF16", "train", &["save_dtype=f32"], "F32", "F32"),
    ("BF16", "train", &["save_dtype=f16"], "F16", "F32"),
    ("F32", "train", &["save_dtype=bf16"], "BF16", "F32"),
    ("F32", "train", &["save_dtype=float16"], "F16", "F32"),
    ("F32", "train", &["save_dtype=bfloat16"], "BF16", "F32"),
    ("F16", "train", &["save_dtype=auto"], "F16", "F32"),
    // A model that computes in bf16 does not have additional bits to save.
    ("BF16", "train", &["dtype=bf16"], "BF16", "BF16"),
    ("F32", "train", &["dtype=bf16"], "BF16", "BF16"),
    ("F32", "train", &["dtype=bf16", "save_dtype=f32"], "F32", "BF16"),
    ("BF16", "sft", &[], "BF16", "F32"),
    ("BF16", "dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"], "BF16", "F32"),
    ("BF16", "reward", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"], "BF16", "F32"),
    ("F32", "reward", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "save_dtype=bf16"], "BF16", "F32"),
    ("BF16", "train", &["algorithm=ppo", "num_generations=1"], "BF16", "F32"),
    ("BF16", "train", &["num_iterations=2"], "BF16", "F32"),
    ("BF16", "train", &["max_staleness=1"], "BF16", "F32"),
    ("BF16", "train", &["load_best_model_at_end=true", "save_steps=4", "metric_for_best_model=reward"], "BF16", "F32"),
    ("BF16", "train", &["save_strategy=no"], "BF16", ""),
    // A new adapter was not loaded from a file; as in PEFT, it is saved in f32.
    ("BF16", "train", &["use_peft=true", "lora_r=2"], "F32", "F32"),
    ("BF16", "train", &["use_peft=true", "lora_r=2", "save_dtype=bf16"], "BF16", "F32"),
    ("F32", "sft", &["use_peft=true", "lora_r=2", "save_dtype=f16"], "F16", "F32"),
    ("F32", "train", &["use_peft=true", "lora_r=2", "save_strategy=no", "save_dtype=bf16"], "BF16", ""),
];

/// The tensors of a file: dtype and bytes.
fn tensors(file: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let place = |tensor: &Value, i: usize| tensor["data_offsets"][i].as_u64().unwrap() as usize + 8 + length;
    let one = |tensor: &Value| {
        (tensor["dtype"].as_str().unwrap().to_owned(), bytes[place(tensor, 0)..place(tensor, 1)].to_vec())
    };
    tensors.map(|(name, tensor)| (name.clone(), one(tensor))).collect()
}

/// The weight file of a model or an adapter, and its dtype if all tensors have the same.
fn weights(dir: &Path) -> (std::path::PathBuf, String) {
    let adapter = dir.join("adapter_model.safetensors");
    let file = if adapter.exists() { adapter } else { dir.join("model.safetensors") };
    let mut dtypes: Vec<String> = tensors(&file).into_values().map(|(dtype, _)| dtype).collect();
    dtypes.sort();
    dtypes.dedup();
    (file, dtypes.join(" "))
}

/// Rounds f32 values to a dtype, and returns their bytes.
fn rounded(bytes: &[u8], dtype: &str) -> Vec<u8> {
    let floats = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    match dtype {
        "BF16" => floats.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        "F16" => floats.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
        _ => bytes.to_vec(),
    }
}

/// A directory with the model in this dtype. The mixed model has norms in f32.
fn loaded(dtype: &str) -> tempfile::TempDir {
    let dir = directory();
    let (model, old) = (dir.path().join("model"), dir.path().join("old"));
    let to = match dtype {
        "F16" => FileDType::F16,
        "F32" => return dir,
        _ => FileDType::Bf16,
    };
    fs::rename(&model, &old).unwrap();
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(&old).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    convert_weights(&old, &model, to).unwrap();
    if dtype == "mixed" {
        mix(&old.join("model.safetensors"), &model.join("model.safetensors"));
    }
    dir
}

/// Writes a file whose norms are f32 and whose other tensors are bf16.
fn mix(exact: &Path, to: &Path) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let old: Value = {
        let bytes = fs::read(exact).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        serde_json::from_slice(&bytes[8..8 + length]).unwrap()
    };
    for (name, (_, bytes)) in tensors(exact) {
        let dtype = if name.contains("norm") { "F32" } else { "BF16" };
        let begin = data.len();
        data.extend(rounded(&bytes, dtype));
        let place =
            serde_json::json!({"dtype": dtype, "shape": old[&name]["shape"], "data_offsets": [begin, data.len()]});
        header.insert(name, place);
    }
    let header = Value::from(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(to, bytes).unwrap();
}

fn wrong((from, purpose, set, result, checkpoint): Row) -> Option<String> {
    let dir = loaded(from);
    let root = dir.path();
    let records = purpose == "train" && !set.contains(&"save_strategy=no");
    let more: &[&str] = if records { &["record_rollouts=true", "max_steps=6"] } else { &["max_steps=6"] };
    good(root, &arguments(purpose, "out", &[set, more].concat()));
    let (file, dtype) = weights(&root.join("out/model"));
    if dtype != result {
        return Some(format!("the result is {dtype}, not {result}"));
    }
    let config = fs::read_to_string(root.join("out/model/config.json")).unwrap_or_default();
    let named = match result {
        "BF16" => "bfloat16",
        "F16" => "float16",
        _ => "float32",
    };
    if !config.is_empty() && !config.contains(&format!("\"{named}\"")) {
        return Some(format!("config.json must have the dtype {named}: {config}"));
    }
    if set.contains(&"load_best_model_at_end=true") || checkpoint.is_empty() {
        return None;
    }
    let last = root.join("out/checkpoints/step-000006");
    let (exact, dtype) = weights(&last);
    if dtype != checkpoint {
        return Some(format!("the checkpoint is {dtype}, not {checkpoint}"));
    }
    if checkpoint == "F32" {
        let expected: BTreeMap<_, _> =
            tensors(&exact).into_iter().map(|(name, (_, b))| (name, rounded(&b, result))).collect();
        let found: BTreeMap<_, _> = tensors(&file).into_iter().map(|(name, (_, bytes))| (name, bytes)).collect();
        if expected != found {
            return Some("the result must be the rounded checkpoint".to_owned());
        }
    }
    let names = |dir: &Path| crate::support::runs::listing_names(dir);
    let of_run = |name: &String| {
        ["optimizer_", "value_", "reference.", "generation_batch.", "frontier.", "run_state", "files.json"]
            .iter()
            .any(|begin| name.starts_with(begin))
    };
    let of_model: Vec<String> = names(&last).into_iter().filter(|name| !of_run(name)).collect();
    if names(&root.join("out/model")) != of_model {
        return Some(format!("the result has {:?}, the checkpoint {of_model:?}", names(&root.join("out/model"))));
    }
    if records {
        let output = lockstep(root, &["verify", "out", "--all"]);
        if output.code != Some(0) || !output.out.contains("equal  the result") {
            return Some(format!("verify: {:?}\n{}{}", output.code, output.out, output.err));
        }
    }
    None
}

fn all_right(rows: impl Iterator<Item = Row>) -> usize {
    let rows: Vec<Row> = rows.collect();
    let wrong: Vec<String> = rows.iter().filter_map(|row| Some(format!("{row:?}: {}", wrong(*row)?))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    rows.len()
}

#[test]
fn some_results_have_the_dtype_of_their_loaded_models() {
    all_right([0, 2, 3, 14, 23].into_iter().map(|place| ROWS[place]));
}

#[test]
#[ignore = "a minute; `cargo xtask nightly last_words` runs it"]
fn results_of_every_kind_have_the_dtype_of_their_loaded_models() {
    println!("{} results have the dtype that they should have", all_right(ROWS.into_iter()));
}

/// Training gives the same bits as with the model in f32, also after a resume; `verify` detects a changed result.
#[test]
fn the_dtype_of_the_result_changes_no_bit_of_training() {
    let dir = loaded("BF16");
    let root = dir.path();
    // (A decaying schedule would differ in a run that is resumed for more steps.)
    let set = ["record_rollouts=true", "eval_strategy=no", "lr_scheduler_type=constant"];
    let words = |out: &'static str, more: &[&'static str]| arguments("train", out, &[&set[..], more].concat());
    good(root, &words("whole", &["max_steps=6"]));
    good(root, &words("f32", &["max_steps=6", "save_dtype=f32"]));
    good(root, &words("parts", &["max_steps=3"]));
    good(root, &["train", "--resume", "parts", "--set", "max_steps=6"]);
    let last = |out: &str| fs::read(root.join(out).join("checkpoints/step-000006/model.safetensors")).unwrap();
    assert!(last("whole") == last("f32") && last("whole") == last("parts"), "training depends on save_dtype");
    let result = |out: &str| fs::read(root.join(out).join("model/model.safetensors")).unwrap();
    assert_eq!(result("whole"), result("parts"));
    assert_eq!(weights(&root.join("f32/model")).1, "F32");
    // Resuming a finished run with a different dtype rewrites the run's result in that dtype.
    good(root, &["train", "--resume", "whole", "--set", "save_dtype=f16"]);
    assert_eq!(weights(&root.join("whole/model")).1, "F16");
    assert!(lockstep(root, &["verify", "whole", "--all"]).out.contains("equal  the result"));
    // One bit of the rounded result is flipped.
    let file = root.join("parts/model/model.safetensors");
    let mut bytes = crate::support::without_checksum(fs::read(&file).unwrap());
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let output = lockstep(root, &["verify", "parts", "--all"]);
    assert!(output.code == Some(1) && output.out.contains("model.safetensors"), "{:?} {}", output.code, output.out);
    // The result of a run by an older version keeps every bit.
    good(root, &words("older", &["max_steps=3"]));
    let config = fs::read_to_string(root.join("older/config.toml")).unwrap();
    let config: String =
        config.lines().filter(|line| !line.contains("save_dtype")).map(|line| format!("{line}\n")).collect();
    fs::write(root.join("older/config.toml"), config).unwrap();
    good(root, &["train", "--resume", "older", "--set", "max_steps=6"]);
    assert_eq!(weights(&root.join("older/model")).1, "F32");
    assert_eq!(last("older"), last("whole"));
    refused(root, &words("x", &["save_dtype=f8"]), &["save_dtype", "bf16"]);
}

/// If f16 cannot represent a weight, the result is f32, and the run reports the reason.
#[test]
fn a_result_that_overflows_f16_is_saved_in_f32() {
    let dir = directory();
    let root = dir.path();
    let words = arguments(
        "sft",
        "out",
        &["max_steps=1", "learning_rate=1e6", "max_grad_norm=0", "save_dtype=f16", "eval_strategy=no"],
    );
    let output = good(root, &words);
    assert!(
        output.err.contains("warning: the result is f32: ") && output.err.contains("too large for float16"),
        "{}",
        output.err
    );
    assert_eq!(weights(&root.join("out/model")).1, "F32");
}

#[test]
fn a_merged_model_has_the_dtype_of_its_base() {
    let dir = loaded("BF16");
    let root = dir.path();
    model_of(&root.join("exact"), &fs::read_to_string(root.join("old/config.json")).unwrap());
    good(root, &arguments("sft", "lora", &["use_peft=true", "lora_r=2", "max_steps=2", "eval_strategy=no"]));
    for (model, flag, dtype) in [
        ("model", "auto", "BF16"),
        ("model", "f32", "F32"),
        ("model", "f16", "F16"),
        ("exact", "auto", "F32"),
        ("exact", "bf16", "BF16"),
    ] {
        let out = format!("{model}-{flag}");
        let words = ["merge", "--model", model, "--adapter", "lora/model", "--other-base", "--out", &out];
        good(root, &[&words[..], &["--save-dtype", flag]].concat());
        assert_eq!(weights(&root.join(&out)).1, dtype, "{out}");
        good(root, &["generate", "--model", &out, "--prompt", "ab ", "--max-new-tokens", "2"]);
    }
}
