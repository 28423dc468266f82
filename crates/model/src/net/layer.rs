//! One decoder layer: an attention part and an MLP part, each with its forward and its backward pass.
//!
//! ```text
//! x                           the layer's input, a residual stream     [T, H]
//! m  = x + attend(x)          `attend.rs`                              [T, H]
//! x' = m + mlp(m)             `mlp.rs`                                 [T, H]
//! ```
//!
//! The norm at the start of the next part adds a part's output (`delta`) to the residual stream; until then they are
//! two tensors. In the backward pass the gradient of the residual stream passes through each sum unchanged, and each
//! part adds its own gradient to it.
//!
//! Letters in the shapes of these files: T rows (tokens), H hidden size, F MLP width, nh query heads, nkv KV heads, hd
//! head dim.

use super::pass::{BackwardBuffers, Buffers, Input, Pass};
use super::{attend, mlp};
use crate::weights::Layer;
use kernels::{Result, Tensor, View};

/// The forward pass of decoder layer `layer`. It reads the input x (which it first computes if `input` requires it),
/// and writes the residual stream after attention to `saved.mid` and the MLP's output to `delta`.
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    input: Input<'_>,
    buffers: &mut Buffers<'_>,
    delta: &mut Tensor,
) -> Result<()> {
    attend::forward(pass, layer, w, input, buffers, delta)?;
    mlp::forward(pass, layer, w, buffers, delta)
}

/// The backward pass of [`forward`]. `b.d_x` contains the gradient of the layer's output x' and is overwritten with the
/// gradient of the layer's input x. Gradients of the weights accumulate into `g`. `groups: [G + 1]` contains the first
/// row of each of the G independent groups of the batch, followed by the number of rows.
pub(super) fn backward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    g: &mut Layer,
    buffers: &mut Buffers<'_>,
    groups: View<'_>,
    b: &mut BackwardBuffers,
) -> Result<()> {
    mlp::backward(pass, layer, w, g, buffers, groups, b)?;
    attend::backward(pass, layer, w, g, buffers, groups, b)
}
