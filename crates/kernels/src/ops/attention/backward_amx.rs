//! The backward pass of attention in bf16 on AMX tiles, for CPUs that have them.
//!
//! A task is a group of rows (a prompt with its completions) for one kv head, as in `backward.rs`. Its queries (row,
//! query head), row by row, are cut into steps of 32 from the group's first query, the same steps for every KV-cache
//! page. So the gradient of a page is a sum over these steps, and does not depend on the rows of other groups. Scores
//! and their gradients are computed transposed, with keys as rows and queries as columns, because the matmuls that sum
//! over queries read this layout:
//!
//! | matmul              | left operand A    | right operand B     | summed in steps of 32                           |
//! |---------------------|-------------------|---------------------|-------------------------------------------------|
//! | Sᵀ = K · Qᵀ         | the page's keys   | queries, transposed | dimensions                                      |
//! | dPᵀ = V · d_outᵀ    | the page's values | d_out, transposed   | dimensions                                      |
//! | d_V += Pᵀ · d_out   | Pᵀ, rounded       | d_out               | queries: steps in which a row attends to the page |
//! | d_K += dSᵀ · Q      | dSᵀ, rounded      | queries             | the same steps                                  |
//! | d_Q += dS · K       | dS, rounded       | the page's keys     | keys: the two halves of each block, ascending   |
//!
//! d_out is rounded to bf16 as it is read. For masked keys P = dS = 0. Processing more pages or steps together does not
//! change a bit of the result, because partial sums are stored in f32.

use super::BLOCK;
use super::gradients::Operands;
use super::pages::{self, padded};
use super::tiles::{LINE, LINES};
use super::visits::{Part, Visit};
use crate::gemm::aligned;
use crate::gemm::{Lines, halves, narrowed, pairs_to_lines, transpose_pairs, zip_lines};
use crate::math::exp_finite;
use crate::ops::lanes::dot_rounded;
use crate::pool::{Scratch, Tasks};
use crate::simd::tiles::{DEPTH, Rows, SIDE, TILE, TileMatmul, Unit, run_all};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// Steps of 32 queries that are processed together.
const STEPS: usize = if cfg!(test) { 2 } else { 4 };
const PAIRS: usize = STEPS * DEPTH;
/// Limit on the number of pages that are processed together, times padded hd. The tiles and gradients of these pages
/// stay in the second-level cache, and queries are packed once for all of them.
const WIDTH: usize = if cfg!(test) { 64 } else { 512 };

pub(super) struct BackwardTasks<'a> {
    pub unit: Unit,
    pub of: Operands<'a, bf16>,
}

/// Buffers of a KV-cache page that is being processed.
struct Page<'s> {
    /// The page's keys and values as rows of tiles: `[steps of 32 dimensions][64][32]` each.
    keys: &'s mut [bf16],
    values: &'s mut [bf16],
    /// The page's keys as tiles of a right operand, in the layout of a value page (`pages.rs`).
    key_pairs: &'s mut [bf16],
    /// Gradients of the page's keys and values: `[64, padded hd]` each.
    d_keys: &'s mut [f32],
    d_values: &'s mut [f32],
}

impl<'s> Page<'s> {
    /// Size of one page's buffers, in f32 elements.
    fn len(padded: usize) -> usize {
        (3 * BLOCK / 2 + 2 * BLOCK) * padded
    }
    fn new(memory: &'s mut [f32], padded: usize) -> Page<'s> {
        let (keys, rest) = memory.split_at_mut(BLOCK / 2 * padded);
        let (values, rest) = rest.split_at_mut(BLOCK / 2 * padded);
        let (key_pairs, rest) = rest.split_at_mut(BLOCK / 2 * padded);
        let (d_keys, d_values) = rest.split_at_mut(BLOCK * padded);
        Page { keys: halves(keys), values: halves(values), key_pairs: halves(key_pairs), d_keys, d_values }
    }
}

/// The queries (or their d_out) of a batch, packed as right operands in two tile layouts.
struct Sides<'s> {
    /// `[STEPS][steps of 32 dimensions][2]` tiles whose columns are 32 queries.
    columns: &'s mut [bf16],
    /// `[steps of 32 dimensions][STEPS][2]` tiles whose columns are 32 dimensions.
    pairs: &'s mut [bf16],
}

/// Buffers of the queries that are processed together: [`PAIRS`] pairs (row, query head).
struct Batch<'s> {
    q: Sides<'s>,
    d_out: Sides<'s>,
    /// Gradients of the queries: `[PAIRS, padded hd]`.
    d_q: &'s mut [f32],
    /// Scores, and d_out · v: `[64, PAIRS]` each.
    s: &'s mut [f32],
    d_p: &'s mut [f32],
    /// Probabilities, and gradients of the scores: `[STEPS][64][32]` each.
    p: &'s mut [bf16],
    d_s: &'s mut [bf16],
    /// Gradients of the scores, transposed: `[2][PAIRS][32]`.
    d_s_rows: &'s mut [bf16],
    /// For each query: log-sum-exp, Σ d_out · out, and the first slot and the end of the slots to which it attends, as
    /// f32.
    lse: &'s mut [f32],
    delta: &'s mut [f32],
    start: &'s mut [f32],
    end: &'s mut [f32],
}

impl<'s> Batch<'s> {
    fn len(padded: usize) -> usize {
        3 * PAIRS * padded + 2 * BLOCK * PAIRS + 3 * BLOCK * PAIRS / 2 + 4 * PAIRS
    }
    fn new(memory: &'s mut [f32], padded: usize) -> Batch<'s> {
        let mut rest = memory;
        let mut cut = |len: usize| {
            let (first, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            first
        };
        let mut side = || Sides { columns: halves(cut(PAIRS * padded / 2)), pairs: halves(cut(PAIRS * padded / 2)) };
        let (q, d_out) = (side(), side());
        Batch {
            q,
            d_out,
            d_q: cut(PAIRS * padded),
            s: cut(BLOCK * PAIRS),
            d_p: cut(BLOCK * PAIRS),
            p: halves(cut(BLOCK * PAIRS / 2)),
            d_s: halves(cut(BLOCK * PAIRS / 2)),
            d_s_rows: halves(cut(BLOCK * PAIRS / 2)),
            lse: cut(PAIRS),
            delta: cut(PAIRS),
            start: cut(PAIRS),
            end: cut(PAIRS),
        }
    }
}

impl Tasks for BackwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let (g, per, padded) = (&self.of.geometry, self.of.geometry.group(), padded(self.of.geometry.head_dim));
        let (Part { rows, visits, .. }, head) = (&self.of.parts[index / g.kv_heads], index % g.kv_heads);
        let (hd, pairs, at_once) = (g.head_dim, rows.len() * per, (WIDTH / padded).max(1));

        let lens = [at_once * Page::len(padded), Batch::len(padded), BLOCK * padded];
        let memory = aligned(scratch, lens.iter().sum::<usize>() + pairs);
        let (page_memory, rest) = memory.split_at_mut(lens[0]);
        let (batch_memory, rest) = rest.split_at_mut(lens[1]);
        let (room, deltas) = rest.split_at_mut(lens[2]);
        let (mut batch, room) = (Batch::new(batch_memory, padded), halves(room));
        for (pair, delta) in deltas.iter_mut().enumerate() {
            let at = (rows.start + pair / per) * g.heads + head * per + pair % per;
            *delta =
                dot_rounded::<V, bf16>(&self.of.d_out[at * hd..(at + 1) * hd], &self.of.out[at * hd..(at + 1) * hd]);
        }
        for row in rows.clone() {
            let at = row * g.width() + head * per * hd;
            // SAFETY: no other task accesses this row's queries for this kv head.
            unsafe { self.of.d_qkv.slice(at..at + per * hd) }.fill(0.0);
        }

        let mut visits = &visits[..];
        while !visits.is_empty() {
            // A page that is used as two blocks is visited twice, and its two visits must not be processed together.
            let twice = |i: &usize| visits[..*i].iter().any(|v| v.page == visits[*i].page);
            let count = (1..visits.len().min(at_once)).find(twice).unwrap_or(visits.len().min(at_once));
            let (now, later) = visits.split_at(count);
            visits = later;
            for (visit, memory) in now.iter().zip(page_memory.chunks_exact_mut(Page::len(padded))) {
                self.load_page::<V>(visit, head, Page::new(memory, padded), room);
            }
            for first in (0..pairs).step_by(PAIRS) {
                let batch_pairs = first..pairs.min(first + PAIRS);
                let steps = batch_pairs.len().div_ceil(DEPTH);
                let mut loaded = false;
                for (visit, memory) in now.iter().zip(page_memory.chunks_exact_mut(Page::len(padded))) {
                    let looked = self.look(visit, rows.start, batch_pairs.clone(), &mut batch);
                    let mut step = 0;
                    while step < steps {
                        let end = (step..steps).find(|&s| looked[s].is_none()).unwrap_or(steps);
                        if step < end && !loaded {
                            self.load_batch::<V>(&mut batch, rows.start, head, batch_pairs.clone(), deltas);
                            loaded = true;
                        }
                        if step < end {
                            self.matmuls::<V>(&mut batch, &mut Page::new(memory, padded), step..end, looked);
                        }
                        step = end + 1;
                    }
                }
                if loaded {
                    for (i, pair) in batch_pairs.enumerate() {
                        // SAFETY: no other task accesses this row's queries for this kv head.
                        unsafe { self.of.d_qkv.slice(self.query(rows.start, head, pair)) }
                            .copy_from_slice(&batch.d_q[i * padded..i * padded + hd]);
                    }
                }
            }
            for (visit, memory) in now.iter().zip(page_memory.chunks_exact_mut(Page::len(padded))) {
                let page = Page::new(memory, padded);
                // SAFETY: this task owns the group and head, and holds no other slice of the page.
                let [d_keys, d_values] = unsafe { self.gradients_of(visit, head) };
                for (to, from) in [(d_keys, page.d_keys), (d_values, page.d_values)] {
                    for (to, from) in to.chunks_exact_mut(hd).zip(from.chunks_exact(padded)).take(visit.end) {
                        to.copy_from_slice(&from[..hd]);
                    }
                }
            }
        }
    }
}

impl BackwardTasks<'_> {
    /// Range in `qkv` of one query of the group. `pair` counts the group's queries (row, query head).
    fn query(&self, group_start: usize, head: usize, pair: usize) -> Range<usize> {
        let (g, hd, per) = (&self.of.geometry, self.of.geometry.head_dim, self.of.geometry.group());
        let at = (group_start + pair / per) * g.width() + (head * per + pair % per) * hd;
        at..at + hd
    }

    /// Gradients of the keys and values of the visited page for kv head `head`.
    ///
    /// # Safety
    /// Only the task of this group and head may call this function, and only while it holds no other slice of the page.
    #[allow(clippy::mut_from_ref)]
    unsafe fn gradients_of(&self, visit: &Visit, head: usize) -> [&mut [f32]; 2] {
        let (g, hd) = (&self.of.geometry, self.of.geometry.head_dim);
        let at = (visit.page * g.kv_heads + head) * BLOCK * hd;
        // SAFETY: the caller guarantees that this is the only task of the group and head, and that it holds no other
        // slice of the page.
        unsafe { [self.of.d_keys.slice(at..at + BLOCK * hd), self.of.d_values.slice(at..at + BLOCK * hd)] }
    }

    /// Loads a KV-cache page: keys and values in the tile layouts of the matmuls, with zeros in unused slots, and their
    /// gradients so far.
    #[inline(always)]
    fn load_page<V: Simd>(&self, visit: &Visit, head: usize, page: Page<'_>, room: &mut [bf16]) {
        let (hd, padded) = (self.of.geometry.head_dim, padded(self.of.geometry.head_dim));
        let at = (visit.page * self.of.geometry.kv_heads + head) * BLOCK * hd;
        let page_kv = [&self.of.keys[at..at + BLOCK * hd], &self.of.values[at..at + BLOCK * hd]];
        let [keys, values] = pages::tiles::<V>(page_kv, hd, visit.end, room);
        let steps = padded / DEPTH;
        for (i, from) in keys.chunks_exact(2 * TILE).enumerate() {
            let line = i % steps * BLOCK + i / steps * DEPTH;
            pairs_to_lines::<V>(from, SIDE, &mut page.keys[line * DEPTH..][..2 * TILE]);
        }
        page.keys.chunks_exact_mut(BLOCK * DEPTH).for_each(|keys| keys[visit.end * DEPTH..].fill(bf16::ZERO));
        let step_lines = page.keys.chunks_exact(2 * TILE).zip(page.key_pairs.chunks_exact_mut(2 * TILE));
        step_lines.for_each(|(lines, to)| zip_lines::<V>(lines, to));
        // The values of two keys lie side by side: 32 dimensions each.
        for (from, to) in values.chunks_exact(2 * DEPTH).zip(page.values.chunks_exact_mut(2 * DEPTH)) {
            let (even, odd) = to.split_at_mut(DEPTH);
            from.chunks_exact(2)
                .zip(even.iter_mut().zip(odd))
                .for_each(|(from, to)| (*to.0, *to.1) = (from[0], from[1]));
        }
        page.d_keys.fill(0.0);
        page.d_values.fill(0.0);
        if !visit.first {
            // SAFETY: this task owns the group and head, and holds no slice of the page yet.
            let gradients = unsafe { self.gradients_of(visit, head) };
            for (from, to) in gradients.into_iter().zip([page.d_keys, page.d_values]) {
                for (from, to) in from.chunks_exact(hd).zip(to.chunks_exact_mut(padded)).take(visit.end) {
                    to[..hd].copy_from_slice(from);
                }
            }
        }
    }

    /// Finds which slots of a page the queries `pairs` of the group attend to. Returns for each step of 32 queries:
    /// `None` if no query attends to the page, otherwise whether all 32 attend to all 64 slots.
    fn look(
        &self,
        visit: &Visit,
        group_start: usize,
        pairs: Range<usize>,
        to: &mut Batch<'_>,
    ) -> [Option<bool>; STEPS] {
        let (g, per) = (&self.of.geometry, self.of.geometry.group());
        let rows = group_start + pairs.start / per..group_start + pairs.end.div_ceil(per);
        let mut whole = [0; STEPS];
        let mut looked = [None; STEPS];
        to.start.fill(0.0);
        to.end.fill(0.0);
        for run in &visit.rows {
            for row in run.start.max(rows.start)..run.end.min(rows.end) {
                let slots = g.slots(self.of.places.positions[row] as usize, visit.block);
                let first = (row - group_start) * per;
                for pair in first.max(pairs.start)..(first + per).min(pairs.end) {
                    let pair = pair - pairs.start;
                    (to.start[pair], to.end[pair]) = (slots.start as f32, slots.end as f32);
                    whole[pair / DEPTH] += usize::from(slots == (0..BLOCK));
                    looked[pair / DEPTH] = Some(whole[pair / DEPTH] == DEPTH);
                }
            }
        }
        looked
    }

    /// Loads the queries `pairs` of the group: packed operands, log-sum-exp, delta, and the query gradients so far.
    #[inline(always)]
    fn load_batch<V: Simd>(
        &self,
        batch: &mut Batch<'_>,
        group_start: usize,
        head: usize,
        pairs: Range<usize>,
        deltas: &[f32],
    ) {
        let (g, hd, per, padded) =
            (&self.of.geometry, self.of.geometry.head_dim, self.of.geometry.group(), padded(self.of.geometry.head_dim));
        batch.lse.fill(0.0);
        batch.delta.fill(0.0);
        batch.d_q.fill(0.0);
        for (i, pair) in pairs.clone().enumerate() {
            batch.lse[i] = self.of.lse[(group_start + pair / per) * g.heads + head * per + pair % per];
            batch.delta[i] = deltas[pair];
            // SAFETY: no other task accesses this row's queries for this kv head.
            let from = unsafe { self.of.d_qkv.slice(self.query(group_start, head, pair)) };
            batch.d_q[i * padded..i * padded + hd].copy_from_slice(from);
        }
        for (step, first) in pairs.clone().step_by(DEPTH).enumerate() {
            let step_pairs = first..pairs.end.min(first + DEPTH);
            for at in (0..padded).step_by(DEPTH) {
                let dims = at..hd.min(at + DEPTH);
                let [mut q, mut d_out] = [(); 2].map(|()| Lines([bf16::ZERO; 2 * TILE]));
                let lines = q.0.chunks_exact_mut(DEPTH).zip(d_out.0.chunks_exact_mut(DEPTH));
                for (pair, (q, d_out)) in step_pairs.clone().zip(lines) {
                    let query = self.query(group_start, head, pair).start;
                    narrowed::<V>(Elements::Bf16(&self.of.qkv[query + dims.start..query + dims.end]), q);
                    let row = ((group_start + pair / per) * g.heads + head * per + pair % per) * hd;
                    narrowed::<V>(Elements::F32(&self.of.d_out[row + dims.start..row + dims.end]), d_out);
                }
                let columns_at = (step * padded + at) * DEPTH;
                let pairs_at = (at / DEPTH * STEPS + step) * 2 * TILE;
                for (lines, to) in [(&q.0, &mut batch.q), (&d_out.0, &mut batch.d_out)] {
                    let columns = &mut to.columns[columns_at..columns_at + 2 * TILE];
                    for (half, from) in lines.chunks_exact(TILE).enumerate() {
                        transpose_pairs::<V>(from, DEPTH, SIDE, &mut columns[half * DEPTH..], 2 * DEPTH);
                    }
                    zip_lines::<V>(lines, &mut to.pairs[pairs_at..pairs_at + 2 * TILE]);
                }
            }
        }
    }

    /// Computes all five matmuls of the backward pass for one page and the steps `steps` of the batch. Every step
    /// attends to the page.
    #[inline(always)]
    fn matmuls<V: Simd>(
        &self,
        b: &mut Batch<'_>,
        page: &mut Page<'_>,
        steps: Range<usize>,
        looked: [Option<bool>; STEPS],
    ) {
        let padded = padded(self.of.geometry.head_dim);
        let rows = Rows { upper: SIDE as u8, lower: SIDE as u8 };
        let (f32s, lines) = (size_of::<f32>(), 2 * SIDE);
        assert!(steps.end <= STEPS && page.keys.len() == BLOCK * padded && b.d_q.len() == PAIRS * padded);

        // Sᵀ and dPᵀ: the page's 64 keys by the 32 queries of a step.
        let scores = |a: &[bf16], b: &[bf16], c: *mut f32, step: usize| TileMatmul {
            a: a.as_ptr(),
            b: b[step * DEPTH * padded..].as_ptr(),
            c: c.wrapping_add(step * DEPTH),
            a_row: LINE,
            a_lower: LINES,
            a_step: BLOCK * LINE,
            c_stride: PAIRS * f32s,
            a_block: 2 * LINES,
            c_block: lines * PAIRS * f32s,
            depth: padded / DEPTH,
            blocks: BLOCK / lines,
            from_c: 0,
            rows,
        };
        let (s, d_p) = (b.s.as_mut_ptr(), b.d_p.as_mut_ptr());
        let matmuls = steps.clone().map(|step| scores(page.keys, b.q.columns, s, step));
        let matmuls = matmuls.chain(steps.clone().map(|step| scores(page.values, b.d_out.columns, d_p, step)));
        // SAFETY: every step of hd has lines of 64 keys and a pair of tiles for 32 pairs, and C has 64 rows of 32
        // columns. All buffers belong to this task.
        unsafe { run_all(self.unit, matmuls) };

        for step in steps.clone() {
            self.gradients::<V>(b, step, looked[step] == Some(true));
            // Transposes the gradients for 32 keys: first to rows of two keys side by side, then to one row per query.
            for (half, from) in b.d_s[step * 2 * 2 * TILE..][..2 * 2 * TILE].chunks_exact(2 * TILE).enumerate() {
                let mut zipped = Lines([bf16::ZERO; 2 * TILE]);
                zip_lines::<V>(from, &mut zipped.0);
                let line = half * PAIRS + step * DEPTH;
                pairs_to_lines::<V>(&zipped.0, SIDE, &mut b.d_s_rows[line * DEPTH..][..2 * TILE]);
            }
        }

        // Gradients of values and keys: 64 keys by 32 dimensions.
        let page_matmul = |a: &[bf16], b: &[bf16], c: *mut f32, panel: usize| TileMatmul {
            a: a[steps.start * BLOCK * DEPTH..].as_ptr(),
            b: b[(panel * STEPS + steps.start) * 2 * TILE..].as_ptr(),
            c: c.wrapping_add(panel * DEPTH),
            a_row: LINE,
            a_lower: LINES,
            a_step: BLOCK * LINE,
            c_stride: padded * f32s,
            a_block: 2 * LINES,
            c_block: lines * padded * f32s,
            depth: steps.len(),
            blocks: BLOCK / lines,
            from_c: 1,
            rows,
        };
        let (d_keys, d_values) = (page.d_keys.as_mut_ptr(), page.d_values.as_mut_ptr());
        let d_q = b.d_q[steps.start * DEPTH * padded..].as_mut_ptr();
        let query_matmul = |panel: usize| TileMatmul {
            a: b.d_s_rows[steps.start * DEPTH * DEPTH..].as_ptr(),
            b: page.key_pairs[panel * DEPTH * BLOCK..].as_ptr(),
            c: d_q.wrapping_add(panel * DEPTH),
            a_row: LINE,
            a_lower: LINES,
            a_step: PAIRS * LINE,
            c_stride: padded * f32s,
            a_block: 2 * LINES,
            c_block: lines * padded * f32s,
            depth: BLOCK / DEPTH,
            blocks: steps.len(),
            from_c: 1,
            rows,
        };
        let panels = 0..padded / DEPTH;
        let matmuls = panels.clone().map(|panel| page_matmul(b.p, b.d_out.pairs, d_values, panel));
        let matmuls = matmuls.chain(panels.clone().map(|panel| page_matmul(b.d_s, b.q.pairs, d_keys, panel)));
        // SAFETY: A has lines of the page's 64 slots or of the pairs of `steps`, B has its tiles of 32 dimensions, and
        // C has as many rows as A has lines. All buffers belong to this task.
        unsafe { run_all(self.unit, matmuls.chain(panels.map(query_matmul))) };
    }

    /// Backward pass of the softmax for one step of 32 queries. Scores become probabilities p = exp(z − lse), and d_out
    /// · v becomes p · (d_out · v − delta) · scale. Both are rounded to bf16, and 0 at masked keys. `whole` means that
    /// no key is masked.
    #[inline(always)]
    fn gradients<V: Simd>(&self, b: &mut Batch<'_>, step: usize, whole: bool) {
        let (scale, zero) = (V::splat(self.of.geometry.scale), V::splat(0.0));
        let lines = b.p[step * BLOCK * DEPTH..(step + 1) * BLOCK * DEPTH].chunks_exact_mut(DEPTH);
        let lines = lines.zip(b.d_s[step * BLOCK * DEPTH..(step + 1) * BLOCK * DEPTH].chunks_exact_mut(DEPTH));
        let matmuls = b.s.chunks_exact(PAIRS).zip(b.d_p.chunks_exact(PAIRS));
        let step_pairs = step * DEPTH..(step + 1) * DEPTH;
        let [lse, delta, start, end] = [&*b.lse, &*b.delta, &*b.start, &*b.end].map(|x| &x[step_pairs.clone()]);
        for (slot, ((p, d_s), (s, d_p))) in lines.zip(matmuls).enumerate() {
            let (s, d_p, slot) = (&s[step_pairs.clone()], &d_p[step_pairs.clone()], V::splat(slot as f32));
            for at in [0, LANES] {
                let z = V::load(&s[at..]).mul(scale).sub(V::load(&lse[at..]));
                let mut probability = exp_finite(z);
                let difference = V::load(&d_p[at..]).sub(V::load(&delta[at..]));
                let mut gradient = probability.mul(difference).mul(scale);
                if !whole {
                    let (before, inside) = (slot.lt(V::load(&start[at..])), slot.lt(V::load(&end[at..])));
                    probability = V::select(before, zero, V::select(inside, probability, zero));
                    gradient = V::select(before, zero, V::select(inside, gradient, zero));
                }
                bf16::store(probability, &mut p[at..]);
                bf16::store(gradient, &mut d_s[at..]);
            }
        }
    }
}
