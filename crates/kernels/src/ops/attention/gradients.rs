//! Helpers that the three backward passes of attention on the CPU share (f32 or widened bf16, bf16 pairs, AMX tiles):
//! their operands, the gradient of the softmax, and the zeroing of gradients before sums begin.

use super::places::Places;
use super::visits::{Part, Visit};
use super::{BLOCK, Geometry};
use crate::math::exp_finite;
use crate::ops::lanes::dot_rounded;
use crate::pool::Disjoint;
use crate::simd::{Element, LANES, Simd};
use std::ops::Range;

/// Approximate number of queries (row, query head) in a tile.
const TILE: usize = 36;

/// Number of token rows in a tile, so that rows times query heads per kv head is about [`TILE`].
pub(super) fn rows_of_tile(g: &Geometry) -> usize {
    (TILE / g.group()).max(1)
}

/// Prepares one part of the work for kv head `head`. Sets `delta` to Σ d_out · out for each query (row, query head). If
/// this part is the first for these rows, sets the gradients of their queries to 0.
#[inline(always)]
pub(super) fn begin<V: Simd, E: Element>(
    g: &Geometry,
    part: &Part,
    head: usize,
    (d_out, out): (&[f32], &[E]),
    d_qkv: &Disjoint<'_, f32>,
    delta: &mut [f32],
) {
    let (hd, per) = (g.head_dim, g.group());
    for (i, row) in part.rows.clone().enumerate() {
        for h in 0..per {
            let at = (row * g.heads + head * per + h) * hd;
            delta[i * per + h] = dot_rounded::<V, E>(&d_out[at..at + hd], &out[at..at + hd]);
        }
        if part.begins {
            let at = row * g.width() + head * per * hd;
            // SAFETY: no other task accesses this row's queries for this kv head.
            unsafe { d_qkv.slice(at..at + per * hd) }.fill(0.0);
        }
    }
}

/// Sets a KV-cache page's gradients of keys and values to 0, up to its last used slot, if this is the group's first
/// visit of the page.
#[inline(always)]
pub(super) fn clear(visit: &Visit, hd: usize, d_keys: &mut [f32], d_values: &mut [f32]) {
    if visit.first {
        let columns = visit.end.next_multiple_of(LANES);
        d_keys.chunks_exact_mut(BLOCK).for_each(|key| key[..columns].fill(0.0));
        d_values[..visit.end * hd].fill(0.0);
    }
}

/// The inputs and outputs that the three backward passes of attention on the CPU have in common.
pub(super) struct Operands<'a, E> {
    pub geometry: Geometry,
    pub places: Places<'a>,
    pub parts: &'a [Part],
    pub qkv: &'a [E],
    pub keys: &'a [E],
    pub values: &'a [E],
    pub out: &'a [E],
    pub lse: &'a [f32],
    pub d_out: &'a [f32],
    pub d_qkv: Disjoint<'a, f32>,
    /// Gradient of the keys, in the layout of the key pages; on tiles `[blocks, nkv, 64, hd]`, the layout of the value
    /// pages.
    pub d_keys: Disjoint<'a, f32>,
    pub d_values: Disjoint<'a, f32>,
}

/// Backward pass of the softmax for one query. On entry, `p` contains the scores and `d_s` contains d_out · v, for each
/// key. On return, `p` contains the probabilities exp(z − lse), and `d_s` the gradients of the scores, p · (d_s −
/// delta) · scale. Both are 0 outside `slots`, and rounded to the dtype in which the values are stored.
#[inline(always)]
pub(super) fn gradients<V: Simd, E: Element>(
    p: &mut [f32],
    d_s: &mut [f32],
    scale: f32,
    lse: f32,
    delta: f32,
    slots: Range<usize>,
) {
    let (scale, lse, delta, zero) = (V::splat(scale), V::splat(lse), V::splat(delta), V::splat(0.0));
    for at in (0..p.len()).step_by(LANES) {
        let below_end = V::first(slots.end.saturating_sub(at).min(LANES));
        let below_start = V::first(slots.start.saturating_sub(at).min(LANES));
        let seen = |x: V| V::select(below_start, zero, V::select(below_end, x, zero));
        let probability = seen(exp_finite(V::load(&p[at..]).mul(scale).sub(lse)));
        let gradient = seen(probability.mul(V::load(&d_s[at..]).sub(delta)).mul(scale));
        E::rounded(probability).store(&mut p[at..]);
        E::rounded(gradient).store(&mut d_s[at..]);
    }
}
