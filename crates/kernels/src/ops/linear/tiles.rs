//! Products on tiles: both operands are packed into tiles block by block, and a [`Unit`] multiplies them.
//!
//! The depth is walked in steps of 32 from its start, or from the start of every segment of it, padded with zeros at the
//! end: that, with the formula of [`crate::simd::tiles`], is what decides the bits. Everything else here does not: outputs
//! are stored as f32 between blocks of depth, which is exact, and a row's tile is multiplied alike wherever it lies.
//!
//! | product         | tiles of A `[16 rows][32 steps]`           | tiles of B `[16 pairs of steps][32 columns][2]`     |
//! |-----------------|--------------------------------------------|-----------------------------------------------------|
//! | forward         | rows of `x`                                | a panel of W                                        |
//! | backward_input  | rows of `d_y`, rounded                     | 32 columns of Wᵀ, two outputs side by side          |
//! | backward_weight | two rows of `x` side by side, transposed   | two rows of `d_y`, rounded, side by side            |
//!
//! Where the depth is a multiple of 32, rows of bf16 and panels of W are tiles as they lie, and nothing is packed.
//!
//! Knows neither threads nor instruction sets: a test can run all of it with the unit in plain Rust.

use super::cpu::{Left, Order, Product, Right, aligned};
use crate::matrix::PANEL;
use crate::pool::Scratch;
use crate::simd::tiles::{DEPTH, SIDE, TILE, Unit, Work, cuts};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// (These numbers are small in tests, so that small shapes take every way.) Steps of a block of depth: 320 terms, whose tiles of A and B for 32 rows and 32 columns are 20 KiB each.
const STEPS: usize = if cfg!(test) { 3 } else { 10 };
/// The same where rows are few and B is passed over once.
const STEPS_OF_FEW: usize = if cfg!(test) { 5 } else { 32 };
/// Rows of one or two tiles.
pub(super) const FEW: usize = 2 * SIDE;
/// Rows of a task.
pub(super) const ROWS: usize = if cfg!(test) { 96 } else { 512 };
/// The most elements of A that are packed once for all panels: 1 MiB.
const RESIDENT: usize = if cfg!(test) { 1 << 13 } else { 1 << 19 };
/// Otherwise, panels between which the depth is walked: 1 MiB of outputs of [`ROWS`] rows.
const CHUNK: usize = if cfg!(test) { 2 } else { 16 };

/// Terms of a sum, in steps of at most 32 that no segment's end lies inside.
pub(super) enum Steps {
    /// One segment.
    One(usize),
    /// The terms of each step.
    Segments(Vec<Range<usize>>),
}

impl Steps {
    /// `segments` are the first term of each, and the number of terms at last.
    pub(super) fn new(depth: usize, segments: Option<&[u32]>) -> Steps {
        match segments {
            Some(offsets) if offsets.len() > 2 => Steps::Segments(steps(offsets).collect()),
            _ => Steps::One(depth),
        }
    }
    pub(super) fn len(&self) -> usize {
        match self {
            Steps::One(depth) => depth.div_ceil(DEPTH),
            Steps::Segments(steps) => steps.len(),
        }
    }
    /// Terms of step `step`.
    pub(super) fn terms(&self, step: usize) -> Range<usize> {
        match self {
            Steps::One(depth) => step * DEPTH..(*depth).min((step + 1) * DEPTH),
            Steps::Segments(steps) => steps[step].clone(),
        }
    }
}

/// The terms of each step, for segments from these offsets.
pub(crate) fn steps(offsets: &[u32]) -> impl Iterator<Item = Range<usize>> + use<'_> {
    offsets.windows(2).flat_map(|ends| {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        (start..end).step_by(DEPTH).map(move |at| at..end.min(at + DEPTH))
    })
}

/// Computes rows `rows` of panels `panels` on this thread, with terms `steps`.
///
/// # Safety
/// No other thread computes an output in common.
#[inline(always)]
pub(super) unsafe fn block<V: Simd>(
    product: &Product<'_>,
    unit: Unit,
    steps: &Steps,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &mut Scratch,
) {
    let (tiles, few) = (rows.len().div_ceil(SIDE), rows.len() <= FEW);
    let whole = product.depth.is_multiple_of(DEPTH);
    let right = match product.right {
        Right::Panels(Elements::Bf16(data)) if whole => Right::Tiles(data),
        right => right,
    };
    let resident = few || tiles * steps.len() * TILE <= RESIDENT;
    let limit = if few { STEPS_OF_FEW } else { STEPS };
    let blocks = steps.len().div_ceil(limit);
    let most = steps.len().div_ceil(blocks.max(1));
    // A, if it is tiles as it lies.
    let lies = match product.left {
        Left::Tiles(all) => Some(A::packed(&all[rows.start / SIDE * steps.len() * TILE..], steps.len())),
        Left::Rows(Elements::Bf16(data), stride) if whole => Some(A::rows(&data[rows.start * stride..], stride)),
        _ => None,
    };
    // What this task packs of it otherwise: all of it once, or a block of depth at a time.
    let of_a = match lies {
        Some(_) => 0,
        None => tiles * TILE * if resident { steps.len() } else { most },
    };
    let of_b = if let Right::Tiles(_) = right { 0 } else { 2 * most * TILE };
    // A ragged last panel goes through rows of its own; so does the memory of a panel's padding, which is left alone.
    let aside = rows.len() * PANEL;
    let memory = aligned(scratch, (of_a + of_b) / 2 + aside);
    let (packed, aside) = memory.split_at_mut((of_a + of_b) / 2);
    let (own_a, own_b) = halves(packed).split_at_mut(of_a);

    let chunk = if resident { 1 } else { CHUNK };
    for first in panels.clone().step_by(chunk) {
        let panels_of_chunk = first..panels.end.min(first + chunk);
        for i in 0..blocks {
            let depth = (i * most).min(steps.len())..((i + 1) * most).min(steps.len());
            let a = match lies {
                Some(a) => a.from(depth.start),
                None if resident => {
                    if i == 0 && first == panels.start {
                        pack_left::<V>(product, steps, rows.clone(), 0..steps.len(), own_a);
                    }
                    A::packed(own_a, steps.len()).from(depth.start)
                }
                None => {
                    pack_left::<V>(product, steps, rows.clone(), depth.clone(), own_a);
                    A::packed(own_a, depth.len())
                }
            };
            for panel in panels_of_chunk.clone() {
                let b = match right {
                    Right::Tiles(all) => {
                        &all[(panel * steps.len() + depth.start) * 2 * TILE..][..2 * depth.len() * TILE]
                    }
                    _ => {
                        for (step, to) in depth.clone().zip(own_b.chunks_exact_mut(2 * TILE)) {
                            pack_right::<V>(product, steps, panel, step, to);
                        }
                        &own_b[..2 * depth.len() * TILE]
                    }
                };
                let outputs = Outputs {
                    rows: rows.clone(),
                    panel,
                    from_c: product.accumulate || depth.start > 0,
                    last: depth.end == steps.len(),
                };
                // SAFETY: A and B are packed; the outputs are this thread's.
                unsafe { multiply::<V>(product, unit, outputs, depth.len(), a, b, aside) };
            }
        }
    }
}

/// Tiles of A, with strides in elements.
#[derive(Clone, Copy)]
struct A<'a> {
    data: &'a [bf16],
    /// From a row to the next of its tile.
    row: usize,
    /// From a tile to that of the next 16 rows.
    tile: usize,
    /// From a tile to that of the next step.
    step: usize,
}

impl<'a> A<'a> {
    /// `[tiles of rows][steps][16][32]`
    fn packed(data: &'a [bf16], steps: usize) -> A<'a> {
        A { data, row: DEPTH, tile: steps * TILE, step: TILE }
    }
    /// Rows as they lie in a matrix.
    fn rows(data: &'a [bf16], stride: usize) -> A<'a> {
        A { data, row: stride, tile: SIDE * stride, step: DEPTH }
    }
    /// The same without the first `steps` steps.
    fn from(self, steps: usize) -> A<'a> {
        A { data: &self.data[steps * self.step..], ..self }
    }
    /// What a product of `rows` rows and `steps` steps reads of it at most.
    fn end(&self, rows: usize, steps: usize) -> usize {
        (rows - 1) / SIDE * self.tile + (rows - 1) % SIDE * self.row + (steps - 1) * self.step + DEPTH
    }
}

/// This memory as numbers of half its width.
pub(crate) fn halves(memory: &mut [f32]) -> &mut [bf16] {
    let (start, len) = (memory.as_mut_ptr().cast(), 2 * memory.len());
    // SAFETY: the same bytes; any bits are a number, and two bytes need no more alignment than four.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// Which outputs a call of [`multiply`] forms.
struct Outputs {
    rows: Range<usize>,
    panel: usize,
    from_c: bool,
    /// Whether sums end with it, so that the bias comes next.
    last: bool,
}

/// One panel's outputs from packed tiles, and the bias after the last of them.
///
/// # Safety
/// No other thread touches these outputs.
#[inline(always)]
unsafe fn multiply<V: Simd>(
    product: &Product<'_>,
    unit: Unit,
    outputs: Outputs,
    depth: usize,
    a: A<'_>,
    b: &[bf16],
    aside: &mut [f32],
) {
    let Outputs { rows, panel, from_c, last } = outputs;
    let columns = (product.n - panel * PANEL).min(PANEL);
    let (row, panel_at) = match product.order {
        Order::Rows(stride) => (stride, panel * PANEL),
        Order::Panels => (PANEL, panel * product.m * PANEL),
    };
    let c = product.c.wrapping_add(rows.start * row + panel_at);
    // SAFETY: rows and columns that exist, as the product checked; this thread's alone.
    let of_row = |i: usize| unsafe { std::slice::from_raw_parts_mut(c.wrapping_add(i * row), columns) };
    let whole = columns == PANEL;
    if !whole && from_c {
        aside.chunks_exact_mut(PANEL).enumerate().for_each(|(i, to)| to[..columns].copy_from_slice(of_row(i)));
    }
    let (start, stride) = if whole { (c, row) } else { (aside.as_mut_ptr(), PANEL) };

    for (first, blocks, of_tiles) in cuts(rows.len()) {
        let work = Work {
            a: a.data[first / SIDE * a.tile..].as_ptr(),
            b: b.as_ptr(),
            c: start.wrapping_add(first * stride),
            a_row: a.row * size_of::<bf16>(),
            a_lower: a.tile * size_of::<bf16>(),
            a_step: a.step * size_of::<bf16>(),
            c_stride: stride * size_of::<f32>(),
            a_block: 2 * a.tile * size_of::<bf16>(),
            c_block: FEW * stride * size_of::<f32>(),
            depth,
            blocks,
            from_c: usize::from(from_c),
            rows: of_tiles,
        };
        assert!(b.len() >= 2 * depth * TILE && a.data.len() >= a.end(rows.len(), depth));
        // SAFETY: A holds `depth` steps of every row, B two tiles for each, as just checked; C is either rows of 32 columns
        // that exist or as many aside.
        unsafe { unit(&[work]) };
    }

    if !whole {
        aside.chunks_exact(PANEL).take(rows.len()).enumerate().for_each(|(i, from)| {
            of_row(i).copy_from_slice(&from[..columns]);
        });
    }
    if let Some(bias) = product.bias.filter(|_| last) {
        let bias = &bias[panel * PANEL..][..columns];
        for i in 0..rows.len() {
            for (c, bias) in of_row(i).chunks_mut(LANES).zip(bias.chunks(LANES)) {
                let n = c.len();
                V::load_partial(c, n).add(V::load_partial(bias, n)).store_partial(c, n);
            }
        }
    }
}

/// Two tiles in the making: 32 lines.
#[repr(align(64))]
pub(crate) struct Lines(pub(crate) [bf16; 2 * TILE]);

/// Tiles of A: `[rows / 16][depth][16][32]`. Rows that do not exist are not written.
#[inline(always)]
fn pack_left<V: Simd>(product: &Product<'_>, steps: &Steps, rows: Range<usize>, depth: Range<usize>, to: &mut [bf16]) {
    let tiles = depth.len() * TILE;
    match product.left {
        Left::Rows(data, stride) => {
            for (i, row) in rows.enumerate() {
                let to = &mut to[i / SIDE * tiles + i % SIDE * DEPTH..];
                for (at, step) in depth.clone().enumerate() {
                    let terms = steps.terms(step);
                    let from = data.range(row * stride + terms.start..row * stride + terms.end);
                    narrowed::<V>(from, &mut to[at * TILE..][..DEPTH]);
                }
            }
        }
        Left::Columns(data, stride) => {
            for (at, step) in depth.enumerate() {
                let of_rows = to.chunks_mut(2 * tiles).zip(rows.clone().step_by(FEW));
                for (to, start) in of_rows {
                    let columns = start..rows.end.min(start + FEW);
                    let (upper, lower) = to.split_at_mut(tiles);
                    let lower = if lower.is_empty() { lower } else { &mut lower[at * TILE..][..TILE] };
                    let to = [&mut upper[at * TILE..][..TILE], lower];
                    pack_columns::<V>(data, stride, steps.terms(step), columns, to);
                }
            }
        }
        Left::Tiles(_) | Left::Strips(_) => unreachable!("packed already"),
    }
}

/// One step of two tiles of A from up to 32 columns of row-major data: terms side by side, columns one below the other.
/// The second is not touched if there are no more than 16.
#[inline(always)]
pub(super) fn pack_columns<V: Simd>(
    data: Elements<'_>,
    stride: usize,
    terms: Range<usize>,
    columns: Range<usize>,
    to: [&mut [bf16]; 2],
) {
    // Pairs of terms, column by column, in the way B wants them.
    let mut zipped = Lines([bf16::ZERO; 2 * TILE]);
    if let Elements::Bf16(data) = data {
        // The columns to the right come next.
        for k in terms.clone() {
            V::prefetch(data.as_ptr().wrapping_add(k * stride + columns.end));
        }
    }
    zip_columns::<V>(data, stride, terms, columns.clone(), &mut zipped.0);
    for (half, to) in to.into_iter().enumerate().take(columns.len().div_ceil(SIDE)) {
        transpose_pairs::<V>(&zipped.0[half * DEPTH..], 2 * DEPTH, SIDE, to, DEPTH);
    }
}

/// One step of the tiles of B for one panel: `[16 pairs][32 columns][2]`.
#[inline(always)]
pub(super) fn pack_right<V: Simd>(product: &Product<'_>, steps: &Steps, panel: usize, step: usize, to: &mut [bf16]) {
    let columns = panel * PANEL..product.n.min((panel + 1) * PANEL);
    match product.right {
        Right::Panels(Elements::Bf16(data)) => {
            let terms = steps.terms(step);
            let from = &data[(panel * product.depth + terms.start) * PANEL..][..terms.len() * PANEL];
            to[..from.len()].copy_from_slice(from);
            to[from.len()..].fill(bf16::ZERO);
        }
        Right::Rows(data, stride) => zip_columns::<V>(data, stride, steps.terms(step), columns, to),
        Right::Transposed(Elements::Bf16(data)) => {
            // A step is a panel of the weight, whose padding is 0: to rows of outputs, two of them side by side.
            let from = &data[(step * product.n + columns.start) * PANEL..(step * product.n + columns.end) * PANEL];
            let mut outputs = Lines([bf16::ZERO; 2 * TILE]);
            pairs_to_lines::<V>(from, columns.len() / 2, &mut outputs.0);
            zip_lines::<V>(&outputs.0, to);
        }
        Right::Panels(Elements::F32(_)) | Right::Transposed(Elements::F32(_)) => {
            unreachable!("a weight in f32 is not multiplied on tiles")
        }
        Right::Tiles(_) => unreachable!("packed already"),
    }
}

/// Up to 32 elements as bf16, zeros after them.
#[inline(always)]
pub(crate) fn narrowed<V: Simd>(from: Elements<'_>, to: &mut [bf16]) {
    let len = from.len();
    match from {
        Elements::Bf16(from) => match (<&[bf16; DEPTH]>::try_from(from), <&mut [bf16; DEPTH]>::try_from(&mut *to)) {
            // A length that the compiler knows: no call.
            (Ok(from), Ok(to)) => *to = *from,
            _ => to[..len].copy_from_slice(from),
        },
        Elements::F32(from) => {
            for (from, to) in from.chunks(LANES).zip(to.chunks_mut(LANES)) {
                if from.len() == LANES {
                    bf16::store(V::load(from), to);
                } else {
                    bf16::store_partial(V::load_partial(from, from.len()), to, from.len());
                }
            }
        }
    }
    to[len..].fill(bf16::ZERO);
}

/// Rows of at most 32 columns, of the terms of a step, two and two side by side: `[16 pairs][32 columns][2]`; zeros
/// where there is no term or no column.
#[inline(always)]
pub(crate) fn zip<'a, V: Simd>(terms: Range<usize>, row: impl Fn(usize) -> Elements<'a>, to: &mut [bf16]) {
    let zeros = [bf16::ZERO; DEPTH];
    for (k, to) in (terms.start..).step_by(2).zip(to.chunks_exact_mut(2 * DEPTH)) {
        let mut rounded = [[bf16::ZERO; DEPTH]; 2];
        let [even, odd] = &mut rounded;
        let even = if k < terms.end { whole::<V>(row(k), even) } else { &zeros };
        let odd = if k + 1 < terms.end { whole::<V>(row(k + 1), odd) } else { &zeros };
        V::zip_bf16(even, odd, to);
    }
}

/// 32 elements in bf16: as they lie, or rounded and padded in `room`.
#[inline(always)]
fn whole<'a, V: Simd>(from: Elements<'a>, room: &'a mut [bf16; DEPTH]) -> &'a [bf16] {
    match from {
        Elements::Bf16(from) if from.len() == DEPTH => from,
        from => {
            narrowed::<V>(from, room);
            room
        }
    }
}

/// [`zip`] of columns of row-major data.
#[inline(always)]
pub(crate) fn zip_columns<V: Simd>(
    data: Elements<'_>,
    stride: usize,
    terms: Range<usize>,
    columns: Range<usize>,
    to: &mut [bf16],
) {
    let row = |k: usize| k * stride + columns.start..k * stride + columns.end;
    match data {
        Elements::F32(data) => zip_f32::<V>(data, stride, terms, columns, &mut [to]),
        Elements::Bf16(data) if terms.len() == DEPTH && columns.len() == DEPTH => {
            for (k, to) in terms.step_by(2).zip(to.chunks_exact_mut(2 * DEPTH)) {
                V::zip_bf16(&data[row(k)], &data[row(k + 1)], to);
            }
        }
        Elements::Bf16(_) => zip::<V>(terms, |k| data.range(row(k)), to),
    }
}

/// The same of f32, rounded, and of a few panels at once: as many as there are `to`.
#[inline(always)]
pub(super) fn zip_f32<V: Simd>(
    data: &[f32],
    stride: usize,
    terms: Range<usize>,
    columns: Range<usize>,
    to: &mut [&mut [bf16]],
) {
    for (i, k) in (terms.start..).step_by(2).take(SIDE).enumerate() {
        for (panel, to) in to.iter_mut().enumerate() {
            for half in 0..2 {
                let at = columns.start + panel * PANEL + half * LANES;
                let n = columns.end.saturating_sub(at).min(LANES);
                let to = &mut to[(2 * i + half) * DEPTH..][..DEPTH];
                let (even, odd) = (k * stride + at, (k + 1) * stride + at);
                // The panels to the right come next.
                V::prefetch(data.as_ptr().wrapping_add(even + columns.len()));
                V::prefetch(data.as_ptr().wrapping_add(odd + columns.len()));
                if n == LANES && k + 1 < terms.end {
                    V::store_pairs(V::load(&data[even..]), V::load(&data[odd..]), to);
                } else {
                    let part = |k: usize, at: usize| if k < terms.end && n > 0 { &data[at..at + n] } else { &[] };
                    let (even, odd) = (part(k, even), part(k + 1, odd));
                    let (even, odd) = (V::load_partial(even, even.len()), V::load_partial(odd, odd.len()));
                    V::store_pairs(even, odd, to);
                }
            }
        }
    }
}

/// 32 lines, two and two side by side: `[16 pairs][32][2]`.
#[inline(always)]
pub(crate) fn zip_lines<V: Simd>(lines: &[bf16], to: &mut [bf16]) {
    zip_columns::<V>(Elements::Bf16(lines), DEPTH, 0..DEPTH, 0..DEPTH, to);
}

/// `[rows ≤ 16][32][2]` to 32 lines `[32][16][2]`, with zeros where there is no row.
#[inline(always)]
pub(crate) fn pairs_to_lines<V: Simd>(pairs: &[bf16], rows: usize, lines: &mut [bf16]) {
    for (half, lines) in lines.chunks_exact_mut(TILE).enumerate() {
        transpose_pairs::<V>(&pairs[half * DEPTH..], 2 * DEPTH, rows, lines, DEPTH);
    }
}

/// `[rows ≤ 16][16 pairs]` to `[16 pairs][16 rows]`, a pair being moved as one; rows that do not exist become 0. Lines are
/// so many elements apart.
#[inline(always)]
pub(crate) fn transpose_pairs<V: Simd>(from: &[bf16], from_line: usize, rows: usize, to: &mut [bf16], to_line: usize) {
    debug_assert!(from.as_ptr().cast::<f32>().is_aligned() && to.as_ptr().cast::<f32>().is_aligned());
    // A closure would not be compiled with the instruction set's features.
    let mut lines = [V::splat(0.0); SIDE];
    for (i, line) in lines.iter_mut().enumerate().take(rows) {
        let from = &from[i * from_line..][..DEPTH];
        // SAFETY: 16 pairs. A vector only carries their bits. Lines begin at multiples of 64 bytes of what is aligned to 4
        // (weights and scratch are aligned to 64), so pairs are aligned as f32 are.
        *line = unsafe { V::load_ptr(from.as_ptr().cast()) };
    }
    for (i, line) in V::transpose(lines).into_iter().enumerate() {
        let to = &mut to[i * to_line..][..DEPTH];
        // SAFETY: 32 elements of two bytes.
        unsafe { line.store_ptr(to.as_mut_ptr().cast()) };
    }
}
