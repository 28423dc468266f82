//! The parameters of a decoder: in the form that products read, with their names and places in Hugging Face files.
//!
//! [`Params`] is one tree of tensors, and everything that has one value per parameter is such a tree: the weights, their
//! gradients, the optimizer's moments. Matrices that are multiplied with the same input are fused (q, k and v; gate and
//! up), so a tensor here may hold the rows of several tensors of a file; [`Params::specs`] says which.
//! It does not know files, nor how the numbers are used.

mod adapted;
mod files;
mod linear;
mod lora;
mod params;
mod spec;

pub(crate) use files::{AdapterFiles, AdapterFilesMut};
pub use files::{Named, NamedMut, tensor_specs};
pub use linear::{Adapter, Linear, Was};
pub use lora::{LINEAR_MODULES, LoraConfig, TargetModules};
pub use params::{Layer, Params};
pub use spec::{ParamSpec, Part, Role};

use crate::ModelConfig;
use kernels::ops::rows;
use kernels::{Context, Matrix, Memory, Result, Tensor, ViewMut};
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
    lora: Option<LoraConfig>,
}

impl Weights {
    /// All zero, version 0. Booked under "weights".
    pub fn zeros(memory: &Memory, config: &Arc<ModelConfig>) -> Weights {
        Weights {
            config: config.clone(),
            params: Params::zeros(&memory.part("weights"), config),
            version: 0,
            lora: None,
        }
    }
    /// Makes what `params` now hold the next version.
    pub fn publish(&mut self) {
        self.version += 1;
    }
    /// The matrix `[V, H]` that turns hidden rows into logits: the head, or the embedding where they are tied; or the one
    /// that turns them into scores `[n, H]`.
    pub fn head(&self) -> &Matrix {
        self.params.head.as_ref().unwrap_or(&self.params.embedding)
    }
}

/// The gradient of every parameter, accumulated over micro-batches.
///
/// Where head and embedding are tied, their gradients are summed apart until [`Grads::finish`]: each is one chain over
/// the tokens in order, so cutting the batch into other micro-batches changes no bit. The chains would interleave otherwise.
#[derive(Debug)]
pub struct Grads {
    /// The gradients of what is trained; where tied, `embedding` lacks the head's until [`Grads::finish`].
    pub params: Params,
    /// The head's gradient where it is tied.
    tied_head: Option<Matrix>,
}

/// Where the gradient of a parameter accumulates; none if it is frozen.
pub(crate) fn trained(gradient: &mut Tensor) -> Option<ViewMut<'_>> {
    (gradient.bytes() > 0).then(|| gradient.view_mut())
}

fn trained_matrix(gradient: &mut Matrix) -> Option<&mut Matrix> {
    (gradient.rows() > 0).then_some(gradient)
}

impl Grads {
    /// All zero, for training every parameter. Booked under "gradients".
    pub fn zeros(memory: &Memory, config: &ModelConfig) -> Grads {
        Grads::trained(memory, config, None)
    }
    /// All zero, for training every parameter, or only the adapters where there are some. Booked under "gradients".
    pub fn trained(memory: &Memory, config: &ModelConfig, lora: Option<&LoraConfig>) -> Grads {
        let memory = memory.part("gradients");
        let (v, h) = (config.vocab_size, config.hidden_size);
        let tied = config.head_rows().is_none() && lora.is_none();
        Grads { params: Params::trained(&memory, config, lora), tied_head: tied.then(|| Matrix::zeros(&memory, v, h)) }
    }
    /// Forgets everything, before the first micro-batch of an update.
    pub fn zero(&mut self) {
        let head = self.tied_head.as_mut().map(Matrix::data_mut);
        for tensor in self.params.tensors_mut().into_iter().chain(head) {
            tensor.view_mut().fill(0.0);
        }
    }
    /// Where the gradient of the head accumulates; none if it is frozen.
    pub fn head_mut(&mut self) -> Option<&mut Matrix> {
        self.tied_head.as_mut().or(self.params.head.as_mut()).and_then(trained_matrix)
    }
    /// Where the gradient of the embedding `[V, H]` accumulates; none if it is frozen.
    pub fn embedding_mut(&mut self) -> Option<&mut Matrix> {
        trained_matrix(&mut self.params.embedding)
    }
    /// Adds what was kept apart. Once, after the last micro-batch of an update.
    pub fn finish(&mut self, ctx: &Context) -> Result<()> {
        let Some(head) = &mut self.tied_head else { return Ok(()) };
        // The sum runs over the elements as they lie: a panel is a row.
        let [panels, k, width] = *head.data().shape() else { unreachable!("panels") };
        let shape = [panels, k * width];
        let rows: Vec<u32> = (0..panels as u32).collect();
        let rows = Tensor::from_u32(ctx.memory(), &[panels], &rows);
        let (d_out, rows) = (head.data().view().reshape(&shape), rows.view());
        let d_x = self.params.embedding.data_mut().view_mut().reshape(&shape);
        rows::scatter_add(ctx, rows::ScatterAdd { d_out, rows, d_x })?;
        head.data_mut().view_mut().fill(0.0);
        Ok(())
    }
    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        self.params.tensors().iter().map(|t| t.bytes()).sum::<usize>()
            + self.tied_head.as_ref().map_or(0, |m| m.data().bytes())
    }
}

#[cfg(test)]
mod tests;
