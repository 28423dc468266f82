//! `record.json` of a training run: versions, instruction set, seed, and hashes of model and data. They allow the run
//! to be repeated, and a resumed run refuses inputs that have changed. This file does not interpret the inputs.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::build::Build;
use crate::{Error, Result, Step};

/// The contents of `record.json`, which describes a training run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The command that started the run: train, sft, reward or dpo.
    #[serde(default)]
    pub kind: String,
    /// Versions by name: of this program, and of all other software that affects the results.
    pub versions: Map<String, Value>,
    /// The instruction set that the run computes with, which affects the bits of the results.
    pub isa: String,
    /// The device that computes, in the notation of the key `device`: cpu, cuda, ….
    #[serde(default)]
    pub device: String,
    /// The name of the matmul formula. Runs with the same formula give the same bits.
    #[serde(default)]
    pub arithmetic: String,
    /// The dtype of the computation: f32 or bf16.
    pub dtype: String,
    /// Number of compute threads. Results do not depend on it.
    pub threads: usize,
    /// The run's random seed.
    pub seed: u64,
    /// sha256 of the resolved configuration, in hexadecimal.
    pub config_sha256: String,
    /// The files of the initial model, with their hashes.
    pub model: Vec<FileHash>,
    /// Other files that affect how prompts are encoded and where completions end: tokenizer settings and chat
    /// templates. An unlisted file did not exist. `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_files: Option<Vec<FileHash>>,
    /// The files of a separate reference model (`ref_model`), with their hashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference: Vec<FileHash>,
    /// The files of the dataset, with their hashes.
    pub data: Vec<FileHash>,
    /// Hashes of the programs, scripts and reward models that rewards used at the last start. Their names are paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewards: Vec<FileHash>,
    /// For each reward that executes programs written by the model: how the programs were isolated at the last start.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub isolation: Map<String, Value>,
    /// The run from which this run was forked; `None` if it was not forked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFrom>,
    /// The peaks of the machine, which are measured once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<MeasuredCeilings>,
    /// The command line of the first start.
    pub command: Vec<String>,
    /// The build of the last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// All starts of the run: the first one, then every resume.
    pub starts: Vec<Start>,
}

/// The origin of a forked run: another run and the last step that both have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkedFrom {
    /// The directory of the original run.
    pub run: String,
    /// Number of optimizer steps that both runs have in common.
    pub step: Step,
    /// The lineage of the weights after these steps; `None` for the initial model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
}

/// The measured peaks of a machine, and how they were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCeilings {
    /// Time of the measurement, in seconds since 1970.
    pub time_s: u64,
    /// The instruction set that was measured.
    pub isa: String,
    /// The dtype of the measured matmuls.
    pub dtype: String,
    /// Number of threads that were measured.
    pub threads: usize,
    /// Floating-point operations per second, a multiply-add counted as two.
    pub flops_per_s: f64,
    /// Bytes per second read from memory.
    pub read_bytes_per_s: f64,
    /// The load from other processes, per core, during and around the measurement. `None` in a record of an older
    /// version, which did not check whether the machine was busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
}

/// A start of a training run, the first one or a resume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Time of the start, in seconds since 1970.
    pub time_s: u64,
    /// The step after which the run continues; 0 at the first start.
    pub step: Step,
    /// The time that `strftime_now` returns in chat templates, in seconds since 1970: the time of the run's first
    /// start. It is 0 in a record of an older version, which used the time of each start.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prompt_time_s: u64,
    /// The instruction set used from this start on.
    pub isa: String,
    /// The device used from this start on.
    #[serde(default)]
    pub device: String,
    /// The build that was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// The command line of this start.
    #[serde(default)]
    pub command: Vec<String>,
    /// The configuration keys that changed since the last start, each with the old and the new value.
    #[serde(default)]
    pub changed: Vec<String>,
}

/// The hash of a file's contents, or one hash of several concatenated files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// The name of the file without its directory, so that a moved model is still the same model.
    pub name: String,
    /// The length of the file in bytes; `None` if the hash may cover several files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// sha256 of the contents, in hexadecimal.
    pub sha256: String,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Start {
    /// The time that prompts of this start use, in seconds since 1970.
    pub fn time_of_prompts_s(&self) -> u64 {
        if self.prompt_time_s > 0 { self.prompt_time_s } else { self.time_s }
    }
}

impl RunRecord {
    /// The record as the bytes of `record.json`.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads a `record.json`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = disk::read(path, disk::most::STATE).map_err(Error::io("read", path))?;
        serde_json::from_slice(&text).map_err(|error| Error::format(path, error.to_string()))
    }
}

/// sha256 of `bytes`, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Hashes a file, which is read in pieces. Returns `None` once `stopped` returns true.
pub fn hash_file_until(path: &Path, stopped: &dyn Fn() -> bool) -> Result<Option<FileHash>> {
    let mut file = disk::open(path).map_err(Error::io("open", path))?;
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut piece = vec![0; 1 << 16];
    loop {
        let n = file.read(&mut piece).map_err(Error::io("read", path))?;
        if n == 0 {
            break;
        }
        if stopped() {
            return Ok(None);
        }
        hasher.update(&piece[..n]);
        bytes += n as u64;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(FileHash { name, bytes: Some(bytes), sha256: hex(&hasher.finalize()) }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_file(path: &Path) -> Result<FileHash> {
        hash_file_until(path, &|| false).map(Option::unwrap)
    }

    #[test]
    fn sha256_matches_the_examples_of_fips_180_4() {
        // The first example of FIPS 180-4, and the empty message.
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("b"), b"abc".repeat(1 << 19)).unwrap();
        std::fs::write(dir.path().join("a"), b"").unwrap();
        let [a, b] = ["a", "b"].map(|name| hash_file(&dir.path().join(name)).unwrap());
        assert_eq!([(a.name.as_str(), a.bytes), (b.name.as_str(), b.bytes)], [("a", Some(0)), ("b", Some(3 << 19))]);
        assert_eq!(a.sha256, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(b.sha256, sha256(&b"abc".repeat(1 << 19)));
        assert!(hash_file(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_run_record_round_trips_as_json() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        let mut record = RunRecord { seed: u64::MAX, isa: "avx2".into(), threads: 2, ..RunRecord::default() };
        record.versions.insert("lockstep".into(), "0.1.0".into());
        record.starts.push(Start { time_s: 1, isa: "avx2".into(), ..Start::default() });
        std::fs::write(&path, record.to_bytes().unwrap()).unwrap();
        assert_eq!(RunRecord::read(&path).unwrap(), record);
        std::fs::write(&path, "{").unwrap();
        assert!(RunRecord::read(&path).unwrap_err().to_string().contains("record.json"));
    }

    #[test]
    fn hashing_stops_on_request_and_errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights.bin");
        std::fs::write(&path, vec![7u8; (1 << 16) + 5]).unwrap();
        let asked = std::cell::Cell::new(0);
        let after = |most: u32| {
            asked.set(0);
            hash_file_until(&path, &|| asked.replace(asked.get() + 1) >= most).unwrap()
        };
        assert_eq!((after(0), asked.get()), (None, 1));
        assert_eq!((after(1), asked.get()), (None, 2), "hashing must stop between two pieces");
        let whole = after(2).unwrap();
        assert_eq!((whole.name.as_str(), whole.bytes), ("weights.bin", Some((1 << 16) + 5)));
        assert_eq!(whole, hash_file(&path).unwrap());
        assert_eq!(whole.sha256, sha256(&vec![7u8; (1 << 16) + 5]));
        let says = |error: Error| error.to_string();
        let (none, here) = (dir.path().join("none"), dir.path());
        let missing = format!("cannot open {}: No such file or directory (os error 2)", none.display());
        assert_eq!(hash_file(&none).map_err(says), Err(missing));
        let directory = format!("cannot open {0}: {0} is a directory, not a regular file", here.display());
        assert_eq!(hash_file(here).map_err(says), Err(directory));
        assert!(RunRecord::read(&none).unwrap_err().to_string().starts_with("cannot read "));
    }

    #[test]
    fn a_run_record_is_indented_json_without_empty_fields() {
        let record = RunRecord { seed: 5, threads: 2, ..RunRecord::default() };
        let text = String::from_utf8(record.to_bytes().unwrap()).unwrap();
        assert!(text.starts_with("{\n  \"kind\": \"\",\n") && text.ends_with("\n}\n"), "{text}");
        for left_out in ["reference", "rewards", "isolation", "forked_from", "ceilings", "lineage", "bytes"] {
            assert!(!text.contains(left_out), "{left_out}: {text}");
        }
    }
}
