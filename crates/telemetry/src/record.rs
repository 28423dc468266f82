//! `record.json`: what a run was made of — versions, instruction set, seed, hashes of model and data — so that a run
//! can be repeated, and a resumed one refuses inputs that changed. Does not know what the files mean.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The contents of `record.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The command that makes such runs: train, sft, reward or dpo.
    #[serde(default)]
    pub kind: String,
    /// Name → version: this program, and whatever else decides the results.
    pub versions: Map<String, Value>,
    /// The instruction set whose arithmetic made the bits.
    pub isa: String,
    /// What computed, as `device` names it: cpu, cuda, …
    #[serde(default)]
    pub device: String,
    /// The formula of its matmuls: runs with the same one have the same bits.
    #[serde(default)]
    pub arithmetic: String,
    /// The compute dtype.
    pub dtype: String,
    /// Threads that computed (they change no bit).
    pub threads: usize,
    /// The run's seed.
    pub seed: u64,
    /// sha256 of the resolved configuration, in hexadecimal.
    pub config_sha256: String,
    /// The model's files.
    pub model: Vec<FileHash>,
    /// The files of a reference model of its own (`ref_model`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference: Vec<FileHash>,
    /// The dataset's files.
    pub data: Vec<FileHash>,
    /// What rewards were made of at the last start: programs, scripts, reward models; the names are paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewards: Vec<FileHash>,
    /// Name of a reward that runs programs of completions → what they are isolated by, at the last start.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub isolation: Map<String, Value>,
    /// The run that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFrom>,
    /// What the machine can do at most, measured once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<MeasuredCeilings>,
    /// The program's arguments at the first start.
    pub command: Vec<String>,
    /// Each start of the run: the first, then every resume.
    pub starts: Vec<Start>,
}

/// Where a run parted from another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkedFrom {
    /// The directory of the run that it was forked from.
    pub run: String,
    /// Optimizer steps that both share.
    pub step: u64,
    /// The lineage of the weights after them; none of the model that both began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
}

/// What a machine can do at most, and as what it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCeilings {
    /// When, in seconds since 1970.
    pub time_s: u64,
    /// What computed.
    pub isa: String,
    /// The dtype of its matmuls.
    pub dtype: String,
    /// Threads that computed.
    pub threads: usize,
    /// Operations per second, a multiply-add counted as two.
    pub flops_per_s: f64,
    /// Bytes read from memory per second.
    pub read_bytes_per_s: f64,
}

/// A start of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Seconds since 1970.
    pub time_s: u64,
    /// The step that it continues after; 0 for the first start.
    pub step: u64,
    /// The instruction set used from here on.
    pub isa: String,
    /// The device used from here on.
    #[serde(default)]
    pub device: String,
    /// The program's arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// The keys of the configuration that are no longer what they were, each with both values.
    #[serde(default)]
    pub changed: Vec<String>,
}

/// A file and its contents' hash; or the hash of several files read one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// The file's name, without its directory: a model that moved is the same model.
    pub name: String,
    /// The file's length; `None` where several files may have gone into one hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// sha256 in hexadecimal.
    pub sha256: String,
}

impl RunRecord {
    /// The bytes of the file.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads it back.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(Error::io("read", path))?;
        serde_json::from_slice(&text).map_err(|error| Error::format(path, error.to_string()))
    }
}

/// sha256 of bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Hashes a file, reading it piece by piece.
pub fn hash_file(path: &Path) -> Result<FileHash> {
    Ok(hash_file_until(path, &|| false)?.unwrap_or_default())
}

/// [`hash_file`], abandoned once `stopped` says so: `None`.
pub fn hash_file_until(path: &Path, stopped: &dyn Fn() -> bool) -> Result<Option<FileHash>> {
    let mut file = std::fs::File::open(path).map_err(Error::io("open", path))?;
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut piece = vec![0; 1 << 20];
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

    #[test]
    fn hashes_of_the_standard() {
        // FIPS 180-4's example, and the empty message.
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
    fn reads_back_what_it_wrote() {
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
}
