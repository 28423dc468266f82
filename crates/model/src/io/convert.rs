//! Finds the dtype of weight files, and copies weight files in another dtype.

use super::read::Files;
use super::safetensors::entries;
use super::save::{save_tensors_with, save_weights, write_json};
use super::{ADAPTER_WEIGHTS, BASE_SHA256, CONFIG, SaveOptions, TensorSource, TensorSpec, read_metadata, without_bom};
use crate::{Error, FileDType, Result};
use kernels::memory::FileMap;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;

/// The dtype of the weights in a model's or an adapter's directory: bf16 or f16 if every tensor has it, else f32, which
/// can represent all of them. Only headers are read.
pub fn dtype_of_files(dir: &Path) -> Result<FileDType> {
    let mut found = BTreeSet::new();
    let paths = match dir.join(ADAPTER_WEIGHTS) {
        adapter if adapter.exists() => vec![adapter],
        _ => Files::paths_of_model(dir)?,
    };
    for path in paths {
        let map = FileMap::open(&path)?;
        found.extend(entries(&path, map.bytes())?.into_iter().map(|entry| entry.dtype));
    }
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    Ok(match found[..] {
        ["BF16"] => FileDType::Bf16,
        ["F16"] => FileDType::F16,
        _ => FileDType::F32,
    })
}

/// Copies the weights of a model or adapter in the directory `from` to the existing directory `to` in another dtype,
/// with a `config.json` that names the new dtype. Other files are not copied.
pub fn convert_weights(from: &Path, to: &Path, dtype: FileDType) -> Result<()> {
    let adapter = from.join(ADAPTER_WEIGHTS);
    if adapter.exists() {
        let base = read_metadata(&adapter, BASE_SHA256)?;
        let metadata: Vec<_> = base.iter().map(|sha256| (BASE_SHA256, sha256.as_str())).collect();
        return save_tensors_with(&to.join(ADAPTER_WEIGHTS), &Source(Files::one(adapter.clone())?), dtype, &metadata);
    }
    let path = from.join(CONFIG);
    let text = disk::read(&path, disk::most::STATE).map_err(|e| Error::io(&path, e))?;
    let mut config: Map<String, Value> =
        serde_json::from_slice(without_bom(&text)).map_err(|e| Error::file(&path, format!("not JSON: {e}")))?;
    super::save::name_dtype(&mut config, dtype);
    write_json(&to.join(CONFIG), &Value::Object(config))?;
    save_weights(to, &Source(Files::from_model(from)?), SaveOptions { dtype, ..SaveOptions::default() })
}

/// The tensors of weight files, in the order of the files.
struct Source(Files);

impl TensorSource for Source {
    fn tensors(&self) -> Vec<TensorSpec> {
        self.0.specs()
    }

    fn read(&self, name: &str, take: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        take(&self.0.elements(name)?)
    }
}
