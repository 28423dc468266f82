//! Weight files: Hugging Face directories in, Hugging Face directories out.
//!
//! Reading: `model.safetensors`, or the shards that `model.safetensors.index.json` lists; f32, f16 or bf16,
//! memory-mapped, and widened, handed over and released one tensor after the other. Writing: the same, each file
//! under a temporary name until it is complete and on disk.
//!
//! It does not know how weights are held in memory: whoever holds them is a [`TensorSink`] or a [`TensorSource`].

mod read;
mod safetensors;
mod save;
#[cfg(test)]
mod tests;

pub use read::{load_tensors, load_weights};
pub(crate) use save::write_json;
pub use save::{SaveOptions, copy_tokenizer, save_model, save_tensors, write_atomically};

use crate::Result;

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
    /// The elements, row-major, of one of its tensors.
    fn get(&self, name: &str) -> Result<Vec<f32>>;
}
