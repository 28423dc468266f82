//! Packs the operands of a matmul into the layouts that register tiles read: strips of rows of the left operand, and
//! panels of 32 columns of the right one. (`pack_pairs.rs` packs words of two bf16 terms, `pack_tiles.rs` AMX tiles.)

use super::plan::Strips;
use super::{Left, Matmul, MatmulDType, Right};
use crate::matrix::PANEL;
use crate::simd::element::widen_into;
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// Number of memory rows read together when columns are packed.
const ROWS_TOGETHER: usize = 8;

impl Matmul<'_> {
    /// Packs the strips `which` of the left operand for the terms `depth`: `[depth][strips.most]` each.
    #[inline(always)]
    pub(super) fn pack_left<V: Simd>(&self, strips: &Strips, which: Range<usize>, depth: Range<usize>, to: &mut [f32]) {
        if self.together() == 2 {
            return self.pack_left_words::<V>(strips, which, depth, to);
        }
        let of = (strips, which);
        let rounds = self.dtype == MatmulDType::Bf16;
        match self.left {
            Left::Rows(Elements::F32(data), stride) => pack_rows::<V, f32>(data, stride, of, depth, rounds, to),
            Left::Rows(Elements::Bf16(data), stride) => pack_rows::<V, bf16>(data, stride, of, depth, false, to),
            Left::Columns(Elements::F32(data), stride) => pack_columns::<V, f32>(data, stride, of, depth, to),
            Left::Columns(Elements::Bf16(data), stride) => pack_columns::<V, bf16>(data, stride, of, depth, to),
            Left::Tiles(_) | Left::Strips(_) => unreachable!("packed already"),
        }
    }

    /// Copies f32 numbers, rounded to bf16 if the matmul multiplies in bf16.
    #[inline(always)]
    fn copy<V: Simd>(&self, from: &[f32], to: &mut [f32]) {
        if self.dtype == MatmulDType::Stored {
            return to.copy_from_slice(from);
        }
        for (from, to) in from.chunks(LANES).zip(to.chunks_mut(LANES)) {
            let n = from.len();
            V::load_partial(from, n).rounded_to_bf16().store_partial(to, n);
        }
    }

    /// Packs panels `panels` of the transpose of a packed weight. Returns the first panel, and the number of elements
    /// from one panel to the next.
    #[inline(always)]
    fn transposed<V: Simd, E: OfWeight>(
        &self,
        data: &[E],
        panels: Range<usize>,
        depth: Range<usize>,
        to: &mut [f32],
    ) -> (*const f32, usize) {
        let panel = depth.len().next_multiple_of(PANEL) * PANEL;
        for (columns, to) in panels.zip(to.chunks_exact_mut(panel.max(1))) {
            let columns = columns * PANEL..self.n.min((columns + 1) * PANEL);
            // `depth` starts at a multiple of 32, so at the start of a panel of the weight.
            for (source, to) in (depth.start / PANEL..).zip(to.chunks_exact_mut(PANEL * PANEL)) {
                let from = &data[(source * self.n + columns.start) * PANEL..(source * self.n + columns.end) * PANEL];
                transpose::<V, E>(from, to);
            }
        }
        (to.as_ptr(), panel)
    }

    /// Returns panels `panels` of the right operand, `[depth][32]` each, and the number of elements from one panel to
    /// the next. Panels stored in this layout are not copied; others are packed into `to`.
    #[inline(always)]
    pub(super) fn right<V: Simd>(
        &self,
        panels: Range<usize>,
        depth: Range<usize>,
        to: &mut [f32],
    ) -> (*const f32, usize) {
        match self.right {
            Right::Panels(Elements::F32(data)) => {
                let panel = self.depth * PANEL;
                (data[panels.start * panel + depth.start * PANEL..].as_ptr(), panel)
            }
            Right::Panels(Elements::Bf16(data)) => {
                let panel = depth.len() * PANEL;
                for (source, to) in panels.zip(to.chunks_exact_mut(panel.max(1))) {
                    let from = (source * self.depth + depth.start) * PANEL;
                    unzip::<V>(&data[from..from + panel], to);
                }
                (to.as_ptr(), panel)
            }
            Right::Transposed(Elements::F32(data)) => self.transposed::<V, f32>(data, panels, depth, to),
            Right::Transposed(Elements::Bf16(data)) => self.transposed::<V, bf16>(data, panels, depth, to),
            Right::Rows(data, stride) => {
                let panel = depth.len() * PANEL;
                for (columns, to) in panels.zip(to.chunks_exact_mut(panel.max(1))) {
                    let columns = columns * PANEL..self.n.min((columns + 1) * PANEL);
                    for (k, to) in depth.clone().zip(to.chunks_exact_mut(PANEL)) {
                        match data.range(k * stride + columns.start..k * stride + columns.end) {
                            Elements::F32(from) if from.len() == PANEL && self.dtype == MatmulDType::Stored => {
                                V::load(from).store(to);
                                V::load(&from[LANES..]).store(&mut to[LANES..]);
                                continue;
                            }
                            Elements::F32(from) => self.copy::<V>(from, &mut to[..from.len()]),
                            Elements::Bf16(from) => widen_into::<V, bf16>(from, to),
                        }
                        to[columns.len()..].fill(0.0);
                    }
                }
                (to.as_ptr(), panel)
            }
            Right::Tiles(_) | Right::Words(_) => unreachable!("this operand is not read term by term"),
        }
    }
}

/// Packs rows of row-major data into strips. Whole vectors are stored: lanes past the strip's rows fall into its next
/// step, which is stored later and overwrites them, or into spare room at the end.
#[inline(always)]
fn pack_rows<V: Simd, E: Element>(
    data: &[E],
    stride: usize,
    (strips, which): (&Strips, Range<usize>),
    depth: Range<usize>,
    rounds: bool,
    to: &mut [f32],
) {
    for (strip, to) in which.zip(to.chunks_mut(strips.pitch())) {
        if strips.most == 1 && !rounds {
            // A strip of a single row has the same layout as the row.
            let from = &data[strips.rows(strip).start * stride..][depth.clone()];
            widen_into::<V, E>(from, &mut to[..depth.len()]);
            continue;
        }
        for k in (0..depth.len()).step_by(LANES) {
            let n = LANES.min(depth.len() - k);
            let mut lines = [V::splat(0.0); LANES];
            for (row, line) in strips.rows(strip).zip(&mut lines) {
                *line = first::<V, E>(&data[row * stride + depth.start + k..], n);
                if rounds {
                    *line = line.rounded_to_bf16();
                }
            }
            let lines = V::transpose(lines);
            let to = &mut to[k * strips.most..];
            if n == LANES {
                // The number of lines is a compile-time constant, so that the lines stay in registers.
                for (i, line) in lines.into_iter().enumerate() {
                    line.store(&mut to[i * strips.most..]);
                }
            } else {
                for (i, line) in lines.into_iter().enumerate().take(n) {
                    line.store(&mut to[i * strips.most..]);
                }
            }
        }
    }
}

/// Packs columns of row-major data into strips, storing whole vectors as [`pack_rows`] does. It reads a few rows at a
/// time and packs all their columns while the rows are in the first-level cache.
#[inline(always)]
fn pack_columns<V: Simd, E: Element>(
    data: &[E],
    stride: usize,
    (strips, which): (&Strips, Range<usize>),
    depth: Range<usize>,
    to: &mut [f32],
) {
    for k in (0..depth.len()).step_by(ROWS_TOGETHER) {
        for (strip, to) in which.clone().zip(to.chunks_mut(strips.pitch())) {
            let columns = strips.rows(strip);
            for k in k..depth.len().min(k + ROWS_TOGETHER) {
                let from = &data[(depth.start + k) * stride + columns.start..];
                // Reading past the columns is faster than masking; the extra lanes are never used.
                let n = if from.len() >= LANES { LANES } else { columns.len() };
                first::<V, E>(from, n).store(&mut to[k * strips.most..]);
            }
        }
    }
}

/// Loads the first `n` ≤ 16 elements of `from`; the other lanes are 0.
#[inline(always)]
fn first<V: Simd, E: Element>(from: &[E], n: usize) -> V {
    if n == LANES { E::load::<V>(from) } else { E::load_partial::<V>(from, n) }
}

/// Widens a bf16 panel, `[depth/2][32][2]`, to an f32 panel, `[depth][32]`.
#[inline(always)]
fn unzip<V: Simd>(from: &[bf16], to: &mut [f32]) {
    for (from, to) in from.chunks_exact(2 * PANEL).zip(to.chunks_exact_mut(2 * PANEL)) {
        for column in [0, LANES] {
            let (even, odd) = V::load_pairs(&from[2 * column..]);
            even.store(&mut to[column..]);
            odd.store(&mut to[PANEL + column..]);
        }
    }
}

/// Element type of a packed weight, which is stored in panels of 32 outputs.
pub(super) trait OfWeight: Element {
    /// Loads 16 columns of the terms `row` (even) and `row + 1` of a panel; 0 past the panel's end.
    fn rows<V: Simd>(panel: &[Self], row: usize, column: usize) -> [V; 2];
}

impl OfWeight for f32 {
    #[inline(always)]
    fn rows<V: Simd>(panel: &[f32], row: usize, column: usize) -> [V; 2] {
        let of = |row: usize| match panel.get(row * PANEL + column..) {
            Some(from) if !from.is_empty() => V::load(from),
            _ => V::splat(0.0),
        };
        [of(row), of(row + 1)]
    }
}

impl OfWeight for bf16 {
    #[inline(always)]
    fn rows<V: Simd>(panel: &[bf16], row: usize, column: usize) -> [V; 2] {
        match panel.get(row * PANEL + 2 * column..) {
            Some(from) if !from.is_empty() => V::load_pairs(from).into(),
            _ => [V::splat(0.0); 2],
        }
    }
}

/// Transposes a part of a weight panel, `[c ≤ 32][32]` in the layout of `E`, to f32 `[32][32]`. Columns past `c` become
/// 0.
#[inline(always)]
fn transpose<V: Simd, E: OfWeight>(from: &[E], to: &mut [f32]) {
    for c in [0, LANES] {
        for k in [0, LANES] {
            // This is a loop because a closure would not be compiled with the instruction set's features.
            let mut rows = [V::splat(0.0); LANES];
            for (i, rows) in rows.chunks_exact_mut(2).enumerate() {
                rows.copy_from_slice(&E::rows::<V>(from, c + 2 * i, k));
            }
            let transposed = V::transpose(rows);
            for (i, column) in transposed.into_iter().enumerate() {
                column.store(&mut to[(k + i) * PANEL + c..]);
            }
        }
    }
}
