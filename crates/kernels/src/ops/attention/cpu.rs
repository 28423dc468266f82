//! The forward pass of attention on the CPU, and copying a KV-cache page. (`backward.rs` contains the backward pass,
//! and `writes.rs` writes the pages.)
//!
//! A task is a tile of consecutive rows for one kv head. It goes through the blocks of 64 keys in ascending order.
//! The rows of the tile that attend to the same KV-cache page are computed as one matmul. Each query has an
//! online-softmax state (m, l, O): m is the largest score so far; l is 16 partial sums of exp(z − m), one for each
//! vector lane (lane = slot mod 16); O is the unnormalised weighted sum of values. The rescaling rule: if a block's
//! largest score is greater than m, l and O are multiplied by α = exp(m − new m); otherwise they do not change.
//!
//! So the bits of a row depend only on its query and on the keys and values of its own positions. They do not depend on
//! the tile, the other rows of the batch, the indices of the pages or the number of threads.

use super::matmul::{Matmul, Right};
use super::places::{Outputs, Places, mask_blocks, on_tiles, rescaled, span, words_of};
use super::{BLOCK, Forward, Geometry, pages, tiles};
use crate::device::Cpu;
use crate::math::exp_finite;
use crate::ops::lanes::rows;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::element::widen_into;
use crate::simd::{Element, LANES, Simd};
use crate::{DType, Isa};
use half::bf16;
use std::ops::Range;

/// Approximate number of queries (row, query head) in a tile: enough to make loading a page from the second-level cache
/// worth it.
const TILE: usize = 36;

struct ForwardTasks<'a, E> {
    isa: Isa,
    geometry: Geometry,
    places: Places<'a>,
    qkv: &'a [E],
    keys: &'a [E],
    values: &'a [E],
    outputs: Outputs<'a, E>,
    rows_of_tile: usize,
    /// All key pages and value pages, if they are stored as pairs of bf16 terms.
    pairs: Option<[&'a [[bf16; 2]]; 2]>,
}

/// Buffers of a tile: its queries and their online-softmax state. `pairs` in a shape counts the queries (row, query
/// head), row by row.
struct Tile<'s> {
    /// Queries: `[pairs, hd]`, or packed into words of two bf16 numbers in the first half of each row.
    q: &'s mut [f32],
    /// Scores, later unnormalised probabilities (f32, or words of two bf16 numbers): `[pairs, 64]`.
    s: &'s mut [f32],
    /// Unnormalised outputs: `[pairs, hd]`.
    o: &'s mut [f32],
    /// Largest score so far: `[pairs]`.
    m: &'s mut [f32],
    /// Partial sums of exp(z − m): `[pairs, 16]`.
    l: &'s mut [f32],
}

impl<E: Element + Right> Tasks for ForwardTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let (g, hd, group) = (&self.geometry, self.geometry.head_dim, self.geometry.group());
        let (tile, head) = (index / g.kv_heads, index % g.kv_heads);
        let rows = rows(tile, self.rows_of_tile, self.places.positions.len());
        let pairs = rows.len() * group;

        let scratch = scratch.f32(pairs * (2 * hd + BLOCK + 1 + LANES));
        let (q, rest) = scratch.split_at_mut(pairs * hd);
        let (s, rest) = rest.split_at_mut(pairs * BLOCK);
        let (o, rest) = rest.split_at_mut(pairs * hd);
        let (m, l) = rest.split_at_mut(pairs);
        let mut t = Tile { q, s, o, m, l };
        t.o.fill(0.0);
        t.m.fill(f32::NEG_INFINITY);
        t.l.fill(0.0);
        for (row, q) in rows.clone().zip(t.q.chunks_exact_mut(group * hd)) {
            let at = row * g.width() + head * group * hd;
            widen_into::<V, E>(&self.qkv[at..at + group * hd], q);
            if self.pairs.is_some() {
                q.chunks_exact_mut(hd).for_each(|q| words_of::<V>(q));
            }
        }

        for block in self.places.blocks(g, rows.clone()) {
            for (page, run) in self.places.runs(g, rows.clone(), block) {
                self.block::<V>(&mut t, rows.start, run, head, block, page);
            }
        }
        for (i, row) in rows.enumerate() {
            for h in 0..group {
                let pair = i * group + h;
                let (o, l) = (&t.o[pair * hd..(pair + 1) * hd], &t.l[pair * LANES..(pair + 1) * LANES]);
                // SAFETY: no other task accesses this row and head.
                unsafe { self.outputs.write::<V>(row * g.heads + head * group + h, o, t.m[pair], l) };
            }
        }
    }
}

impl<E: Element + Right> ForwardTasks<'_, E> {
    /// Adds one KV-cache page to the attention of rows `run`: computes scores, the online softmax, and the weighted sum
    /// of values. `page` contains block `block` of these rows' sequence; `start` is the tile's first row.
    #[inline(always)]
    fn block<V: Simd>(
        &self,
        t: &mut Tile<'_>,
        start: usize,
        run: Range<usize>,
        head: usize,
        block: usize,
        page: usize,
    ) {
        let (g, hd, group) = (&self.geometry, self.geometry.head_dim, self.geometry.group());
        let slots = |row: usize| g.slots(self.places.positions[row] as usize, block);
        let (_, any_sees) = span(run.clone().map(slots));
        let at = (page * g.kv_heads + head) * BLOCK * hd;
        let page = at..at + BLOCK * hd;
        let pairs = (run.start - start) * group..(run.end - start) * group;

        // Whole vectors are computed. Lanes past the last key contain garbage and are masked later.
        let (a, columns) = (&t.q[pairs.start * hd..pairs.end * hd], any_sees.end.next_multiple_of(LANES));
        let (out, rows) = (&mut t.s[pairs.start * BLOCK..pairs.end * BLOCK], pairs.len());
        let (a_row, a_k, b_row, out_row, k, accumulate) = (hd, 1, BLOCK, BLOCK, 0..hd, false);
        match self.pairs {
            None => {
                let b = &self.keys[page.clone()];
                Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k, accumulate }.compute::<E>(self.isa);
            }
            Some([keys, _]) => {
                let b = &keys[page.start / 2..page.end / 2];
                Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k, accumulate }.compute::<E>(self.isa);
            }
        }

        for row in run.clone() {
            let slots = slots(row);
            for pair in (row - start) * group..(row - start + 1) * group {
                let s = &mut t.s[pair * BLOCK..(pair + 1) * BLOCK];
                let l = &mut t.l[pair * LANES..(pair + 1) * LANES];
                let o = &mut t.o[pair * hd..(pair + 1) * hd];
                online_softmax::<V, E>(s, g.scale, slots.clone(), &mut t.m[pair], l, o);
                if self.pairs.is_some() {
                    words_of::<V>(s);
                }
            }
        }

        let at = |row: usize, width: usize| (row - start) * group * width;
        mask_blocks(run, group, slots, |rows, k| {
            let a = &t.s[at(rows.start, BLOCK)..at(rows.end, BLOCK)];
            let out = &mut t.o[at(rows.start, hd)..at(rows.end, hd)];
            let (a_row, a_k, b_row, out_row, accumulate) = (BLOCK, 1, hd, hd, true);
            let (rows, columns) = (rows.len() * group, hd);
            match self.pairs {
                None => {
                    let b = &self.values[page.clone()];
                    Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k, accumulate }
                        .compute::<E>(self.isa);
                }
                Some([_, values]) => {
                    let b = &values[page.start / 2..page.end / 2];
                    Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k, accumulate }
                        .compute::<E>(self.isa);
                }
            }
        });
    }
}

/// One online-softmax step of a query. The scores `s` of a block become exp(z − m), rounded to the dtype in which the
/// values are stored, and 0 outside `slots`. The query's maximum `m`, sum `l` (of exp(z − m) before rounding) and
/// output `o` are updated.
#[inline(always)]
fn online_softmax<V: Simd, E: Element>(
    s: &mut [f32],
    scale: f32,
    slots: Range<usize>,
    m: &mut f32,
    l: &mut [f32],
    o: &mut [f32],
) {
    let (scale, minus_infinity) = (V::splat(scale), V::splat(f32::NEG_INFINITY));
    // The vectors that contain a slot to which the query attends. Other vectors are never read.
    let vectors = slots.start / LANES..slots.end.div_ceil(LANES);
    let mut z = [minus_infinity; BLOCK / LANES];
    let mut largest = minus_infinity;
    for v in vectors.clone() {
        let scores = V::load(&s[v * LANES..]).mul(scale);
        let below_end = V::first((slots.end - v * LANES).min(LANES));
        let below_start = V::first(slots.start.saturating_sub(v * LANES).min(LANES));
        z[v] = V::select(below_start, minus_infinity, V::select(below_end, scores, minus_infinity));
        largest = largest.max(z[v]);
    }
    let mut sum = rescaled(largest.max_lane(), m, V::load(l), o);
    let m = V::splat(*m);
    for v in vectors {
        let p = exp_finite(z[v].sub(m));
        E::rounded(p).store(&mut s[v * LANES..]);
        sum = sum.add(p);
    }
    sum.store(l);
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    if let Some(unit) = on_tiles(cpu, args.qkv.dtype()) {
        return tiles::forward(cpu, args, unit);
    }
    let (g, places) = (args.geometry, Places::new(cpu, args.rows));
    let rows = places.positions.len();
    // Tiles have fewer rows if threads would otherwise be idle. The tile size affects only speed; it does not change a
    // bit.
    let for_threads = (rows * g.kv_heads).div_ceil(4 * cpu.threads()).max(1);
    let rows_of_tile = (TILE / g.group()).max(1).min(for_threads);
    let (count, lse) = (rows.div_ceil(rows_of_tile) * g.kv_heads, args.lse.map(|lse| Disjoint::new(lse.f32(cpu))));
    let pairs = pages::in_pairs(cpu.isa(), args.qkv.dtype(), g.head_dim)
        .then(|| [args.pages.keys, args.pages.values].map(|pages| pages.bf16(cpu).as_chunks().0));
    macro_rules! run {
        ($of:ident) => {{
            let (qkv, keys, values) = (args.qkv.$of(cpu), args.pages.keys.$of(cpu), args.pages.values.$of(cpu));
            let (isa, outputs) = (cpu.isa(), Outputs { out: Disjoint::new(args.out.$of(cpu)), lse });
            let tasks = ForwardTasks { isa, geometry: g, places, qkv, keys, values, outputs, rows_of_tile, pairs };
            cpu.run(count, &tasks);
        }};
    }
    if args.qkv.dtype() == DType::Bf16 { run!(bf16) } else { run!(f32) }
}

/// Copies KV-cache page `from` over page `to`. One page is small, so the calling thread copies it alone.
pub(super) fn copy_block(cpu: &Cpu, from: usize, to: usize, pages: super::PagesMut<'_>) {
    for part in [pages.keys, pages.values] {
        let page: usize = part.shape()[1..].iter().product();
        let (page, to) = (from * page..(from + 1) * page, to * page);
        match part.dtype() {
            DType::Bf16 => part.bf16(cpu).copy_within(page, to),
            _ => part.f32(cpu).copy_within(page, to),
        }
    }
}
