//! QK norm: RMS norm of each query head and each key head (Qwen 3, Gemma 3), or of all query heads together and all key
//! heads together (OLMo 2). The input is fused rows of queries, keys and values; values are copied.
//!
//! Letters in shapes: `T` tokens, `nh` query heads, `nkv` kv heads, `hd` head_dim, `A = nh + 2·nkv` heads of a row
//! `[q][k][v]`.
//!
//! For each head `a < nh + nkv`, w is q_weight (if a < nh) or k_weight, plus `offset`:
//! ```text
//! rstd[t,a]   = 1 / √(Σ_i x[t,a,i]² / hd + eps)
//! y[t,a,i]    = w[i] · (x[t,a,i] · rstd[t,a])
//!
//! d_x         = as in `rmsnorm`, per head
//! d_w[i]     += Σ_{t, a} d_y[t,a,i] · (x[t,a,i] · rstd[t,a])    in `rmsnorm`'s chunks of tokens; ascending t, then a
//! ```
//!
//! If the weights have nh·hd and nkv·hd elements, one norm spans all heads: nh is then 1 with a width of nh·hd, and nkv
//! is 1 with a width of nkv·hd.

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;

use crate::device::Backend;
use crate::ops::args::{expect, expect_offsets, two_dims};
use crate::{Context, DType::F32, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Fused rows of queries, keys and values: `[T, A·hd]`.
    pub x: View<'a>,
    /// Number of query heads (nh).
    pub heads: usize,
    /// Number of key heads and of value heads (nkv).
    pub kv_heads: usize,
    /// Size of a head (hd).
    pub head_dim: usize,
    /// Weight of the queries' norm: `[hd]`, or `[nh·hd]` for one norm over all heads.
    pub q_weight: View<'a>,
    /// Weight of the keys' norm: `[hd]`, or `[nkv·hd]` for one norm over all heads.
    pub k_weight: View<'a>,
    /// Added to every weight: 0, or 1 in models that store weight − 1 (Gemma).
    pub offset: f32,
    /// Added to the mean square before the square root.
    pub eps: f32,
    /// Output `[T, A·hd]`: *overwrites*.
    pub y: ViewMut<'a>,
    /// Reciprocal root mean square of each norm: `[T, nh + nkv]`, or `[T, 2]` for one norm over all heads.
    /// *Overwrites*.
    pub rstd: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// Input of the forward pass: `[T, A·hd]`.
    pub x: View<'a>,
    /// Number of query heads (nh).
    pub heads: usize,
    /// Number of key heads and of value heads (nkv).
    pub kv_heads: usize,
    /// Size of a head (hd).
    pub head_dim: usize,
    /// Weight of the queries' norm: `[hd]`, or `[nh·hd]` for one norm over all heads.
    pub q_weight: View<'a>,
    /// Weight of the keys' norm: `[hd]`, or `[nkv·hd]` for one norm over all heads.
    pub k_weight: View<'a>,
    /// Added to every weight, as in [`Forward`].
    pub offset: f32,
    /// Reciprocal root mean squares from the forward pass: `[T, nh + nkv]`, or `[T, 2]`.
    pub rstd: View<'a>,
    /// Gradient of the output: `[T, A·hd]`.
    pub d_y: View<'a>,
    /// Gradient of the input: `[T, A·hd]`, *overwrites*.
    pub d_x: ViewMut<'a>,
    /// Gradients of the query weight and the key weight, with the shapes of these weights: *accumulates into*. `None`
    /// if the weights are frozen.
    pub d_weights: Option<(ViewMut<'a>, ViewMut<'a>)>,
    /// First row of each of the S segments, then T: u32 `[S + 1]`. Splitting a batch between segments into several
    /// calls does not change a bit. `None` means one segment.
    pub segments: Option<View<'a>>,
}

/// The parts of a fused row that are normalised: `q` parts of `q_dim` elements, then `k` parts of `k_dim`. The rest
/// (values) is copied.
#[derive(Clone, Copy)]
struct Parts {
    q: usize,
    k: usize,
    q_dim: usize,
    k_dim: usize,
    width: usize,
}

impl Parts {
    fn of(heads: usize, kv_heads: usize, head_dim: usize, q_weight: View<'_>) -> Parts {
        let width = (heads + 2 * kv_heads) * head_dim;
        if q_weight.shape() == [head_dim] {
            Parts { q: heads, k: kv_heads, q_dim: head_dim, k_dim: head_dim, width }
        } else {
            Parts { q: 1, k: 1, q_dim: heads * head_dim, k_dim: kv_heads * head_dim, width }
        }
    }
    fn normed(self) -> usize {
        self.q + self.k
    }
    /// The index, within a row, of the first value element.
    fn values(self) -> usize {
        self.q * self.q_dim + self.k * self.k_dim
    }
    /// The range, within a row, of normalised part `a`.
    fn part(self, a: usize) -> std::ops::Range<usize> {
        let (start, dim) = match a.checked_sub(self.q) {
            None => (a * self.q_dim, self.q_dim),
            Some(a) => (self.q * self.q_dim + a * self.k_dim, self.k_dim),
        };
        start..start + dim
    }
}

/// Normalises query and key heads, and copies value heads.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "qk_norm::forward";
    let t = two_dims(OP, "x", args.x)?[0];
    let parts = Parts::of(args.heads, args.kv_heads, args.head_dim, args.q_weight);
    let (normed, width) = (parts.normed(), parts.width);
    expect(OP, "x", args.x, F32, &[t, width])?;
    expect(OP, "q_weight", args.q_weight, F32, &[parts.q_dim])?;
    expect(OP, "k_weight", args.k_weight, F32, &[parts.k_dim])?;
    expect(OP, "y", args.y.view(), F32, &[t, width])?;
    expect(OP, "rstd", args.rstd.view(), F32, &[t, normed])?;
    crate::context::count(4 * (t * parts.values()) as u64, 8 * (t * width) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, parts, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, parts, args)?,
    }
    Ok(())
}

/// Computes the gradients of the heads and of both weights.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "qk_norm::backward";
    let t = two_dims(OP, "x", args.x)?[0];
    let parts = Parts::of(args.heads, args.kv_heads, args.head_dim, args.q_weight);
    let (normed, width) = (parts.normed(), parts.width);
    expect(OP, "x", args.x, F32, &[t, width])?;
    expect(OP, "q_weight", args.q_weight, F32, &[parts.q_dim])?;
    expect(OP, "k_weight", args.k_weight, F32, &[parts.k_dim])?;
    expect(OP, "rstd", args.rstd, F32, &[t, normed])?;
    expect(OP, "d_y", args.d_y, F32, &[t, width])?;
    expect(OP, "d_x", args.d_x.view(), F32, &[t, width])?;
    if let Some((d_q_weight, d_k_weight)) = &args.d_weights {
        expect(OP, "d_q_weight", d_q_weight.view(), F32, &[parts.q_dim])?;
        expect(OP, "d_k_weight", d_k_weight.view(), F32, &[parts.k_dim])?;
    }
    if let Some(segments) = args.segments {
        expect_offsets(OP, "segments", segments, t)?;
    }
    crate::context::count(10 * (t * parts.values()) as u64, 12 * (t * width) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, parts, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, parts, args)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
