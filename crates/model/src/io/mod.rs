//! Reading and writing Hugging Face model directories.
//!
//! Models are read from `model.safetensors`, or from the shards that `model.safetensors.index.json` lists, in f32, f16
//! or bf16. Files are memory-mapped; each tensor is widened to f32, passed on and released before the next one. The
//! same formats are written, in pieces that fit into the CPU cache. Each file has a temporary name until it is complete
//! and on disk.
//!
//! This module does not know how weights are stored in memory: it reads into a [`TensorSink`] and writes from a
//! [`TensorSource`].

mod convert;
mod direct;
mod files;
mod model_files;
mod read;
mod safetensors;
mod save;
#[cfg(test)]
mod tests;

pub use convert::{convert_weights, dtype_of_files};
pub(crate) use files::check_listed;
pub use files::{FILE_LIST, FileList, ListedFile};
pub use model_files::{CONFIG, ModelFiles, identifies_model, is_listed};
pub(crate) use model_files::{GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER, TOKENIZER_CONFIG};
pub(crate) use read::read_metadata;
pub use read::{load_tensors, load_weights};
pub use save::{
    PARTIAL_NAME, SaveOptions, WriteSeek, lock_partial, save_model, save_tensors, sweep_partial, write_atomically,
};
pub(crate) use save::{save_tensors_with, write_json};

use crate::Result;
use std::ops::Range;

/// The file with an adapter's weights.
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// The metadata entry of an adapter's weight file with the hash of the base model that the adapter was trained on. The
/// hash is in the metadata because PEFT rejects unknown fields in `adapter_config.json`, but ignores unknown metadata.
pub(crate) const BASE_SHA256: &str = "base_model_sha256";
/// The metadata entry with a file's checksum: XXH3 (64 bits) of the whole file, with zeros in place of the checksum.
const CHECKSUM: &str = "xxh3";
/// The metadata comes first in the header, within this many bytes from the beginning of the file.
const METADATA_BYTES: u64 = 4096;
/// Placeholder for the checksum until it is known.
const ZERO_CHECKSUM: &str = "0000000000000000";

/// XXH3 checksum of bytes, as 16 hexadecimal digits.
pub fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", twox_hash::XxHash3_64::oneshot(bytes))
}

/// Removes the byte order mark that Windows editors put at the beginning of a file.
pub(crate) fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes)
}

/// Range of the checksum's digits in a header, if it has a checksum.
fn find_checksum(header: &[u8]) -> Option<Range<usize>> {
    let before = format!("\"{CHECKSUM}\":\"");
    let start = header.windows(before.len()).position(|bytes| bytes == before.as_bytes())? + before.len();
    let end = start + ZERO_CHECKSUM.len();
    (header.get(end) == Some(&b'"')).then_some(start..end)
}

/// Name and shape of a tensor in a weight file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The shape, such as `[rows, columns]`.
    pub shape: Vec<usize>,
}

/// Receives tensors that are read from files.
pub trait TensorSink {
    /// Every tensor that the sink must receive.
    fn tensors(&self) -> Vec<TensorSpec>;
    /// Receives the elements of one tensor, in row-major order.
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()>;
}

/// Provides tensors to be written to files.
pub trait TensorSource {
    /// Every tensor of the source, in the order in which they are written.
    fn tensors(&self) -> Vec<TensorSpec>;
    /// Passes the elements of one tensor to `take`, in row-major order, piece after piece.
    fn read(&self, name: &str, take: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;
    /// All elements of one tensor.
    fn get(&self, name: &str) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        self.read(name, &mut |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(all)
    }
}
