//! Short training runs of a tiny Qwen 3 model, and functions that compare the bits of finished runs.

use super::{RunOutput, lockstep, model_of};
use lockstep::wire::file::GroupFile;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const QWEN3: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

/// Twelve steps, with unlogged metric sums at checkpoints, logged completions, and evaluations between checkpoints.
const COMMON: &[&str] = &[
    "per_device_train_batch_size=4",
    "max_steps=12",
    "learning_rate=0.01",
    "logging_steps=3",
    "save_steps=2",
    "eval_strategy=steps",
    "eval_steps=4",
    "eval_dataset_name=e.jsonl",
];
const GRPO: &[&str] =
    &["num_generations=2", "max_completion_length=6", "log_completions=true", "num_completions_to_print=0"];

/// A directory with a model, ten training rows and two held-out rows, as prompts and as pairs.
pub fn directory() -> tempfile::TempDir {
    directory_of(QWEN3)
}

/// Like [`directory`], with a model of a different shape.
pub fn directory_of(config: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    model_of(&dir.path().join("model"), config);
    let rows = |words: &[&str]| -> String {
        words.iter().map(|w| format!("{{\"prompt\": \"{w} \", \"completion\": \"{w}.\"}}\n")).collect()
    };
    let words = ["ab", "sun", "moon", "tree", "x", "river", "a long road", "sky", "ice", "oak"];
    fs::write(dir.path().join("d.jsonl"), rows(&words)).unwrap();
    fs::write(dir.path().join("e.jsonl"), rows(&["sea", "hill"])).unwrap();
    // Pairs for the same prompts; the better answer ends in a full stop.
    let pairs = |words: &[&str]| -> String {
        let row = |w: &&str| format!("{{\"prompt\": \"{w} \", \"chosen\": \"{w}.\", \"rejected\": \"{w}?\"}}\n");
        words.iter().map(row).collect()
    };
    fs::write(dir.path().join("p.jsonl"), pairs(&words)).unwrap();
    fs::write(dir.path().join("q.jsonl"), pairs(&["sea", "hill"])).unwrap();
    dir
}

/// The arguments of a run in `out`; `set` overrides the common keys.
pub fn arguments<'a>(purpose: &'a str, out: &'a str, set: &[&'a str]) -> Vec<&'a str> {
    let own = if purpose == "train" { GRPO } else { &[] };
    let mut all = vec![purpose, "--model", "model", "--out", out];
    for (key, flag) in [("dataset_name=", ["--dataset", "d.jsonl"]), ("reward_funcs=", ["--reward", "unique_chars"])] {
        let rewarded = key != "reward_funcs=" || purpose == "train";
        if rewarded && !set.iter().any(|pair| pair.starts_with(key)) {
            all.extend(flag);
        }
    }
    COMMON.iter().chain(own).chain(set).for_each(|pair| all.extend(["--set", *pair]));
    all
}

/// The names in a directory, sorted.
pub fn listing_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// Runs the program, which must succeed.
pub fn good(directory: &Path, arguments: &[&str]) -> RunOutput {
    let output = lockstep(directory, arguments);
    assert_eq!(output.code, Some(0), "{arguments:?}\n{}{}", output.out, output.err);
    output
}

/// Whether a metric measures time, memory or throughput.
fn measured(name: &str) -> bool {
    name.ends_with("_time_s")
        || name.ends_with("_tokens_per_s")
        || name.ends_with("_per_second")
        || name.starts_with("device/")
        // The number of draft tokens depends on measured step times.
        || name.starts_with("rollout/spec_decode_")
        || name.starts_with("async/") && !name.starts_with("async/lag")
        // The available memory determines how many activations are kept.
        || ["step_time", "time_s", "eval_runtime", "peak_bytes", "rollout_activations_share"].contains(&name)
}

/// The recorded rollouts of a run, one JSON object per completion.
pub fn rollouts(run: &Path) -> Vec<Value> {
    let file = GroupFile::open(&run.join("rollouts.bin")).unwrap();
    file.groups().flat_map(|group| group.unwrap().lines()).map(Value::Object).collect()
}

fn lasting(mut record: Map<String, Value>) -> Map<String, Value> {
    record.retain(|name, _| !measured(name));
    record
}

/// The lines of metrics.jsonl without fields that measure time, memory or throughput.
pub fn metrics(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| Value::Object(lasting(serde_json::from_str(line).unwrap())).to_string()).collect()
}

/// The values of `name`, from every line that has it.
pub fn of_lines(run: &Path, name: &str) -> Vec<f64> {
    let lines = metrics(run).into_iter().map(|l| serde_json::from_str::<Value>(&l).unwrap());
    lines.filter_map(|l| l[name].as_f64()).collect()
}

/// Steps, tags and values in a run's TensorBoard file, without time, memory and throughput.
pub fn events(run: &Path) -> Vec<(u64, String, u32)> {
    let (path, _) = super::listing(&run.join("tensorboard")).pop().unwrap();
    let bytes = fs::read(path).unwrap();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let event = &bytes[at + 12..at + 12 + length];
        at += length + 16;
        // An event has the time as a double, a one-byte step, and the summary with its value, tag and, at the end,
        // number. For text and histograms, which are longer, the raw bytes are compared.
        if event[9] == 0x10 && event[12] >= 0x80 {
            let bytes = event[9..].iter().fold(0u32, |hash, &byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
            found.push((event[10].into(), "long".to_owned(), bytes));
        } else if event[9] == 0x10 {
            let tag = String::from_utf8(event[17..17 + event[16] as usize].to_vec()).unwrap();
            let value = u32::from_le_bytes(event[length - 4..].try_into().unwrap());
            found.push((event[10].into(), tag, value));
        }
    }
    // The hyperparameters precede the first step, and may differ between compared runs.
    let metric = |tag: &str| match tag.split_once('/') {
        Some(("train", name)) => name.to_owned(),
        Some(("eval", name)) => format!("eval_{name}"),
        _ => tag.to_owned(),
    };
    found.retain(|(step, tag, _)| *step > 0 && !measured(&metric(tag)));
    found
}

/// The files of a finished run by relative path: weights, optimizer state, run state, completions, rollouts.
pub fn files(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for (path, _) in super::listing(run) {
        let name = path.strip_prefix(run).unwrap().to_str().unwrap().to_owned();
        let kept = ["checkpoints/", "completions/", "model/", "rollouts."].iter().any(|part| name.starts_with(part));
        if !kept || path.is_dir() {
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        if name.ends_with("run_state.json") {
            let mut state: Map<String, Value> = serde_json::from_slice(&bytes).unwrap();
            // The lengths of logs depend on the digits of times in them. The instruction set may differ, since each
            // process measures which of two sets with the same bits is faster (`Isa::best`).
            for name in &["log_bytes", "xxh3", "isa"] {
                state.remove(*name).unwrap();
            }
            let unlogged = state.remove("unlogged").unwrap().as_object().unwrap().clone();
            state.insert("unlogged".into(), lasting(unlogged).into());
            bytes = Value::Object(state).to_string().into_bytes();
        }
        if name.ends_with("files.json") {
            // The list has the checksum of run_state.json, which was changed above.
            let mut list: Value = serde_json::from_slice(&bytes).unwrap();
            list["files"].as_object_mut().unwrap().remove("run_state.json").unwrap();
            bytes = list.to_string().into_bytes();
        }
        found.insert(name, bytes);
    }
    found
}

/// Asserts that two finished runs have the same bits.
#[track_caller]
pub fn same(expected: &Path, found: &Path) {
    same_files(expected, found, files);
}

/// Like [`same`], for runs with different lineages: their rewards are configured differently, but give the same scores.
#[track_caller]
pub fn same_but_lineage(expected: &Path, found: &Path) {
    let without_lineage = |run: &Path| {
        let mut files = files(run);
        for (_, bytes) in files.iter_mut().filter(|(name, _)| name.ends_with("run_state.json")) {
            let mut state: Value = serde_json::from_slice(bytes).unwrap();
            // PPO stores the state of its pipeline among other fields.
            let task = if state["task"].get("lineage").is_some() { "/task" } else { "/task/pipeline" };
            let task = state.pointer_mut(task).and_then(Value::as_object_mut).expect("a task");
            task.remove("lineage").expect("the state must have a lineage");
            *bytes = state.to_string().into_bytes();
        }
        files
    };
    same_files(expected, found, without_lineage);
}

/// Compares a single-process run with a run with workers, except for files that only runs with workers have.
#[track_caller]
pub fn same_but_workers(expected: &Path, found: &Path) {
    same_files(expected, found, |run| {
        let mut files = files(run);
        files.retain(|name, _| !name.ends_with("fleet.json"));
        // The file has workers' scores of an unfinished batch; the groups that are trained on are compared.
        for (_, bytes) in files.iter_mut().filter(|(name, _)| name.ends_with("frontier.begun.bin")) {
            bytes.clear();
        }
        // Batches that were generated ahead contain the seconds that they took, so only their length is compared. The
        // data that is trained on is compared in full.
        for (_, bytes) in files.iter_mut().filter(|(name, _)| name.ends_with("frontier.bin")) {
            *bytes = bytes.len().to_string().into_bytes();
        }
        for (_, bytes) in files.iter_mut().filter(|(name, _)| name.ends_with("files.json")) {
            let list: Value = serde_json::from_slice(bytes).unwrap();
            let listed = list["files"].as_object().unwrap().iter();
            let own = listed
                .filter(|(name, _)| !["fleet.json", "frontier.bin", "frontier.begun.bin"].contains(&name.as_str()));
            *bytes = format!("{:?}", own.collect::<BTreeMap<_, _>>()).into_bytes();
        }
        files
    });
}

#[track_caller]
fn same_files(expected: &Path, found: &Path, files: impl Fn(&Path) -> BTreeMap<String, Vec<u8>>) {
    assert_eq!(metrics(expected), metrics(found), "metrics.jsonl");
    if fs::read_dir(expected.join("tensorboard")).unwrap().count() > 0 {
        assert_eq!(events(expected), events(found), "TensorBoard's events");
    }
    let (expected, found) = (files(expected), files(found));
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    let result = ["model/model.safetensors", "model/adapter_model.safetensors"];
    assert!(result.iter().any(|name| expected.contains_key(*name)), "no result: {:?}", expected.keys());
    let required = "checkpoints/step-000012/optimizer_exp_avg_sq.safetensors";
    assert!(expected.contains_key(required), "{required}: {:?}", expected.keys());
    let differing: Vec<_> = expected.iter().filter(|(name, bytes)| found[*name] != **bytes).map(|(n, _)| n).collect();
    let first = differing.first().map(|name| difference(&expected[*name], &found[*name])).unwrap_or_default();
    assert!(differing.is_empty(), "these files differ: {differing:?}, the first of them {first}");
}

/// The first offset at which two files differ, with the surrounding bytes.
fn difference(expected: &[u8], found: &[u8]) -> String {
    let at = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
    let around =
        |bytes: &[u8]| String::from_utf8_lossy(&bytes[at.saturating_sub(200)..bytes.len().min(at + 100)]).into_owned();
    format!("from byte {at} on: expected …{}…, found …{}…", around(expected), around(found))
}
