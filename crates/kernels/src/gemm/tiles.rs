//! Matmuls in bf16 on AMX tiles. Both operands are packed into tiles block by block, and a [`Unit`] (the tile kernel of
//! an instruction set) multiplies them.
//!
//! The terms of a sum are multiplied in steps of 32, counted from the first term, or from the first term of each
//! segment. The last step is padded with zeros. Only these steps and the formula of [`crate::simd::tiles`] determine
//! the bits. Between blocks of the depth, outputs are stored as f32, which is exact, and a tile gives the same result
//! wherever its rows are in the matrix.
//!
//! | matmul          | tiles of A `[16 rows][32 terms]`         | tiles of B `[16 pairs of terms][32 columns][2]`     |
//! |-----------------|------------------------------------------|-----------------------------------------------------|
//! | forward         | rows of `x`                              | a panel of W                                        |
//! | backward_input  | rows of `d_y`, rounded                   | 32 columns of Wᵀ, two outputs side by side          |
//! | backward_weight | two rows of `x` side by side, transposed | two rows of `d_y`, rounded, side by side            |
//!
//! If the depth is a multiple of 32, rows in bf16 and panels of W already have the layout of tiles and are not packed.
//!
//! This module does not depend on threads or instruction sets. A test can run all of it with the unit in plain Rust.

use super::pack_tiles::{halves, pack_left, pack_right};
use super::steps::{FEW, Steps};
use super::{Left, Matmul, Order, Right, aligned};
use crate::matrix::PANEL;
use crate::pool::Scratch;
use crate::simd::tiles::{DEPTH, SIDE, TILE, TileMatmul, Unit, cuts};
use crate::simd::{LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

// Small in tests, so that small shapes reach every branch.
/// Steps in a block of the depth: 320 terms, for which the tiles of A and B of 32 rows and 32 columns take 20 KiB each.
const STEPS: usize = if cfg!(test) { 3 } else { 10 };
/// [`STEPS`] for matmuls of at most 32 rows, which read B only once.
const STEPS_OF_FEW: usize = if cfg!(test) { 5 } else { 32 };
/// Maximum number of rows in a task.
pub(super) const ROWS: usize = if cfg!(test) { 96 } else { 512 };
/// Maximum number of elements of A (1 MiB) that a task packs once for all panels.
const RESIDENT: usize = if cfg!(test) { 1 << 13 } else { 1 << 19 };
/// The number of panels computed for each packed block of a larger A. Their outputs for [`ROWS`] rows take 1 MiB.
const CHUNK: usize = if cfg!(test) { 2 } else { 16 };

/// Computes the rows `rows` of the panels `panels` of the output, on the calling thread. `steps` are the steps of
/// terms.
///
/// # Safety
/// No other thread accesses these outputs during the call.
#[inline(always)]
pub(super) unsafe fn block<V: Simd>(
    matmul: &Matmul<'_>,
    unit: Unit,
    steps: &Steps,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &mut Scratch,
) {
    let (tiles, few) = (rows.len().div_ceil(SIDE), rows.len() <= FEW);
    let whole = matmul.depth.is_multiple_of(DEPTH);
    let right = match matmul.right {
        Right::Panels(Elements::Bf16(data)) if whole => Right::Tiles(data),
        right => right,
    };
    let resident = few || tiles * steps.len() * TILE <= RESIDENT;
    let limit = if few { STEPS_OF_FEW } else { STEPS };
    let blocks = steps.len().div_ceil(limit);
    let most = steps.len().div_ceil(blocks.max(1));
    // Tiles in A's own memory, if A already has the layout of tiles.
    let lies = match matmul.left {
        Left::Tiles(all) => Some(A::packed(&all[rows.start / SIDE * steps.len() * TILE..], steps.len())),
        Left::Rows(Elements::Bf16(data), stride) if whole => Some(A::rows(&data[rows.start * stride..], stride)),
        _ => None,
    };
    // Otherwise, the number of elements of A that this task packs: all of A once, or one block of the depth at a time.
    let a_len = match lies {
        Some(_) => 0,
        None => tiles * TILE * if resident { steps.len() } else { most },
    };
    let b_len = if let Right::Tiles(_) = right { 0 } else { 2 * most * TILE };
    // Outputs of an incomplete last panel are computed in a buffer, so that memory past the last column is not touched.
    let aside = rows.len() * PANEL;
    let memory = aligned(scratch, (a_len + b_len) / 2 + aside);
    let (packed, aside) = memory.split_at_mut((a_len + b_len) / 2);
    let (own_a, own_b) = halves(packed).split_at_mut(a_len);

    let chunk = if resident { 1 } else { CHUNK };
    for first in panels.clone().step_by(chunk) {
        let panels_of_chunk = first..panels.end.min(first + chunk);
        for i in 0..blocks {
            let depth = (i * most).min(steps.len())..((i + 1) * most).min(steps.len());
            let a = match lies {
                Some(a) => a.from(depth.start),
                None if resident => {
                    if i == 0 && first == panels.start {
                        pack_left::<V>(matmul, steps, rows.clone(), 0..steps.len(), own_a);
                    }
                    A::packed(own_a, steps.len()).from(depth.start)
                }
                None => {
                    pack_left::<V>(matmul, steps, rows.clone(), depth.clone(), own_a);
                    A::packed(own_a, depth.len())
                }
            };
            for panel in panels_of_chunk.clone() {
                let b = match right {
                    Right::Tiles(all) => {
                        &all[(panel * steps.len() + depth.start) * 2 * TILE..][..2 * depth.len() * TILE]
                    }
                    _ => {
                        for (step, to) in depth.clone().zip(own_b.chunks_exact_mut(2 * TILE)) {
                            pack_right::<V>(matmul, steps, panel, step, to);
                        }
                        &own_b[..2 * depth.len() * TILE]
                    }
                };
                let outputs = Outputs {
                    rows: rows.clone(),
                    panel,
                    from_c: matmul.accumulate || depth.start > 0,
                    last: depth.end == steps.len(),
                };
                // SAFETY: A and B are packed, and no other thread accesses the outputs.
                unsafe { multiply::<V>(matmul, unit, outputs, depth.len(), a, b, aside) };
            }
        }
    }
}

/// Tiles of the left operand A in memory. Strides are in elements.
#[derive(Clone, Copy)]
struct A<'a> {
    data: &'a [bf16],
    /// Stride from a row of a tile to its next row.
    row: usize,
    /// Stride from a tile to the tile of the next 16 rows.
    tile: usize,
    /// Stride from a tile to the tile of the next 32 terms.
    step: usize,
}

impl<'a> A<'a> {
    /// Packed tiles: `[tiles of rows][steps][16][32]`.
    fn packed(data: &'a [bf16], steps: usize) -> A<'a> {
        A { data, row: DEPTH, tile: steps * TILE, step: TILE }
    }
    /// Rows of a row-major matrix, used as tiles without packing.
    fn rows(data: &'a [bf16], stride: usize) -> A<'a> {
        A { data, row: stride, tile: SIDE * stride, step: DEPTH }
    }
    /// The tiles without their first `steps` steps.
    fn from(self, steps: usize) -> A<'a> {
        A { data: &self.data[steps * self.step..], ..self }
    }
    /// Maximum number of elements that a matmul of `rows` rows and `steps` steps reads.
    fn end(&self, rows: usize, steps: usize) -> usize {
        (rows - 1) / SIDE * self.tile + (rows - 1) % SIDE * self.row + (steps - 1) * self.step + DEPTH
    }
}

/// The outputs that a call of [`multiply`] computes.
struct Outputs {
    rows: Range<usize>,
    panel: usize,
    from_c: bool,
    /// Whether these are the last terms of the sums, so that the bias is added.
    last: bool,
}

/// Computes one panel of outputs from packed tiles, and adds the bias if the sums end here.
///
/// # Safety
/// No other thread accesses these outputs during the call.
#[inline(always)]
unsafe fn multiply<V: Simd>(
    matmul: &Matmul<'_>,
    unit: Unit,
    outputs: Outputs,
    depth: usize,
    a: A<'_>,
    b: &[bf16],
    aside: &mut [f32],
) {
    let Outputs { rows, panel, from_c, last } = outputs;
    let columns = (matmul.n - panel * PANEL).min(PANEL);
    let (row, panel_at) = match matmul.order {
        Order::Rows(stride) => (stride, panel * PANEL),
        Order::Panels => (PANEL, panel * matmul.m * PANEL),
    };
    let c = matmul.c.wrapping_add(rows.start * row + panel_at);
    // SAFETY: the matmul has checked that these rows and columns exist, and no other thread accesses them.
    let c_row = |i: usize| unsafe { std::slice::from_raw_parts_mut(c.wrapping_add(i * row), columns) };
    let whole = columns == PANEL;
    if !whole && from_c {
        aside.chunks_exact_mut(PANEL).enumerate().for_each(|(i, to)| to[..columns].copy_from_slice(c_row(i)));
    }
    let (start, stride) = if whole { (c, row) } else { (aside.as_mut_ptr(), PANEL) };

    for (first, blocks, tile_rows) in cuts(rows.len()) {
        let matmul = TileMatmul {
            a: a.data[first / SIDE * a.tile..].as_ptr(),
            b: b.as_ptr(),
            c: start.wrapping_add(first * stride),
            a_row: a.row * size_of::<bf16>(),
            a_lower: a.tile * size_of::<bf16>(),
            a_step: a.step * size_of::<bf16>(),
            c_stride: stride * size_of::<f32>(),
            a_block: 2 * a.tile * size_of::<bf16>(),
            c_block: FEW * stride * size_of::<f32>(),
            depth,
            blocks,
            from_c: usize::from(from_c),
            rows: tile_rows,
        };
        assert!(b.len() >= 2 * depth * TILE && a.data.len() >= a.end(rows.len(), depth));
        // SAFETY: A holds `depth` steps of every row and B two tiles per step, as checked above. C is either existing
        // rows of 32 columns or as many rows of `aside`.
        unsafe { unit(&[matmul]) };
    }

    if !whole {
        aside.chunks_exact(PANEL).take(rows.len()).enumerate().for_each(|(i, from)| {
            c_row(i).copy_from_slice(&from[..columns]);
        });
    }
    if let Some(bias) = matmul.bias.filter(|_| last) {
        let bias = &bias[panel * PANEL..][..columns];
        for i in 0..rows.len() {
            for (c, bias) in c_row(i).chunks_mut(LANES).zip(bias.chunks(LANES)) {
                let n = c.len();
                V::load_partial(c, n).add(V::load_partial(bias, n)).store_partial(c, n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::gemm::MatmulDType;
    use crate::gemm::tests::{Kind, L, R, with};
    use crate::simd::portable::F32x16;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The computed end of A's tiles is past the last element that is read. The kernels rely on a check of this end.
    #[test]
    fn the_end_of_operand_a_covers_every_element_read() {
        let data = vec![bf16::ZERO; 1 << 16];
        for rows in [1, 2, 15, 16, 17, 31, 32, 33, 47, 65] {
            for steps in [1, 2, 5] {
                for a in [A::rows(&data, 5 * DEPTH), A::rows(&data, 200)] {
                    let first = |row: usize, step: usize| row / SIDE * a.tile + row % SIDE * a.row + step * a.step;
                    let read = (0..rows).flat_map(|row| (0..steps).map(move |step| (row, step)));
                    let end = read.map(|(row, step)| first(row, step) + DEPTH).max();
                    assert_eq!(Some(a.end(rows, steps)), end, "{rows} rows, {steps} steps");
                }
            }
        }
        let packed = A::packed(&data, 3);
        assert_eq!((packed.row, packed.tile, packed.step), (32, 3 * 512, 512));
        assert_eq!(
            (packed.end(1, 1), packed.end(16, 3), packed.end(18, 2)),
            (32, 15 * 32 + 1024 + 32, 1536 + 32 + 512 + 32)
        );
        let rows = A::rows(&data, 100);
        assert_eq!((rows.row, rows.tile, rows.step), (100, 1600, 32));
        assert_eq!((rows.end(1, 1), rows.end(17, 3)), (32, 1600 + 64 + 32));
        assert_eq!(rows.from(2).data.len(), data.len() - 64);
        assert_eq!(packed.from(2).data.len(), data.len() - 1024);
    }

    #[test]
    fn packed_matmul_operands_that_are_too_short_are_refused() {
        let kind = Kind { isa: Isa::AMX_EMULATED, left: L::Bf16, right: R::Panels16, dtype: MatmulDType::Bf16 };
        let (a, b) = (vec![bf16::ZERO; 1 << 12], vec![bf16::ZERO; 1 << 12]);
        let accepts = |a: &[bf16], b: &[bf16]| {
            with(kind, [17, 32, 64], |matmul| {
                let Some((unit, _)) = matmul.tiles else { panic!("tiles") };
                let outputs = Outputs { rows: 0..17, panel: 0, from_c: false, last: true };
                // SAFETY: no other thread accesses the outputs.
                let run = || unsafe { multiply::<F32x16>(matmul, unit, outputs, 2, A::packed(a, 2), b, &mut []) };
                catch_unwind(AssertUnwindSafe(run)).is_ok()
            })
        };
        let (a_len, b_len) = (A::packed(&a, 2).end(17, 2), 2 * 2 * TILE);
        assert!(accepts(&a[..a_len], &b[..b_len]));
        assert!(!accepts(&a[..a_len - 1], &b[..b_len]));
        assert!(!accepts(&a[..a_len], &b[..b_len - 1]));
    }
}
