//! Low-rank adapter (LoRA, Hu et al., arXiv 2106.09685): `y += s · (x Aᵀ) Bᵀ`.
//!
//! Shapes: `M` rows (tokens), `K` inputs, `N` outputs, `r` rank; `A: [r, K]`, `B: [N, r]`, `s` the scale (`alpha / r`).
//!
//! ```text
//! xa[m,j]  = s · Σ_k x[m,k] A[j,k]          the chain rounded to f32, then multiplied by s
//! y[m,n]  += Σ_j xa[m,j] B[n,j]             continues the chain of the base product
//! dxa[m,j] = s · Σ_n dy[m,n] B[n,j]
//! dB[n,j] += Σ_m dy[m,n] xa[m,j]
//! dA[j,k] += Σ_m dxa[m,j] x[m,k]
//! dx[m,k] += Σ_j dxa[m,j] A[j,k]
//! ```
//!
//! The saved `xa` carries the scale, so `dB` needs no other factor.

mod cpu;
pub mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_shape, two_dims};
use super::linear;
use crate::{Context, DType, Matrix, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[M, K]`
    pub x: View<'a>,
    /// `[r, K]`
    pub a: &'a Matrix,
    /// `[N, r]`
    pub b: &'a Matrix,
    /// `s`
    pub scale: f32,
    /// `[M, r]`: *overwrites* with `s · x Aᵀ`, which the backward takes.
    pub xa: ViewMut<'a>,
    /// `[M, N]`: *accumulates into*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[M, K]`
    pub x: View<'a>,
    /// `[r, K]`
    pub a: &'a Matrix,
    /// `[N, r]`
    pub b: &'a Matrix,
    /// `s`
    pub scale: f32,
    /// `[M, r]`, as the forward left it.
    pub xa: View<'a>,
    /// `[M, N]`
    pub d_y: View<'a>,
    /// `[M, r]`: *overwrites* with `s · dy B` (workspace).
    pub d_xa: ViewMut<'a>,
    /// `[M, K]`: *accumulates into*.
    pub d_x: ViewMut<'a>,
    /// `[r, K]`: *accumulates into*.
    pub d_a: &'a mut Matrix,
    /// `[N, r]`: *accumulates into*.
    pub d_b: &'a mut Matrix,
}

/// `y += s · (x Aᵀ) Bᵀ`
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "lora::forward";
    let Forward { x, a, b, scale, mut xa, y } = args;
    let [m, k] = two_dims(OP, "x", x)?;
    let (n, r) = (b.rows(), a.rows());
    expect(OP, "x", x, DType::F32, &[m, k])?;
    expect_shape(OP, "a", &[r, a.cols()], &[r, k])?;
    expect_shape(OP, "b", &[n, b.cols()], &[n, r])?;
    expect(OP, "xa", xa.view(), DType::F32, &[m, r])?;
    expect(OP, "y", y.view(), DType::F32, &[m, n])?;
    linear::forward(ctx, linear::Forward { x, w: a, bias: None, y: xa.reborrow(), accumulate: false })?;
    cpu::scale(ctx, xa.reborrow().f32(), scale);
    linear::forward(ctx, linear::Forward { x: xa.view(), w: b, bias: None, y, accumulate: true })
}

/// The gradients of `x`, `A` and `B`.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "lora::backward";
    let Backward { x, a, b, scale, xa, d_y, mut d_xa, d_x, d_a, d_b } = args;
    let [m, k] = two_dims(OP, "x", x)?;
    let (n, r) = (b.rows(), a.rows());
    expect(OP, "x", x, DType::F32, &[m, k])?;
    expect_shape(OP, "a", &[r, a.cols()], &[r, k])?;
    expect_shape(OP, "b", &[n, b.cols()], &[n, r])?;
    expect_shape(OP, "d_a", &[d_a.rows(), d_a.cols()], &[r, k])?;
    expect_shape(OP, "d_b", &[d_b.rows(), d_b.cols()], &[n, r])?;
    for (what, view, shape) in
        [("xa", xa, [m, r]), ("d_y", d_y, [m, n]), ("d_xa", d_xa.view(), [m, r]), ("d_x", d_x.view(), [m, k])]
    {
        expect(OP, what, view, DType::F32, &shape)?;
    }
    linear::backward_input(ctx, linear::BackwardInput { d_y, w: b, d_x: d_xa.reborrow(), accumulate: false })?;
    cpu::scale(ctx, d_xa.reborrow().f32(), scale);
    linear::backward_weight(ctx, linear::BackwardWeight { x: xa, d_y, d_w: d_b, d_bias: None })?;
    linear::backward_weight(ctx, linear::BackwardWeight { x, d_y: d_xa.view(), d_w: d_a, d_bias: None })?;
    linear::backward_input(ctx, linear::BackwardInput { d_y: d_xa.view(), w: a, d_x, accumulate: true })
}
