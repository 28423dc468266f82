//! Decides how a matmul on the CPU is split: the depth (terms of a sum) into blocks, rows into strips, and the whole
//! into tasks for the threads.

use super::tile::{MAX_DEPTH, MAX_ROWS, MAX_VECTORS, vectors};
use super::{Left, Matmul, MatmulDType, Right};
use super::{steps, tiles};
use crate::matrix::PANEL;
use crate::pool::{Scratch, Tasks};
use crate::simd::{LANES, Simd};
use std::ops::Range;

/// Maximum number of rows in a task. Their packed block of about 1 MiB just fits into the second-level cache. With more
/// rows, the right operand is packed and read less often.
const ROWS: usize = 480;
/// Number of tasks per thread. There are several, so that a preempted thread delays the others only a little.
const TASKS_PER_THREAD: usize = 4;
/// Maximum number of elements of a small right operand (2 MiB in f32). Every thread may read all of a small operand.
const SMALL: usize = 1 << 19;
/// The numbers of rows per thread for which every thread reads all of a small weight for its own rows. With fewer rows,
/// a thread would spend more time waiting for the weight than multiplying.
const OWN_ROWS: Range<usize> = 8..65;
/// The number of blocks per thread, and the minimum number of rows for which packing the panels pays off, if each task
/// computes all panels for a block of rows. Such a task reads no rows packed by another core, which would take longer
/// than packing them.
const BLOCKS_OF_THREAD: usize = 3;
const ROWS_OF_BLOCK: usize = 64;
/// Minimum number of multiply-adds in a task that is worth handing to another thread.
const TASK_WORK: usize = 1 << 17;

impl Matmul<'_> {
    /// Number of terms that one instruction multiplies: two if operands are packed as words of two bf16 terms,
    /// otherwise one.
    #[inline(always)]
    pub(super) fn together(&self) -> usize {
        if self.isa.has_dots() && self.dtype == MatmulDType::Bf16 { 2 } else { 1 }
    }

    /// Whether the right operand is a small weight, read as stored and without AMX tiles, so that every thread may read
    /// all of it.
    fn reads_weight(&self) -> bool {
        let as_it_lies = matches!((self.left, self.right), (Left::Rows(..), Right::Panels(_)));
        as_it_lies && self.tiles.is_none() && self.n * self.depth <= SMALL
    }

    /// Whether rows are packed for tasks that each read all of a small right operand.
    fn packs_small_blocks(&self) -> bool {
        self.shares_rows() && !self.zips() && self.n * self.depth <= SMALL
    }

    /// Splits the depth into blocks of nearly equal length; all but the last are multiples of 32 terms.
    #[inline(always)]
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let depth = self.depth;
        let count = depth.div_ceil(MAX_DEPTH * self.together()).max(1);
        let step = depth.div_ceil(count).next_multiple_of(PANEL);
        (0..count).map(move |i| (i * step).min(depth)..((i + 1) * step).min(depth))
    }
}

/// Rows split into strips of nearly equal height, at most the height of a register tile.
pub(super) struct Strips {
    start: usize,
    len: usize,
    pub count: usize,
    /// Rows of the tallest strip.
    pub most: usize,
    /// Vectors of 16 columns in a tile of `most` rows.
    pub vectors: usize,
}

impl Strips {
    #[inline(always)]
    pub fn new<V: Simd>(rows: Range<usize>) -> Strips {
        let count = rows.len().div_ceil(V::GEMM_ROWS);
        let most = rows.len().div_ceil(count.max(1));
        Strips { start: rows.start, len: rows.len(), count, most, vectors: vectors::<V>(most.max(1)) }
    }
    /// Number of elements from one packed strip to the next: all its terms, and room for the last vector.
    #[inline(always)]
    pub fn pitch(&self) -> usize {
        self.most * MAX_DEPTH + LANES
    }
    /// Number of elements in all packed strips, for one block of the depth.
    #[inline(always)]
    pub fn packed(&self) -> usize {
        self.count * self.pitch()
    }
    /// Index of these strips among all packed rows of a matmul, for block `block` of its `blocks` blocks of the depth.
    /// Earlier rows come first; they consist of whole strips.
    #[inline(always)]
    pub fn place<V: Simd>(&self, blocks: usize, block: usize) -> usize {
        blocks * Strips::new::<V>(0..self.start).packed() + block * self.packed()
    }
    #[inline(always)]
    pub fn rows(&self, strip: usize) -> Range<usize> {
        let edge = |i: usize| self.start + i * self.len / self.count;
        edge(strip)..edge(strip + 1)
    }
}

/// Part `i` of the range `0..len`, which is split into `parts` nearly equal parts.
#[inline(always)]
pub(super) fn cut(i: usize, len: usize, parts: usize) -> Range<usize> {
    i * len / parts..(i + 1) * len / parts
}

/// A matmul split into tasks: each is one block of rows times one group of panels (32 columns each).
pub(super) struct Plan<'a> {
    pub matmul: &'a Matmul<'a>,
    pub panels: usize,
    pub row_blocks: usize,
    pub groups: usize,
    /// Whether each thread computes one block of rows, with all panels.
    pub own_rows: bool,
}

impl<'a> Plan<'a> {
    pub fn new(matmul: &'a Matmul<'a>, threads: usize) -> Plan<'a> {
        let (m, n) = (matmul.m, matmul.n);
        let panels = n.div_ceil(PANEL);
        let blocks = threads * BLOCKS_OF_THREAD;
        if threads > 1 && matmul.packs_small_blocks() && m >= blocks * ROWS_OF_BLOCK {
            let row_blocks = blocks.max(m.div_ceil(ROWS)).next_multiple_of(threads);
            return Plan { matmul, panels, row_blocks, groups: 1, own_rows: false };
        }
        let work = m * n * matmul.depth.max(1) / TASK_WORK;
        let own_rows = threads > 1 && work >= threads && matmul.reads_weight() && OWN_ROWS.contains(&(m / threads));
        // If tasks pack rows themselves, each task repeats the packing, so there are fewer tasks.
        let tasks_per_thread =
            if own_rows || matmul.packs_few_rows() { TASKS_PER_THREAD / 2 } else { TASKS_PER_THREAD };
        let tasks = match (threads * tasks_per_thread).min(work + 1) {
            _ if threads == 1 => 1,
            tasks if tasks > threads => tasks - tasks % threads,
            few => few,
        };
        let row_blocks = if own_rows {
            threads
        } else if matmul.tiles.is_some() {
            m.div_ceil(tiles::ROWS)
        } else if matmul.shares_rows() {
            m.div_ceil(ROWS)
        } else {
            // Each task packs its own rows and panels; nearly square tasks pack the least in total.
            let square = (tasks * m / n).isqrt().min(m.div_ceil(MAX_ROWS));
            m.div_ceil(ROWS).max(square)
        };
        let groups = |row_blocks: usize| tasks.div_ceil(row_blocks).clamp(1, panels);
        // Chooses the fewest blocks of rows that give each thread the same number of tasks. With nine tasks, one of two
        // threads would be idle during the last task.
        let even = |row_blocks: &usize| (row_blocks * groups(*row_blocks)).is_multiple_of(threads);
        let most = (2 * row_blocks).min(m.div_ceil(MAX_ROWS) + 1);
        let row_blocks = (row_blocks..most).find(even).unwrap_or(row_blocks);
        let groups = groups(row_blocks);
        Plan { matmul, panels, row_blocks, groups, own_rows }
    }

    /// Rows of block `block`: a multiple of the tile's height, except in the last block or where each thread has one
    /// block.
    #[inline(always)]
    pub fn rows<V: Simd>(&self, block: usize) -> Range<usize> {
        let whole = if self.matmul.tiles.is_some() { steps::FEW } else { V::GEMM_ROWS };
        let unit = if self.own_rows { 1 } else { whole };
        let rows = cut(block, self.matmul.m.div_ceil(unit), self.row_blocks);
        rows.start * unit..(rows.end * unit).min(self.matmul.m)
    }
}

impl Tasks for Plan<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        // Usually the group of panels changes slowest, so that threads read the same panels at the same time. If each
        // thread has one block of rows, the tasks of a block are consecutive, so that a thread reads rows that it wrote
        // in the previous operation.
        let (block, group) = if self.own_rows {
            (index / self.groups, index % self.groups)
        } else {
            (index % self.row_blocks, index / self.row_blocks)
        };
        let rows = self.rows::<V>(block);
        // If there are many panels, groups start at multiples of four, so that wide tiles of few rows are not split.
        let quads = self.panels.div_ceil(MAX_VECTORS / 2);
        let panels = if quads >= 4 * self.groups {
            let q = cut(group, quads, self.groups);
            (q.start * 4).min(self.panels)..(q.end * 4).min(self.panels)
        } else {
            cut(group, self.panels, self.groups)
        };
        // SAFETY: no other task accesses this block of rows and panels.
        unsafe { self.matmul.block(rows, panels, scratch) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::gemm::Operands;
    use crate::gemm::tests::{Kind, L, R, with};
    use crate::simd::portable::F32x16;
    use crate::tensor::Elements;
    #[test]
    fn rows_are_split_into_strips_of_nearly_equal_height() {
        let strips = Strips::new::<F32x16>(8..18);
        assert_eq!((strips.count, strips.most, strips.vectors), (3, 4, 1));
        assert_eq!((strips.pitch(), strips.packed()), (4 * 512 + 16, 3 * (4 * 512 + 16)));
        assert_eq!([0, 1, 2].map(|strip| strips.rows(strip)), [8..11, 11..14, 14..18]);
        // The index counts two blocks of the depth for the two previous strips, then one block for these strips.
        let before = 2 * (4 * 512 + 16);
        assert_eq!(
            (strips.place::<F32x16>(2, 0), strips.place::<F32x16>(2, 1)),
            (2 * before, 2 * before + strips.packed())
        );
        assert_eq!(strips.place::<F32x16>(5, 3), 5 * before + 3 * strips.packed());
        let one = Strips::new::<F32x16>(3..4);
        assert_eq!((one.count, one.most, one.vectors, one.rows(0)), (1, 1, 4, 3..4));
        let five = Strips::new::<F32x16>(0..5);
        assert_eq!((five.count, five.most, five.vectors, five.packed()), (2, 3, 1, 2 * (3 * 512 + 16)));
        let none = Strips::new::<F32x16>(7..7);
        assert_eq!((none.count, none.most, none.packed()), (0, 0, 0));
        assert_eq!((0..4).map(|i| cut(i, 10, 4)).collect::<Vec<_>>(), [0..2, 2..5, 5..7, 7..10]);
    }

    #[test]
    fn blocks_of_rows_are_whole_strips_or_pairs_of_tiles() {
        let rows = |kind: Kind, m: usize, row_blocks: usize, own_rows: bool| {
            with(kind, [m, 32, 64], |matmul| {
                let plan = Plan { matmul, panels: 1, row_blocks, groups: 1, own_rows };
                (0..row_blocks).map(|block| plan.rows::<F32x16>(block)).collect::<Vec<_>>()
            })
        };
        assert_eq!(rows(Kind::default(), 30, 3, false), [0..8, 8..20, 20..30]);
        assert_eq!(rows(Kind::default(), 30, 3, true), [0..10, 10..20, 20..30]);
        let tiles = Kind { isa: Isa::AMX_EMULATED, left: L::Bf16, right: R::Panels16, dtype: MatmulDType::Bf16 };
        assert_eq!(rows(tiles, 100, 2, false), [0..64, 64..100]);
    }

    /// Checks which outputs each task computes, from the outputs that it writes.
    #[test]
    fn each_task_computes_a_block_of_rows_and_a_group_of_panels() {
        let tasks = |[m, n]: [usize; 2], row_blocks: usize, groups: usize, own_rows: bool| {
            let (x, w) = (vec![1.0; m], vec![1.0; n.next_multiple_of(PANEL)]);
            let written = |index: usize| {
                let mut c = vec![f32::NAN; m * n];
                let all = Operands::for_outputs((Elements::F32(&x), Elements::F32(&w)), 1, 0..m, 0..n, None, &mut c);
                let matmul = Matmul::new(Isa::PORTABLE, all);
                let plan = Plan { matmul: &matmul, panels: n.div_ceil(PANEL), row_blocks, groups, own_rows };
                plan.task::<F32x16>(index, &mut Scratch::default());
                let at: Vec<(usize, usize)> =
                    c.iter().enumerate().filter(|(_, x)| !x.is_nan()).map(|(at, _)| (at / n, at % n)).collect();
                let (&(row, column), &(last, end)) = (at.first().unwrap(), at.last().unwrap());
                assert_eq!(at.len(), (last + 1 - row) * (end + 1 - column), "one rectangle");
                (row..last + 1, column / PANEL..end / PANEL + 1)
            };
            (0..row_blocks * groups).map(written).collect::<Vec<_>>()
        };
        // From task to task, the group of panels changes slowest, or the block of rows if each thread has its own rows.
        let (a, b) = (0..4, 4..8);
        let (left, right) = (0..2, 2..5);
        let by_group = [
            (a.clone(), left.clone()),
            (b.clone(), left.clone()),
            (a.clone(), right.clone()),
            (b.clone(), right.clone()),
        ];
        assert_eq!(tasks([8, 150], 2, 2, false), by_group);
        assert_eq!(tasks([8, 150], 2, 2, true), [(a.clone(), left), (a, right.clone()), (b.clone(), 0..2), (b, right)]);
        // If there are many panels, they are split at multiples of four.
        assert_eq!(tasks([1, 33 * 32], 1, 2, false), [(0..1, 0..16), (0..1, 16..33)]);
        assert_eq!(tasks([1, 31 * 32], 1, 2, false), [(0..1, 0..16), (0..1, 16..31)]);
        assert_eq!(tasks([1, 28 * 32], 1, 2, false), [(0..1, 0..14), (0..1, 14..28)]);
        assert_eq!(tasks([1, 37 * 32], 1, 2, false), [(0..1, 0..20), (0..1, 20..37)]);
    }
}
