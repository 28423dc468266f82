//! Matmuls on AMX tiles: the formula of the instruction TDPBF16PS, the operands of one matmul ([`TileMatmul`]), and the
//! same computation in plain Rust.
//!
//! A tile register is 16 rows of 64 bytes. One instruction multiplies a tile A `[rows][32]` of bf16 by a tile B
//! `[16][columns][2]` of bf16 (32 terms of each sum, the even and the odd ones side by side), and adds the result to a
//! tile C `[rows][columns]` of f32 ("Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2,
//! TDPBF16PS):
//!
//! ```text
//! even = fma(a[0], b[0], 0),  even = fma(a[2], b[2], even), …  to a[30]
//! odd  = fma(a[1], b[1], 0),  odd  = fma(a[3], b[3], odd),  …  to a[31]
//! c    = c + (even + odd)
//! ```
//!
//! Each operation is rounded to nearest even, and treats denormal inputs and results as zeros, regardless of the
//! thread's control word.
//!
//! `amx.rs` computes this with the instructions. Neither file knows the layouts of weights or how a large matmul is
//! split.

use half::bf16;

/// Terms of a sum that one instruction adds.
pub const DEPTH: usize = 32;
/// Rows of a tile, and columns of an f32 tile.
pub const SIDE: usize = 16;
/// Elements of a bf16 tile.
pub const TILE: usize = SIDE * DEPTH;

/// 2^24, the factor that moves tiny numbers out of the denormal range.
const FAR: f32 = 16_777_216.0;

/// `x`, or a zero of its sign if `x` is denormal.
fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// `a · b + c` as the instruction computes it: denormals are zeros.
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (flushed(a), flushed(b), flushed(c));
    let sum = a.mul_add(b, c);
    if sum.abs() == f32::MIN_POSITIVE {
        // Flushes a result that rounds up to the smallest normal number only because denormals have fewer bits.
        let exact = (a * FAR).mul_add(b, c * FAR);
        return if exact.abs() < f32::MIN_POSITIVE * FAR { 0.0f32.copysign(sum) } else { sum };
    }
    flushed(sum)
}

/// `a + b` as the instruction computes it: denormals are zeros.
pub fn add(a: f32, b: f32) -> f32 {
    flushed(flushed(a) + flushed(b))
}

/// One element of the result of one instruction: `c` plus at most [`DEPTH`] products, padded with zeros.
pub fn step(c: f32, terms: impl Iterator<Item = (f32, f32)>) -> f32 {
    let mut sums = [0.0f32; 2];
    for (taken, (a, b)) in terms.enumerate() {
        assert!(taken < DEPTH, "a step must have at most 32 terms");
        sums[taken % 2] = fma(a, b, sums[taken % 2]);
    }
    add(c, add(sums[0], sums[1]))
}

/// The rows of a block: one tile of up to 16 rows, or two tiles one above the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Rows of the upper tile, 1 ..= 16.
    pub upper: u8,
    /// Number of rows in the lower tile, 0 ..= 16; 0 if it does not exist.
    pub lower: u8,
}

/// The operands of a matmul on tiles, `c = (from_c ? c : 0) + a · b`, for `blocks` blocks of rows, each one or two
/// tiles high and two tiles wide.
///
/// All strides are in bytes. A row of a tile of A has 32 elements. The two tiles of B of each step of depth are side by
/// side, row by row: `[16 pairs of terms][32 columns][2]`, one step after the other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TileMatmul {
    /// Address of the first tile of A: the upper tile of the first block.
    pub a: *const bf16,
    /// Address of the first tile of B.
    pub b: *const bf16,
    /// Address of the first element of C.
    pub c: *mut f32,
    /// Stride from a row of a tile of A to the next row.
    pub a_row: usize,
    /// Stride from the upper tile of A to the lower one.
    pub a_lower: usize,
    /// Stride from a tile of A to the tile of the next step of depth.
    pub a_step: usize,
    /// Stride from a row of C to the next row.
    pub c_stride: usize,
    /// Stride from the upper tile of A of a block to that of the next block.
    pub a_block: usize,
    /// Stride from the first row of C of a block to that of the next block.
    pub c_block: usize,
    /// Number of steps of [`DEPTH`] terms, at least 1.
    pub depth: usize,
    /// Number of blocks, at least 1.
    pub blocks: usize,
    /// Whether sums start from the contents of C (1) or from 0 (0).
    pub from_c: usize,
    /// The rows of each block.
    pub rows: Rows,
}

/// A function that computes a list of [`TileMatmul`] in order. All have the same [`TileMatmul::rows`]: configuring the
/// tile registers takes as long as several matmuls, so it is done once for the list.
///
/// # Safety
/// For each matmul, the tiles of A lie inside one allocation, and so do the tiles of B and the rows of C, which have 32
/// elements. No other thread accesses these rows of C during the call.
pub type Unit = unsafe fn(&[TileMatmul]);

/// Computes all of these matmuls with `unit`, a few per call.
///
/// # Safety
/// Same as for [`Unit`].
pub unsafe fn run_all(unit: Unit, mut matmuls: impl Iterator<Item = TileMatmul>) {
    let Some(first) = matmuls.next() else { return };
    let (mut list, mut len) = ([first; 8], 1);
    for matmul in matmuls {
        if len == list.len() {
            // SAFETY: the caller upholds this function's safety contract.
            unsafe { unit(&list) };
            len = 0;
        }
        list[len] = matmul;
        len += 1;
    }
    // SAFETY: the caller upholds this function's safety contract.
    unsafe { unit(&list[..len]) };
}

/// Splits `rows` rows into as many blocks of 32 rows as fit, then one with the rest. Yields, for each run of equal
/// blocks, its first row, the number of blocks and the rows of each block.
pub fn cuts(rows: usize) -> impl Iterator<Item = (usize, usize, Rows)> {
    let (tall, rest) = (rows / (2 * SIDE), rows % (2 * SIDE));
    let all = Rows { upper: SIDE as u8, lower: SIDE as u8 };
    let last = Rows { upper: rest.min(SIDE) as u8, lower: rest.saturating_sub(SIDE) as u8 };
    [(0, tall, all), (2 * SIDE * tall, usize::from(rest > 0), last)].into_iter().filter(|&(_, blocks, _)| blocks > 0)
}

/// Checks the conditions on which both implementations of [`Unit`] rely.
pub(super) fn check(matmuls: &[TileMatmul]) {
    for matmul in matmuls {
        let Rows { upper, lower } = matmul.rows;
        assert!(matmul.depth > 0 && matmul.blocks > 0 && (1..=16).contains(&upper) && lower <= 16);
        assert!(matmul.rows == matmuls[0].rows, "one configuration");
    }
}

/// Computes the matmuls in plain Rust, slowly, with the bits of the AMX instructions.
///
/// # Safety
/// Same as for [`Unit`].
pub unsafe fn emulated(matmuls: &[TileMatmul]) {
    check(matmuls);
    for matmul in matmuls {
        // SAFETY: the caller upholds this function's safety contract.
        unsafe { emulate(matmul) };
    }
}

/// Computes one matmul in plain Rust.
///
/// # Safety
/// Same as for [`Unit`].
unsafe fn emulate(matmul: &TileMatmul) {
    let TileMatmul { depth, from_c, rows, .. } = *matmul;
    for block in 0..matmul.blocks {
        for (lower, rows) in [rows.upper, rows.lower].into_iter().enumerate() {
            let a = matmul.a.wrapping_byte_add(block * matmul.a_block + lower * matmul.a_lower);
            for row in 0..usize::from(rows) {
                let c = matmul.c.wrapping_byte_add(block * matmul.c_block + (lower * SIDE + row) * matmul.c_stride);
                for column in 0..2 * SIDE {
                    // SAFETY: the caller guarantees 32 columns of every row of C.
                    let mut sum = if from_c != 0 { unsafe { c.add(column).read() } } else { 0.0 };
                    for tile in 0..depth {
                        let a = a.wrapping_byte_add(tile * matmul.a_step + row * matmul.a_row);
                        // SAFETY: the caller guarantees `depth` tiles of A.
                        let a = unsafe { std::slice::from_raw_parts(a, DEPTH) };
                        // SAFETY: the caller guarantees `depth` pairs of tiles of B.
                        let b = unsafe { std::slice::from_raw_parts(matmul.b.add(tile * 2 * TILE), 2 * TILE) };
                        let of = |k: usize| b[k / 2 * 2 * DEPTH + column * 2 + k % 2].to_f32();
                        sum = step(sum, a.iter().enumerate().map(|(k, a)| (a.to_f32(), of(k))));
                    }
                    // SAFETY: the caller guarantees 32 columns of every row of C.
                    unsafe { c.add(column).write(sum) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tile_operations_treat_denormals_as_zeros() {
        let tiny = f32::MIN_POSITIVE;
        assert_eq!(fma(tiny / 2.0, 4.0, 0.0), 0.0);
        assert_eq!(fma(1.0, 1.0, tiny / 2.0), 1.0);
        assert_eq!(fma(tiny, 0.5, 0.0).to_bits(), 0);
        assert_eq!(fma(-tiny, 0.5, -0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(fma(tiny, 0.5, tiny), 1.5 * tiny);
        assert_eq!(add(1.5 * tiny, -tiny), 0.0);
        assert_eq!(add(tiny, tiny), 2.0 * tiny);
        assert!(fma(f32::NAN, 0.0, 1.0).is_nan() && add(f32::INFINITY, f32::NEG_INFINITY).is_nan());
    }

    /// Per Intel's manual, a result is flushed to zero if it would be denormal when rounded with a full significand,
    /// even where rounding to a denormal's precision would make it the smallest normal number.
    #[test]
    fn a_result_that_only_denormal_rounding_makes_normal_is_flushed() {
        // tiny · (1 − 0.75 · 2⁻²⁴): with a full significand, the factor rounds to less than 1; with one bit fewer,
        // to 1.
        let (tiny, x) = (f32::MIN_POSITIVE, 2.0f32.powi(-76));
        assert_eq!(fma(3.0 * x, -x, tiny), 0.0);
        assert_eq!((3.0 * x).mul_add(-x, tiny), tiny, "plain rounding would keep the value");
        // tiny · (1 − 0.25 · 2⁻²⁴) rounds to the smallest normal number even with a full significand.
        assert_eq!(fma(x, -x, tiny), tiny);
    }

    #[test]
    fn even_and_odd_terms_are_summed_separately() {
        // For 2^24 + 1 − 2^24, a single chain would lose the 1.
        let terms = [(16_777_216.0, 1.0), (1.0, 1.0), (-16_777_216.0, 1.0)];
        assert_eq!(step(0.0, terms.into_iter()), 1.0);
        assert_eq!(step(5.0, terms.into_iter()), 6.0);
        assert_eq!(step(5.0, std::iter::empty()), 5.0);
    }

    #[test]
    fn rows_are_split_into_blocks_of_two_tiles_and_a_remainder() {
        let cut = |rows: usize| {
            let of = |(first, blocks, rows): (usize, usize, Rows)| (first, blocks, rows.upper, rows.lower);
            cuts(rows).map(of).collect::<Vec<_>>()
        };
        for (rows, expected) in [
            (0, vec![]),
            (1, vec![(0, 1, 1, 0)]),
            (16, vec![(0, 1, 16, 0)]),
            (17, vec![(0, 1, 16, 1)]),
            (31, vec![(0, 1, 16, 15)]),
            (32, vec![(0, 1, 16, 16)]),
            (33, vec![(0, 1, 16, 16), (32, 1, 1, 0)]),
            (96, vec![(0, 3, 16, 16)]),
            (120, vec![(0, 3, 16, 16), (96, 1, 16, 8)]),
        ] {
            assert_eq!(cut(rows), expected, "{rows}");
        }
    }

    fn matmul(rows: Rows, depth: usize) -> TileMatmul {
        TileMatmul {
            a: std::ptr::null(),
            b: std::ptr::null(),
            c: std::ptr::null_mut(),
            a_row: 0,
            a_lower: 0,
            a_step: 0,
            c_stride: 0,
            a_block: 0,
            c_block: 0,
            depth,
            blocks: 1,
            from_c: 0,
            rows,
        }
    }

    thread_local! {
        /// The depths of the matmuls of each call of [`noted`].
        static NOTED: std::cell::RefCell<Vec<Vec<usize>>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    unsafe fn noted(matmuls: &[TileMatmul]) {
        NOTED.with_borrow_mut(|calls| calls.push(matmuls.iter().map(|matmul| matmul.depth).collect()));
    }

    #[test]
    fn tile_matmuls_run_in_order_eight_per_call() {
        for (count, expected) in [
            (0, vec![]),
            (1, vec![vec![1]]),
            (8, vec![(1..9).collect()]),
            (9, vec![(1..9).collect(), vec![9]]),
            (18, vec![(1..9).collect(), (9..17).collect(), vec![17, 18]]),
        ] {
            let rows = Rows { upper: 1, lower: 0 };
            // SAFETY: `noted` accesses no memory of the matmuls.
            unsafe { run_all(noted, (1..=count).map(|depth| matmul(rows, depth))) };
            assert_eq!(NOTED.take(), expected, "{count}");
        }
    }

    #[test]
    fn invalid_tile_matmuls_are_refused() {
        let good = matmul(Rows { upper: 16, lower: 16 }, 1);
        let accepts =
            |matmuls: &[TileMatmul]| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(matmuls))).is_ok();
        assert!(accepts(&[]) && accepts(&[good, good]) && accepts(&[matmul(Rows { upper: 1, lower: 0 }, 1)]));
        for wrong in [
            TileMatmul { depth: 0, ..good },
            TileMatmul { blocks: 0, ..good },
            TileMatmul { rows: Rows { upper: 0, lower: 0 }, ..good },
            TileMatmul { rows: Rows { upper: 17, lower: 0 }, ..good },
            TileMatmul { rows: Rows { upper: 16, lower: 17 }, ..good },
        ] {
            assert!(!accepts(&[wrong]), "{wrong:?}");
        }
        assert!(!accepts(&[good, TileMatmul { rows: Rows { upper: 16, lower: 15 }, ..good }]), "one configuration");
        let many = std::iter::repeat_n((1.0, 1.0), DEPTH + 1);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step(0.0, many))).is_err());
        assert_eq!(step(1.0, std::iter::repeat_n((1.0, 2.0), DEPTH)), 65.0);
    }
}
