//! The register tile: a few rows times a few vectors of outputs, each one chain of fused multiply-adds.

use super::prefetch::Prefetch;
use crate::matrix::PANEL;
use crate::simd::{Kernel, LANES, Simd};
use half::bf16;

/// The most depth steps of a block: outputs are loaded and stored seldom. The panel, 64 KiB of it, streams from the
/// second cache.
pub(super) const MAX_DEPTH: usize = 512;
/// Steps of depth between what is multiplied and what is prefetched into the first cache.
const AHEAD: usize = 8;
/// Most rows of a tile on any instruction set.
pub(super) const MAX_ROWS: usize = 12;
/// Most vectors of a tile on any instruction set.
pub(super) const MAX_VECTORS: usize = 8;

/// How many vectors of outputs a tile of `rows` rows takes, so that the accumulators fill the register file: few rows
/// take many vectors, because a chain alone would wait for its own latency.
#[inline(always)]
pub(super) const fn vectors<V: Simd>(rows: usize) -> usize {
    let free = V::GEMM_ROWS * V::GEMM_VECTORS / rows;
    let mut vectors = V::GEMM_VECTORS;
    while vectors * 2 <= free && vectors * 2 <= MAX_VECTORS {
        vectors *= 2;
    }
    vectors
}

/// One tile: `c[r, v] = (from_c ? c : 0) + Σ_k a[r, k] b[k, v] (+ bias[v])`.
pub(super) struct Tile<E> {
    /// 1 ..= `V::GEMM_ROWS`.
    pub rows: usize,
    /// `V::GEMM_VECTORS`, or what [`vectors`] says.
    pub vectors: usize,
    /// Steps of the chains.
    pub depth: usize,
    /// Packed left strip: `[depth][a_pitch]`, of words if `E` is.
    pub a: *const f32,
    /// At least the rows.
    pub a_pitch: usize,
    /// The first of the tile's columns, as `E` lies; bf16 is widened as it is loaded.
    pub b: *const E,
    /// Elements from one panel of the right operand to the next.
    pub b_panel: usize,
    /// The first output.
    pub c: *mut f32,
    /// Elements from one row of outputs to the next.
    pub c_row: usize,
    /// Elements from one panel of outputs to the next.
    pub c_panel: usize,
    /// Columns that exist, from `c` on: vectors past them are computed and not stored.
    pub columns: usize,
    /// Whether chains continue what `c` holds.
    pub from_c: bool,
    /// Added after the chain (null: none); `columns` elements.
    pub bias: *const f32,
    /// What is read soon.
    pub prefetch: Prefetch,
}

/// What tiles read of the right operand, in panels.
pub(super) trait Packed: Copy + 'static {
    /// Whether a step multiplies words, so two terms of each sum.
    const DOTS: bool;
    /// Steps of depth that lie side by side: `[depth / TOGETHER][32][TOGETHER]`.
    const TOGETHER: usize;
    /// [`AHEAD`] of tiles that read several panels, which wait for memory more than they multiply.
    const FAR_AHEAD: usize;
    /// 16 columns of [`Self::TOGETHER`] steps, from the first of them on; the rest repeats the first step.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn steps<V: Simd>(from: *const Self) -> [V; 2];
}

impl Packed for f32 {
    const DOTS: bool = false;
    const TOGETHER: usize = 1;
    const FAR_AHEAD: usize = AHEAD;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const f32) -> [V; 2] {
        // SAFETY: the caller's promise.
        [unsafe { V::load_ptr(from) }; 2]
    }
}

impl Packed for bf16 {
    const DOTS: bool = false;
    const TOGETHER: usize = 2;
    const FAR_AHEAD: usize = 3 * AHEAD;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const bf16) -> [V; 2] {
        // SAFETY: the caller's promise: 16 columns of two steps.
        let (even, odd) = V::load_pairs(unsafe { std::slice::from_raw_parts(from, 2 * LANES) });
        [even, odd]
    }
}

/// Two terms, packed for [`Simd::dot`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Word(#[allow(dead_code)] f32);

impl Packed for Word {
    const DOTS: bool = true;
    const TOGETHER: usize = 1;
    const FAR_AHEAD: usize = AHEAD;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const Word) -> [V; 2] {
        // SAFETY: the caller's promise.
        [unsafe { V::load_ptr(from.cast()) }; 2]
    }
}

/// Two terms as a weight of bf16 holds them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pair(#[allow(dead_code)] [bf16; 2]);

impl Packed for Pair {
    const DOTS: bool = true;
    const TOGETHER: usize = 1;
    const FAR_AHEAD: usize = 3 * AHEAD / 2;
    #[inline(always)]
    unsafe fn steps<V: Simd>(from: *const Pair) -> [V; 2] {
        // SAFETY: the caller's promise: 16 columns of two terms.
        [V::load_words(unsafe { std::slice::from_raw_parts(from.cast(), 2 * LANES) }); 2]
    }
}

/// By reference: its fields would be copied at each call, by a function that does nothing else.
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
        // Larger tiles than the register file are never asked for; not compiling them saves their code.
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
                    // SAFETY: `exist` columns of every row of the tile lie inside the output (checked by the driver).
                    *chain = unsafe { load::<V>(from, exist(v)) };
                }
            }
        }
        // The outputs of the strip below are on their way while this one's chains are computed.
        for r in 0..ROWS {
            for v in 0..VECTORS {
                V::prefetch(self.c.wrapping_add((ROWS + r) * self.c_row + offset(v, self.c_panel)));
            }
        }
        // An address that exists, also where nothing is prefetched: others would be looked up in vain at each step.
        let nothing = (self.b.cast(), 0);
        let (soon, pace) = if self.prefetch.rows.is_empty() { nothing } else { self.prefetch.begin::<V>(self.depth) };
        let ahead = if VECTORS > V::GEMM_VECTORS { E::FAR_AHEAD } else { AHEAD };
        for k in (0..self.depth).step_by(E::TOGETHER) {
            // SAFETY: the packed operands hold `depth` steps, a multiple of those that lie together, of all rows and
            // all vectors, padding included.
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
                // SAFETY: as for the load; tiles of different tasks are disjoint.
                unsafe { store::<V>(chain, to, exist(v)) };
            }
        }
    }
}

/// # Safety
/// `n` ≤ 16 elements from `from` are readable.
#[inline(always)]
unsafe fn load<V: Simd>(from: *const f32, n: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { if n == LANES { V::load_ptr(from) } else { V::load_partial(slice(from, n), n) } }
}

/// # Safety
/// `n` ≤ 16 elements from `to` are writable.
#[inline(always)]
unsafe fn store<V: Simd>(x: V, to: *mut f32, n: usize) {
    if n == LANES {
        // SAFETY: the caller's promise.
        unsafe { x.store_ptr(to) }
    } else if n > 0 {
        // SAFETY: the caller's promise.
        x.store_partial(unsafe { std::slice::from_raw_parts_mut(to, n) }, n)
    }
}

/// # Safety
/// `n` elements from `from` are readable.
#[inline(always)]
unsafe fn slice<'a>(from: *const f32, n: usize) -> &'a [f32] {
    // SAFETY: the caller's promise; nothing is formed from a pointer past the end.
    if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from, n) } }
}
