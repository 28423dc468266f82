//! A linear layer's weight, and how its matmul is computed.

use super::lora::LoraConfig;
use super::spec::Part;
use super::trained;
use super::view::LowRankRows;
use kernels::ops::{glu, linear, lora};
use kernels::{Context, Error, Matrix, Memory, Result, Tensor, View, ViewMut};

/// A linear layer's weight, and how its matmul is computed.
///
/// This is the seam for adapters and quantised weights: a layer's code says *what* is multiplied, this type *how*.
/// The low-rank matmuls of adapters are added here, and a frozen matrix, which has no elements among the gradients,
/// is read in the forward matmul and in that of d_x alone.
#[derive(Debug)]
pub struct Linear {
    /// `[N, K]`
    pub matrix: Matrix,
    /// `[N]`
    pub bias: Option<Tensor>,
    /// Low-rank additions to some of its rows: in the tree of an adapter, and in those of its gradients and moments.
    pub low_rank: Option<LowRank>,
}

/// Low-rank additions to rows of a fused matrix: block i adds `s · B_i A_i` to the rows from `first[i]`.
#[derive(Debug)]
pub struct LowRank {
    /// The `A_i`, one below the other: `[Σ r, K]`.
    pub a: Matrix,
    /// The `B_i: [N_i, r]`.
    pub b: Vec<Matrix>,
    /// The first row of each block.
    pub first: Vec<usize>,
    /// `s`
    pub scale: f32,
}

impl LowRank {
    /// Zeros for these parts of a matrix; none if there are none.
    pub(super) fn zeros(memory: &Memory, lora: &LoraConfig, parts: &[Part]) -> Option<LowRank> {
        let cols = parts.first()?.shape[1];
        let b = parts.iter().map(|p| Matrix::zeros(memory, p.rows.len(), lora.r));
        Some(LowRank {
            a: Matrix::zeros(memory, parts.len() * lora.r, cols),
            b: b.collect(),
            first: parts.iter().map(|p| p.rows.start).collect(),
            scale: lora.scale(),
        })
    }
    fn args(&self) -> lora::Adapter<'_> {
        lora::Adapter { a: &self.a, b: &self.b, first: &self.first, scale: self.scale }
    }
}

/// What a layer was given in the forward pass.
#[derive(Clone, Copy)]
pub(crate) struct SavedInput<'a> {
    /// `[T, K]`
    pub x: View<'a>,
    /// What adapters add for these rows.
    pub low_rank: LowRankRows<'a>,
    /// `[G + 1]`: the first rows of independent groups, between which a batch may be cut.
    pub groups: View<'a>,
}

impl Linear {
    /// y = x Wᵀ + b, then y += s · (x Aᵀ) Bᵀ for the rows that have an adapter: `x: [T, K]`, `y: [T, N]` overwrites.
    ///
    /// The adapter continues what the layer would give without it, bias included (PEFT's order), so that an adapter
    /// whose B is 0 changes no bit. With dropout the adapter does not see all of `x`.
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

    /// Whether [`forward_gated`](Self::forward_gated) does what [`forward`](Self::forward) does, and faster. Not
    /// with an adapter, which adds to gate and up in f32.
    pub(crate) fn can_fuse_gates(&self, ctx: &Context) -> bool {
        ctx.fuses_gates(&self.matrix)
    }

    /// Of gate and up, one below the other: y = f(x Wgateᵀ) ⊙ x Wupᵀ (`y: [T, N/2]` overwrites), and in `kept: [T,
    /// N]` what the backward pass of that needs.
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

    /// dX = dY W + s · (dY B) A (`d_x: [T, K]` overwrites); dW += dYᵀ X, db += Σₜ dY, and the adapter's (accumulate
    /// into `grad`). Of what is frozen, which has no elements in `grad`, no gradient is computed.
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
                let message = "weights and gradients are not of the same adapter".into();
                return Err(Error::Value { op: "backward", message });
            };
            let (x, d_y, d_x) = (x.rows(rows.clone()), d_y.rows(rows.clone()), d_x.reborrow().rows(rows));
            lora::backward(ctx, lora::Backward { x, adapter: adapter.args(), dropout, d_y, d_x, d_a, d_b })
        })
    }

    /// The half of [`backward`](Self::backward) that gives the input's gradient: dX = dY W.
    pub(crate) fn backward_input(&self, ctx: &Context, d_y: View<'_>, d_x: ViewMut<'_>) -> Result<()> {
        linear::backward_input(ctx, linear::BackwardInput { d_y, w: &self.matrix, d_x, accumulate: false })
    }

    /// The half of [`backward`](Self::backward) for weight and bias: dW += dYᵀ X, db += Σₜ dY, unless they are frozen.
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
