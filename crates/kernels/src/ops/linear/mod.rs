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
//! instruction set: an element depends on its own row and the weights, never on the number of rows or threads. The
//! chains of `dW` continue the stored accumulator, so a batch may be cut between calls anywhere. `db` adds plainly, in
//! chunks of 64 rows of a segment, from its first: each from 0, then onto the stored accumulator, so that a batch may
//! be cut between segments.
//!
//! Numbers in bf16 are `x` and `W` in the forward pass, `W` and `d_y` for `d_x`, `x` and `d_y` for `d_W`: `d_y`, if it
//! is f32, is rounded for these matmuls (not for `d_b`) on every instruction set, and their chains take and leave
//! denormals as zeros. With AMX their formula is that of
//! `simd::tiles`, over terms in steps of 32 from the first; for `d_W` from the first row of each segment, so
//! that a batch may be cut between segments. On CUDA it is that of `device::cuda::tensor_core`, in steps of 16.

#[cfg(test)]
mod chain_tests;
mod cpu;
pub(crate) mod cuda;
pub mod reference;
#[cfg(test)]
mod tensor_core_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tiles_tests;

use super::args::{expect, expect_floats, expect_offsets, two_dims};
use crate::context::count_matmul;
use crate::device::Backend;
use crate::{Context, DType, Matrix, Result, View, ViewMut};

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
    /// `[M, N]`, f32, or bf16 if `w` is.
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
    /// `[M, N]`, f32, or bf16 if `x` is.
    pub d_y: View<'a>,
    /// `[N, K]`: *accumulates into*; the padding of the last panel is left alone.
    pub d_w: &'a mut Matrix,
    /// `[N]`: *accumulates into*.
    pub d_bias: Option<ViewMut<'a>>,
    /// u32 `[S + 1]`: the first row of each segment, and M at last; between segments a batch may be cut. None: one.
    pub segments: Option<View<'a>>,
}

/// `y = x Wᵀ + b`, or `y += …`.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "linear::forward";
    let Forward { x, w, bias, ref y, .. } = args;
    let [m, k] = two_dims(OP, "x", x)?;
    let n = w.rows();
    expect_floats(OP, "x", x, &[m, w.cols()])?;
    expect(OP, "y", y.view(), DType::F32, &[m, n])?;
    if let Some(bias) = bias {
        expect(OP, "bias", bias, DType::F32, &[n])?;
    }
    count_matmul(m, n, k, w.data().bytes());
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// `d_x = d_y W`, or `d_x += …`.
pub fn backward_input(ctx: &Context, args: BackwardInput<'_>) -> Result<()> {
    const OP: &str = "linear::backward_input";
    let BackwardInput { d_y, w, ref d_x, .. } = args;
    let [m, n] = two_dims(OP, "d_y", d_y)?;
    let k = w.cols();
    expect_gradient(OP, d_y, w.data().dtype(), &[m, w.rows()])?;
    expect(OP, "d_x", d_x.view(), DType::F32, &[m, k])?;
    count_matmul(m, n, k, w.data().bytes());
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward_input(cpu, args),
        Backend::Cuda(cuda) => cuda::backward_input(cuda, args)?,
    }
    Ok(())
}

/// `d_W += d_yᵀ x`, `d_b += Σ_m d_y`.
pub fn backward_weight(ctx: &Context, args: BackwardWeight<'_>) -> Result<()> {
    const OP: &str = "linear::backward_weight";
    let BackwardWeight { x, d_y, ref d_w, ref d_bias, segments } = args;
    let [m, k] = two_dims(OP, "x", x)?;
    let n = d_w.rows();
    expect_floats(OP, "x", x, &[m, d_w.cols()])?;
    expect_gradient(OP, d_y, x.dtype(), &[m, n])?;
    if let Some(d_bias) = d_bias {
        expect(OP, "d_bias", d_bias.view(), DType::F32, &[n])?;
    }
    if let Some(segments) = segments {
        expect_offsets(OP, "segments", segments, m)?;
    }
    count_matmul(m, n, k, 2 * d_w.data().bytes());
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward_weight(cpu, args),
        Backend::Cuda(cuda) => cuda::backward_weight(cuda, args)?,
    }
    Ok(())
}

/// That `d_y` is f32, or bf16 where the other operand is.
fn expect_gradient(op: &'static str, d_y: View<'_>, other: DType, shape: &[usize]) -> Result<()> {
    let dtype = if d_y.dtype() == DType::Bf16 && other == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    expect(op, "d_y", d_y, dtype, shape)
}
