//! Matmuls (GEMM) on the CPU. A task packs blocks of the operands into the thread's scratch memory and computes tiles
//! of outputs from them. The operations `linear`, `lora`, `glu`, `lm_head` and `attention` are built on this module.
//!
//! One driver computes the three matmuls of a linear layer `y = x Wᵀ`. They differ in how operands are packed and in
//! the layout of the outputs. A panel is 32 columns. `M` is the number of rows (tokens), `K` of inputs, and `N` of
//! outputs; the depth is the number of terms in each sum:
//!
//! | matmul          | left (rows)    | right (columns)               | depth | output            |
//! |-----------------|----------------|-------------------------------|-------|-------------------|
//! | forward         | `x`            | panels of W, as stored        | K     | `y`, row-major    |
//! | backward_input  | `d_y`          | panels of Wᵀ, made on the fly | N     | `d_x`, row-major  |
//! | backward_weight | columns of `x` | panels of `d_y`               | M     | panels of `d_W`   |
//!
//! Matmuls in bf16 ([`MatmulDType::Bf16`]) run on AMX tiles if the CPU has them (`tiles.rs`). Otherwise each output is
//! a chain: one accumulator to which fused multiply-adds are applied in ascending order of the terms. CPUs that
//! multiply two bf16 terms with one instruction ([`Isa::has_dots`]) read operands packed as words of two terms, and
//! give the same bits. `prepack.rs` packs operands ahead of the tasks, with all threads. `transposed.rs` contains f32
//! matmuls of few rows with a transposed weight.
//!
//! Long sums are split into blocks of the depth. The partial sums are stored to f32 memory and loaded again, which is
//! exact. Operands in bf16 are widened to f32 when they are packed, which is exact too.

mod block;
mod pack;
mod pack_pairs;
mod pack_tiles;
mod plan;
mod prefetch;
mod prepack;
mod steps;
#[cfg(test)]
mod tests;
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

/// The left operand of a matmul, `[m, depth]`.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// Row-major data and its stride: `left[i, k] = data[i · stride + k]`.
    Rows(Elements<'a>, usize),
    /// The transpose of row-major data, and its stride: `left[i, k] = data[k · stride + i]`.
    Columns(Elements<'a>, usize),
    /// Tiles packed by `prepack.rs`: `[⌈m/16⌉][depth/32][16][32]`.
    Tiles(&'a [bf16]),
    /// Rows packed by `prepack.rs`: the [`Strips`] of each block of rows, one block of the depth after another.
    Strips(&'a [f32]),
}

/// The right operand of a matmul, `[depth, n]`, read in panels of 32 columns.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// A packed weight as stored: `[⌈n/32⌉][depth][32]` in f32, `[⌈n/32⌉][depth/2][32][2]` in bf16.
    Panels(Elements<'a>),
    /// The transpose of a packed weight `[⌈depth/32⌉][n][32]` (f32) or `[⌈depth/32⌉][n/2][32][2]` (bf16).
    Transposed(Elements<'a>),
    /// Row-major data and its stride: `right[k, j] = data[k · stride + j]`.
    Rows(Elements<'a>, usize),
    /// Tiles packed by `prepack.rs`: `[⌈n/32⌉][depth/32][16][32][2]`.
    Tiles(&'a [bf16]),
    /// Words of two bf16 terms, packed by `prepack.rs`: `[⌈n/32⌉][⌈depth/2⌉][32]`.
    Words(&'a [f32]),
}

/// The dtype in which a matmul multiplies its operands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatmulDType {
    /// Each operand in its stored dtype.
    Stored,
    /// Both operands in bf16. An operand stored in f32 is rounded when it is packed.
    Bf16,
}

impl MatmulDType {
    /// [`MatmulDType::Bf16`] if all of these operands are bf16, otherwise [`MatmulDType::Stored`].
    pub(crate) fn of(operands: &[Elements<'_>]) -> MatmulDType {
        if operands.iter().all(|o| matches!(o, Elements::Bf16(_))) { MatmulDType::Bf16 } else { MatmulDType::Stored }
    }
}

/// Memory layout of the output of a matmul.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// Row-major with this stride: `c[i, j]` is at `i · stride + j`. The output may be some columns of a wider matrix.
    Rows(usize),
    /// Panels of 32 columns, as weights are stored: `[⌈n/32⌉][m][32]`.
    Panels,
}

/// A matmul `c = (accumulate ? c : 0) + left · right (+ bias)` on the CPU, with `left: [m, depth]`, `right: [depth,
/// n]`.
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
    /// The kernel for AMX tiles and the steps of terms that it multiplies; `None` for chains in vector registers.
    tiles: Option<(Unit, Steps)>,
    isa: Isa,
    output: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write disjoint blocks of `c`, which the matmul borrows exclusively.
unsafe impl Sync for Matmul<'_> {}

/// The arguments of [`Matmul::new`].
pub(crate) struct Operands<'a> {
    /// Number of rows of the output.
    pub m: usize,
    /// Number of columns of the output.
    pub n: usize,
    /// Number of terms of each sum.
    pub depth: usize,
    /// Left operand `[m, depth]`.
    pub left: Left<'a>,
    /// Right operand `[depth, n]`.
    pub right: Right<'a>,
    /// Output `[m, n]`.
    pub c: &'a mut [f32],
    /// Memory layout of `c`.
    pub order: Order,
    /// Whether sums start from the contents of `c` instead of 0.
    pub accumulate: bool,
    /// Bias `[n]`, added to each finished sum.
    pub bias: Option<&'a [f32]>,
    /// The dtype in which the operands are multiplied.
    pub dtype: MatmulDType,
    /// First term of each segment of the depth, followed by the depth. On AMX tiles, steps of 32 terms restart at each
    /// segment. `None` means one segment.
    pub segments: Option<&'a [u32]>,
}

impl<'a> Operands<'a> {
    /// The operands of `c = x[rows] wᵀ + bias`, `[rows][outputs]`, for some outputs of a packed weight. `outputs` must
    /// start at a panel; `bias` contains only these outputs.
    pub(crate) fn for_outputs(
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
    /// Checks that every operand is long enough, since the kernels' unchecked memory accesses rely on it.
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
            Left::Tiles(_) | Left::Strips(_) => unreachable!("the matmul packs this operand itself"),
        }
        match o.right {
            Right::Panels(data) => assert!(data.len() >= panels * depth * PANEL && paired(data, depth)),
            Right::Transposed(data) => assert!(data.len() >= depth.div_ceil(PANEL) * n * PANEL && paired(data, n)),
            Right::Rows(data, stride) => strided(data.len(), depth, n, stride),
            Right::Tiles(_) | Right::Words(_) => unreachable!("the matmul packs this operand itself"),
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

    /// Computes the matmul on all threads.
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

    /// Computes the matmul in tasks that pack their operands themselves, except for rows that several tasks read, which
    /// are packed once beforehand.
    fn multiply(&self, cpu: &Cpu) {
        let plan = Plan::new(self, cpu.threads());
        let tasks = plan.row_blocks * plan.groups;
        if self.zips() || self.shares_rows() && plan.groups > 1 && !plan.own_rows {
            plan.with_packed(cpu, |matmul| cpu.run(tasks, &Plan { matmul, ..plan }));
        } else {
            cpu.run(tasks, &plan);
        }
    }

    /// Computes the rows `rows` of the panels `panels` of the output, on the calling thread.
    ///
    /// # Safety
    /// No other thread accesses these outputs during the call.
    pub(crate) unsafe fn block(&self, rows: Range<usize>, panels: Range<usize>, scratch: &mut Scratch) {
        /// The block as a separate kernel, so that it is compiled once for each instruction set, not in every caller.
        struct Block<'a, 'b>(&'a Matmul<'b>, Range<usize>, Range<usize>, &'a mut Scratch);
        impl Kernel for Block<'_, '_> {
            type Output = ();
            #[inline(always)]
            fn run<V: Simd>(self) {
                // SAFETY: the caller upholds this function's safety contract.
                unsafe { self.0.block_with::<V>(self.1, self.2, self.3) }
            }
        }
        self.isa.run(Block(self, rows, panels, scratch));
    }
}

/// Returns `len` elements of scratch memory, aligned to a cache line.
pub(crate) fn aligned(scratch: &mut Scratch, len: usize) -> &mut [f32] {
    at_line(scratch.f32(len + LANES), len)
}

/// Like [`aligned`], but from a vector that grows as needed.
fn lines(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len + LANES {
        memory.resize(len + LANES, 0.0);
    }
    at_line(memory, len)
}

/// Returns `len` elements of `all`, starting at the first one that is aligned to a cache line.
fn at_line(all: &mut [f32], len: usize) -> &mut [f32] {
    let skip = all.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
    &mut all[skip..skip + len]
}
