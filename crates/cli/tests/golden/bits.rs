//! Hashes of the contents of a run directory, by name, and the file that stores them.

use lockstep::wire::file::GroupFile;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Hashes by name, eight hexadecimal digits each.
pub type Bits = BTreeMap<String, String>;
/// For each run, one column per arithmetic.
pub type Table = BTreeMap<String, [Option<Bits>; 3]>;

/// FNV-1a, 64 bits.
struct Hash(u64);

impl Hash {
    fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    /// Hashes numbers by their bits, so that their notation in JSON does not matter.
    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Number(number) => self.add(&number.as_f64().unwrap().to_bits().to_le_bytes()),
            Value::Array(values) => {
                self.add(b"[");
                for value in values {
                    self.add_value(value);
                }
            }
            other => self.add(other.to_string().as_bytes()),
        }
    }
    fn digits(&self) -> String {
        format!("{:08x}", (self.0 ^ (self.0 >> 32)) as u32)
    }
}

/// The hashes of a finished run: tensors of the last checkpoint (weight, master weight and moments together), tensors
/// of the result, metrics, and columns of the rollouts.
pub fn of(run: &Path, last: u64) -> Bits {
    let mut hashes: BTreeMap<String, Hash> = BTreeMap::new();
    let checkpoint = run.join(format!("checkpoints/step-{last:06}"));
    for (file, key) in safetensors(&checkpoint) {
        for (name, bytes) in tensors(&file) {
            let hash = hashes.entry(format!("{key}{name}")).or_insert_with(Hash::new);
            hash.add(file.file_stem().unwrap().as_encoded_bytes());
            hash.add(&bytes);
        }
    }
    assert!(!hashes.is_empty(), "{}: no tensor", checkpoint.display());
    let result = hashes.entry("result".to_owned()).or_insert_with(Hash::new);
    for (file, _) in safetensors(&run.join("model")) {
        for (name, bytes) in tensors(&file) {
            result.add(name.as_bytes());
            result.add(&bytes);
        }
    }
    // Rollouts written by an older build precede those of this build.
    for (file, kind) in [("metrics.jsonl", "metric"), ("rollouts.jsonl", "rollout"), ("rollouts.bin", "rollout")] {
        for record in records(&run.join(file)) {
            // Alarms follow from values that are already hashed; `it` has tests of alarms.
            if record.contains_key("alarm") {
                continue;
            }
            let step = record.get("step").cloned().unwrap_or(Value::Null);
            for (name, value) in record.iter().filter(|(name, _)| !measures(name)) {
                let hash = hashes.entry(format!("{kind} {name}")).or_insert_with(Hash::new);
                hash.add_value(&step);
                hash.add_value(value);
            }
        }
    }
    hashes.into_iter().map(|(name, hash)| (name, hash.digits())).collect()
}

/// The hashed columns of rollouts.
const HASHED: [&str; 9] = [
    "step",
    "prompt_ids",
    "completion_ids",
    "rewards",
    "reward_names",
    "logprobs",
    "ref_logprobs",
    "mask",
    "truncated",
];

/// The records of a JSON Lines file or of recorded groups; empty if the file does not exist.
fn records(file: &Path) -> Vec<Map<String, Value>> {
    if !file.exists() {
        return Vec::new();
    }
    if file.extension().is_some_and(|extension| extension == "jsonl") {
        let text = fs::read_to_string(file).unwrap();
        return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    }
    let mut lines: Vec<_> = GroupFile::open(file).unwrap().groups().flat_map(|group| group.unwrap().lines()).collect();
    for line in &mut lines {
        line.retain(|name, _| HASHED.contains(&name.as_str()));
    }
    lines
}

/// Whether a metric measures time, memory or throughput, or is a quantile of values that are already hashed.
fn measures(name: &str) -> bool {
    ["_p10", "_p50", "_p90", "/p10_length", "/p50_length", "/p90_length"].iter().any(|end| name.ends_with(end))
        || name.ends_with("_time_s")
        || name.ends_with("_tokens_per_s")
        || name.ends_with("_per_second")
        || name.starts_with("device/")
        // The number of draft tokens depends on measured step times.
        || name.starts_with("rollout/spec_decode_")
        // The available memory determines how many activations are kept.
        || ["step_time", "time_s", "eval_runtime", "peak_bytes", "rollout_activations_share"].contains(&name)
}

/// The tensor files below `directory` in ascending order, each with the path of its directory.
fn safetensors(directory: &Path) -> Vec<(PathBuf, String)> {
    let (mut found, mut open) = (Vec::new(), vec![(directory.to_owned(), String::new())]);
    while let Some((next, prefix)) = open.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|e| panic!("{}: {e}", next.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push((path.clone(), format!("{prefix}{}/", path.file_name().unwrap().to_str().unwrap())));
            } else if path.extension().is_some_and(|extension| extension == "safetensors") {
                found.push((path, prefix.clone()));
            }
        }
    }
    found.sort();
    found
}

/// Name, dtype, shape and values of each tensor; all but the name as bytes.
fn tensors(file: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let [start, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize + 8 + length);
        let mut all = format!("{} {}", tensor["dtype"], tensor["shape"]).into_bytes();
        all.extend_from_slice(&bytes[start..end]);
        found.push((name.clone(), all));
    }
    found.sort();
    found
}

/// The placeholder for a missing hash.
const NONE: &str = "--------";
const HEADER: &str = "# What the golden runs leave: hashes by name, written by GOLDEN_RUNS=write (see main.rs). \
                      Whoever changes a line says why.\n";

/// Writes the file of hashes.
pub fn write(file: &Path, table: &Table) {
    let mut text = HEADER.to_owned();
    for (run, columns) in table {
        text += &format!(
            "\n{:52} {:8} {:8} {}\n",
            format!("[{run}]"),
            super::COLUMNS[0],
            super::COLUMNS[1],
            super::COLUMNS[2]
        );
        let names: BTreeMap<&String, ()> =
            columns.iter().flatten().flat_map(|bits| bits.keys()).map(|n| (n, ())).collect();
        for name in names.into_keys() {
            let [a, b, c] = columns.each_ref().map(|bits| bits.as_ref().and_then(|b| b.get(name)).map_or(NONE, |h| h));
            text += &format!("{name:52} {a} {b} {c}\n");
        }
    }
    fs::write(file, text).unwrap();
}

/// Reads the file of hashes.
pub fn read(file: &Path) -> Table {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut table = Table::new();
    let mut run = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((name, _)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            run = name.to_owned();
            table.insert(run.clone(), [const { None }; 3]);
            continue;
        }
        // Names may contain spaces; hashes do not.
        let mut words: Vec<&str> = line.rsplitn(4, char::is_whitespace).filter(|word| !word.is_empty()).collect();
        words.reverse();
        let [name, hashes @ ..] = &words[..] else { continue };
        let columns = table.get_mut(&run).expect("a run's name comes first");
        for (column, hash) in columns.iter_mut().zip(hashes).filter(|(_, hash)| **hash != NONE) {
            column.get_or_insert_default().insert(name.trim_end().to_owned(), (*hash).to_owned());
        }
    }
    table
}
