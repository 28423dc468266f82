//! The register tile of a matmul: outputs of a few rows times a few vectors of columns, all in registers. Each output
//! is one chain of fused multiply-adds (one accumulator, terms in ascending order).

use super::prefetch::Prefetch;
use crate::matrix::PANEL;
use crate::simd::{Kernel, LANES, Simd};
use half::bf16;

/// Maximum number of terms in a block of the depth. It is large, so that outputs are rarely loaded and stored. A panel
/// of this depth (64 KiB) streams from the second-level cache.
pub(super) const MAX_DEPTH: usize = 512;
/// Number of terms by which prefetching into the first-level cache runs ahead of the multiply-adds.
const AHEAD: usize = 8;
/// Maximum number of rows of a tile on any instruction set.
pub(super) const MAX_ROWS: usize = 12;
/// Maximum number of vectors of a tile on any instruction set.
pub(super) const MAX_VECTORS: usize = 8;

/// Number of vectors of columns in a tile of `rows` rows, so that the accumulators fill the registers. Tiles of few
/// rows take many vectors, because a single chain would wait for the latency of each multiply-add.
#[inline(always)]
pub(super) const fn vectors<V: Simd>(rows: usize) -> usize {
    let free = V::GEMM_ROWS * V::GEMM_VECTORS / rows;
    let mut vectors = V::GEMM_VECTORS;
    while vectors * 2 <= free && vectors * 2 <= MAX_VECTORS {
        vectors *= 2;
    }
    vectors
}

/// One register tile: `c[r, v] = (from_c ? c : 0) + Σ_k a[r, k] b[k, v] (+ bias[v])`.
pub(super) struct Tile<E> {
    /// Rows of the tile: 1 to `V::GEMM_ROWS`.
    pub rows: usize,
    /// Vectors of columns: `V::GEMM_VECTORS`, or the result of [`vectors`].
    pub vectors: usize,
    /// Multiply-adds of each chain, of single terms or of words of two terms.
    pub depth: usize,
    /// Packed rows of the left operand: `[depth][a_pitch]`, in words of two terms if `E` has them.
    pub a: *const f32,
    /// Number of elements from one term of `a` to the next: at least `rows`.
    pub a_pitch: usize,
    /// The tile's first column of the right operand, in elements `E`. Bf16 is widened when loaded.
    pub b: *const E,
    /// Number of elements from one panel of the right operand to the next.
    pub b_panel: usize,
    /// The tile's first output.
    pub c: *mut f32,
    /// Number of elements from one row of outputs to the next.
    pub c_row: usize,
    /// Number of elements from one panel of outputs to the next.
    pub c_panel: usize,
    /// Number of existing columns, from `c` on. Vectors past them are computed but not stored.
    pub columns: usize,
    /// Whether chains start from the contents of `c` instead of 0.
    pub from_c: bool,
    /// The bias to add after the chain: `columns` elements, or null for no bias.
    pub bias: *const f32,
    /// Memory that will be read soon, to be prefetched.
    pub prefetch: Prefetch,
}

/// Element type of the panels of the right operand as register tiles read them.
pub(super) trait Packed: Copy + 'static {
    /// Whether an element is a word of two terms, both multiplied by one instruction.
    const DOTS: bool;
    /// Terms that are interleaved in memory: `[depth / TOGETHER][32][TOGETHER]`.
    const TOGETHER: usize;
    /// [`AHEAD`] for tiles that read several panels. These tiles spend more time waiting for memory than multiplying.
    const FAR_AHEAD: usize;
    /// Loads 16 columns of [`Self::TOGETHER`] consecutive terms. If `TOGETHER` is 1, both vectors are the same.
    ///
    /// # Safety
    /// 16 · `TOGETHER` elements from `from` are readable.
    unsafe fn steps<V: Simd>(from: *const Self) -> [V; 2];
}

impl Packed for f32 {
    const DOTS: bool = false;
    const TOGETHER: usize = 1;
    const FAR_AHEAD: usize = AHEAD;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const f32) -> [V; 2] {
        // SAFETY: the caller upholds this function's safety contract.
        [unsafe { V::load_ptr(from) }; 2]
    }
}

impl Packed for bf16 {
    const DOTS: bool = false;
    const TOGETHER: usize = 2;
    const FAR_AHEAD: usize = 3 * AHEAD;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const bf16) -> [V; 2] {
        // SAFETY: the caller guarantees 16 columns of two steps each.
        let (even, odd) = V::load_pairs(unsafe { std::slice::from_raw_parts(from, 2 * LANES) });
        [even, odd]
    }
}

/// A word of two bf16 terms, packed for [`Simd::dot`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Word(#[allow(dead_code)] f32);

impl Packed for Word {
    const DOTS: bool = true;
    const TOGETHER: usize = 1;
    const FAR_AHEAD: usize = AHEAD;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const Word) -> [V; 2] {
        // SAFETY: the caller upholds this function's safety contract.
        [unsafe { V::load_ptr(from.cast()) }; 2]
    }
}

/// Two bf16 terms side by side, as a packed weight stores them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pair(#[allow(dead_code)] [bf16; 2]);

impl Packed for Pair {
    const DOTS: bool = true;
    const TOGETHER: usize = 1;
    const FAR_AHEAD: usize = 3 * AHEAD / 2;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const Pair) -> [V; 2] {
        // SAFETY: the caller guarantees 16 columns of two terms each.
        [V::load_words(unsafe { std::slice::from_raw_parts(from.cast(), 2 * LANES) }); 2]
    }
}

/// Implemented for a reference, so that the struct's fields are not copied at each call.
impl<E: Packed> Kernel for &Tile<E> {
    type Output = ();
    #[inline(always)]
    fn run<V: Simd>(self) {
        macro_rules! dispatch {
            ($($rows:literal),+) => {
                match self.rows {
                    $($rows if $rows <= V::GEMM_ROWS => {
                        if self.vectors == V::GEMM_VECTORS {
                            match V::GEMM_VECTORS {
                                1 => self.layout::<V, $rows, 1>(),
                                _ => self.layout::<V, $rows, 2>(),
                            }
                        } else {
                            match const { vectors::<V>($rows) } {
                                8 => self.layout::<V, $rows, 8>(),
                                4 => self.layout::<V, $rows, 4>(),
                                _ => self.layout::<V, $rows, 2>(),
                            }
                        }
                    })+
                    _ => unreachable!("a tile of {} rows", self.rows),
                }
            };
        }
        dispatch!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    }
}

impl<E: Packed> Tile<E> {
    #[inline(always)]
    fn layout<V: Simd, const ROWS: usize, const VECTORS: usize>(&self) {
        // Tiles larger than the register file never occur, so they are not compiled, to save code size.
        if ROWS * VECTORS > V::GEMM_ROWS * V::GEMM_VECTORS {
            unreachable!("a tile of {ROWS} × {VECTORS}")
        } else {
            self.compute::<V, ROWS, VECTORS>();
        }
    }

    #[inline(always)]
    fn compute<V: Simd, const ROWS: usize, const VECTORS: usize>(&self) {
        let offset = |vector: usize, panel: usize| (vector / 2) * panel + (vector % 2) * LANES;
        let exist = |vector: usize| self.columns.saturating_sub(vector * LANES).min(LANES);
        let mut chains = [[V::splat(0.0); VECTORS]; ROWS];
        if self.from_c {
            for (r, row) in chains.iter_mut().enumerate() {
                for (v, chain) in row.iter_mut().enumerate() {
                    let from = self.c.wrapping_add(r * self.c_row + offset(v, self.c_panel));
                    // SAFETY: `exist` columns of every row of the tile lie inside the output, as the driver has
                    // checked.
                    *chain = unsafe { load::<V>(from, exist(v)) };
                }
            }
        }
        // Prefetches the outputs of the strip below while this tile's chains are computed.
        for r in 0..ROWS {
            for v in 0..VECTORS {
                V::prefetch(self.c.wrapping_add((ROWS + r) * self.c_row + offset(v, self.c_panel)));
            }
        }
        // The address is valid even if nothing is prefetched, since an invalid one would cost a failed address
        // translation at each step.
        let nothing = (self.b.cast(), 0);
        let (soon, pace) = if self.prefetch.rows.is_empty() { nothing } else { self.prefetch.begin::<V>(self.depth) };
        let ahead = if VECTORS > V::GEMM_VECTORS { E::FAR_AHEAD } else { AHEAD };
        for k in (0..self.depth).step_by(E::TOGETHER) {
            // SAFETY: the packed operands hold `depth` steps of all rows and vectors, including padding, and `depth` is
            // a multiple of `TOGETHER`.
            unsafe {
                let from = self.b.add(k * PANEL);
                let column = |v: usize| (v / 2) * self.b_panel + (v % 2) * LANES * E::TOGETHER;
                let mut b = [[V::splat(0.0); 2]; VECTORS];
                for (v, b) in b.iter_mut().enumerate() {
                    *b = E::steps(from.add(column(v)));
                    V::prefetch_near(from.wrapping_add(column(v) + ahead * PANEL));
                }
                for step in 0..E::TOGETHER {
                    V::prefetch(soon.wrapping_add((k + step) * pace));
                    let a = self.a.add((k + step) * self.a_pitch);
                    for (r, row) in chains.iter_mut().enumerate() {
                        let a = V::splat(*a.add(r));
                        for (chain, b) in row.iter_mut().zip(&b) {
                            *chain = if E::DOTS { chain.dot(a, b[step]) } else { a.fma(b[step], *chain) };
                        }
                    }
                }
            }
        }
        if !self.bias.is_null() {
            for v in 0..VECTORS {
                // SAFETY: the bias has as many elements as there are columns.
                let bias = unsafe { load::<V>(self.bias.wrapping_add(v * LANES), exist(v)) };
                for row in &mut chains {
                    row[v] = row[v].add(bias);
                }
            }
        }
        for (r, row) in chains.iter().enumerate() {
            for (v, &chain) in row.iter().enumerate() {
                let to = self.c.wrapping_add(r * self.c_row + offset(v, self.c_panel));
                // SAFETY: the tile lies inside the output, as for the load, and no other task accesses it.
                unsafe { store::<V>(chain, to, exist(v)) };
            }
        }
    }
}

/// # Safety
/// `n` ≤ 16 elements from `from` are readable.
#[inline(always)]
unsafe fn load<V: Simd>(from: *const f32, n: usize) -> V {
    // SAFETY: the caller upholds this function's safety contract.
    unsafe { if n == LANES { V::load_ptr(from) } else { V::load_partial(slice(from, n), n) } }
}

/// # Safety
/// `n` ≤ 16 elements from `to` are writable.
#[inline(always)]
unsafe fn store<V: Simd>(x: V, to: *mut f32, n: usize) {
    if n == LANES {
        // SAFETY: the caller upholds this function's safety contract.
        unsafe { x.store_ptr(to) }
    } else if n > 0 {
        // SAFETY: the caller upholds this function's safety contract.
        x.store_partial(unsafe { std::slice::from_raw_parts_mut(to, n) }, n)
    }
}

/// # Safety
/// `n` elements from `from` are readable.
#[inline(always)]
unsafe fn slice<'a>(from: *const f32, n: usize) -> &'a [f32] {
    // SAFETY: the caller upholds this function's safety contract. An empty slice is not formed from the pointer, which
    // may be out of bounds.
    if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from, n) } }
}
