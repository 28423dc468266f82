//! Matmuls on the CPU: operands are packed block by block into the thread's scratch, and tiles run over them.
//! Knows no operation: `linear`, `lora`, `glu`, `lm_head` and `attention` build theirs from it.
//!
//! One driver serves the three matmuls; they differ in how operands are packed and where the outputs lie:
//!
//! | matmul         | left (rows)   | right (columns)               | depth | output            |
//! |-----------------|---------------|-------------------------------|-------|-------------------|
//! | forward         | `x`           | panels of W, as they lie      | K     | `y`, row-major    |
//! | backward_input  | `d_y`         | panels of Wᵀ, made on the fly | N     | `d_x`, row-major  |
//! | backward_weight | columns of `x`| panels of `d_y`               | M     | panels of `d_W`   |
//!
//! Numbers in bf16 ([`MatmulDType::Bf16`]) are multiplied on tiles where the instruction set has them (`tiles.rs`);
//! what follows is about chains. Where two of their terms are multiplied by one instruction ([`Isa::has_dots`]), they
//! are packed as words of two; the bits are the same. What is packed ahead of the tasks, by all threads: `prepack.rs`.
//! Few rows in f32 with a transposed weight: `transposed.rs`.
//!
//! Cutting the depth into blocks stores chains to f32 memory and loads them again, which is exact. Operands in bf16 are
//! widened where they are packed, which is exact too: their chains are those of the widened values.

mod block;
mod pack;
mod pack_pairs;
mod pack_tiles;
mod plan;
mod prefetch;
mod prepack;
mod steps;
mod tile;
mod tiles;
mod transposed;

pub(crate) use pack_tiles::{Lines, halves, narrowed, pairs_to_lines, transpose_pairs, zip, zip_lines};
pub(crate) use steps::steps;

use crate::Isa;
use crate::device::Cpu;
use crate::matrix::PANEL;
use crate::pool::Scratch;
use crate::simd::tiles::Unit;
use crate::simd::{Kernel, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use plan::Plan;
use std::marker::PhantomData;
use std::ops::Range;
use steps::Steps;

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
    /// `[⌈n/32⌉][⌈depth/2⌉][32]`: packed words.
    Words(&'a [f32]),
}

/// What the factors of a matmul are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatmulDType {
    /// As the operands hold them.
    Stored,
    /// The operands as bf16: one of them is, and the other, if it is f32, is rounded to it as it is packed.
    Bf16,
}

impl MatmulDType {
    /// bf16 if all of these are.
    pub(crate) fn of(operands: &[Elements<'_>]) -> MatmulDType {
        if operands.iter().all(|o| matches!(o, Elements::Bf16(_))) { MatmulDType::Bf16 } else { MatmulDType::Stored }
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
pub(crate) struct Matmul<'a> {
    m: usize,
    n: usize,
    depth: usize,
    left: Left<'a>,
    right: Right<'a>,
    c: *mut f32,
    order: Order,
    accumulate: bool,
    bias: Option<&'a [f32]>,
    dtype: MatmulDType,
    /// What multiplies tiles, and the terms of each; none: chains.
    tiles: Option<(Unit, Steps)>,
    isa: Isa,
    output: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write disjoint blocks of `c`, which the matmul borrows exclusively.
unsafe impl Sync for Matmul<'_> {}

/// The arguments of [`Matmul::new`].
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
    /// What the factors of a matmul are.
    pub dtype: MatmulDType,
    /// The first term of each segment of the depth, and its length at last: tiles begin anew there. None: one segment.
    pub segments: Option<&'a [u32]>,
}

impl<'a> Operands<'a> {
    /// `c = x[rows] wᵀ + bias`: `[rows][outputs]`, where outputs begin a panel of the packed weight and `bias` is of
    /// them alone.
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
            dtype: MatmulDType::of(&[x, w]),
            segments: None,
        }
    }
}

impl<'a> Matmul<'a> {
    /// Checks that every operand is long enough, which all unchecked access below relies on.
    pub(crate) fn new(isa: Isa, o: Operands<'a>) -> Matmul<'a> {
        let (m, n, depth) = (o.m, o.n, o.depth);
        let panels = n.div_ceil(PANEL);
        let paired = |data: Elements<'_>, inputs: usize| inputs.is_multiple_of(2) || matches!(data, Elements::F32(_));
        let strided = |len: usize, rows: usize, columns: usize, stride: usize| {
            assert!(columns <= stride && (rows == 0 || columns == 0 || len >= (rows - 1) * stride + columns));
        };
        match o.left {
            Left::Rows(data, stride) => strided(data.len(), m, depth, stride),
            Left::Columns(data, stride) => strided(data.len(), depth, m, stride),
            Left::Tiles(_) | Left::Strips(_) => unreachable!("packed by the matmul itself"),
        }
        match o.right {
            Right::Panels(data) => assert!(data.len() >= panels * depth * PANEL && paired(data, depth)),
            Right::Transposed(data) => assert!(data.len() >= depth.div_ceil(PANEL) * n * PANEL && paired(data, n)),
            Right::Rows(data, stride) => strided(data.len(), depth, n, stride),
            Right::Tiles(_) | Right::Words(_) => unreachable!("packed by the matmul itself"),
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
        let unit = isa.tiles().filter(|_| o.dtype == MatmulDType::Bf16 && depth > 0);
        Matmul {
            m,
            n,
            depth,
            left: o.left,
            right: o.right,
            c: o.c.as_mut_ptr(),
            order: o.order,
            accumulate: o.accumulate,
            bias: o.bias,
            dtype: o.dtype,
            tiles: unit.map(|unit| (unit, Steps::new(depth, o.segments))),
            isa,
            output: PhantomData,
        }
    }

    /// Computes it on all threads.
    pub(crate) fn run(&self, cpu: &Cpu) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        if self.prepacks() {
            self.run_prepacked(cpu);
        } else if self.zips() {
            self.run_zipped(cpu);
        } else if self.reads_transposed() {
            self.run_transposed(cpu);
        } else {
            self.multiply(cpu);
        }
    }

    /// Computes it with operands that the tasks pack themselves, but for rows that several of them read.
    fn multiply(&self, cpu: &Cpu) {
        let plan = Plan::new(self, cpu.threads());
        let tasks = plan.row_blocks * plan.groups;
        if self.zips() || self.shares_rows() && plan.groups > 1 && !plan.own_rows {
            plan.with_packed(cpu, |matmul| cpu.run(tasks, &Plan { matmul, ..plan }));
        } else {
            cpu.run(tasks, &plan);
        }
    }

    /// Computes rows `rows` of panels `panels` on this thread.
    ///
    /// # Safety
    /// No other thread computes an output in common.
    pub(crate) unsafe fn block(&self, rows: Range<usize>, panels: Range<usize>, scratch: &mut Scratch) {
        /// Compiled once for an instruction set, whatever the tasks that call it.
        struct Block<'a, 'b>(&'a Matmul<'b>, Range<usize>, Range<usize>, &'a mut Scratch);
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
}

/// `len` elements aligned to a cache line.
pub(crate) fn aligned(scratch: &mut Scratch, len: usize) -> &mut [f32] {
    at_line(scratch.f32(len + LANES), len)
}

/// [`aligned`] of memory that grows as needed.
fn lines(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
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
