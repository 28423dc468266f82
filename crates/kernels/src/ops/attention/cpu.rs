//! Attention on the CPU: writing pages, and the forward pass. (`backward.rs` has the backward pass.)
//!
//! A task is a tile of consecutive rows under one kv head. Block by block, rows of the tile that look at the same page
//! are one matmul. A row's state is (m, l, O): m the largest score so far, l 16 lane sums of exp(z − m) (lane = slot
//! mod 16, block after block), O the weighted sum of values. The one rule of rescaling: where a block's largest score
//! is greater than m, l and O are multiplied by α = exp(m − new m); where it is not, they are left alone.
//!
//! So a row's bits depend on its query, and the keys and values of its own positions: not on the tile, the rows beside
//! it, the pages' numbers, or the threads.

use super::matmul::{Matmul, Right};
use super::{BLOCK, Forward, Geometry, pages, tiles};
use crate::device::Cpu;
use crate::math::{exp_finite, exp1, ln1};
use crate::ops::lanes::{load, rows, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::element::widen_into;
use crate::simd::tiles::Unit;
use crate::simd::{Element, LANES, Simd};
use crate::{DType, Isa};
use half::bf16;
use std::ops::Range;

impl Geometry {
    pub(super) fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
    /// Keys that the row at position `p` sees.
    #[inline(always)]
    pub(super) fn seen(&self, p: usize) -> Range<usize> {
        let first = self.window.map_or(0, |w| (p + 1).saturating_sub(w));
        first..p + 1
    }
    /// Keys of block `block` that it sees, as slots.
    #[inline(always)]
    pub(super) fn slots(&self, p: usize, block: usize) -> Range<usize> {
        let (seen, start) = (self.seen(p), block * BLOCK);
        let end = seen.end.saturating_sub(start).min(BLOCK);
        seen.start.saturating_sub(start).min(end)..end
    }
}

/// Rows and their tables, as slices.
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
    /// The blocks that any of `rows` sees, and those between.
    #[inline(always)]
    pub fn blocks(&self, g: &Geometry, rows: Range<usize>) -> Range<usize> {
        let (_, seen) = span(rows.map(|row| g.seen(self.positions[row] as usize)));
        if seen.is_empty() { 0..0 } else { seen.start / BLOCK..seen.end.div_ceil(BLOCK) }
    }
    /// Those of `rows` that see block `block`: neighbours that find it in the same page, and the page.
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

/// Where results of the forward pass go.
pub(super) struct Outputs<'a, E> {
    pub out: Disjoint<'a, E>,
    pub lse: Option<Disjoint<'a, f32>>,
}

impl<E: Element> Outputs<'_, E> {
    /// The result of the pair `pair` (row · nh + head) from its state.
    ///
    /// # Safety
    /// No other task writes it.
    #[inline(always)]
    pub unsafe fn write<V: Simd>(&self, pair: usize, o: &[f32], m: f32, l: &[f32]) {
        let (hd, l) = (o.len(), V::load(l).sum());
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.slice(pair * hd..(pair + 1) * hd) };
        for at in (0..hd).step_by(LANES) {
            store(load::<V>(o, at).div(V::splat(l)), out, at);
        }
        if let Some(lse) = &self.lse {
            // SAFETY: the caller's promise.
            let lse = unsafe { lse.slice(pair..pair + 1) };
            lse[0] = m + ln1::<V>(l);
        }
    }
}

/// What multiplies these numbers on tiles, if anything does.
pub(super) fn on_tiles(cpu: &Cpu, dtype: DType) -> Option<Unit> {
    cpu.isa().tiles().filter(|_| dtype == DType::Bf16)
}

/// Query heads in a tile, about: enough to make a page's trip from the second-level cache worth it.
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
    /// Keys and values, if they are kept in pairs.
    pairs: Option<[&'a [[bf16; 2]]; 2]>,
}

/// A tile's state. Pairs are (row, query head), row by row.
struct Tile<'s> {
    /// `[pairs, hd]`, or `[pairs, hd/2]` words with room for as many.
    q: &'s mut [f32],
    /// `[pairs, 64]`: scores, then probabilities, or words of them.
    s: &'s mut [f32],
    /// `[pairs, hd]`
    o: &'s mut [f32],
    /// `[pairs]`
    m: &'s mut [f32],
    /// `[pairs, 16]`
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
                // SAFETY: this row and head are this task's alone.
                unsafe { self.outputs.write::<V>(row * g.heads + head * group + h, o, t.m[pair], l) };
            }
        }
    }
}

impl<E: Element + Right> ForwardTasks<'_, E> {
    /// Rows `run` of the tile that begins with row `start` look at block `block` of their sequences, which lies in
    /// `page`.
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

        // Whole vectors: lanes past the last key hold anything, and are masked.
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

/// Numbers that bf16 has, an even number of them, to words of two in the first half of their place.
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

/// Cuts what `rows` see of a block into matmuls of rows and slots that all of these rows see, ascending for each row.
///
/// What a row does not see may be NaN, so it is not even multiplied by 0. Rows that differ are taken a few at a time
/// (`per` query heads each, some six in all): what all of them see at once, and what only some see, row by row, before
/// and after it.
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

/// What all of these ranges hold and what any holds, as one range each (the first may be empty, then it starts where
/// the last range does).
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

/// Scores `s` of a block become exp(z − m) (0 outside `slots`), rounded to what values are stored in, and the row's m,
/// l (of exp(z − m) unrounded) and O follow.
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
    // Vectors that hold a slot seen. The others are never read.
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

/// The rule of rescaling: if a block's largest score is above the row's m, m is raised to it and O follows. Gives the
/// row's l (`sum`, 16 lanes), which follows too.
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

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    if let Some(unit) = on_tiles(cpu, args.qkv.dtype()) {
        return tiles::forward(cpu, args, unit);
    }
    let (g, places) = (args.geometry, Places::new(cpu, args.rows));
    let rows = places.positions.len();
    // Fewer rows in a tile where threads would otherwise wait: tiles decide speed only.
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

/// Rows of a copy are whole pages; small enough for the caller's thread.
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
