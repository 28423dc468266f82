//! Weight files: Hugging Face directories in, Hugging Face directories out.
//!
//! Reading: `model.safetensors`, or the shards that `model.safetensors.index.json` lists; f32, f16 or bf16,
//! memory-mapped, and widened, handed over and released one tensor after the other. Writing: the same in pieces that
//! the cache holds, each file under a temporary name until it is complete and on disk.
//!
//! It does not know how weights are held in memory: what holds them is a [`TensorSink`] or a [`TensorSource`].

mod direct;
mod files;
mod read;
mod safetensors;
mod save;
#[cfg(test)]
mod tests;

pub(crate) use files::check_listed;
pub use files::{FILE_LIST, FileList, ListedFile};
pub(crate) use read::read_metadata;
pub use read::{load_tensors, load_weights};
pub use save::{
    CopiedFiles, PARTIAL_NAME, SaveOptions, WriteSeek, save_model, save_tensors, sweep_partial, write_atomically,
};
pub(crate) use save::{save_tensors_with, write_json};

use crate::Result;
use std::ops::Range;

/// The metadata entry that holds a file's checksum: XXH3 (64 bits) of the whole file with 0s in its own place.
const CHECKSUM: &str = "xxh3";
/// The metadata comes first in a header: in so many bytes of a file.
const METADATA_BYTES: u64 = 4096;
/// What stands in its place until it is known.
const ZERO_CHECKSUM: &str = "0000000000000000";

/// The checksum of bytes that are no file of tensors, in the digits of one.
pub fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", twox_hash::XxHash3_64::oneshot(bytes))
}

/// A JSON file without the byte order mark that Windows' editors put first.
pub(crate) fn without_bom(mut bytes: Vec<u8>) -> Vec<u8> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    bytes
}

/// Where the digits of the checksum are in a header, if it has one.
fn find_checksum(header: &[u8]) -> Option<Range<usize>> {
    let before = format!("\"{CHECKSUM}\":\"");
    let start = header.windows(before.len()).position(|bytes| bytes == before.as_bytes())? + before.len();
    let end = start + ZERO_CHECKSUM.len();
    (header.get(end) == Some(&b'"')).then_some(start..end)
}

/// A tensor's name in files and its shape there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Such as `[rows, columns]`.
    pub shape: Vec<usize>,
}

/// Where tensors of files go.
pub trait TensorSink {
    /// Every tensor that it wants.
    fn tensors(&self) -> Vec<TensorSpec>;
    /// Takes the elements, row-major, of one of its tensors.
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()>;
}

/// Where tensors of files come from.
pub trait TensorSource {
    /// Every tensor that it has, in the order in which they are written.
    fn tensors(&self) -> Vec<TensorSpec>;
    /// Hands over the elements, row-major, of one of its tensors, piece after piece.
    fn read(&self, name: &str, take: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;
    /// All of them.
    fn get(&self, name: &str) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        self.read(name, &mut |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(all)
    }
}
