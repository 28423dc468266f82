//! Helpers that the forward and backward passes of attention on the CPU share: which KV-cache pages the rows attend to,
//! the causal mask split into rectangular blocks, and the rescaling rule of the online softmax. Nothing here depends on
//! the order in which pages are visited.

use super::{BLOCK, Geometry};
use crate::DType;
use crate::device::Cpu;
use crate::math::{exp1, ln1};
use crate::ops::lanes::{load, store};
use crate::pool::Disjoint;
use crate::simd::tiles::Unit;
use crate::simd::{Element, LANES, Simd};
use half::bf16;
use std::ops::Range;

impl Geometry {
    pub(super) fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
    /// Range of the key positions to which the query at position `p` attends: up to `p`, and inside the sliding window.
    #[inline(always)]
    pub(super) fn seen(&self, p: usize) -> Range<usize> {
        let first = self.window.map_or(0, |w| (p + 1).saturating_sub(w));
        first..p + 1
    }
    /// The part of block `block` (64 positions) to which the query at position `p` attends, as a range of slots from 0
    /// to 64.
    #[inline(always)]
    pub(super) fn slots(&self, p: usize, block: usize) -> Range<usize> {
        let (seen, start) = (self.seen(p), block * BLOCK);
        let end = seen.end.saturating_sub(start).min(BLOCK);
        seen.start.saturating_sub(start).min(end)..end
    }
}

/// The positions and block tables of all rows, as slices of CPU memory.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub positions: &'a [u32],
    pub tables_of_rows: &'a [u32],
    pub tables: &'a [u32],
    pub table_len: usize,
}

impl<'a> Places<'a> {
    pub fn new(cpu: &Cpu, rows: super::Rows<'a>) -> Self {
        Places {
            positions: rows.positions.u32(cpu),
            tables_of_rows: rows.tables_of_rows.u32(cpu),
            tables: rows.tables.u32(cpu),
            table_len: rows.tables.shape()[1],
        }
    }
    #[inline(always)]
    pub fn page(&self, row: usize, block: usize) -> usize {
        self.tables[self.tables_of_rows[row] as usize * self.table_len + block] as usize
    }
    /// Range of the blocks from the first to the last to which any of `rows` attends.
    #[inline(always)]
    pub fn blocks(&self, g: &Geometry, rows: Range<usize>) -> Range<usize> {
        let (_, seen) = span(rows.map(|row| g.seen(self.positions[row] as usize)));
        if seen.is_empty() { 0..0 } else { seen.start / BLOCK..seen.end.div_ceil(BLOCK) }
    }
    /// Iterates over the rows of `rows` that attend to block `block`. Yields (page, range of rows) for consecutive rows
    /// whose block tables name the same KV-cache page.
    #[inline(always)]
    pub fn runs(
        self,
        g: &Geometry,
        rows: Range<usize>,
        block: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a, '_> {
        let mut row = rows.start;
        std::iter::from_fn(move || {
            let sees = |row: usize| !g.slots(self.positions[row] as usize, block).is_empty();
            while row < rows.end && !sees(row) {
                row += 1;
            }
            if row == rows.end {
                return None;
            }
            let (first, page) = (row, self.page(row, block));
            row += 1;
            while row < rows.end && sees(row) && self.page(row, block) == page {
                row += 1;
            }
            Some((page, first..row))
        })
    }
}

/// The output tensors of the forward pass.
pub(super) struct Outputs<'a, E> {
    pub out: Disjoint<'a, E>,
    pub lse: Option<Disjoint<'a, f32>>,
}

impl<E: Element> Outputs<'_, E> {
    /// Writes the attention output and the log-sum-exp of one query from its online-softmax state: maximum `m`, 16
    /// partial sums `l`, unnormalised output `o`. `pair` is the index row · nh + query head.
    ///
    /// # Safety
    /// No other task accesses this row for this head.
    #[inline(always)]
    pub unsafe fn write<V: Simd>(&self, pair: usize, o: &[f32], m: f32, l: &[f32]) {
        let (hd, l) = (o.len(), V::load(l).sum());
        // SAFETY: the caller upholds this function's safety contract.
        let out = unsafe { self.out.slice(pair * hd..(pair + 1) * hd) };
        for at in (0..hd).step_by(LANES) {
            store(load::<V>(o, at).div(V::splat(l)), out, at);
        }
        if let Some(lse) = &self.lse {
            // SAFETY: the caller upholds this function's safety contract.
            let lse = unsafe { lse.slice(pair..pair + 1) };
            lse[0] = m + ln1::<V>(l);
        }
    }
}

/// The kernel that multiplies operands of this dtype on AMX tiles; `None` if the CPU has no tiles or the dtype is not
/// bf16.
pub(super) fn on_tiles(cpu: &Cpu, dtype: DType) -> Option<Unit> {
    cpu.isa().tiles().filter(|_| dtype == DType::Bf16)
}

/// Packs an even number of f32 values, all exactly representable in bf16, into words of two bf16 values each. The words
/// overwrite the first half of `numbers`.
#[inline(always)]
pub(super) fn words_of<V: Simd>(numbers: &mut [f32]) {
    for at in (0..numbers.len()).step_by(2 * LANES) {
        let n = (numbers.len() - at).min(2 * LANES);
        let mut narrow = [bf16::ZERO; 2 * LANES];
        for (from, to) in numbers[at..at + n].chunks(LANES).zip(narrow.chunks_exact_mut(LANES)) {
            if from.len() == LANES {
                V::load(from).store_exact_bf16(to);
            } else {
                bf16::store_partial(V::load_partial(from, from.len()), to, from.len());
            }
        }
        V::load_words(&narrow).store_partial(&mut numbers[at / 2..], n / 2);
    }
}

/// Splits the attention of `rows` to one block of keys into rectangular matmuls. In each matmul, all rows attend to all
/// slots. Calls `matmul` with the ranges of rows and slots; the slots of each row come in ascending order.
///
/// A masked key may be NaN, so it must not even be multiplied by 0. Rows that attend to different slots are processed a
/// few at a time (about six queries; `per` is the number of query heads that share a kv head). The slots that all of
/// these rows attend to are one matmul; slots before and after them are computed row by row.
#[inline(always)]
pub(super) fn mask_blocks(
    rows: Range<usize>,
    per: usize,
    slots: impl Fn(usize) -> Range<usize>,
    mut matmul: impl FnMut(Range<usize>, Range<usize>),
) {
    let (all_see, any_sees) = span(rows.clone().map(&slots));
    let step = if all_see == any_sees { rows.len() } else { (6 / per).max(1) };
    for start in rows.clone().step_by(step.max(1)) {
        let few = start..(start + step).min(rows.end);
        let (all_see, any_sees) = span(few.clone().map(&slots));
        if any_sees.start < all_see.start {
            for (row, seen) in few.clone().map(|row| (row, slots(row))).filter(|(_, s)| s.start < all_see.start) {
                matmul(row..row + 1, seen.start..seen.end.min(all_see.start));
            }
        }
        if !all_see.is_empty() {
            matmul(few.clone(), all_see.clone());
        }
        if all_see.end < any_sees.end {
            for (row, seen) in few.map(|row| (row, slots(row))).filter(|(_, s)| s.end > all_see.end) {
                matmul(row..row + 1, seen.start.max(all_see.end)..seen.end);
            }
        }
    }
}

/// Returns the intersection of the ranges and the smallest range that covers all of them. An empty intersection begins
/// at the largest start.
#[inline(always)]
pub(super) fn span(ranges: impl Iterator<Item = Range<usize>>) -> (Range<usize>, Range<usize>) {
    let mut all = Range { start: 0, end: usize::MAX };
    let mut any = Range { start: usize::MAX, end: 0 };
    for r in ranges {
        all = all.start.max(r.start)..all.end.min(r.end);
        any = any.start.min(r.start)..any.end.max(r.end);
    }
    all.end = all.end.max(all.start);
    (all, any)
}

/// The rescaling rule of the online softmax: if a block's largest score is above the row's running maximum `m`, then
/// `m` is raised to it and the row's unnormalised output `o` is multiplied by α = exp(old m − new m). Returns the row's
/// 16 partial sums of exponentials (`sum`), multiplied by α too.
#[inline(always)]
pub(super) fn rescaled<V: Simd>(largest: f32, m: &mut f32, sum: V, o: &mut [f32]) -> V {
    if largest > *m {
        let alpha = V::splat(exp1::<V>(*m - largest));
        *m = largest;
        for at in (0..o.len()).step_by(LANES) {
            store(load::<V>(o, at).mul(alpha), o, at);
        }
        sum.mul(alpha)
    } else {
        sum
    }
}
