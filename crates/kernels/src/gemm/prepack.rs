//! Packs matmul operands once for all tasks, before the tasks run, if tiles cannot read the operands as stored.
//!
//! A task that packs operands for itself repeats the packing of other tasks. It also reads only a cache line or two
//! from each row of a wide matrix, each in a different memory page, which is slow for caches and hardware prefetchers.
//! Here all threads first pack a few rows of the depth with all of their columns, and then multiply the packed
//! operands. On AMX tiles, these matmuls pack ahead:
//!
//! | matmul          | packed ahead                                     |
//! |-----------------|--------------------------------------------------|
//! | backward_weight | `d_y` and `x`                                    |
//! | backward_input  | Wᵀ, if there are enough rows for several tasks   |
//!
//! The depth (the terms of the sums) is split into spans whose packed operands fit a buffer of fixed size. Sums
//! continue from one span to the next in the f32 outputs, which is exact.
//!
//! Without AMX tiles, rows that all tasks read are packed ahead if there are few of them, because each task would
//! otherwise pack much and multiply little. Panels in f32 are not packed ahead, because they need twice the memory and
//! were not measured to be faster. But if two bf16 terms are multiplied at once, `d_y` is packed ahead, as words of two
//! rows.

use super::plan::{Plan, Strips, cut};
use super::steps::Steps;
use super::tile::MAX_DEPTH;
use super::tiles;
use super::{Left, Matmul, Right, lines, pack_tiles};
use crate::device::Cpu;
use crate::matrix::PANEL;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::tiles::{DEPTH, SIDE, TILE, Unit};
use crate::simd::{Kernel, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::cell::RefCell;
use std::ops::Range;

/// Size in f32 elements of the buffer for a packed span (8 MiB), unless a single step of 32 terms needs more. (Small in
/// tests, for several spans.)
const SPAN: usize = if cfg!(test) { 1 << 13 } else { 1 << 21 };
/// Minimum number of multiply-adds for which packing ahead is worth a parallel region.
const MIN_MULTIPLY_ADDS: usize = if cfg!(test) { 1 << 15 } else { 1 << 20 };

/// Limits on the number of elements in packed rows, without AMX tiles. Below `LEAST_SHARED`, a thread packs the
/// elements faster than it fetches them from the core that packed them. At most `MOST_SHARED` are packed at once.
const LEAST_SHARED: usize = if cfg!(test) { 1 << 6 } else { 1 << 16 };
const MOST_SHARED: usize = 1 << 22;

/// Maximum number of elements of both operands that are packed into words at once (16 MiB).
const ZIPPED: usize = if cfg!(test) { 1 << 11 } else { 1 << 23 };
/// Minimum number of outputs for which packing into words is worth a parallel region.
const LEAST_ZIPPED: usize = if cfg!(test) { 1 << 8 } else { 1 << 14 };
/// Number of words of each column that a task packs: enough for long contiguous reads and writes.
const WORDS: usize = 8;

/// Number of panels of 32 columns that are packed together, for long contiguous reads of each row.
const TOGETHER: usize = 4;

impl Matmul<'_> {
    /// Whether packing operands into AMX tiles ahead of the tasks is worth it.
    pub(super) fn prepacks(&self) -> bool {
        let several = match self.right {
            Right::Rows(..) => true,
            // The depth must consist of whole panels of the weight, so that it contains no padding.
            Right::Transposed(_) => self.m > tiles::ROWS && self.depth.is_multiple_of(PANEL),
            Right::Panels(_) | Right::Tiles(_) | Right::Words(_) => false,
        };
        several && self.tiles.is_some() && self.m * self.n * self.depth >= MIN_MULTIPLY_ADDS
    }

    /// Packs operands into tiles and multiplies them, one span of the depth after another.
    pub(super) fn run_prepacked(&self, cpu: &Cpu) {
        let Some((unit, steps)) = &self.tiles else { unreachable!("only tiles are packed ahead") };
        PACKED.with_borrow_mut(|memory| self.spans(cpu, *unit, steps, memory));
    }

    fn spans(&self, cpu: &Cpu, unit: Unit, steps: &Steps, memory: &mut Vec<f32>) {
        // Elements of one packed step of 32 terms. A is packed only if it consists of columns of row-major data.
        let a = if let Left::Columns(..) = self.left { self.m.div_ceil(SIDE) * TILE } else { 0 };
        let b = self.n.div_ceil(PANEL) * 2 * TILE;
        for taken in spans(steps.len(), 2 * SPAN / (a + b)) {
            let packed = pack_tiles::halves(lines(memory, (a + b) / 2 * taken.len()));
            let (to_a, to_b) = packed.split_at_mut(a * taken.len());
            let tasks =
                Tiles { matmul: self, steps, taken: taken.clone(), a: Disjoint::new(to_a), b: Disjoint::new(to_b) };
            cpu.run(taken.len(), &tasks);
            let depth = steps.terms(taken.start).start..steps.terms(taken.end - 1).end;
            let left = if a > 0 { Left::Tiles(to_a) } else { self.left_from(depth.start) };
            // Packed columns have whole steps, with zeros for missing terms.
            let terms = if a > 0 { DEPTH * taken.len() } else { depth.len() };
            self.span(&depth, left, Right::Tiles(to_b), (unit, Steps::One(terms))).multiply(cpu);
        }
    }

    /// The left operand without its first `start` terms.
    fn left_from(&self, start: usize) -> Left<'_> {
        match self.left {
            Left::Rows(data, stride) => Left::Rows(data.range(start..data.len()), stride),
            Left::Columns(data, stride) => Left::Columns(data.range(start * stride..data.len()), stride),
            Left::Tiles(_) | Left::Strips(_) => unreachable!("packed already"),
        }
    }

    /// The matmul of only the terms `depth`, which continues the sums of the previous terms.
    fn span<'a>(&'a self, depth: &Range<usize>, left: Left<'a>, right: Right<'a>, tiles: (Unit, Steps)) -> Matmul<'a> {
        Matmul {
            depth: depth.len(),
            left,
            right,
            accumulate: self.accumulate || depth.start > 0,
            bias: self.bias.filter(|_| depth.end == self.depth),
            tiles: Some(tiles),
            ..*self
        }
    }
}

impl Matmul<'_> {
    /// Whether both operands are packed ahead, as words of two bf16 terms.
    pub(super) fn zips(&self) -> bool {
        let words = self.together() == 2 && self.tiles.is_none();
        words
            && matches!(self.right, Right::Rows(..))
            && self.depth > 0
            && self.m > 1
            && self.m * self.n >= LEAST_ZIPPED
    }

    /// Packs both operands into words and multiplies them, one block of the depth after another.
    pub(super) fn run_zipped(&self, cpu: &Cpu) {
        let Right::Rows(data, stride) = self.right else { unreachable!("only row-major data is packed into words") };
        for words in spans(self.depth.div_ceil(2), (ZIPPED / 2 / (self.m + self.n)).min(MAX_DEPTH)) {
            let depth = 2 * words.start..self.depth.min(2 * words.end);
            let matmul = Matmul {
                depth: depth.len(),
                left: self.left_from(depth.start),
                right: Right::Rows(data.range(depth.start * stride..data.len()), stride),
                accumulate: self.accumulate || depth.start > 0,
                bias: self.bias.filter(|_| depth.end == self.depth),
                tiles: None,
                ..*self
            };
            matmul.multiply(cpu);
        }
    }

    /// Whether rows that several groups of panels read are packed once for all of them.
    pub(super) fn shares_rows(&self) -> bool {
        let shared = (LEAST_SHARED..=MOST_SHARED).contains(&(self.m * self.depth));
        self.packs_rows() && (shared || self.zips())
    }

    /// Whether there are so few rows that each task packs them for itself.
    pub(super) fn packs_few_rows(&self) -> bool {
        self.packs_rows() && self.m * self.depth < LEAST_SHARED && !self.zips()
    }

    fn packs_rows(&self) -> bool {
        matches!(self.left, Left::Rows(..) | Left::Columns(..)) && self.tiles.is_none() && self.m > 1
    }
}

impl Plan<'_> {
    /// Packs the rows of the matmul, and its columns too if it [zips](Matmul::zips), and calls `f` with the packed
    /// matmul.
    pub(super) fn with_packed(&self, cpu: &Cpu, f: impl FnOnce(&Matmul<'_>)) {
        /// Computes the number of elements of all packed strips.
        struct Room<'a>(&'a Plan<'a>);
        impl Kernel for Room<'_> {
            type Output = usize;
            #[inline(always)]
            fn run<V: Simd>(self) -> usize {
                let (blocks, last) = (self.0.matmul.blocks().len(), self.0.rows::<V>(self.0.row_blocks - 1));
                Strips::new::<V>(last).place::<V>(blocks, blocks)
            }
        }
        PACKED.with_borrow_mut(|memory| {
            let (blocks, parts) = (self.matmul.blocks().len(), cpu.threads());
            let strips_len = cpu.isa().run(Room(self)).next_multiple_of(LANES);
            let words = if self.matmul.zips() { self.matmul.depth.div_ceil(2) } else { 0 };
            let to = lines(memory, strips_len + self.panels * words * PANEL);
            let (strips, panels) = to.split_at_mut(strips_len);
            let rows = Rows { plan: self, blocks, parts, to: Disjoint::new(strips) };
            let tasks = Packing { rows, words, to: Disjoint::new(panels) };
            cpu.run(tasks.rows.tasks() + words.div_ceil(WORDS), &tasks);
            let right = if words > 0 { Right::Words(panels) } else { self.matmul.right };
            f(&Matmul { left: Left::Strips(strips), right, tiles: None, ..*self.matmul });
        });
    }
}

/// Tasks that pack rows into strips, followed by tasks that pack [`WORDS`] words of all columns into panels.
struct Packing<'a> {
    rows: Rows<'a>,
    /// Words in each column; 0 if only rows are packed.
    words: usize,
    /// Packed panels: `[⌈n/32⌉][words][32]`.
    to: Disjoint<'a, f32>,
}

impl Tasks for Packing<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let Some(index) = index.checked_sub(self.rows.tasks()) else { return self.rows.task::<V>(index) };
        let (plan, words) = (self.rows.plan, index * WORDS..self.words.min((index + 1) * WORDS));
        let depth = 2 * words.start..plan.matmul.depth.min(2 * words.end);
        for first in (0..plan.panels).step_by(TOGETHER) {
            let mut to: [&mut [f32]; TOGETHER] = [0, 1, 2, 3].map(|i| {
                let len = if first + i < plan.panels { words.len() * PANEL } else { 0 };
                let at = ((first + i) * self.words + words.start) * PANEL * len.min(1);
                // SAFETY: no other task accesses these words.
                unsafe { self.to.slice(at..at + len) }
            });
            plan.matmul.zip::<V>(depth.clone(), first, &mut to[..TOGETHER.min(plan.panels - first)]);
        }
    }
}

/// Packs rows into strips. Each task packs some strips of one block of rows, for one block of the depth.
struct Rows<'a> {
    plan: &'a Plan<'a>,
    blocks: usize,
    parts: usize,
    to: Disjoint<'a, f32>,
}

impl Rows<'_> {
    fn tasks(&self) -> usize {
        self.plan.row_blocks * self.blocks * self.parts
    }

    #[inline(always)]
    fn task<V: Simd>(&self, index: usize) {
        let (matmul, block_index, part) = (self.plan.matmul, index / self.parts, index % self.parts);
        let (rows, block) = (self.plan.rows::<V>(block_index / self.blocks), block_index % self.blocks);
        let strips = Strips::new::<V>(rows);
        let which = cut(part, strips.count, self.parts);
        let (at, pitch) = (strips.place::<V>(self.blocks, block), strips.pitch());
        // SAFETY: no other task accesses these strips of this block.
        let to = unsafe { self.to.slice(at + which.start * pitch..at + which.end * pitch) };
        if let Some(depth) = matmul.blocks().nth(block) {
            matmul.pack_left::<V>(&strips, which, depth, to);
        }
    }
}

/// Splits `0..len` into nearly equal ranges of at most `most` (but at least 1) elements.
fn spans(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let span = len.div_ceil(len.div_ceil(most.max(1)).max(1)).max(1);
    (0..len).step_by(span).map(move |start| start..len.min(start + span))
}

/// Packs AMX tiles. Each task packs one step of 32 terms, for all panels, and for all rows if these are columns of
/// row-major data.
struct Tiles<'a> {
    matmul: &'a Matmul<'a>,
    steps: &'a Steps,
    taken: Range<usize>,
    /// Packed rows: `[⌈m/16⌉][taken][16][32]`; empty if rows are not packed.
    a: Disjoint<'a, bf16>,
    /// Packed panels: `[⌈n/32⌉][taken][16][32][2]`.
    b: Disjoint<'a, bf16>,
}

impl Tasks for Tiles<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let (matmul, step) = (self.matmul, self.taken.start + index);
        let panels = matmul.n.div_ceil(PANEL);
        for first in (0..panels).step_by(TOGETHER) {
            let mut to: [&mut [bf16]; TOGETHER] = [0, 1, 2, 3].map(|i| {
                let len = if first + i < panels { 2 * TILE } else { 0 };
                let at = ((first + i) * self.taken.len() + index) * len;
                // SAFETY: no other task accesses this step.
                unsafe { self.b.slice(at..at + len) }
            });
            let to = &mut to[..TOGETHER.min(panels - first)];
            if let Right::Rows(Elements::F32(data), stride) = matmul.right {
                let columns = first * PANEL..matmul.n.min((first + TOGETHER) * PANEL);
                pack_tiles::zip_f32::<V>(data, stride, self.steps.terms(step), columns, to);
            } else {
                for (panel, to) in (first..).zip(to) {
                    pack_tiles::pack_right::<V>(matmul, self.steps, panel, step, to);
                }
            }
        }
        if let Left::Columns(data, stride) = matmul.left {
            for tile in (0..matmul.m.div_ceil(SIDE)).step_by(2) {
                let columns = tile * SIDE..matmul.m.min((tile + 2) * SIDE);
                let to = [0, 1].map(|i| {
                    // The last lower tile does not exist if it has no columns.
                    let len = if i * SIDE < columns.len() { TILE } else { 0 };
                    let at = ((tile + i) * self.taken.len() + index) * TILE * len.min(1);
                    // SAFETY: no other task accesses this step.
                    unsafe { self.a.slice(at..at + len) }
                });
                pack_tiles::pack_columns::<V>(data, stride, self.steps.terms(step), columns, to);
            }
        }
    }
}

thread_local! {
    /// Buffer of packed operands, which the calling thread keeps for the next matmul.
    static PACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_the_whole_depth() {
        for (len, most) in [(1, 1), (100, 64), (96, 1), (1000, 256), (33, 0), (7, 100)] {
            let cut: Vec<_> = spans(len, most).collect();
            assert_eq!((cut[0].start, cut[cut.len() - 1].end), (0, len));
            assert!(cut.windows(2).all(|w| w[0].end == w[1].start));
            assert!(cut.iter().all(|s| (1..=most.max(1)).contains(&s.len())), "{cut:?}");
        }
    }
}
