//! Products on the CPU: operands are packed block by block into the thread's scratch, and tiles run over them.
//!
//! One driver serves the three products; they differ in how operands are packed and where the outputs lie:
//!
//! | product         | left (rows)   | right (columns)               | depth | output            |
//! |-----------------|---------------|-------------------------------|-------|-------------------|
//! | forward         | `x`           | panels of W, as they lie      | K     | `y`, row-major    |
//! | backward_input  | `d_y`         | panels of Wᵀ, made on the fly | N     | `d_x`, row-major  |
//! | backward_weight | columns of `x`| panels of `d_y`               | M     | panels of `d_W`   |
//!
//! Numbers in bf16 ([`Numbers::Bf16`]) are multiplied on tiles where the instruction set has them (`tiles.rs`); what follows is
//! about chains.
//!
//! Cutting the depth into blocks stores chains to f32 memory and loads them again, which is exact. Operands in bf16 are
//! widened where they are packed, which is exact too: their chains are those of the widened numbers.

use super::ask::Ask;
use super::plan::{Plan, Strips, blocks};
use super::tile::{MAX_DEPTH, Packed, Tile};
use super::tiles::{self, Steps};
use crate::matrix::PANEL;
use crate::pool::{Scratch, Tasks};
use crate::simd::tiles::Unit;
use crate::simd::{Element, Kernel, LANES, Simd};
use crate::tensor::Elements;
use crate::{Context, Isa};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// bf16 panels that no more strips read than this are widened on the way to the registers, each time; others once, in memory.
const FEW_STRIPS: usize = 3;

/// The left operand.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// `left[i, k] = data[i · stride + k]`
    Rows(Elements<'a>, usize),
    /// `left[i, k] = data[k · stride + i]`
    Columns(Elements<'a>, usize),
    /// `[⌈m/16⌉][depth/32][16][32]`: packed tiles.
    Tiles(&'a [bf16]),
    /// [`Strips`] of each block of rows, packed, for one block of depth after the other.
    Strips(&'a [f32]),
}

/// The right operand, columns in panels of 32.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// `[⌈n/32⌉][depth][32]` of f32, `[⌈n/32⌉][depth/2][32][2]` of bf16: a packed weight as it lies.
    Panels(Elements<'a>),
    /// A packed weight `[⌈depth/32⌉][n][32]`, or `[⌈depth/32⌉][n/2][32][2]`, transposed.
    Transposed(Elements<'a>),
    /// `right[k, j] = data[k · stride + j]`
    Rows(Elements<'a>, usize),
    /// `[⌈n/32⌉][depth/32][16][32][2]`: packed tiles.
    Tiles(&'a [bf16]),
}

/// Which numbers are multiplied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// What the operands hold.
    Held,
    /// The operands as bf16: one of them is, and the other, if it is f32, is rounded to it as it is packed.
    Bf16,
}

impl Numbers {
    /// bf16 if all of these are.
    pub(crate) fn of(operands: &[Elements<'_>]) -> Numbers {
        if operands.iter().all(|o| matches!(o, Elements::Bf16(_))) { Numbers::Bf16 } else { Numbers::Held }
    }
}

/// Where outputs lie.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// `c[i, j]` at `i · stride + j`: columns of a wider matrix, or all of it.
    Rows(usize),
    /// `[⌈n/32⌉][m][32]`
    Panels,
}

/// `c = (accumulate ? c : 0) + left · right (+ bias)`, with `left: [m, depth]`, `right: [depth, n]`.
pub(crate) struct Product<'a> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) depth: usize,
    pub(super) left: Left<'a>,
    pub(super) right: Right<'a>,
    pub(super) c: *mut f32,
    pub(super) order: Order,
    pub(super) accumulate: bool,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) numbers: Numbers,
    /// What multiplies tiles, and the terms of each; none: chains.
    pub(super) tiles: Option<(Unit, Steps)>,
    pub(super) isa: Isa,
    pub(super) output: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write disjoint blocks of `c`, which the product borrows exclusively.
unsafe impl Sync for Product<'_> {}

/// The arguments of [`Product::new`].
pub(crate) struct Operands<'a> {
    /// Rows.
    pub m: usize,
    /// Columns.
    pub n: usize,
    /// Terms of each sum.
    pub depth: usize,
    /// `[m, depth]`
    pub left: Left<'a>,
    /// `[depth, n]`
    pub right: Right<'a>,
    /// `[m, n]`
    pub c: &'a mut [f32],
    /// Where its elements lie.
    pub order: Order,
    /// Whether sums continue what `c` holds.
    pub accumulate: bool,
    /// `[n]`, added last.
    pub bias: Option<&'a [f32]>,
    /// Which numbers are multiplied.
    pub numbers: Numbers,
    /// The first term of each segment of the depth, and its length at last: tiles begin anew there. None: one segment.
    pub segments: Option<&'a [u32]>,
}

impl<'a> Operands<'a> {
    /// `c = x[rows] wᵀ + bias`: `[rows][outputs]`, where outputs begin a panel of the packed weight and `bias` is of them alone.
    pub(crate) fn of_outputs(
        (x, w): (Elements<'a>, Elements<'a>),
        depth: usize,
        rows: Range<usize>,
        outputs: Range<usize>,
        bias: Option<&'a [f32]>,
        c: &'a mut [f32],
    ) -> Operands<'a> {
        debug_assert!(outputs.start.is_multiple_of(PANEL));
        Operands {
            m: rows.len(),
            n: outputs.len(),
            depth,
            left: Left::Rows(x.range(rows.start * depth..rows.end * depth), depth),
            right: Right::Panels(w.range(outputs.start * depth..w.len())),
            c,
            order: Order::Rows(outputs.len()),
            accumulate: false,
            bias,
            numbers: Numbers::of(&[x, w]),
            segments: None,
        }
    }
}

impl<'a> Product<'a> {
    /// Checks that every operand is long enough, which all unchecked access below relies on.
    pub(crate) fn new(isa: Isa, o: Operands<'a>) -> Product<'a> {
        let (m, n, depth) = (o.m, o.n, o.depth);
        let panels = n.div_ceil(PANEL);
        let paired = |data: Elements<'_>, inputs: usize| inputs.is_multiple_of(2) || matches!(data, Elements::F32(_));
        let strided = |len: usize, rows: usize, columns: usize, stride: usize| {
            assert!(columns <= stride && (rows == 0 || columns == 0 || len >= (rows - 1) * stride + columns));
        };
        match o.left {
            Left::Rows(data, stride) => strided(data.len(), m, depth, stride),
            Left::Columns(data, stride) => strided(data.len(), depth, m, stride),
            Left::Tiles(_) | Left::Strips(_) => unreachable!("packed by the product itself"),
        }
        match o.right {
            Right::Panels(data) => assert!(data.len() >= panels * depth * PANEL && paired(data, depth)),
            Right::Transposed(data) => assert!(data.len() >= depth.div_ceil(PANEL) * n * PANEL && paired(data, n)),
            Right::Rows(data, stride) => strided(data.len(), depth, n, stride),
            Right::Tiles(_) => unreachable!("packed by the product itself"),
        }
        match o.order {
            Order::Rows(stride) => strided(o.c.len(), m, n, stride),
            Order::Panels => assert!(o.c.len() >= panels * m * PANEL),
        }
        assert!(o.bias.is_none_or(|b| b.len() >= n));
        assert!(
            o.segments
                .is_none_or(|s| matches!((o.left, s.last()), (Left::Columns(..), Some(&end)) if end as usize == depth))
        );
        let unit = isa.tiles().filter(|_| o.numbers == Numbers::Bf16 && depth > 0);
        Product {
            m,
            n,
            depth,
            left: o.left,
            right: o.right,
            c: o.c.as_mut_ptr(),
            order: o.order,
            accumulate: o.accumulate,
            bias: o.bias,
            numbers: o.numbers,
            tiles: unit.map(|unit| (unit, Steps::new(depth, o.segments))),
            isa,
            output: PhantomData,
        }
    }

    /// Computes it on all threads.
    pub(crate) fn run(&self, ctx: &Context) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        if self.packs_ahead() { self.run_ahead(ctx) } else { self.multiply(ctx) }
    }

    /// The same, its operands packed by the tasks themselves, but for rows that several of them read.
    pub(super) fn multiply(&self, ctx: &Context) {
        let plan = Plan::new(self, ctx.threads());
        let tasks = plan.row_blocks * plan.groups;
        if self.shares_rows() && plan.groups > 1 {
            plan.with_strips(ctx, |product| ctx.run(tasks, &Plan { product, ..plan }));
        } else {
            ctx.run(tasks, &plan);
        }
    }

    /// Computes rows `rows` of panels `panels` on this thread.
    ///
    /// # Safety
    /// No other thread computes an output in common.
    pub(crate) unsafe fn block(&self, rows: Range<usize>, panels: Range<usize>, scratch: &mut Scratch) {
        /// Compiled once for an instruction set, whatever the tasks that call it.
        struct Block<'a, 'b>(&'a Product<'b>, Range<usize>, Range<usize>, &'a mut Scratch);
        impl Kernel for Block<'_, '_> {
            type Output = ();
            #[inline(always)]
            fn run<V: Simd>(self) {
                // SAFETY: the caller's promise.
                unsafe { self.0.block_with::<V>(self.1, self.2, self.3) }
            }
        }
        self.isa.run(Block(self, rows, panels, scratch));
    }

    /// The same with these vectors.
    ///
    /// # Safety
    /// As for [`block`](Self::block).
    #[inline(always)]
    pub(super) unsafe fn block_with<V: Simd>(&self, rows: Range<usize>, panels: Range<usize>, scratch: &mut Scratch) {
        debug_assert!(rows.end <= self.m && panels.end <= self.n.div_ceil(PANEL));
        if let Some((unit, steps)) = &self.tiles {
            // SAFETY: the caller's promise.
            return unsafe { tiles::block::<V>(self, *unit, steps, rows, panels, scratch) };
        }
        let strips = Strips::new::<V>(rows.clone());
        let most = (strips.vectors / 2).max(1);
        let own = if let Left::Strips(_) = self.left { 0 } else { strips.packed() };
        let scratch = aligned(scratch, own + most * MAX_DEPTH * PANEL);
        let (own, b) = scratch.split_at_mut(own);
        for (i, depth) in blocks(self.depth).enumerate() {
            let a = match self.left {
                Left::Strips(packed) => &packed[strips.place::<V>(self.depth, i)..][..strips.packed()],
                _ => {
                    self.pack_left::<V>(&strips, 0..strips.count, depth.clone(), own);
                    &*own
                }
            };
            let mut panel = panels.start;
            while panel < panels.end {
                // Several panels at once only while all of the tile's vectors have one.
                let of_group = panel..panel + if panel + most <= panels.end { most } else { 1 };
                panel = of_group.end;
                // Tiles of few rows and several panels read as fast as memory gives: what they asked for would come in the way.
                let next = if most > 1 {
                    Ask::NOTHING
                } else if panel < panels.end || depth.end == self.depth {
                    self.ask(panel, depth.clone())
                } else {
                    self.ask(panels.start, depth.end..self.depth.min(depth.end + depth.len()))
                };
                if let (Right::Panels(Elements::Bf16(data)), 1..=FEW_STRIPS) = (self.right, strips.count) {
                    let whole = self.depth * PANEL;
                    let right = (data[of_group.start * whole + depth.start * PANEL..].as_ptr(), whole);
                    self.group::<V, bf16>(&strips, a, &Group { panels: of_group, depth: depth.clone(), right, next });
                } else {
                    let right = self.right::<V>(of_group.clone(), depth.clone(), b);
                    self.group::<V, f32>(&strips, a, &Group { panels: of_group, depth: depth.clone(), right, next });
                }
            }
        }
    }

    /// The tiles of all strips and one group of panels.
    #[inline(always)]
    fn group<V: Simd, E: Packed>(&self, strips: &Strips, a: &[f32], group: &Group<E>) {
        for strip in 0..strips.count {
            self.tiles::<V, E>(strips, strip, a[strip * strips.pitch()..].as_ptr(), group);
        }
    }

    /// The tiles of one strip of rows and one group of panels.
    #[inline(always)]
    fn tiles<V: Simd, E: Packed>(&self, strips: &Strips, strip: usize, a: *const f32, group: &Group<E>) {
        let Group { panels, depth, right: (b, b_panel), next } = group;
        let rows = strips.rows(strip);
        let (c_row, c_panel) = match self.order {
            Order::Rows(stride) => (stride, PANEL),
            Order::Panels => (PANEL, self.m * PANEL),
        };
        let width = panels.len() * PANEL / LANES;
        let vectors = if strips.vectors <= width { strips.vectors } else { V::GEMM_VECTORS };
        for vector in (0..width).step_by(vectors) {
            let at = (vector / 2, (vector % 2) * LANES);
            let column = (panels.start + at.0) * PANEL + at.1;
            let columns = self.n.saturating_sub(column);
            if columns == 0 {
                continue;
            }
            let last = depth.end == self.depth;
            let bias = self.bias.filter(|_| last).map_or(std::ptr::null(), |bias| bias[column..].as_ptr());
            self.isa.run(&Tile {
                rows: rows.len(),
                vectors,
                depth: depth.len(),
                a,
                a_pitch: strips.most,
                b: b.wrapping_add(at.0 * b_panel + at.1 * E::TOGETHER),
                b_panel: *b_panel,
                c: self.c.wrapping_add(rows.start * c_row + (panels.start + at.0) * c_panel + at.1),
                c_row,
                c_panel,
                columns,
                from_c: self.accumulate || depth.start > 0,
                bias,
                ask: if vector == 0 { next.part(strip, strips.count) } else { Ask::NOTHING },
            });
        }
    }
}

/// Panels of the right operand that tiles read together, and steps of them.
struct Group<E> {
    panels: Range<usize>,
    depth: Range<usize>,
    /// `[depth][32]` as `E` lies, and the elements from one panel to the next.
    right: (*const E, usize),
    /// What is read after them.
    next: Ask,
}

/// `len` elements aligned to a cache line.
pub(crate) fn aligned(scratch: &mut Scratch, len: usize) -> &mut [f32] {
    at_line(scratch.f32(len + LANES), len)
}

/// The same of memory that grows as needed.
pub(super) fn lines(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len + LANES {
        memory.resize(len + LANES, 0.0);
    }
    at_line(memory, len)
}

/// `len` of these elements, from a cache line's start.
fn at_line(all: &mut [f32], len: usize) -> &mut [f32] {
    let skip = all.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
    &mut all[skip..skip + len]
}

/// `d_bias[n] += Σ_m d_y[m, n]`, ascending m.
pub(super) struct Bias<'a, E> {
    pub d_y: &'a [E],
    pub n: usize,
    pub d_bias: crate::pool::Disjoint<'a, f32>,
}

/// Columns of a task of [`Bias`].
pub(super) const BIAS_COLUMNS: usize = 64;

impl<E: Element> Tasks for Bias<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let columns = index * BIAS_COLUMNS..self.n.min((index + 1) * BIAS_COLUMNS);
        // SAFETY: each task has its own columns.
        let d_bias = unsafe { self.d_bias.slice(columns.clone()) };
        for row in self.d_y.chunks_exact(self.n) {
            for (sum, y) in d_bias.chunks_mut(LANES).zip(row[columns.clone()].chunks(LANES)) {
                let n = y.len();
                V::load_partial(sum, n).add(E::load_partial(y, n)).store_partial(sum, n);
            }
        }
    }
}
