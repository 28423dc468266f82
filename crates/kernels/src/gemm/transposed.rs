//! Matmuls of few rows with the transpose of an f32 weight (`d_x = d_y W`). The weight is not transposed first.
//!
//! Other matmuls read the right operand in panels, so the transpose of a weight must first be written into panels. For
//! few rows, this takes longer than the multiplication. Here rows and columns change roles: a register tile has a few
//! columns of the output, and its vector lanes are 16 rows. Each element of the weight, read as stored, is broadcast to
//! a vector and multiplied with one term of 16 rows. Only the left operand is packed, as `[depth][rows]`, which is
//! small.
//!
//! Each output is the same chain as in other matmuls, with its terms in ascending order and one fused multiply-add
//! each.

use super::plan::cut;
use super::{Left, Matmul, MatmulDType, Order, Right, lines};
use crate::device::Cpu;
use crate::matrix::PANEL;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};
use crate::tensor::Elements;
use std::cell::RefCell;
use std::ops::Range;

/// Maximum number of rows in a matmul that is computed here. With more rows, transposing the weight is a small part of
/// the work.
const MOST_ROWS: usize = 64;
/// Elements of packed rows (256 KiB), which tiles read from the second-level cache. (Small in tests, to cover several
/// spans.)
const SPAN: usize = if cfg!(test) { 1 << 10 } else { 1 << 16 };
/// Number of terms that a packing task packs.
const STEPS: usize = 8 * LANES;
/// Number of panels of the weight by which prefetching runs ahead of the multiply-adds.
const PANELS_AHEAD: usize = 2;
/// Number of tasks per thread. There are several, so that threads finish at about the same time.
const TASKS_PER_THREAD: usize = 4;

/// Tasks that compute the outputs of one span of the depth, each a group of columns.
struct Transposed<'a> {
    matmul: &'a Matmul<'a>,
    weight: &'a [f32],
    /// The packed left operand `[span][pitch]`: terms from `span.start` on; missing rows are 0.
    rows: &'a [f32],
    pitch: usize,
    /// Range of the depth: whole panels of the weight's outputs, except for the last.
    span: Range<usize>,
    groups: usize,
}

impl Matmul<'_> {
    /// Whether this module computes the matmul: few rows, f32, a transposed weight, no bias.
    pub(super) fn reads_transposed(&self) -> bool {
        let is_f32 =
            matches!((self.left, self.right), (Left::Rows(Elements::F32(_), _), Right::Transposed(Elements::F32(_))));
        let plain = self.dtype == MatmulDType::Stored && self.bias.is_none() && matches!(self.order, Order::Rows(_));
        is_f32 && plain && self.m <= MOST_ROWS && self.depth > 0
    }

    /// Packs rows and multiplies, one span of the depth after another.
    pub(super) fn run_transposed(&self, cpu: &Cpu) {
        let (Left::Rows(Elements::F32(left), stride), Right::Transposed(Elements::F32(weight))) =
            (self.left, self.right)
        else {
            unreachable!("both operands must be f32")
        };
        let pitch = self.m.next_multiple_of(LANES);
        let steps = (SPAN / pitch).next_multiple_of(PANEL);
        let groups = if cpu.threads() == 1 { 1 } else { cpu.threads() * TASKS_PER_THREAD };
        PACKED.with_borrow_mut(|memory| {
            for start in (0..self.depth).step_by(steps) {
                let span = start..self.depth.min(start + steps);
                let rows = lines(memory, span.len() * pitch);
                let (m, to) = (self.m, Disjoint::new(&mut *rows));
                cpu.run(span.len().div_ceil(STEPS), &Packing { left, stride, m, span: span.clone(), pitch, to });
                let groups = groups.min(self.n.div_ceil(LANES));
                cpu.run(groups, &Transposed { matmul: self, weight, rows, pitch, span, groups });
            }
        });
    }
}

/// Packing tasks: each packs [`STEPS`] terms of all rows.
struct Packing<'a> {
    left: &'a [f32],
    stride: usize,
    m: usize,
    span: Range<usize>,
    pitch: usize,
    to: Disjoint<'a, f32>,
}

impl Tasks for Packing<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let steps = index * STEPS..self.span.len().min((index + 1) * STEPS);
        // SAFETY: no other task accesses these steps.
        let to = unsafe { self.to.slice(steps.start * self.pitch..steps.end * self.pitch) };
        for (k, to) in steps.clone().step_by(LANES).zip(to.chunks_mut(LANES * self.pitch)) {
            let n = LANES.min(steps.end - k);
            for row in (0..self.m).step_by(LANES) {
                let mut rows = [V::splat(0.0); LANES];
                for (row, line) in (row..self.m).zip(&mut rows) {
                    let from = row * self.stride + self.span.start + k;
                    *line = V::load_partial(&self.left[from..from + n], n);
                }
                for (line, to) in V::transpose(rows).into_iter().zip(to.chunks_exact_mut(self.pitch)) {
                    line.store(&mut to[row..]);
                }
            }
        }
    }
}

impl Tasks for Transposed<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        match V::GEMM_ROWS {
            12 => self.columns::<V, 12>(index),
            6 => self.columns::<V, 6>(index),
            _ => self.columns::<V, 4>(index),
        }
    }
}

impl Transposed<'_> {
    /// Computes group `group` of columns, in tiles of `COLUMNS` columns.
    #[inline(always)]
    fn columns<V: Simd, const COLUMNS: usize>(&self, group: usize) {
        if COLUMNS > V::GEMM_ROWS {
            unreachable!("a tile of {COLUMNS}")
        }
        let n = self.matmul.n;
        for tile in cut(group, n.div_ceil(COLUMNS), self.groups) {
            let columns = tile * COLUMNS..n.min((tile + 1) * COLUMNS);
            let mut row = 0;
            while row < self.pitch {
                if V::GEMM_VECTORS > 1 && self.pitch - row > LANES {
                    self.tile::<V, COLUMNS, 2>(columns.clone(), row);
                    row += 2 * LANES;
                } else {
                    self.tile::<V, COLUMNS, 1>(columns.clone(), row);
                    row += LANES;
                }
            }
        }
    }

    /// Computes one tile: columns `columns` of `VECTORS` vectors of 16 rows, from row `row` on.
    #[inline(always)]
    fn tile<V: Simd, const COLUMNS: usize, const VECTORS: usize>(&self, columns: Range<usize>, row: usize) {
        let mut chains = [[V::splat(0.0); VECTORS]; COLUMNS];
        if self.matmul.accumulate || self.span.start > 0 {
            for v in 0..VECTORS {
                let mut rows = [V::splat(0.0); LANES];
                for (i, line) in rows.iter_mut().enumerate().take(self.matmul.m.saturating_sub(row + v * LANES)) {
                    *line = V::load_partial(self.outputs(row + v * LANES + i, &columns), columns.len());
                }
                for (chain, line) in chains.iter_mut().zip(V::transpose(rows)) {
                    chain[v] = line;
                }
            }
        }
        if columns.len() == COLUMNS {
            self.chains::<V, COLUMNS, VECTORS, true>(&mut chains, &columns, row);
        } else {
            self.chains::<V, COLUMNS, VECTORS, false>(&mut chains, &columns, row);
        }
        for v in 0..VECTORS {
            let mut lines = [V::splat(0.0); LANES];
            for (line, chain) in lines.iter_mut().zip(&chains) {
                *line = chain[v];
            }
            let rows = V::transpose(lines).into_iter().take(self.matmul.m.saturating_sub(row + v * LANES));
            for (i, line) in rows.enumerate() {
                line.store_partial(self.outputs(row + v * LANES + i, &columns), columns.len());
            }
        }
    }

    /// The outputs of row `row` in the columns `columns`, for a row that exists.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn outputs(&self, row: usize, columns: &Range<usize>) -> &mut [f32] {
        let Order::Rows(stride) = self.matmul.order else { unreachable!("checked by `reads_transposed`") };
        debug_assert!(row < self.matmul.m && columns.end <= self.matmul.n);
        // SAFETY: `Matmul::new` has checked that the range lies inside the output, which the matmul borrows
        // exclusively. No other task accesses these columns, and this task holds one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(self.matmul.c.add(row * stride + columns.start), columns.len()) }
    }

    /// Continues the chains with the terms of the span. With `ALL`, every chain has its own column. Otherwise there are
    /// fewer columns, and the remaining chains repeat the last one.
    #[inline(always)]
    fn chains<V: Simd, const COLUMNS: usize, const VECTORS: usize, const ALL: bool>(
        &self,
        chains: &mut [[V; VECTORS]; COLUMNS],
        columns: &Range<usize>,
        row: usize,
    ) {
        let (n, pitch, last) = (self.matmul.n, self.pitch, columns.len() - 1);
        assert!(self.rows.len() >= self.span.len() * pitch && row + VECTORS * LANES <= pitch);
        assert!(columns.end <= n && self.weight.len() >= self.span.end.div_ceil(PANEL) * n * PANEL);
        let mut sums = *chains;
        for first in self.span.clone().step_by(PANEL) {
            let panel = &self.weight[(first / PANEL * n + columns.start) * PANEL..];
            let rows = &self.rows[(first - self.span.start) * pitch + row..];
            for k in 0..PANEL.min(self.span.end - first) {
                // Prefetches the same columns of a later panel, which are in another memory page: one cache line at
                // each step, into the first-level cache, early enough for memory to deliver it.
                V::prefetch_near(panel.as_ptr().wrapping_add(PANELS_AHEAD * n * PANEL + k * LANES));
                let mut x = [V::splat(0.0); VECTORS];
                for (v, x) in x.iter_mut().enumerate() {
                    // SAFETY: `k` is a step of the span, and the packed rows have `VECTORS` vectors at each step.
                    *x = unsafe { V::load_ptr(rows.as_ptr().add(k * pitch + v * LANES)) };
                }
                for (c, sums) in sums.iter_mut().enumerate() {
                    let column = if ALL { c } else { c.min(last) };
                    // SAFETY: `k` is a step of the panel, and `column` is a column of the weight.
                    let w = V::splat(unsafe { *panel.as_ptr().add(column * PANEL + k) });
                    for (sum, x) in sums.iter_mut().zip(&x) {
                        *sum = w.fma(*x, *sum);
                    }
                }
            }
        }
        *chains = sums;
    }
}

thread_local! {
    /// Buffer of packed rows, which the calling thread keeps for the next matmul.
    static PACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::tests::{Kind, R, with};
    use crate::{Device, Isa};

    /// Rows are packed for as many terms as fit into the buffer, in whole panels of the weight.
    #[test]
    fn packed_spans_fill_the_buffer() {
        let kind = Kind { right: R::Transposed, ..Kind::default() };
        for (shape, elements) in [
            ([5, 40, 50], 50 * 16),
            ([5, 40, 64], 64 * 16),
            ([5, 40, 100], 64 * 16),
            ([17, 40, 100], 32 * 32),
            ([64, 3, 33], 32 * 64),
        ] {
            let run = move || {
                let cpu = Cpu::new(Isa::PORTABLE, 1, Device::Cpu).unwrap();
                with(kind, shape, |matmul| matmul.run(&cpu));
                PACKED.with_borrow(Vec::len)
            };
            assert_eq!(std::thread::spawn(run).join().unwrap(), elements + LANES, "{shape:?}");
        }
    }
}
