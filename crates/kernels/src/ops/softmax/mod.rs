//! Masked softmax in one pass over a row: scale, mask, softmax. The unfused reference, against which attention is
//! tested, uses this op.
//!
//! Letters in shapes: `R` rows, `C` columns. Row r sees the columns `first[r]..end[r]` (a causal, sliding-window or
//! length mask).
//!
//! ```text
//! z[r,c]   = x[r,c] · scale
//! m[r]     = max_c z[r,c]
//! y[r,c]   = exp(z[r,c] − m[r]) / Σ_c exp(z[r,c] − m[r])     seen columns; 0 in others, and in a row that sees none
//!
//! d_x[r,c] = scale · y[r,c] · (d_y[r,c] − Σ_k d_y[r,k] · y[r,k])
//! ```
//! Masked columns are never read, and may contain anything.

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;

use crate::DType::{F32, U32};
use crate::device::Backend;
use crate::ops::args::{expect, expect_below, two_dims};
use crate::{Context, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Scores `[R, C]`.
    pub x: View<'a>,
    /// Factor on the scores.
    pub scale: f32,
    /// First column that each row sees: u32 `[R]`.
    pub first: View<'a>,
    /// End of the columns that each row sees: u32 `[R]`, at most C.
    pub end: View<'a>,
    /// Probabilities `[R, C]`: *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// Probabilities from the forward pass: `[R, C]`.
    pub y: View<'a>,
    /// Factor on the scores, as in the forward pass.
    pub scale: f32,
    /// First column that each row sees: u32 `[R]`.
    pub first: View<'a>,
    /// End of the columns that each row sees: u32 `[R]`, at most C.
    pub end: View<'a>,
    /// Gradient of the probabilities: `[R, C]`.
    pub d_y: View<'a>,
    /// Gradient of the scores: `[R, C]`, *overwrites*.
    pub d_x: ViewMut<'a>,
}

/// Computes the probabilities of each row.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "softmax::forward";
    let [r, c] = two_dims(OP, "x", args.x)?;
    expect(OP, "x", args.x, F32, &[r, c])?;
    expect(OP, "y", args.y.view(), F32, &[r, c])?;
    expect_mask(OP, args.first, args.end, r, c)?;
    crate::context::count(20 * (r * c) as u64, 8 * (r * c) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Computes the gradient of the scores.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "softmax::backward";
    let [r, c] = two_dims(OP, "y", args.y)?;
    expect(OP, "y", args.y, F32, &[r, c])?;
    expect(OP, "d_y", args.d_y, F32, &[r, c])?;
    expect(OP, "d_x", args.d_x.view(), F32, &[r, c])?;
    expect_mask(OP, args.first, args.end, r, c)?;
    crate::context::count(5 * (r * c) as u64, 12 * (r * c) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}

fn expect_mask(op: &'static str, first: View<'_>, end: View<'_>, rows: usize, columns: usize) -> Result<()> {
    expect(op, "first", first, U32, &[rows])?;
    expect(op, "end", end, U32, &[rows])?;
    expect_below(op, "end", end.indices(), columns + 1)
}

#[cfg(test)]
mod tests;
