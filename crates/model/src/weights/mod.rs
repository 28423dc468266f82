//! The parameters of a decoder: in the form that matmuls read, with their names and places in Hugging Face files.
//!
//! [`Params`] is one tree of tensors, and everything that has one value per parameter is such a tree: the weights,
//! their gradients, the optimizer's moments. Matrices that are multiplied with the same input are fused (q, k and v;
//! gate and up), so a tensor here may hold the rows of several tensors of a file; [`Params::specs`] says which. It
//! does not know files, nor how the numbers are used.

mod adapter;
mod files;
mod grads;
mod linear;
mod lora;
mod next;
mod params;
mod shared;
mod slots;
mod spec;
mod view;

pub use adapter::Adapter;
pub(crate) use files::{AdapterFiles, AdapterFilesMut};
pub use files::{Named, NamedMut, tensor_specs};
pub use grads::Grads;
pub(crate) use linear::SavedInput;
pub use linear::{Linear, LowRank};
pub use lora::{LINEAR_MODULES, LoraConfig, TargetModules};
pub use next::{NextParams, NextTensor};
pub use params::{Layer, Params};
pub use shared::{Published, SharedSlot, Sharing};
pub use slots::{AdaptedWeights, HeldWeights, Trainable, Versioned, WeightSlots};
pub use spec::{ParamSpec, Part, Role};
pub(crate) use view::{AdapterRanges, LowRankRows, RowAdapters};
pub use view::{Adapters, ModelView, Version};

use crate::ModelConfig;
use kernels::{Matrix, Memory, Tensor, ViewMut};
use std::sync::Arc;

/// Parameters with the configuration that gives them meaning, and the number of the version that they are.
#[derive(Debug)]
pub struct Weights {
    /// The shape of the model.
    pub config: Arc<ModelConfig>,
    /// The parameters.
    pub params: Params,
    /// Counts the updates: [`Weights::publish`] after changing `params`. Cached keys and values belong to one version.
    pub version: u64,
}

impl Weights {
    /// All zero, version 0. Booked under "weights".
    pub fn zeros(memory: &Memory, config: &Arc<ModelConfig>) -> Weights {
        Weights { config: config.clone(), params: Params::zeros(&memory.part("weights"), config), version: 0 }
    }
    /// Makes what `params` now hold the next version.
    pub fn publish(&mut self) {
        self.version += 1;
    }
    /// The matrix `[V, H]` that turns hidden rows into logits: the head, or the embedding where they are tied; or the
    /// one that turns them into scores `[n, H]`.
    pub fn head(&self) -> &Matrix {
        self.params.head.as_ref().unwrap_or(&self.params.embedding)
    }
}

/// Where the gradient of a parameter accumulates; none if it is frozen.
pub(crate) fn trained(gradient: &mut Tensor) -> Option<ViewMut<'_>> {
    (gradient.bytes() > 0).then(|| gradient.view_mut())
}

#[cfg(test)]
mod tests;
