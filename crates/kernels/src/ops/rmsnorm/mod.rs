//! RMS norm, with the residual addition before it fused in (Zhang and Sennrich, "Root Mean Square Layer Normalization",
//! 2019).
//!
//! Shapes: `T` tokens, `H` hidden.
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
//! A chunk is 64 tokens of a segment, from the segment's first; the last has fewer. Its terms are one chain of fused
//! multiply-adds, ascending t, from 0, and what it gives is added to d_weight: ascending chunks, so that a batch may be
//! cut between segments.

pub(crate) mod cpu;
mod cuda;
pub mod reference;

use crate::device::Backend;
use crate::ops::args::{expect, expect_floats, expect_offsets, two_dims};
use crate::{Context, DType::F32, Error, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[T, H]`
    pub x: View<'a>,
    /// `[T, H]`, added to `x` first.
    pub delta: Option<View<'a>>,
    /// `[T, H]`: *overwrites* with x + delta; given exactly if `delta` is.
    pub sum: Option<ViewMut<'a>>,
    /// `[H]`
    pub weight: View<'a>,
    /// Added to every weight: 0, or 1 where a weight of 0 changes nothing (Gemma).
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// `[T, H]`, f32 or bf16 (rounded): *overwrites*.
    pub y: ViewMut<'a>,
    /// `[T]`: *overwrites* with the reciprocal root mean square.
    pub rstd: ViewMut<'a>,
}

/// Arguments of [`recompute`].
pub struct Recompute<'a> {
    /// `[T, H]`: what was normalised (the sum, if there was a delta).
    pub x: View<'a>,
    /// `[H]`
    pub weight: View<'a>,
    /// As in [`Forward`].
    pub offset: f32,
    /// `[T]`, from forward.
    pub rstd: View<'a>,
    /// `[T, H]`, f32 or bf16 (rounded): *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[T, H]`: what was normalised (the sum, if there was a delta).
    pub x: View<'a>,
    /// `[H]`
    pub weight: View<'a>,
    /// As in [`Forward`].
    pub offset: f32,
    /// `[T]`, from forward.
    pub rstd: View<'a>,
    /// `[T, H]`
    pub d_y: View<'a>,
    /// `[T, H]`: *accumulates into*.
    pub d_x: ViewMut<'a>,
    /// `[H]`: *accumulates into*; none where the weight is frozen.
    pub d_weight: Option<ViewMut<'a>>,
    /// u32 `[S + 1]`: the first row of each segment, and T at last; between segments a batch may be cut. None: one.
    pub segments: Option<View<'a>>,
}

/// Adds and normalises.
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
        _ => return Err(Error::Value { op: OP, message: "sum is given exactly if delta is".into() }),
    }
    crate::context::count(4 * (t * h) as u64, 8 * (t * h) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// What [`forward`] wrote to `y`, to the same bits: for a backward pass that did not keep it.
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

/// Gradients of the norm's input and weight.
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
