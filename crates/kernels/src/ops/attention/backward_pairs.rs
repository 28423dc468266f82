//! The backward pass of attention in bf16, on CPUs that multiply two bf16 terms of a sum with one instruction.
//!
//! Tasks, tiles and the order of sums are those of `backward.rs`, and so are the bits of the result. The operands of
//! the five matmuls store two consecutive terms side by side: as words in the left operand, as pairs in the right one.
//! `pairs` in a shape counts the tile's queries (row, query head):
//!
//! | matmul         | sum over   | left                            | right                                        |
//! |-----------------|------------|---------------------------------|----------------------------------------------|
//! | S = Q · Kᵀ      | dimensions | q `[pairs][hd/2]`               | the page's keys `[hd/2][64][2]`, as stored   |
//! | dP = d_out · Vᵀ | dimensions | d_out `[pairs][hd/2]`           | values `[hd/2][64][2]`, transposed          |
//! | d_K += Qᵀ · dS  | rows       | q `[pairs/2][hd]`               | dS `[pairs/2][64][2]`                        |
//! | d_V += Pᵀ · d_out | rows     | P `[pairs/2][64]`               | d_out `[pairs/2][hd][2]`                     |
//! | d_Q += dS · K   | slots      | dS `[pairs][64/2]`              | keys `[64/2][hd][2]`, transposed            |
//!
//! If the number of terms is odd, the sum ends with the term −0 · 0, which does not change a bit.

use super::BLOCK;
use super::gradients::{Operands, begin, clear, gradients, rows_of_tile};
use super::matmul::Matmul;
use super::places::{mask_blocks, span, words_of};
use super::visits::{Part, Visit};
use crate::Isa;
use crate::gemm::halves;
use crate::ops::lanes::{load, store};
use crate::pool::{Scratch, Tasks};
use crate::simd::element::widen_into;
use crate::simd::{LANES, Simd};
use half::bf16;
use std::ops::Range;

pub(super) struct BackwardTasks<'a> {
    pub isa: Isa,
    pub of: Operands<'a, bf16>,
}

/// Buffers of a task: one KV-cache page for one kv head, and a tile of rows that attend to it. `pairs` in a shape
/// counts the tile's queries (row, query head).
struct PageScratch<'s> {
    /// The page's keys: `[64/2][hd][2]`.
    keys: &'s mut [bf16],
    /// The page's values: `[hd/2][64][2]`.
    values: &'s mut [bf16],
    /// Queries, and gradients of outputs and queries: `[pairs, hd]` each. `q` and `d_out` are later packed into words,
    /// in the first half of each row.
    q: &'s mut [f32],
    d_out: &'s mut [f32],
    d_q: &'s mut [f32],
    /// `q` as words of two rows, `[pairs/2][hd]`, and `d_out` as pairs of two rows, `[pairs/2][hd][2]`.
    q_of_rows: &'s mut [f32],
    d_out_of_rows: &'s mut [bf16],
    /// Scores, later probabilities: `[pairs, 64]`.
    p: &'s mut [f32],
    /// Gradients of the probabilities, then of the scores: `[pairs, 64]`; at the end packed into words, in the first
    /// half of each row.
    d_s: &'s mut [f32],
    /// `p` as words of two rows, `[pairs/2][64]`, and `d_s` as pairs of two rows, `[pairs/2][64][2]`.
    p_of_rows: &'s mut [f32],
    d_s_of_rows: &'s mut [bf16],
    /// Σ d_out · out for each query (row, query head) of the task.
    delta: &'s [f32],
}

impl Tasks for BackwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let (g, hd, per) = (&self.of.geometry, self.of.geometry.head_dim, self.of.geometry.group());
        let (part, head) = (&self.of.parts[index / g.kv_heads], index % g.kv_heads);
        let Part { rows, visits, .. } = part;
        let rows_of_tile = rows_of_tile(g);
        // The number of pairs is even, so that every row has a partner.
        let pairs = (rows_of_tile * per).next_multiple_of(2);

        let scratch = scratch.f32(rows.len() * per + BLOCK * hd + pairs * (4 * hd + 3 * BLOCK));
        let (delta, rest) = scratch.split_at_mut(rows.len() * per);
        let (keys, rest) = rest.split_at_mut(BLOCK / 2 * hd);
        let (values, rest) = rest.split_at_mut(BLOCK / 2 * hd);
        let (q, rest) = rest.split_at_mut(pairs * hd);
        let (d_out, rest) = rest.split_at_mut(pairs * hd);
        let (d_q, rest) = rest.split_at_mut(pairs * hd);
        let (q_of_rows, rest) = rest.split_at_mut(pairs / 2 * hd);
        let (d_out_of_rows, rest) = rest.split_at_mut(pairs / 2 * hd);
        let (p, rest) = rest.split_at_mut(pairs * BLOCK);
        let (d_s, rest) = rest.split_at_mut(pairs * BLOCK);
        let (p_of_rows, d_s_of_rows) = rest.split_at_mut(pairs / 2 * BLOCK);
        let [keys, values, d_out_of_rows, d_s_of_rows] = [keys, values, d_out_of_rows, d_s_of_rows].map(halves);

        begin::<V, bf16>(g, part, head, (self.of.d_out, self.of.out), &self.of.d_qkv, delta);
        let delta = &*delta;
        let mut page = PageScratch {
            keys,
            values,
            q,
            d_out,
            d_q,
            q_of_rows,
            d_out_of_rows,
            p,
            d_s,
            p_of_rows,
            d_s_of_rows,
            delta,
        };
        for visit in visits {
            let at = (visit.page * g.kv_heads + head) * BLOCK * hd;
            // SAFETY: no other task accesses the part's pages for this kv head.
            let (d_keys, d_values) =
                unsafe { (self.of.d_keys.slice(at..at + BLOCK * hd), self.of.d_values.slice(at..at + BLOCK * hd)) };
            clear(visit, hd, d_keys, d_values);
            let (keys, values) = (&self.of.keys[at..at + BLOCK * hd], &self.of.values[at..at + BLOCK * hd]);
            transpose::<V>(keys, BLOCK, visit.end, page.keys);
            transpose::<V>(values, hd, hd, page.values);
            for run in &visit.rows {
                for start in run.clone().step_by(rows_of_tile) {
                    let tile = start..(start + rows_of_tile).min(run.end);
                    self.tile::<V>(&mut page, tile, rows.start, head, visit, keys, [d_keys, d_values]);
                }
            }
        }
    }
}

impl BackwardTasks<'_> {
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn tile<V: Simd>(
        &self,
        w: &mut PageScratch<'_>,
        tile: Range<usize>,
        part_start: usize,
        head: usize,
        visit: &Visit,
        page: &[bf16],
        [d_keys, d_values]: [&mut [f32]; 2],
    ) {
        let (g, hd, per) = (&self.of.geometry, self.of.geometry.head_dim, self.of.geometry.group());
        let slots = |row: usize| g.slots(self.of.places.positions[row] as usize, visit.block);
        let (_, any_sees) = span(tile.clone().map(slots));
        let pairs = tile.len() * per;
        let columns = any_sees.end.next_multiple_of(LANES);
        let part = |row: usize| row * g.width() + head * per * hd;
        for (i, row) in tile.clone().enumerate() {
            let here = i * per * hd..(i + 1) * per * hd;
            widen_into::<V, bf16>(&self.of.qkv[part(row)..part(row) + per * hd], &mut w.q[here.clone()]);
            let at = (row * g.heads + head * per) * hd;
            for (from, to) in
                self.of.d_out[at..at + per * hd].chunks(LANES).zip(w.d_out[here.clone()].chunks_mut(LANES))
            {
                load::<V>(from, 0).rounded_to_bf16().store_partial(to, from.len());
            }
            // SAFETY: no other task accesses this row's queries for this kv head.
            w.d_q[here].copy_from_slice(unsafe { self.of.d_qkv.slice(part(row)..part(row) + per * hd) });
        }
        words_of_rows::<V>(&w.q[..pairs * hd], hd, hd, w.q_of_rows);
        pairs_of_rows::<V>(&w.d_out[..pairs * hd], hd, hd, w.d_out_of_rows);
        for rows in [&mut *w.q, &mut *w.d_out] {
            for row in rows[..pairs * hd].chunks_exact_mut(hd) {
                words_of::<V>(row);
            }
        }

        // Scores, computed as in the forward pass, and d_out · v.
        let (a_row, a_k, b_row, out_row, rows, k, accumulate) = (hd, 1, BLOCK, BLOCK, pairs, 0..hd, false);
        let (a, b, out, dims) = (&*w.q, page.as_chunks::<2>().0, &mut *w.p, k.clone());
        Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k: dims, accumulate }.compute::<bf16>(self.isa);
        let (a, b, out) = (&*w.d_out, w.values.as_chunks::<2>().0, &mut *w.d_s);
        Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k, accumulate }.compute::<bf16>(self.isa);
        for (i, row) in tile.clone().enumerate() {
            let slots = slots(row);
            for h in 0..per {
                let pair = i * per + h;
                let block = pair * BLOCK..pair * BLOCK + columns;
                let delta = w.delta[(row - part_start) * per + h];
                let lse = self.of.lse[row * g.heads + head * per + h];
                gradients::<V, bf16>(&mut w.p[block.clone()], &mut w.d_s[block], g.scale, lse, delta, slots.clone());
            }
        }
        words_of_rows::<V>(&w.p[..pairs * BLOCK], BLOCK, columns, w.p_of_rows);
        pairs_of_rows::<V>(&w.d_s[..pairs * BLOCK], BLOCK, columns, w.d_s_of_rows);
        for d_s in w.d_s[..pairs * BLOCK].chunks_exact_mut(BLOCK) {
            words_of::<V>(&mut d_s[..columns]);
        }

        // d_k [hd, 64] += qᵗ · d_s and d_v [64, hd] += pᵗ · d_out: sums over the tile's queries. For masked keys p =
        // d_s = 0.
        let k = 0..pairs.next_multiple_of(2);
        let (a, b, out) = (&*w.q_of_rows, w.d_s_of_rows.as_chunks::<2>().0, &mut *d_keys);
        let (a_row, a_k, b_row, out_row, rows, accumulate) = (1, hd, BLOCK, BLOCK, hd, true);
        Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k: k.clone(), accumulate }
            .compute::<bf16>(self.isa);
        let (a, b, out) = (&*w.p_of_rows, w.d_out_of_rows.as_chunks::<2>().0, &mut *d_values);
        let (a_row, a_k, b_row, out_row, rows, columns) = (1, BLOCK, hd, hd, any_sees.end, hd);
        Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k, accumulate }.compute::<bf16>(self.isa);

        // d_q += d_s · k, over the keys that the row attends to. Masked keys are skipped, because they may be NaN.
        let of = |row: usize, width: usize| (row - tile.start) * per * width;
        let (d_s, d_q, b) = (&*w.d_s, &mut *w.d_q, w.keys.as_chunks::<2>().0);
        mask_blocks(tile.clone(), per, slots, |rows, k| {
            let a = &d_s[of(rows.start, BLOCK)..of(rows.end, BLOCK)];
            let out = &mut d_q[of(rows.start, hd)..of(rows.end, hd)];
            let (a_row, a_k, b_row, out_row, rows) = (BLOCK, 1, hd, hd, rows.len() * per);
            Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns: hd, k, accumulate: true }
                .compute::<bf16>(self.isa);
        });
        for (i, row) in tile.enumerate() {
            // SAFETY: no other task accesses this row's queries for this kv head.
            unsafe { self.of.d_qkv.slice(part(row)..part(row) + per * hd) }
                .copy_from_slice(&w.d_q[i * per * hd..(i + 1) * per * hd]);
        }
    }
}

/// Packs two rows of f32 numbers, all exact in bf16, into one row of words, for the first `columns` of rows of `width`
/// numbers. The partner of an odd last row is −0.
#[inline(always)]
fn words_of_rows<V: Simd>(rows: &[f32], width: usize, columns: usize, to: &mut [f32]) {
    for (two, to) in rows.chunks(2 * width).zip(to.chunks_exact_mut(width)) {
        let (first, second) = two.split_at(width);
        for at in (0..columns).step_by(LANES) {
            let second = if second.is_empty() { V::splat(-0.0) } else { load(second, at) };
            store(V::word(load(first, at), second), to, at);
        }
    }
}

/// Like [`words_of_rows`], but stores the two numbers as a pair of bf16. The partner of an odd last row is 0.
#[inline(always)]
fn pairs_of_rows<V: Simd>(rows: &[f32], width: usize, columns: usize, to: &mut [bf16]) {
    for (two, to) in rows.chunks(2 * width).zip(to.chunks_exact_mut(2 * width)) {
        let (first, second) = two.split_at(width);
        for at in (0..columns).step_by(LANES) {
            let second = if second.is_empty() { V::splat(0.0) } else { load(second, at) };
            store_pairs(load::<V>(first, at), second, &mut to[2 * at..]);
        }
    }
}

/// Stores the lanes of `even` and `odd` as pairs of bf16, as many pairs as `to` has room for.
#[inline(always)]
fn store_pairs<V: Simd>(even: V, odd: V, to: &mut [bf16]) {
    if to.len() >= 2 * LANES {
        return V::store_pairs(even, odd, to);
    }
    let mut all = [bf16::ZERO; 2 * LANES];
    V::store_pairs(even, odd, &mut all);
    let n = to.len();
    to.copy_from_slice(&all[..n]);
}

/// Transposes a matrix of bf16 stored in pairs of rows: `[a/2][b][2]` to `[b/2][a][2]`. At least the first `used` of
/// its `b` columns are transposed.
#[inline(always)]
fn transpose<V: Simd>(from: &[bf16], b: usize, used: usize, to: &mut [bf16]) {
    let a = from.len() / b;
    for column in (0..used).step_by(LANES) {
        let n = LANES.min(b - column);
        for row in (0..a).step_by(LANES) {
            let mut lines = [V::splat(0.0); LANES];
            for (lines, two) in lines.chunks_exact_mut(2).zip(from.chunks_exact(2 * b).skip(row / 2)) {
                let two = &two[2 * column..2 * (column + n)];
                let (even, odd) = if n == LANES {
                    V::load_pairs(two)
                } else {
                    let mut all = [bf16::ZERO; 2 * LANES];
                    all[..2 * n].copy_from_slice(two);
                    V::load_pairs(&all)
                };
                lines.copy_from_slice(&[even, odd]);
            }
            let lines = V::transpose(lines);
            for (two, to) in lines.chunks_exact(2).take(n / 2).zip(to.chunks_exact_mut(2 * a).skip(column / 2)) {
                store_pairs(two[0], two[1], &mut to[2 * row..]);
            }
        }
    }
}
