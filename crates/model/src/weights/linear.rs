//! Linear layers: the weight, the bias, and the matmuls of the forward and backward pass.

use super::low_rank::LowRank;
use super::trained;
use super::view::LowRankRows;
use kernels::ops::{glu, linear, lora};
use kernels::{Context, Error, Matrix, Result, Tensor, View, ViewMut};

/// A linear layer: its weight, bias and adapters, and how its matmuls are computed.
///
/// Adapters and quantised weights are implemented inside this type: a decoder layer decides *what* is multiplied, this
/// type *how*. This type adds the low-rank matmuls of adapters. A frozen matrix has no elements in the gradients; it is
/// read only in the forward pass and for the gradient of the input.
#[derive(Debug)]
pub struct Linear {
    /// Weight `[outputs, inputs]`.
    pub matrix: Matrix,
    /// Bias `[outputs]`.
    pub bias: Option<Tensor>,
    /// LoRA matrices of this layer. Present in the parameters of an adapter, and in the gradients and optimizer moments
    /// of an adapter.
    pub low_rank: Option<LowRank>,
}

/// The input of a linear layer in the forward pass, as its backward pass needs it.
#[derive(Clone, Copy)]
pub(crate) struct SavedInput<'a> {
    /// The layer's input `[rows, inputs]`.
    pub x: View<'a>,
    /// The adapters of these rows.
    pub low_rank: LowRankRows<'a>,
    /// First row of each of the G independent groups of the batch, followed by the number of rows `[G + 1]`. A batch
    /// may be split between groups.
    pub groups: View<'a>,
}

impl Linear {
    /// Forward: y = x Wᵀ + b, then y += s · (x Aᵀ) Bᵀ for the rows that have an adapter. `x` is `[rows, inputs]`;
    /// `y: [rows, outputs]` is overwritten.
    ///
    /// The adapter's term is added after the bias, in PEFT's order, so that an adapter whose B is 0 does not change a
    /// bit. With dropout some inputs of A are zeroed.
    pub(crate) fn forward(
        &self,
        ctx: &Context,
        x: View<'_>,
        low_rank: LowRankRows<'_>,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        let bias = self.bias.as_ref().map(Tensor::view);
        linear::forward(ctx, linear::Forward { x, w: &self.matrix, bias, y: y.reborrow(), accumulate: false })?;
        low_rank.each(x.shape()[0], |rows, adapter, dropout| {
            let (x, y) = (x.rows(rows.clone()), y.reborrow().rows(rows));
            lora::forward(ctx, lora::Forward { x, adapter: adapter.args(), dropout, y })
        })
    }

    /// Whether [`forward_gated`](Self::forward_gated) is available and faster than [`forward`](Self::forward) followed
    /// by the activation. It must not be used with an adapter, which adds to gate and up in f32.
    pub(crate) fn can_fuse_gates(&self, ctx: &Context) -> bool {
        ctx.fuses_gates(&self.matrix)
    }

    /// For the fused weight of gate and up: y = f(x Wgateᵀ) ⊙ x Wupᵀ. `y: [rows, outputs / 2]` is overwritten. `kept:
    /// [rows, outputs]` receives the values that the backward pass needs.
    pub(crate) fn forward_gated(
        &self,
        ctx: &Context,
        activation: glu::Activation,
        x: View<'_>,
        kept: Option<ViewMut<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let bias = self.bias.as_ref().map(Tensor::view);
        glu::fused(ctx, glu::Fused { activation, x, w: &self.matrix, bias, kept, y })
    }

    /// Backward: the gradient of the input dX = dY W + s · (dY B) A overwrites `d_x: [rows, inputs]`. The gradients of
    /// weight (dYᵀ X), bias (Σ dY) and adapter accumulate into `grad`. Frozen parameters have no elements in `grad`,
    /// and their gradients are not computed.
    pub(crate) fn backward(
        &self,
        ctx: &Context,
        input: SavedInput<'_>,
        d_y: View<'_>,
        mut d_x: ViewMut<'_>,
        grad: &mut Linear,
    ) -> Result<()> {
        let SavedInput { x, low_rank, groups } = input;
        self.backward_weight(ctx, x, d_y, groups, grad)?;
        self.backward_input(ctx, d_y, d_x.reborrow())?;
        low_rank.each(x.shape()[0], |rows, adapter, dropout| {
            let Some(LowRank { a: d_a, b: d_b, .. }) = &mut grad.low_rank else {
                let message = "weights and gradients must belong to the same adapter".into();
                return Err(Error::Value { op: "backward", message });
            };
            let (x, d_y, d_x) = (x.rows(rows.clone()), d_y.rows(rows.clone()), d_x.reborrow().rows(rows));
            lora::backward(ctx, lora::Backward { x, adapter: adapter.args(), dropout, d_y, d_x, d_a, d_b })
        })
    }

    /// The part of [`backward`](Self::backward) that computes the gradient of the input: dX = dY W.
    pub(crate) fn backward_input(&self, ctx: &Context, d_y: View<'_>, d_x: ViewMut<'_>) -> Result<()> {
        linear::backward_input(ctx, linear::BackwardInput { d_y, w: &self.matrix, d_x, accumulate: false })
    }

    /// The part of [`backward`](Self::backward) for weight and bias: dW += dYᵀ X, db += Σ dY over the rows, unless they
    /// are frozen.
    pub(crate) fn backward_weight(
        &self,
        ctx: &Context,
        x: View<'_>,
        d_y: View<'_>,
        groups: View<'_>,
        grad: &mut Linear,
    ) -> Result<()> {
        if grad.matrix.data().bytes() == 0 {
            return Ok(());
        }
        let d_bias = grad.bias.as_mut().and_then(trained);
        let (d_w, segments) = (&mut grad.matrix, Some(groups));
        linear::backward_weight(ctx, linear::BackwardWeight { x, d_y, d_w, d_bias, segments })
    }
}
