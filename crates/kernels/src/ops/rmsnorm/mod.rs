//! RMS norm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019), fused with the residual addition before
//! it.
//!
//! Letters in shapes: `T` tokens, `H` hidden size.
//!
//! ```text
//! s[t,:]       = x[t,:] + delta[t,:]                       (s = x without a delta)
//! rstd[t]      = 1 / √(Σ_h s[t,h]² / H + eps)
//! y[t,h]       = w[h] · (s[t,h] · rstd[t])                 w = weight, or weight + offset
//!
//! g[t,h]       = d_y[t,h] · w[h]
//! c[t]         = Σ_h g[t,h] · s[t,h] · rstd[t]³ / H
//! d_x[t,h]    += g[t,h] · rstd[t] − c[t] · s[t,h]
//! d_weight[h] += Σ_t d_y[t,h] · (s[t,h] · rstd[t])         one chunk of tokens after the other
//! ```
//!
//! The gradient of the weight is summed in chunks of 64 tokens, counted from the first token of each segment; a
//! segment's last chunk may be shorter. The terms of a chunk are summed from 0 by fused multiply-adds in ascending
//! order of t, then added to d_weight, chunk by chunk. So a batch that is split between segments (the packed sequences)
//! into several calls gives the same bits.

pub(crate) mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;

use crate::device::Backend;
use crate::ops::args::{expect, expect_floats, expect_offsets, two_dims};
use crate::{Context, DType::F32, Error, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Input `[T, H]`.
    pub x: View<'a>,
    /// Output of a layer that is added to `x` before the norm: `[T, H]`.
    pub delta: Option<View<'a>>,
    /// The sum x + delta: `[T, H]`, *overwrites*. Set if and only if `delta` is set.
    pub sum: Option<ViewMut<'a>>,
    /// Weight of the norm: `[H]`.
    pub weight: View<'a>,
    /// Added to every weight: 0, or 1 in models that store weight − 1 (Gemma).
    pub offset: f32,
    /// Added to the mean square before the square root.
    pub eps: f32,
    /// Normalised output `[T, H]`, f32 or rounded to bf16: *overwrites*.
    pub y: ViewMut<'a>,
    /// Reciprocal root mean square of each row: `[T]`, *overwrites*.
    pub rstd: ViewMut<'a>,
}

/// Arguments of [`recompute`].
pub struct Recompute<'a> {
    /// The rows that were normalised (the sum, if there was a delta): `[T, H]`.
    pub x: View<'a>,
    /// Weight of the norm: `[H]`.
    pub weight: View<'a>,
    /// Added to every weight, as in [`Forward`].
    pub offset: f32,
    /// Reciprocal root mean squares from the forward pass: `[T]`.
    pub rstd: View<'a>,
    /// Normalised output `[T, H]`, f32 or rounded to bf16: *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// The rows that were normalised (the sum, if there was a delta): `[T, H]`.
    pub x: View<'a>,
    /// Weight of the norm: `[H]`.
    pub weight: View<'a>,
    /// Added to every weight, as in [`Forward`].
    pub offset: f32,
    /// Reciprocal root mean squares from the forward pass: `[T]`.
    pub rstd: View<'a>,
    /// Gradient of the output: `[T, H]`.
    pub d_y: View<'a>,
    /// Gradient of the input: `[T, H]`, *accumulates into*.
    pub d_x: ViewMut<'a>,
    /// Gradient of the weight: `[H]`, *accumulates into*. `None` if the weight is frozen.
    pub d_weight: Option<ViewMut<'a>>,
    /// First row of each of the S segments, then T: u32 `[S + 1]`. Splitting a batch between segments into several
    /// calls does not change a bit. `None` means one segment.
    pub segments: Option<View<'a>>,
}

/// Adds `delta` to `x` and normalises the sum.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "rmsnorm::forward";
    let [t, h] = two_dims(OP, "x", args.x)?;
    expect(OP, "x", args.x, F32, &[t, h])?;
    expect(OP, "weight", args.weight, F32, &[h])?;
    expect_floats(OP, "y", args.y.view(), &[t, h])?;
    expect(OP, "rstd", args.rstd.view(), F32, &[t])?;
    match (&args.delta, &args.sum) {
        (None, None) => {}
        (Some(delta), Some(sum)) => {
            expect(OP, "delta", *delta, F32, &[t, h])?;
            expect(OP, "sum", sum.view(), F32, &[t, h])?;
        }
        _ => return Err(Error::Value { op: OP, message: "sum and delta must be given together".into() }),
    }
    crate::context::count(4 * (t * h) as u64, 8 * (t * h) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Recomputes the `y` of [`forward`], with the same bits, for a backward pass that did not keep it.
pub fn recompute(ctx: &Context, args: Recompute<'_>) -> Result<()> {
    const OP: &str = "rmsnorm::recompute";
    let [t, h] = two_dims(OP, "x", args.x)?;
    expect(OP, "x", args.x, F32, &[t, h])?;
    expect(OP, "weight", args.weight, F32, &[h])?;
    expect(OP, "rstd", args.rstd, F32, &[t])?;
    expect_floats(OP, "y", args.y.view(), &[t, h])?;
    crate::context::count(2 * (t * h) as u64, 8 * (t * h) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::recompute(cpu, args),
        Backend::Cuda(cuda) => cuda::recompute(cuda, args)?,
    }
    Ok(())
}

/// Computes the gradients of the norm's input and weight.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "rmsnorm::backward";
    let [t, h] = two_dims(OP, "x", args.x)?;
    expect(OP, "x", args.x, F32, &[t, h])?;
    expect(OP, "weight", args.weight, F32, &[h])?;
    expect(OP, "rstd", args.rstd, F32, &[t])?;
    expect(OP, "d_y", args.d_y, F32, &[t, h])?;
    expect(OP, "d_x", args.d_x.view(), F32, &[t, h])?;
    if let Some(d_weight) = &args.d_weight {
        expect(OP, "d_weight", d_weight.view(), F32, &[h])?;
    }
    if let Some(segments) = args.segments {
        expect_offsets(OP, "segments", segments, t)?;
    }
    crate::context::count(10 * (t * h) as u64, 16 * (t * h) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
