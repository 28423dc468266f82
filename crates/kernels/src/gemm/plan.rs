//! How a product is cut: its depth into blocks, its rows into strips, and all of it into tasks.

use super::tile::{MAX_DEPTH, MAX_ROWS, MAX_VECTORS, vectors};
use super::tiles;
use super::{Product, ProductDType};
use crate::matrix::PANEL;
use crate::pool::{Scratch, Tasks};
use crate::simd::{LANES, Simd};
use std::ops::Range;

/// The most rows of a task: their packed block, 1 MiB of it, stays in the second cache, or nearly. The more there are,
/// the seldomer panels are packed and read.
const ROWS: usize = 480;
/// Tasks for each thread, so that a thread that is interrupted delays the region little.
const TASKS_PER_THREAD: usize = 4;
/// A task of less work than this many multiply-adds is not worth handing to another thread.
const TASK_WORK: usize = 1 << 17;

impl Product<'_> {
    /// Terms of a sum that a step of a chain takes: two where words are multiplied.
    #[inline(always)]
    pub(super) fn together(&self) -> usize {
        if self.isa.has_dots() && self.dtype == ProductDType::Bf16 { 2 } else { 1 }
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
    /// Where those of block `block` of the `blocks` of a product's depth are among all that are packed: after the
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

/// A product cut into tasks: blocks of rows times groups of panels.
pub(super) struct Plan<'a> {
    pub product: &'a Product<'a>,
    pub panels: usize,
    pub row_blocks: usize,
    pub groups: usize,
}

impl<'a> Plan<'a> {
    pub fn new(product: &'a Product<'a>, threads: usize) -> Plan<'a> {
        let (m, n) = (product.m, product.n);
        let panels = n.div_ceil(PANEL);
        let work = m * n * product.depth.max(1) / TASK_WORK;
        // Rows that each task packs for itself are packed as often as there are tasks.
        let of_thread = if product.packs_few_rows() { TASKS_PER_THREAD / 2 } else { TASKS_PER_THREAD };
        let tasks = if threads == 1 { 1 } else { (threads * of_thread).min(work + 1) };
        let row_blocks = if product.tiles.is_some() {
            m.div_ceil(tiles::ROWS)
        } else if product.shares_rows() {
            m.div_ceil(ROWS)
        } else {
            // Each task packs its rows and its panels for itself: of many tasks, square ones pack least.
            let square = (tasks * m / n).isqrt().min(m.div_ceil(MAX_ROWS));
            m.div_ceil(ROWS).max(square)
        };
        let groups = tasks.div_ceil(row_blocks).clamp(1, panels);
        Plan { product, panels, row_blocks, groups }
    }

    /// The rows of block `block` of them: whole tiles, but for the last.
    #[inline(always)]
    pub fn rows<V: Simd>(&self, block: usize) -> Range<usize> {
        let unit = if self.product.tiles.is_some() { tiles::FEW } else { V::GEMM_ROWS };
        let rows = cut(block, self.product.m.div_ceil(unit), self.row_blocks);
        rows.start * unit..(rows.end * unit).min(self.product.m)
    }
}

impl Tasks for Plan<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        // Groups of panels change slowest, so that threads read the same panels at the same time.
        let rows = self.rows::<V>(index % self.row_blocks);
        // Groups start at even multiples of four panels where there are many, so that few-row tiles stay whole.
        let quads = self.panels.div_ceil(MAX_VECTORS / 2);
        let panels = if quads >= 4 * self.groups {
            let q = cut(index / self.row_blocks, quads, self.groups);
            (q.start * 4).min(self.panels)..(q.end * 4).min(self.panels)
        } else {
            cut(index / self.row_blocks, self.panels, self.groups)
        };
        // SAFETY: tasks are disjoint blocks of rows and panels.
        unsafe { self.product.block(rows, panels, scratch) };
    }
}
