//! Reads weight files into a sink.

use super::safetensors::{Entry, elements, entries, metadata};
use super::{METADATA_BYTES, TensorSink, TensorSpec, ZERO_CHECKSUM, check_listed, find_checksum, without_bom};
use crate::{Error, ModelConfig, Result};
use kernels::memory::FileMap;
use std::collections::HashMap;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A memory-mapped weight file and the tensors in it.
struct File {
    path: PathBuf,
    map: FileMap,
    entries: HashMap<String, Entry>,
}

impl File {
    fn open(path: PathBuf) -> Result<File> {
        let (dir, name) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
        check_listed(dir, |listed| Path::new(listed) == name)?;
        let map = FileMap::open(&path)?;
        verify(&path, &map)?;
        let entries = entries(&path, map.bytes())?.into_iter().map(|e| (e.name.clone(), e)).collect();
        Ok(File { path, map, entries })
    }
    fn elements(&self, entry: &Entry) -> Result<Vec<f32>> {
        let data = elements(&self.path, entry, self.map.bytes())?;
        self.map.release(entry.bytes.clone());
        Ok(data)
    }
}

/// Verifies the checksum of a file, if it has one. Files written by this crate have a checksum.
fn verify(path: &Path, map: &FileMap) -> Result<()> {
    /// Maximum number of bytes of the mapped file in memory at once.
    const PIECE: usize = 16 << 20;
    let bytes = map.bytes();
    let most = METADATA_BYTES.min(bytes.len() as u64);
    let header = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length)).min(most);
    let Some(digits) = find_checksum(&bytes[..header as usize]) else { return Ok(()) };
    let mut hash = XxHash3_64::default();
    hash.write(&bytes[..digits.start]);
    hash.write(ZERO_CHECKSUM.as_bytes());
    for start in (digits.end..bytes.len()).step_by(PIECE) {
        let piece = start..(start + PIECE).min(bytes.len());
        hash.write(&bytes[piece.clone()]);
        map.release(piece);
    }
    if format!("{:016x}", hash.finish()).as_bytes() == &bytes[digits] {
        return Ok(());
    }
    Err(Error::file(path, "the file is damaged: its bytes do not match their checksum (XXH3)"))
}

/// Reads a string entry from the metadata of a safetensors file.
pub(crate) fn read_metadata(path: &Path, name: &str) -> Result<Option<String>> {
    metadata(path, FileMap::open(path)?.bytes(), name)
}

/// The weight files of a model, and the file in which each tensor is stored.
pub(super) struct Files {
    files: Vec<File>,
    /// Maps a tensor's name to the index of its file.
    places: HashMap<String, usize>,
    /// Path of the file that lists the tensors: the only weight file, or the index of shards.
    listing: PathBuf,
}

impl Files {
    pub(super) fn one(path: PathBuf) -> Result<Files> {
        let file = File::open(path.clone())?;
        let places = file.entries.keys().map(|name| (name.clone(), 0)).collect();
        Ok(Files { files: vec![file], places, listing: path })
    }

    /// The paths of a model's weight files.
    pub(super) fn paths_of_model(dir: &Path) -> Result<Vec<PathBuf>> {
        let single = dir.join("model.safetensors");
        if single.exists() {
            return Ok(vec![single]);
        }
        let index = dir.join("model.safetensors.index.json");
        let text = disk::read(&index, disk::most::TOKENIZER).map_err(|e| Error::io(&index, e))?;
        let json: serde_json::Value =
            serde_json::from_slice(without_bom(&text)).map_err(|e| Error::file(&index, format!("not JSON: {e}")))?;
        let names = json.get("weight_map").and_then(|map| map.as_object()).into_iter().flat_map(|map| map.values());
        let names = names.filter_map(|name| Path::new(name.as_str()?).file_name());
        let names: std::collections::BTreeSet<PathBuf> = names.map(|name| dir.join(name)).collect();
        Ok(names.into_iter().collect())
    }

    /// All tensors, in the order of the files and of their bytes.
    pub(super) fn specs(&self) -> Vec<TensorSpec> {
        let mut all: Vec<(usize, usize, &Entry)> = self
            .places
            .iter()
            .map(|(name, place)| (*place, &self.files[*place].entries[name]))
            .map(|(place, entry)| (place, entry.bytes.start, entry))
            .collect();
        all.sort_by(|a, b| (a.0, a.1, &a.2.name).cmp(&(b.0, b.1, &b.2.name)));
        all.into_iter().map(|(.., entry)| TensorSpec { name: entry.name.clone(), shape: entry.shape.clone() }).collect()
    }

    /// The elements of one tensor.
    pub(super) fn elements(&self, name: &str) -> Result<Vec<f32>> {
        let Some((file, entry)) = self.find(name) else {
            return Err(Error::tensor(&self.listing, name, "missing"));
        };
        file.elements(entry)
    }

    pub(super) fn from_model(dir: &Path) -> Result<Files> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        match (single.exists(), index.exists()) {
            (true, _) => Files::one(single),
            (false, true) => Files::sharded(dir, index),
            (false, false) => Err(Error::file(
                dir,
                "found neither model.safetensors nor model.safetensors.index.json (other weight formats are not \
                 supported)",
            )),
        }
    }

    fn sharded(dir: &Path, index: PathBuf) -> Result<Files> {
        let text = disk::read(&index, disk::most::TOKENIZER).map_err(|e| Error::io(&index, e))?;
        let json: serde_json::Value =
            serde_json::from_slice(without_bom(&text)).map_err(|e| Error::file(&index, format!("not JSON: {e}")))?;
        let Some(map) = json.get("weight_map").and_then(|m| m.as_object()) else {
            return Err(Error::file(&index, "expected an object `weight_map`"));
        };
        let mut files: Vec<File> = Vec::new();
        let mut places = HashMap::new();
        for (tensor, name) in map {
            // A name with a path outside the directory cannot be a shard of this model.
            let Some(name) = name.as_str().filter(|n| Path::new(n).file_name().is_some_and(|f| f == *n)) else {
                return Err(Error::tensor(
                    &index,
                    tensor,
                    format!("the index places the tensor in {name}, which is not a file name"),
                ));
            };
            let path = dir.join(name);
            let place = match files.iter().position(|f| f.path == path) {
                Some(place) => place,
                None => {
                    if !path.exists() {
                        return Err(Error::tensor(
                            &index,
                            tensor,
                            format!("the index places the tensor in {name}, which is missing"),
                        ));
                    }
                    files.push(File::open(path)?);
                    files.len() - 1
                }
            };
            if !files[place].entries.contains_key(tensor) {
                return Err(Error::tensor(&files[place].path, tensor, "missing, but the index places it in this file"));
            }
            places.insert(tensor.clone(), place);
        }
        Ok(Files { files, places, listing: index })
    }

    fn find(&self, name: &str) -> Option<(&File, &Entry)> {
        let file = &self.files[*self.places.get(name)?];
        Some((file, &file.entries[name]))
    }

    /// Reads every tensor of `specs` into the sink. `alias` maps a tensor's name to its name in the files.
    fn load_into(&self, specs: &[TensorSpec], sink: &mut dyn TensorSink, alias: impl Fn(&str) -> String) -> Result<()> {
        // All shapes are checked first, so that errors are reported before minutes of reading, and before anything is
        // overwritten.
        for spec in specs {
            let name = alias(&spec.name);
            let Some((file, entry)) = self.find(&name) else {
                return Err(Error::tensor(&self.listing, name, format!("missing (shape {:?})", spec.shape)));
            };
            if entry.shape != spec.shape {
                let message = format!("got shape {:?}, expected {:?}", entry.shape, spec.shape);
                return Err(Error::tensor(&file.path, name, message));
            }
        }
        for spec in specs {
            let (file, entry) = self.find(&alias(&spec.name)).expect("checked above");
            sink.put(&spec.name, &file.elements(entry)?)?;
        }
        Ok(())
    }

    fn refuse_unexpected(&self, expected: impl Fn(&str) -> bool) -> Result<()> {
        let mut unexpected: Vec<&String> = self.places.keys().filter(|name| !expected(name)).collect();
        unexpected.sort();
        match unexpected.first() {
            None => Ok(()),
            Some(first) => {
                let (file, entry) = self.find(first).expect("every name in `places` has a tensor");
                let more = match unexpected.len() - 1 {
                    0 => String::new(),
                    n => format!(" (and {n} more)"),
                };
                let message = format!("unexpected: the model has no such tensor (shape {:?}){more}", entry.shape);
                Err(Error::tensor(&file.path, first.as_str(), message))
            }
        }
    }
}

/// Reads the weights of the model directory `dir` into `sink`.
///
/// If the model ties head and embedding, its files may contain a head that equals the embedding, or a head instead of
/// an embedding. A head that differs is an error; transformers would untie the two.
pub fn load_weights(dir: &Path, config: &ModelConfig, sink: &mut dyn TensorSink) -> Result<()> {
    let files = Files::from_model(dir)?;
    let specs = sink.tensors();
    let known: std::collections::HashSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    let tied = config.head_rows().is_none();
    let tied_head = |name: &str| tied && name == HEAD;
    // Old checkpoints contain rotary frequencies, which are derived from the configuration instead.
    let derived = |name: &str| name.ends_with("rotary_emb.inv_freq");
    files.refuse_unexpected(|name| known.contains(name) || tied_head(name) || derived(name))?;

    let head = if tied { files.find(HEAD) } else { None };
    let embedding = files.find(EMBEDDING);
    if let (Some((file, head)), Some((other, embedding))) = (head, embedding) {
        let (a, b) = (&file.map.bytes()[head.bytes.clone()], &other.map.bytes()[embedding.bytes.clone()]);
        let equal = head.dtype == embedding.dtype && a == b;
        file.map.release(head.bytes.clone());
        if !equal {
            let message = format!("differs from {EMBEDDING}, but config.json has `tie_word_embeddings` = true");
            return Err(Error::tensor(&file.path, HEAD, message));
        }
    }
    let only_head = head.is_some() && embedding.is_none();
    files.load_into(&specs, sink, |name| if only_head && name == EMBEDDING { HEAD.into() } else { name.into() })
}

/// Reads one safetensors file into `sink`. The file must contain exactly the tensors that the sink lists.
pub fn load_tensors(path: &Path, sink: &mut dyn TensorSink) -> Result<()> {
    let files = Files::one(path.to_owned())?;
    let specs = sink.tensors();
    files.refuse_unexpected(|name| specs.iter().any(|s| s.name == name))?;
    files.load_into(&specs, sink, str::to_owned)
}
