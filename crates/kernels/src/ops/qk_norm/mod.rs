//! RMS norm of each query head and each key head (Qwen3), on the fused qkv rows. Value heads are copied.
//!
//! Shapes: `T` tokens, `nh` query heads, `nkv` kv heads, `hd` head_dim, `A = nh + 2·nkv` heads of a row `[q][k][v]`.
//!
//! For head `a < nh + nkv`, with weight w = q_weight (a < nh) or k_weight:
//! ```text
//! rstd[t,a]   = 1 / √(Σ_i x[t,a,i]² / hd + eps)
//! y[t,a,i]    = w[i] · (x[t,a,i] · rstd[t,a])
//!
//! d_x         = as in `rmsnorm`, per head
//! d_w[i]     += Σ_{t, a} d_y[t,a,i] · (x[t,a,i] · rstd[t,a])        in `rmsnorm`'s chunks of tokens; in one, ascending t, then a
//! ```

mod cpu;
pub mod reference;

use crate::device::Backend;
use crate::ops::args::{expect, expect_offsets, two_dims};
use crate::{Context, DType::F32, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[T, A·hd]`
    pub x: View<'a>,
    /// Query heads, nh.
    pub heads: usize,
    /// Key (and value) heads, nkv.
    pub kv_heads: usize,
    /// hd
    pub head_dim: usize,
    /// `[hd]`
    pub q_weight: View<'a>,
    /// `[hd]`
    pub k_weight: View<'a>,
    /// Added to the mean square.
    pub eps: f32,
    /// `[T, A·hd]`: *overwrites*.
    pub y: ViewMut<'a>,
    /// `[T, nh + nkv]`: *overwrites* with the reciprocal root mean squares.
    pub rstd: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[T, A·hd]`: forward's input.
    pub x: View<'a>,
    /// Query heads, nh.
    pub heads: usize,
    /// Key (and value) heads, nkv.
    pub kv_heads: usize,
    /// hd
    pub head_dim: usize,
    /// `[hd]`
    pub q_weight: View<'a>,
    /// `[hd]`
    pub k_weight: View<'a>,
    /// `[T, nh + nkv]`, from forward.
    pub rstd: View<'a>,
    /// `[T, A·hd]`
    pub d_y: View<'a>,
    /// `[T, A·hd]`: *overwrites*.
    pub d_x: ViewMut<'a>,
    /// Of the query's and of the key's weight, `[hd]` each: *accumulates into*; none where they are frozen.
    pub d_weights: Option<(ViewMut<'a>, ViewMut<'a>)>,
    /// u32 `[S + 1]`: the first row of each segment, and T at last; between segments a batch may be cut. None: one.
    pub segments: Option<View<'a>>,
}

/// Normalises query and key heads, copies value heads.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "qk_norm::forward";
    let t = two_dims(OP, "x", args.x)?[0];
    let (normed, width) = (args.heads + args.kv_heads, (args.heads + 2 * args.kv_heads) * args.head_dim);
    expect(OP, "x", args.x, F32, &[t, width])?;
    expect(OP, "q_weight", args.q_weight, F32, &[args.head_dim])?;
    expect(OP, "k_weight", args.k_weight, F32, &[args.head_dim])?;
    expect(OP, "y", args.y.view(), F32, &[t, width])?;
    expect(OP, "rstd", args.rstd.view(), F32, &[t, normed])?;
    crate::context::count(4 * (t * normed * args.head_dim) as u64, 8 * (t * width) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
    }
    Ok(())
}

/// Gradients of the heads and of both weights.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "qk_norm::backward";
    let t = two_dims(OP, "x", args.x)?[0];
    let (normed, width) = (args.heads + args.kv_heads, (args.heads + 2 * args.kv_heads) * args.head_dim);
    expect(OP, "x", args.x, F32, &[t, width])?;
    expect(OP, "q_weight", args.q_weight, F32, &[args.head_dim])?;
    expect(OP, "k_weight", args.k_weight, F32, &[args.head_dim])?;
    expect(OP, "rstd", args.rstd, F32, &[t, normed])?;
    expect(OP, "d_y", args.d_y, F32, &[t, width])?;
    expect(OP, "d_x", args.d_x.view(), F32, &[t, width])?;
    if let Some((d_q_weight, d_k_weight)) = &args.d_weights {
        expect(OP, "d_q_weight", d_q_weight.view(), F32, &[args.head_dim])?;
        expect(OP, "d_k_weight", d_k_weight.view(), F32, &[args.head_dim])?;
    }
    if let Some(segments) = args.segments {
        expect_offsets(OP, "segments", segments, t)?;
    }
    crate::context::count(10 * (t * normed * args.head_dim) as u64, 12 * (t * width) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
