//! Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): `y += s · (x Aᵀ) Bᵀ` in addition to the matmul of the base
//! weight.
//!
//! Letters in shapes: `M` rows (tokens), `K` inputs, `N` outputs; `s` is the scale (`alpha / r`). Matmuls with the same
//! input are fused (q, k and v), and each of the fused matmuls has a separate adapter, called a block. Block `i` is
//! `A_i: [r_i, K]` and `B_i: [N_i, r_i]`, and adds to the columns `first_i .. first_i + N_i` of `y`. Columns of `y`
//! outside all blocks do not change. The `A_i` are stacked into `A: [R, K]`, `R = Σ r_i`, so that `x` is read once.
//!
//! ```text
//! xa[m,j]          = s · Σ_k x[m,k] A[j,k]              the chain rounded to f32, then multiplied by s
//! y[m,first_i+n]  += Σ_j xa[m,j] B_i[n,j]               j over block i; continues the chain of the base matmul
//! dxa[m,j]         = s · Σ_n dy[m,first_i+n] B_i[n,j]
//! dB_i[n,j]       += Σ_m dy[m,first_i+n] xa[m,j]
//! dA[j,k]         += Σ_m dxa[m,j] x[m,k]
//! dx[m,k]         += Σ_j dxa[m,j] A[j,k]                all j, ascending
//! ```
//!
//! `xa` includes the scale, so `dB` needs no other factor. The backward pass recomputes `xa`, with the same bits, which
//! costs less than keeping it for every layer.
//!
//! With [`Dropout`], `xa` and `dA` of block `i` use `f_i[m,k] x[m,k]` in place of `x[m,k]`, where `f_i` is 0 or
//! `1/(1−p)`. The gradient of `x` becomes
//!
//! ```text
//! dx[m,k]         += f_i[m,k] · Σ_j dxa[m,j] A[j,k]     j over block i, from 0; then the next block
//! ```

mod cpu;
pub(super) mod cuda;
mod dropout;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

pub use dropout::Dropout;

use super::args::{expect, expect_floats, expect_shape, two_dims};
use crate::device::Backend;
use crate::{Context, DType, Matrix, Result, View, ViewMut};

/// A LoRA adapter, read-only.
#[derive(Clone, Copy)]
pub struct Adapter<'a> {
    /// The stacked `A_i`: `[R, K]`.
    pub a: &'a Matrix,
    /// `B_i` of each block: `[N_i, r_i]`.
    pub b: &'a [Matrix],
    /// First column of each block in `y`: `first_i`.
    pub first: &'a [usize],
    /// The scale `s = alpha / r`.
    pub scale: f32,
}

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Input of the layer: `[M, K]`.
    pub x: View<'a>,
    /// The adapter that is applied.
    pub adapter: Adapter<'a>,
    /// Dropout of the adapter's input; `None` for no dropout.
    pub dropout: Option<Dropout<'a>>,
    /// Output of the base matmul: `[M, N]`, *accumulates into*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// Input of the forward pass: `[M, K]`.
    pub x: View<'a>,
    /// The adapter of the forward pass.
    pub adapter: Adapter<'a>,
    /// The same dropout as in [`forward`].
    pub dropout: Option<Dropout<'a>>,
    /// Gradient of the output: `[M, N]`.
    pub d_y: View<'a>,
    /// Gradient of the input: `[M, K]`, *accumulates into*.
    pub d_x: ViewMut<'a>,
    /// Gradient of the stacked `A_i`: `[R, K]`, *accumulates into*.
    pub d_a: &'a mut Matrix,
    /// Gradient of each `B_i`: `[N_i, r_i]`, *accumulates into*.
    pub d_b: &'a mut [Matrix],
}

impl Adapter<'_> {
    /// Checks that the adapter's shapes are consistent, and fit `k` inputs and `n` outputs. Returns R, the sum of the
    /// ranks.
    fn check(&self, op: &'static str, k: usize, n: usize) -> Result<usize> {
        let rank = self.b.iter().map(Matrix::cols).sum();
        expect_shape(op, "a", &[self.a.rows(), self.a.cols()], &[rank, k])?;
        expect_shape(op, "first", &[self.first.len()], &[self.b.len()])?;
        for (b, &first) in self.b.iter().zip(self.first) {
            expect_shape(op, "b (its last row)", &[n.max(first + b.rows())], &[n])?;
        }
        Ok(rank)
    }
}

/// Forward pass: `y += s · (x Aᵀ) Bᵀ`. Memory in addition to the outputs: `xa`.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "lora::forward";
    let Forward { x, adapter, dropout, ref y } = args;
    let ([m, k], [_, n]) = (two_dims(OP, "x", x)?, two_dims(OP, "y", y.view())?);
    let rank = adapter.check(OP, k, n)?;
    expect_floats(OP, "x", x, &[m, k])?;
    expect(OP, "y", y.view(), DType::F32, &[m, n])?;
    dropout.as_ref().map_or(Ok(()), |dropout| dropout.check(OP, m))?;
    if m == 0 || rank == 0 {
        return Ok(());
    }
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Backward pass: accumulates the gradients of `x`, `A` and the `B_i`. Memory in addition to the outputs: `xa` and
/// `dxa`.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "lora::backward";
    let Backward { x, adapter, dropout, d_y, ref d_x, ref d_a, ref d_b } = args;
    let ([m, k], [_, n]) = (two_dims(OP, "x", x)?, two_dims(OP, "d_y", d_y)?);
    let rank = adapter.check(OP, k, n)?;
    expect_floats(OP, "x", x, &[m, k])?;
    expect(OP, "d_y", d_y, DType::F32, &[m, n])?;
    expect(OP, "d_x", d_x.view(), DType::F32, &[m, k])?;
    expect_shape(OP, "d_a", &[d_a.rows(), d_a.cols()], &[rank, k])?;
    expect_shape(OP, "d_b", &[d_b.len()], &[adapter.b.len()])?;
    for (d_b, b) in d_b.iter().zip(adapter.b) {
        expect_shape(OP, "d_b", &[d_b.rows(), d_b.cols()], &[b.rows(), b.cols()])?;
    }
    dropout.as_ref().map_or(Ok(()), |dropout| dropout.check(OP, m))?;
    if m == 0 || rank == 0 {
        return Ok(());
    }
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}
