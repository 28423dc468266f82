//! Operands of a product into the layouts that register tiles read: strips of the left one, panels of the right one; and
//! asking memory for panels before their turn.

use super::cpu::{Left, Numbers, Product, Right};
use super::tile::{Packed, ROW_STRIDE};
use crate::matrix::PANEL;
use crate::simd::element::widen_into;
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

impl Product<'_> {
    /// Asks memory for part `part` of `parts` of a panel that [`right`](Self::right) will read next: its latency passes while the tiles
    /// of the present panel are computed.
    #[inline(always)]
    pub(super) fn ask_for<V: Simd>(&self, (panel, depth): &(usize, Range<usize>), part: usize, parts: usize) {
        if *panel >= self.n.div_ceil(PANEL) {
            return;
        }
        let elements = depth.len() * PANEL;
        let (from, to) = (elements * part / parts, elements * (part + 1) / parts);
        // `LANES` elements at a time: a cache line of f32, half of one of bf16.
        for i in (from.next_multiple_of(LANES)..to).step_by(LANES) {
            let at = match self.right {
                Right::Panels(_) => (panel * self.depth + depth.start) * PANEL + i,
                Right::Transposed(_) => {
                    let block = PANEL * PANEL;
                    ((depth.start / PANEL + i / block) * self.n + panel * PANEL) * PANEL + i % block
                }
                Right::Rows(_, stride) => (depth.start + i / PANEL) * stride + panel * PANEL + i % PANEL,
                Right::Tiles(_) => unreachable!("tiles are not read by chains"),
            };
            match self.right {
                Right::Panels(data) | Right::Transposed(data) | Right::Rows(data, _) => match data {
                    Elements::F32(data) => V::prefetch(data.as_ptr().wrapping_add(at)),
                    Elements::Bf16(data) => V::prefetch(data.as_ptr().wrapping_add(at)),
                },
                Right::Tiles(_) => {}
            }
        }
    }

    /// Packs a strip of rows: `[rows][ROW_STRIDE]` or `[depth][16]`.
    #[inline(always)]
    pub(super) fn pack_left<V: Simd>(&self, rows: Range<usize>, depth: Range<usize>, to: &mut [f32]) {
        match self.left {
            Left::Rows(Elements::F32(data), stride) => {
                for (row, to) in rows.zip(to.chunks_mut(ROW_STRIDE)) {
                    let from = &data[row * stride..];
                    self.copy::<V>(&from[depth.clone()], &mut to[..depth.len()]);
                }
            }
            Left::Rows(Elements::Bf16(data), stride) => {
                for (row, to) in rows.zip(to.chunks_mut(ROW_STRIDE)) {
                    widen_into::<V, bf16>(&data[row * stride..][depth.clone()], &mut to[..depth.len()]);
                }
            }
            Left::Columns(Elements::F32(data), stride) => pack_columns::<V, f32>(data, stride, rows, depth, to),
            Left::Columns(Elements::Bf16(data), stride) => pack_columns::<V, bf16>(data, stride, rows, depth, to),
            Left::Tiles(_) => unreachable!("tiles are not read by chains"),
        }
    }

    /// Numbers that are f32 in memory, as they are multiplied.
    #[inline(always)]
    fn copy<V: Simd>(&self, from: &[f32], to: &mut [f32]) {
        if self.numbers == Numbers::Held {
            return to.copy_from_slice(from);
        }
        for (from, to) in from.chunks(LANES).zip(to.chunks_mut(LANES)) {
            let n = from.len();
            V::load_partial(from, n).rounded_to_bf16().store_partial(to, n);
        }
    }

    /// Panels `panels` of the transpose of a packed weight.
    #[inline(always)]
    fn transposed<V: Simd, E: Packed>(
        &self,
        data: &[E],
        panels: Range<usize>,
        depth: Range<usize>,
        to: &mut [f32],
    ) -> (*const f32, usize) {
        let panel = depth.len().next_multiple_of(PANEL) * PANEL;
        for (columns, to) in panels.zip(to.chunks_exact_mut(panel.max(1))) {
            let columns = columns * PANEL..self.n.min((columns + 1) * PANEL);
            // `depth` starts at a panel of the weight.
            for (source, to) in (depth.start / PANEL..).zip(to.chunks_exact_mut(PANEL * PANEL)) {
                let from = &data[(source * self.n + columns.start) * PANEL..(source * self.n + columns.end) * PANEL];
                transpose::<V, E>(from, to);
            }
        }
        (to.as_ptr(), panel)
    }

    /// Panels `panels` of the right operand, `[depth][32]` each, and the elements between two of them.
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
                            Elements::F32(from) if from.len() == PANEL && self.numbers == Numbers::Held => {
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
            Right::Tiles(_) => unreachable!("tiles are not read by chains"),
        }
    }
}

/// Columns `rows` of row-major data, as a strip `[depth][16]`.
#[inline(always)]
fn pack_columns<V: Simd, E: Element>(
    data: &[E],
    stride: usize,
    rows: Range<usize>,
    depth: Range<usize>,
    to: &mut [f32],
) {
    for (k, to) in depth.zip(to.chunks_exact_mut(LANES)) {
        E::load_partial::<V>(&data[k * stride + rows.start..], rows.len()).store(to);
    }
}

/// `[depth/2][32][2]` to `[depth][32]`, widened.
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

/// `[c ≤ 32][32]`, as `E` lies, to `[32][32]`; columns past `c` become 0.
#[inline(always)]
fn transpose<V: Simd, E: Packed>(from: &[E], to: &mut [f32]) {
    for c in [0, LANES] {
        for k in [0, LANES] {
            // A closure would not be compiled with the instruction set's features.
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
