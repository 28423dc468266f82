//! Linear layer: `y = x Wᵀ + b`.
//!
//! Shapes: `M` rows (tokens), `K` inputs, `N` outputs; `x: [M, K]`, `W: [N, K]`, `b: [N]`, `y: [M, N]`.
//!
//! ```text
//! y[m,n]   = Σ_k x[m,k] W[n,k] + b[n]
//! dx[m,k]  = Σ_n dy[m,n] W[n,k]
//! dW[n,k] += Σ_m dy[m,n] x[m,k]
//! db[n]   += Σ_m dy[m,n]
//! ```
//!
//! Every sum is one ascending chain of fused multiply-adds per element, from 0 or from what the output held, on every
//! instruction set: an element depends on its own row and the weights, never on the number of rows or threads. The sums
//! over rows continue the stored accumulator, so a batch may be cut between calls anywhere.

use crate::{Context, Matrix, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[M, K]`
    pub x: View<'a>,
    /// `[N, K]`
    pub w: &'a Matrix,
    /// `[N]`, added last.
    pub bias: Option<View<'a>>,
    /// `[M, N]`: *overwrites*, or continues it if `accumulate`.
    pub y: ViewMut<'a>,
    /// Whether each chain starts from what `y` holds instead of 0.
    pub accumulate: bool,
}

/// Arguments of [`backward_input`].
pub struct BackwardInput<'a> {
    /// `[M, N]`
    pub d_y: View<'a>,
    /// `[N, K]`
    pub w: &'a Matrix,
    /// `[M, K]`: *overwrites*, or continues it if `accumulate`.
    pub d_x: ViewMut<'a>,
    /// Whether each chain starts from what `d_x` holds instead of 0.
    pub accumulate: bool,
}

/// Arguments of [`backward_weight`].
pub struct BackwardWeight<'a> {
    /// `[M, K]`
    pub x: View<'a>,
    /// `[M, N]`
    pub d_y: View<'a>,
    /// `[N, K]`: *accumulates into*; the padding of the last panel is left alone.
    pub d_w: &'a mut Matrix,
    /// `[N]`: *accumulates into*.
    pub d_bias: Option<ViewMut<'a>>,
}

/// `y = x Wᵀ + b`, or `y += …`.
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}

/// `d_x = d_y W`, or `d_x += …`.
pub fn backward_input(_ctx: &Context, _args: BackwardInput<'_>) -> Result<()> {
    unimplemented!()
}

/// `d_W += d_yᵀ x`, `d_b += Σ_m d_y`.
pub fn backward_weight(_ctx: &Context, _args: BackwardWeight<'_>) -> Result<()> {
    unimplemented!()
}
