//! Linear layer `y = x Wᵀ + b`: forward pass, and gradients of input, weight and bias.
//!
//! Letters in shapes: `M` rows (tokens), `K` inputs, `N` outputs; `x: [M, K]`, `W: [N, K]`, `b: [N]`, `y: [M, N]`.
//!
//! ```text
//! y[m,n]   = Σ_k x[m,k] W[n,k] + b[n]
//! dx[m,k]  = Σ_n dy[m,n] W[n,k]
//! dW[n,k] += Σ_m dy[m,n] x[m,k]
//! db[n]   += Σ_m dy[m,n]
//! ```
//!
//! Each element of `y`, `dx` and `dW` is one chain: a single accumulator with fused multiply-adds in ascending order,
//! starting from 0 or from the previous contents of the output. This holds on every instruction set, so an element
//! depends only on its own row and the weights, and not on the number of rows or threads. The chains of `dW` continue
//! from the stored gradient, so a batch may be cut anywhere into several calls. `db` is summed by plain additions, in
//! chunks of 64 rows counted from the first row of each segment. Each chunk is summed from 0 and then added to the
//! stored gradient, so a batch may be cut between segments.
//!
//! These matmuls multiply in bf16 if both operands are bf16: `x` and `W` in the forward pass, `d_y` and `W` for `d_x`,
//! `d_y` and `x` for `d_W`. A `d_y` stored in f32 is rounded to bf16 for these matmuls (not for `d_b`), on every
//! instruction set, and their chains flush denormal numbers to 0. On AMX, sums follow `simd::tiles`: steps of 32 terms,
//! counted from the first term, for `d_W` from the first row of each segment. So a batch may be cut between segments.
//! On CUDA, sums follow `device::cuda::tensor_core`, in steps of 16 terms.

#[cfg(test)]
mod chain_tests;
mod cpu;
pub(crate) mod cuda;
#[cfg(test)]
pub(crate) mod reference;
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
    /// Input `[M, K]`, f32 or bf16.
    pub x: View<'a>,
    /// Weight `[N, K]`.
    pub w: &'a Matrix,
    /// Bias `[N]`, added to each finished sum.
    pub bias: Option<View<'a>>,
    /// Output `[M, N]`: *overwrites*, or adds to it if `accumulate`.
    pub y: ViewMut<'a>,
    /// Whether each sum starts from the contents of `y` instead of 0.
    pub accumulate: bool,
}

/// Arguments of [`backward_input`].
pub struct BackwardInput<'a> {
    /// Gradient of the output: `[M, N]`, f32, or bf16 if `w` is bf16.
    pub d_y: View<'a>,
    /// Weight `[N, K]`.
    pub w: &'a Matrix,
    /// Gradient of the input: `[M, K]`, *overwrites*, or adds to it if `accumulate`.
    pub d_x: ViewMut<'a>,
    /// Whether each sum starts from the contents of `d_x` instead of 0.
    pub accumulate: bool,
}

/// Arguments of [`backward_weight`].
pub struct BackwardWeight<'a> {
    /// Input of the forward pass: `[M, K]`.
    pub x: View<'a>,
    /// Gradient of the output: `[M, N]`, f32, or bf16 if `x` is bf16.
    pub d_y: View<'a>,
    /// Gradient of the weight: `[N, K]`, *accumulates into*. The padding of the last panel is not changed.
    pub d_w: &'a mut Matrix,
    /// Gradient of the bias: `[N]`, *accumulates into*.
    pub d_bias: Option<ViewMut<'a>>,
    /// First row of each of the S segments, followed by M: u32 `[S + 1]`. Splitting a batch between segments into
    /// several calls does not change a bit. `None` means one segment.
    pub segments: Option<View<'a>>,
}

/// Forward pass: `y = x Wᵀ + b`, or `y += x Wᵀ + b`.
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

/// Gradient of the input: `d_x = d_y W`, or `d_x += d_y W`.
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

/// Gradients of weight and bias: `d_W += d_yᵀ x`, `d_b += Σ_m d_y`.
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

/// Checks the shape of `d_y`, and that it is f32, or bf16 if the other operand of its matmul is bf16.
fn expect_gradient(op: &'static str, d_y: View<'_>, other: DType, shape: &[usize]) -> Result<()> {
    let dtype = if d_y.dtype() == DType::Bf16 && other == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    expect(op, "d_y", d_y, dtype, shape)
}
