//! Packs the operands of a matmul into AMX tiles. A tile of A has 16 rows of 32 terms; a tile of B has 16 pairs of
//! terms for 16 columns. Operands in f32 are rounded to bf16.
//!
//! Attention and the lm head pack their own operands with the same functions.

use super::steps::{FEW, Steps};
use super::{Left, Matmul, Right};
use crate::matrix::PANEL;
use crate::simd::tiles::{DEPTH, SIDE, TILE};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// Reinterprets f32 memory as twice as many bf16 elements.
pub(crate) fn halves(memory: &mut [f32]) -> &mut [bf16] {
    let (start, len) = (memory.as_mut_ptr().cast(), 2 * memory.len());
    // SAFETY: the slice covers the same bytes. Any bits are valid as bf16 and f32, and f32 is aligned enough for bf16.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// A buffer of two tiles, aligned to a cache line: 32 rows of 64 bytes.
#[repr(align(64))]
pub(crate) struct Lines(pub(crate) [bf16; 2 * TILE]);

/// Packs rows of the left operand into tiles of A: `[rows / 16][depth][16][32]`, where depth counts steps of 32 terms.
/// Missing rows of the last tile are not written.
#[inline(always)]
pub(super) fn pack_left<V: Simd>(
    matmul: &Matmul<'_>,
    steps: &Steps,
    rows: Range<usize>,
    depth: Range<usize>,
    to: &mut [bf16],
) {
    let tiles = depth.len() * TILE;
    match matmul.left {
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
                let row_chunks = to.chunks_mut(2 * tiles).zip(rows.clone().step_by(FEW));
                for (to, start) in row_chunks {
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

/// Packs one step (up to 32 terms) of up to 32 columns of row-major data into two tiles of A: each column becomes a row
/// of a tile. The second tile is not touched if there are at most 16 columns.
#[inline(always)]
pub(super) fn pack_columns<V: Simd>(
    data: Elements<'_>,
    stride: usize,
    terms: Range<usize>,
    columns: Range<usize>,
    to: [&mut [bf16]; 2],
) {
    // Pairs of terms, column by column, in the layout of B.
    let mut zipped = Lines([bf16::ZERO; 2 * TILE]);
    if let Elements::Bf16(data) = data {
        // Prefetches the columns to the right, which are packed next.
        for k in terms.clone() {
            V::prefetch(data.as_ptr().wrapping_add(k * stride + columns.end));
        }
    }
    zip_columns::<V>(data, stride, terms, columns.clone(), &mut zipped.0);
    for (half, to) in to.into_iter().enumerate().take(columns.len().div_ceil(SIDE)) {
        transpose_pairs::<V>(&zipped.0[half * DEPTH..], 2 * DEPTH, SIDE, to, DEPTH);
    }
}

/// Packs one step (up to 32 terms) of one panel of the right operand into tiles of B: `[16 pairs][32 columns][2]`.
#[inline(always)]
pub(super) fn pack_right<V: Simd>(matmul: &Matmul<'_>, steps: &Steps, panel: usize, step: usize, to: &mut [bf16]) {
    let columns = panel * PANEL..matmul.n.min((panel + 1) * PANEL);
    match matmul.right {
        Right::Panels(Elements::Bf16(data)) => {
            let terms = steps.terms(step);
            let from = &data[(panel * matmul.depth + terms.start) * PANEL..][..terms.len() * PANEL];
            to[..from.len()].copy_from_slice(from);
            to[from.len()..].fill(bf16::ZERO);
        }
        Right::Rows(data, stride) => zip_columns::<V>(data, stride, steps.terms(step), columns, to),
        Right::Transposed(Elements::Bf16(data)) => {
            // A step is a panel of the weight, padded with zeros. Its outputs become rows, stored in pairs.
            let from = &data[(step * matmul.n + columns.start) * PANEL..(step * matmul.n + columns.end) * PANEL];
            let mut outputs = Lines([bf16::ZERO; 2 * TILE]);
            pairs_to_lines::<V>(from, columns.len() / 2, &mut outputs.0);
            zip_lines::<V>(&outputs.0, to);
        }
        Right::Panels(Elements::F32(_)) | Right::Transposed(Elements::F32(_)) => {
            unreachable!("f32 weights are never multiplied on tiles")
        }
        Right::Tiles(_) | Right::Words(_) => unreachable!("packed already"),
    }
}

/// Copies up to 32 elements as bf16 and fills the rest of `to` with zeros.
#[inline(always)]
pub(crate) fn narrowed<V: Simd>(from: Elements<'_>, to: &mut [bf16]) {
    let len = from.len();
    match from {
        Elements::Bf16(from) => match (<&[bf16; DEPTH]>::try_from(from), <&mut [bf16; DEPTH]>::try_from(&mut *to)) {
            // The length is a compile-time constant, so that the copy needs no function call.
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

/// Packs the rows of a step of terms, of at most 32 columns each, as pairs of two rows: `[16 pairs][32 columns][2]`.
/// Missing rows and columns are 0.
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

/// Returns 32 elements in bf16: the slice itself if it is bf16 already, otherwise a copy in `room`, rounded and padded
/// with zeros.
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

/// [`zip`] for the rows `terms` and the columns `columns` of row-major data.
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

/// [`zip_columns`] for f32 data, rounded to bf16, and for several panels of 32 columns at once: one for each of `to`.
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
                // Prefetches the panels to the right, which are packed next.
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

/// Packs 32 rows of 32 elements as pairs of two rows: `[16 pairs][32][2]`.
#[inline(always)]
pub(crate) fn zip_lines<V: Simd>(lines: &[bf16], to: &mut [bf16]) {
    zip_columns::<V>(Elements::Bf16(lines), DEPTH, 0..DEPTH, 0..DEPTH, to);
}

/// Transposes `[rows ≤ 16][32][2]` to `[32][16][2]`: 32 lines of 16 pairs. Missing rows become 0.
#[inline(always)]
pub(crate) fn pairs_to_lines<V: Simd>(pairs: &[bf16], rows: usize, lines: &mut [bf16]) {
    for (half, lines) in lines.chunks_exact_mut(TILE).enumerate() {
        transpose_pairs::<V>(&pairs[half * DEPTH..], 2 * DEPTH, rows, lines, DEPTH);
    }
}

/// Transposes `[rows ≤ 16][16 pairs]` to `[16 pairs][16 rows]`, moving each pair as one unit. Missing rows become 0.
/// `from_line` and `to_line` are the row strides of `from` and `to`, in elements.
#[inline(always)]
pub(crate) fn transpose_pairs<V: Simd>(from: &[bf16], from_line: usize, rows: usize, to: &mut [bf16], to_line: usize) {
    debug_assert!(from.as_ptr().cast::<f32>().is_aligned() && to.as_ptr().cast::<f32>().is_aligned());
    // This is a loop because a closure would not be compiled with the instruction set's features.
    let mut lines = [V::splat(0.0); SIDE];
    for (i, line) in lines.iter_mut().enumerate().take(rows) {
        let from = &from[i * from_line..][..DEPTH];
        // SAFETY: the slice has 16 pairs, whose bits the vector only carries. Lines begin at multiples of 64 bytes in
        // memory that is aligned to 4 (weights and scratch are aligned to 64), so the pairs have the alignment of f32.
        *line = unsafe { V::load_ptr(from.as_ptr().cast()) };
    }
    for (i, line) in V::transpose(lines).into_iter().enumerate() {
        let to = &mut to[i * to_line..][..DEPTH];
        // SAFETY: the slice has 32 elements of two bytes.
        unsafe { line.store_ptr(to.as_mut_ptr().cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::portable::F32x16;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// `len` elements with distinct values.
    fn numbered(len: usize) -> Box<Lines> {
        let mut lines = Box::new(Lines([bf16::ZERO; 2 * TILE]));
        (0..len).for_each(|i| lines.0[i] = bf16::from_bits(i as u16 + 1));
        lines
    }

    fn bits(from: &[bf16]) -> Vec<u16> {
        from.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn transposing_pairs_fills_missing_rows_with_zeros() {
        let from = numbered(2 * TILE);
        let mut to = numbered(2 * TILE);
        transpose_pairs::<F32x16>(&from.0, 2 * DEPTH, 5, &mut to.0, DEPTH);
        for line in 0..SIDE {
            for row in 0..SIDE {
                let pair = (row * 2 * DEPTH + 2 * line + 1) as u16;
                let expected = if row < 5 { [pair, pair + 1] } else { [0; 2] };
                assert_eq!(bits(&to.0[line * DEPTH + 2 * row..][..2]), expected, "{line} {row}");
            }
        }
        assert_eq!(bits(&to.0[TILE..]), (TILE as u16 + 1..=2 * TILE as u16).collect::<Vec<_>>(), "left alone");
        let mut lines = numbered(0);
        pairs_to_lines::<F32x16>(&from.0, 3, &mut lines.0);
        for column in 0..2 * SIDE {
            for row in 0..SIDE {
                let pair = (row * 2 * DEPTH + 2 * column + 1) as u16;
                let expected = if row < 3 { [pair, pair + 1] } else { [0; 2] };
                assert_eq!(bits(&lines.0[column * DEPTH + 2 * row..][..2]), expected, "{column} {row}");
            }
        }
    }

    /// The functions access elements without bounds checks, so they must reject slices that are too short.
    #[test]
    fn slices_that_are_too_short_are_refused() {
        let from = numbered(2 * TILE);
        let accepts = |from_len: usize, to_len: usize| {
            let mut to = numbered(0);
            let run = || transpose_pairs::<F32x16>(&from.0[..from_len], 2 * DEPTH, 3, &mut to.0[..to_len], DEPTH);
            catch_unwind(AssertUnwindSafe(run)).is_ok()
        };
        let (needed, made) = (4 * DEPTH + DEPTH, TILE);
        assert!(accepts(needed, made));
        assert!(!accepts(needed - 1, made) && !accepts(needed, made - 1));
    }

    #[test]
    fn narrowed_elements_are_rounded_and_padded_with_zeros() {
        let f32s: Vec<f32> = (0..20).map(|i| i as f32 + 0.001).collect();
        let narrow: Vec<bf16> = f32s.iter().map(|&x| bf16::from_f32(x)).collect();
        for len in [0, 1, 15, 16, 17, 20] {
            let mut expected = bits(&narrow[..len]);
            expected.resize(DEPTH, 0);
            for from in [Elements::F32(&f32s[..len]), Elements::Bf16(&narrow[..len])] {
                let mut to = [bf16::NAN; DEPTH];
                narrowed::<F32x16>(from, &mut to);
                assert_eq!(bits(&to), expected, "{len}");
            }
        }
        let all = numbered(DEPTH);
        let mut to = [bf16::NAN; DEPTH];
        narrowed::<F32x16>(Elements::Bf16(&all.0[..DEPTH]), &mut to);
        assert_eq!(bits(&to), (1..=DEPTH as u16).collect::<Vec<_>>());
        let mut memory = [0.0f32; 5];
        assert_eq!(halves(&mut memory).len(), 10);
    }
}
