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

use crate::{Context, Matrix, Result, View, ViewMut};

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
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}

/// The gradients of `x`, `A` and `B`.
pub fn backward(_ctx: &Context, _args: Backward<'_>) -> Result<()> {
    unimplemented!()
}
