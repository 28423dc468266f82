//! The parameters of a decoder, in the layout that matmuls read, with their names in Hugging Face files.
//!
//! [`Params`] is a tree of tensors. Everything with one number per parameter has this type: weights, gradients, an
//! optimizer's moments. Matrices with the same input are fused (q, k and v; gate and up), so a tensor here may contain
//! the rows of several tensors of a file. [`Params::specs`] lists them.

mod adapter;
mod files;
mod grads;
mod linear;
mod lora;
mod low_rank;
mod next;
mod params;
mod shared;
mod slots;
mod spec;
mod trainable;
mod view;

pub use adapter::Adapter;
pub(crate) use files::{AdapterFiles, AdapterFilesMut};
pub use files::{Named, NamedMut, tensor_specs};
pub use grads::Grads;
pub use linear::Linear;
pub(crate) use linear::SavedInput;
pub use lora::{LINEAR_MODULES, LoraConfig, TargetModules};
pub use next::{NextParams, NextTensor};
pub use params::{Layer, Params};
pub use shared::{Lent, Published, SharedSlot, Sharing};
pub use slots::{AdaptedWeights, HeldWeights, Versioned, WeightSlots};
pub use spec::{ParamSpec, Part, Role};
pub use trainable::Trainable;
pub(crate) use view::{AdapterRanges, LowRankRows, RowAdapters};
pub use view::{Adapters, ModelView, Version};

use crate::{ModelConfig, Updates};
use kernels::{Matrix, Memory, Tensor, ViewMut};
use std::sync::Arc;

/// The weights of a model: parameters, configuration and version.
#[derive(Debug)]
pub struct Weights {
    /// The model's configuration.
    pub config: Arc<ModelConfig>,
    /// The parameters.
    pub params: Params,
    /// Number of updates so far. [`Weights::publish`] increases it after `params` has changed. A KV cache belongs to
    /// one version.
    pub version: Updates,
}

impl Weights {
    /// Weights of zeros, with version 0. Their memory is charged to "weights".
    pub fn zeros(memory: &Memory, config: &Arc<ModelConfig>) -> Weights {
        Weights { config: config.clone(), params: Params::zeros(&memory.part("weights"), config), version: Updates(0) }
    }
    /// Increases the version. Call it after changing `params`.
    pub fn publish(&mut self) {
        self.version = self.version.next();
    }
    /// The matrix of the head: `[V, H]`, which turns hidden states into logits (the embedding if the two are tied), or
    /// `[labels, H]` for a score head.
    pub fn head(&self) -> &Matrix {
        self.params.head.as_ref().unwrap_or(&self.params.embedding)
    }
}

/// The gradient of a parameter, to accumulate into; `None` if the parameter is frozen.
pub(crate) fn trained(gradient: &mut Tensor) -> Option<ViewMut<'_>> {
    (gradient.bytes() > 0).then(|| gradient.view_mut())
}

#[cfg(test)]
mod tests;
