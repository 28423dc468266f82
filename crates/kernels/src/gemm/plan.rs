//! How a matmul is cut: its depth into blocks, its rows into strips, and all of it into tasks.

use super::tile::{MAX_DEPTH, MAX_ROWS, MAX_VECTORS, vectors};
use super::{Left, Matmul, MatmulDType, Right};
use super::{steps, tiles};
use crate::matrix::PANEL;
use crate::pool::{Scratch, Tasks};
use crate::simd::{LANES, Simd};
use std::ops::Range;

/// The most rows of a task: their packed block, 1 MiB of it, stays in the second cache, or nearly. The more there are,
/// the seldomer panels are packed and read.
const ROWS: usize = 480;
/// Tasks for each thread, so that a thread that is interrupted delays the region little.
const TASKS_PER_THREAD: usize = 4;
/// The most elements of a right operand, 2 MiB of f32, that every thread reads for rows of its own.
const SMALL: usize = 1 << 19;
/// How many rows those are where they are few, and the right operand a weight as it lies: fewer would wait for panels
/// more than they multiply.
const OWN_ROWS: Range<usize> = 8..65;
/// Blocks of rows for each thread where a task has all panels, so that nobody else reads the rows that it packs: what
/// another core packed comes slower than it is packed. And the rows of a block, which are worth packing panels for.
const BLOCKS_OF_THREAD: usize = 3;
const ROWS_OF_BLOCK: usize = 64;
/// A task of less work than this many multiply-adds is not worth handing to another thread.
const TASK_WORK: usize = 1 << 17;

impl Matmul<'_> {
    /// Terms of a sum that a step of a chain takes: two where words are multiplied.
    #[inline(always)]
    pub(super) fn together(&self) -> usize {
        if self.isa.has_dots() && self.dtype == MatmulDType::Bf16 { 2 } else { 1 }
    }

    /// Whether it multiplies a small weight in chains as it lies, which several threads may read.
    fn reads_weight(&self) -> bool {
        let as_it_lies = matches!((self.left, self.right), (Left::Rows(..), Right::Panels(_)));
        as_it_lies && self.tiles.is_none() && self.n * self.depth <= SMALL
    }

    /// Whether it packs rows for tasks that read a small right operand.
    fn packs_small_blocks(&self) -> bool {
        self.shares_rows() && !self.zips() && self.n * self.depth <= SMALL
    }

    /// The depth in blocks of nearly equal length, panels of a weight's outputs but for the last one.
    #[inline(always)]
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let depth = self.depth;
        let count = depth.div_ceil(MAX_DEPTH * self.together()).max(1);
        let step = depth.div_ceil(count).next_multiple_of(PANEL);
        (0..count).map(move |i| (i * step).min(depth)..((i + 1) * step).min(depth))
    }
}

/// Rows cut into strips of nearly equal height, at most the tile's.
pub(super) struct Strips {
    start: usize,
    len: usize,
    pub count: usize,
    /// Rows of the highest strip.
    pub most: usize,
    /// Vectors of a tile of that many rows.
    pub vectors: usize,
}

impl Strips {
    #[inline(always)]
    pub fn new<V: Simd>(rows: Range<usize>) -> Strips {
        let count = rows.len().div_ceil(V::GEMM_ROWS);
        let most = rows.len().div_ceil(count.max(1));
        Strips { start: rows.start, len: rows.len(), count, most, vectors: vectors::<V>(most.max(1)) }
    }
    /// Elements from one packed strip to the next: all steps, and room for the last vector.
    #[inline(always)]
    pub fn pitch(&self) -> usize {
        self.most * MAX_DEPTH + LANES
    }
    /// Elements of all packed strips of a block of depth.
    #[inline(always)]
    pub fn packed(&self) -> usize {
        self.count * self.pitch()
    }
    /// Where those of block `block` of the `blocks` of a matmul's depth are among all that are packed: after the
    /// blocks of rows before, which are whole strips.
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

/// Part `i` of `0..len` in so many parts.
#[inline(always)]
pub(super) fn cut(i: usize, len: usize, parts: usize) -> Range<usize> {
    i * len / parts..(i + 1) * len / parts
}

/// A matmul cut into tasks: blocks of rows times groups of panels.
pub(super) struct Plan<'a> {
    pub matmul: &'a Matmul<'a>,
    pub panels: usize,
    pub row_blocks: usize,
    pub groups: usize,
    /// Whether each thread has a block of rows.
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
        // Rows that each task packs for itself are packed as often as there are tasks.
        let of_thread = if own_rows || matmul.packs_few_rows() { TASKS_PER_THREAD / 2 } else { TASKS_PER_THREAD };
        let tasks = match (threads * of_thread).min(work + 1) {
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
            // Each task packs its rows and its panels for itself: of many tasks, square ones pack least.
            let square = (tasks * m / n).isqrt().min(m.div_ceil(MAX_ROWS));
            m.div_ceil(ROWS).max(square)
        };
        let groups = |row_blocks: usize| tasks.div_ceil(row_blocks).clamp(1, panels);
        // The fewest blocks with as many tasks for each thread: of nine tasks, two threads would wait for the fifth.
        let even = |row_blocks: &usize| (row_blocks * groups(*row_blocks)).is_multiple_of(threads);
        let most = (2 * row_blocks).min(m.div_ceil(MAX_ROWS) + 1);
        let row_blocks = (row_blocks..most).find(even).unwrap_or(row_blocks);
        let groups = groups(row_blocks);
        Plan { matmul, panels, row_blocks, groups, own_rows }
    }

    /// The rows of block `block` of them: whole tiles, but for the last, and where each thread has a block.
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
        // Groups of panels change slowest, so that threads read the same panels at the same time; but blocks of rows
        // that are each a thread's, so that it reads the rows that it wrote as the operation before.
        let (block, group) = match self.own_rows {
            true => (index / self.groups, index % self.groups),
            false => (index % self.row_blocks, index / self.row_blocks),
        };
        let rows = self.rows::<V>(block);
        // Groups start at even multiples of four panels where there are many, so that few-row tiles stay whole.
        let quads = self.panels.div_ceil(MAX_VECTORS / 2);
        let panels = if quads >= 4 * self.groups {
            let q = cut(group, quads, self.groups);
            (q.start * 4).min(self.panels)..(q.end * 4).min(self.panels)
        } else {
            cut(group, self.panels, self.groups)
        };
        // SAFETY: tasks are disjoint blocks of rows and panels.
        unsafe { self.matmul.block(rows, panels, scratch) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::gemm::Operands;
    use crate::simd::portable::F32x16;
    use crate::tensor::Elements;

    fn with_plan<T>([m, n, k]: [usize; 3], threads: usize, f: impl FnOnce(&Plan<'_>) -> T) -> T {
        let (x, w, mut c) = (vec![0.0; m * k], vec![0.0; n.next_multiple_of(PANEL) * k], vec![0.0; m * n]);
        let outputs = Operands::of_outputs((Elements::F32(&x), Elements::F32(&w)), k, 0..m, 0..n, None, &mut c);
        f(&Plan::new(&Matmul::new(Isa::PORTABLE, outputs), threads))
    }

    /// A block of rows for each thread where there are rows enough and the weight is small, and the tasks of a thread
    /// side by side: its share of the region.
    #[test]
    fn threads_have_rows_of_their_own_where_the_weight_is_small() {
        let plan = |shape: [usize; 3], threads: usize| {
            with_plan(shape, threads, |plan| {
                let blocks: Vec<_> = (0..plan.row_blocks).map(|block| plan.rows::<F32x16>(block)).collect();
                (plan.own_rows, blocks, plan.groups)
            })
        };
        assert_eq!(plan([32, 2048, 256], 2), (true, vec![0..16, 16..32], 2));
        assert_eq!(plan([33, 1024, 256], 3), (true, vec![0..11, 11..22, 22..33], 2));
        for (shape, threads) in [([32, 2048, 256], 1), ([15, 2048, 256], 2), ([32, 4096, 256], 2), ([32, 32, 32], 2)] {
            assert!(!plan(shape, threads).0, "{shape:?} {threads}");
        }
    }
    #[test]
    fn threads_have_as_many_tasks_each() {
        let plan = |shape, threads| with_plan(shape, threads, |plan| (plan.row_blocks, plan.groups));
        assert_eq!(plan([1104, 1024, 768], 2), (4, 2), "not 3 × 3");
        assert_eq!(plan([3312, 1024, 768], 2), (7, 2));
        assert_eq!(plan([3312, 1024, 768], 16), (8, 8), "not 7 × 8");
        assert_eq!(plan([3312, 1024, 768], 1), (7, 1));
    }
    #[test]
    fn blocks_of_many_rows_have_all_of_a_small_weight() {
        let plan = |shape, threads| with_plan(shape, threads, |plan| (plan.row_blocks, plan.groups));
        assert_eq!(plan([1104, 256, 1024], 2), (6, 1));
        assert_eq!(plan([3312, 256, 1024], 2), (8, 1), "at most 480 rows");
        assert_eq!(plan([384, 256, 1024], 2), (6, 1));
        assert_eq!(plan([383, 256, 1024], 2).1, 8, "too few rows");
    }
}
