//! The small matmul that attention on the CPU uses, computed in register tiles: out (+)= a · b. Each output element is
//! one chain of fused multiply-adds in ascending order of terms. Operands in bf16 are widened to f32 when they are
//! loaded, or multiplied two terms at a time; both give the same bits.

use crate::Isa;
use crate::simd::{Element, Kernel, LANES, Simd};
use half::bf16;
use std::ops::Range;

/// Element type of the right operand of a matmul: f32, bf16, or two bf16 terms side by side.
pub(super) trait Right: Copy {
    /// Number of terms of a sum that one element contains: 1, or 2 that [`Simd::dot`] multiplies at once.
    const TERMS: usize;
    /// Loads the first 16 elements of `from`.
    fn load<V: Simd>(from: &[Self]) -> V;
    /// Loads the first `n` < 16 elements of `from`; the other lanes are 0.
    fn load_partial<V: Simd>(from: &[Self], n: usize) -> V;
}

macro_rules! single {
    ($of:ty) => {
        impl Right for $of {
            const TERMS: usize = 1;
            #[inline(always)]
            fn load<V: Simd>(from: &[Self]) -> V {
                <$of as Element>::load(from)
            }
            #[inline(always)]
            fn load_partial<V: Simd>(from: &[Self], n: usize) -> V {
                <$of as Element>::load_partial(from, n)
            }
        }
    };
}
single!(f32);
single!(bf16);

/// Two consecutive terms of a sum in one element; the one with the lower index comes first.
impl Right for [bf16; 2] {
    const TERMS: usize = 2;
    #[inline(always)]
    fn load<V: Simd>(from: &[Self]) -> V {
        V::load_words(from.as_flattened())
    }
    #[inline(always)]
    fn load_partial<V: Simd>(from: &[Self], n: usize) -> V {
        let mut all = [[bf16::ZERO; 2]; LANES];
        all[..n].copy_from_slice(&from[..n]);
        V::load_words(all.as_flattened())
    }
}

/// The terms of an element that belong to the sum: all, or one of two at an odd start or end.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    All,
    First,
    Second,
}

/// Runs `$body` for each element of `b` that contains terms of the range `$terms`, in ascending order. `$k` is the
/// element's index, and `$part` tells which of its terms are in the range. (A closure would not be compiled with the
/// instruction set's features.)
macro_rules! elements {
    ($terms:expr, $of:ty, |$k:ident, $part:ident| $body:block) => {{
        let Range { mut start, mut end } = $terms;
        if <$of>::TERMS == 1 {
            for $k in start..end {
                let $part = Part::All;
                $body
            }
        } else {
            if start < end && !start.is_multiple_of(2) {
                let ($k, $part) = (start / 2, Part::Second);
                $body
                start += 1;
            }
            let half = start < end && !end.is_multiple_of(2);
            end -= usize::from(half);
            for $k in start / 2..end.max(start) / 2 {
                let $part = Part::All;
                $body
            }
            if half {
                let ($k, $part) = (end / 2, Part::First);
                $body
            }
        }
    }};
}

/// The matmul `out[m, n] (+)= Σ_{k in range} a[m·a_row + k·a_k] · b[k·b_row + n]` for m < `rows` and n < `columns`,
/// with k ascending. If each element of `b` contains two terms, each element of `a` also does (a word of two bf16
/// numbers), and the index is k/2 instead of k.
pub(super) struct Matmul<'a, B> {
    pub a: &'a [f32],
    pub a_row: usize,
    pub a_k: usize,
    pub b: &'a [B],
    pub b_row: usize,
    pub out: &'a mut [f32],
    pub out_row: usize,
    pub rows: usize,
    pub columns: usize,
    pub k: Range<usize>,
    /// Whether to accumulate into `out`; otherwise `out` is overwritten.
    pub accumulate: bool,
}

impl<B: Right> Matmul<'_, B> {
    /// Computes the matmul. `F` is the dtype of the tensors in memory, even if the operands have already been widened.
    /// This dtype determines whether the sums flush denormals to 0.
    #[inline(always)]
    pub fn compute<F: Element>(&mut self, isa: Isa) {
        if B::TERMS == 2 {
            // At an odd start or end, one term of an element is multiplied alone.
            let halves = !self.k.start.is_multiple_of(2) || !self.k.end.is_multiple_of(2);
            isa.run_dots(self, halves);
        } else if F::FLUSHES {
            isa.run_flushing(self);
        } else {
            isa.run(self);
        }
    }

    /// Returns `sum` plus `left` times `right`, restricted to the terms `part`, in each lane.
    #[inline(always)]
    fn add<V: Simd>(part: Part, left: V, right: V, sum: V) -> V {
        match part {
            Part::All if B::TERMS == 2 => sum.dot(left, right),
            Part::All => left.fma(right, sum),
            Part::First => left.halves()[0].fma(right.halves()[0], sum),
            Part::Second => left.halves()[1].fma(right.halves()[1], sum),
        }
    }
}

/// Implemented for a reference, so that the struct's fields are not copied at each call.
impl<B: Right> Kernel for &mut Matmul<'_, B> {
    type Output = ();
    #[inline(always)]
    fn run<V: Simd>(self) {
        if self.rows == 0 || self.columns == 0 || (self.k.is_empty() && self.accumulate) {
            return;
        }
        // These checks of the largest indices cover every unchecked access below.
        if let Some(k) = self.k.clone().last() {
            let k = k / B::TERMS;
            assert!((self.rows - 1) * self.a_row + k * self.a_k < self.a.len());
            assert!(k * self.b_row + self.columns <= self.b.len());
        }
        assert!((self.rows - 1) * self.out_row + self.columns <= self.out.len());
        let out = self.out.as_mut_ptr();
        let wide = V::GEMM_VECTORS > 1;
        let mut n = 0;
        while n < self.columns {
            let left = self.columns - n;
            let vectors = match left / LANES {
                4.. if wide => 4,
                2.. if wide => 2,
                _ => 1,
            };
            let mut m = 0;
            while m < self.rows {
                // A tile has at most six rows, and tiles have equal height if possible: 8 rows are two tiles of 4.
                let rest = self.rows - m;
                let rows = rest.div_ceil(rest.div_ceil(6));
                // SAFETY: the assertions check that rows m..m + rows and the chosen columns lie below `rows` and
                // `columns`.
                unsafe {
                    macro_rules! tile {
                        ($($r:literal)*) => {
                            match rows {
                                $($r if vectors == 4 => micro::<V, B, $r, 4>(self, out, m, n),
                                $r if vectors == 2 => micro::<V, B, $r, 2>(self, out, m, n),
                                $r if left >= LANES => micro::<V, B, $r, 1>(self, out, m, n),
                                $r => edge::<V, B, $r>(self, out, m, n, left),)*
                                _ => unreachable!("a tile has at most six rows"),
                            }
                        };
                    }
                    tile!(1 2 3 4 5 6);
                }
                m += rows;
            }
            n += vectors * LANES;
        }
    }
}

/// Computes a tile of `R` rows and `N` whole vectors of 16 columns.
///
/// # Safety
/// The tile lies inside the matmul, and the operands are long enough for the tile.
#[inline(always)]
unsafe fn micro<V: Simd, B: Right, const R: usize, const N: usize>(
    p: &Matmul<'_, B>,
    out: *mut f32,
    m: usize,
    n: usize,
) {
    // SAFETY: the caller guarantees that every pointer below lies inside its operand. The matmul borrows `out`
    // exclusively.
    unsafe {
        let a = p.a.as_ptr().add(m * p.a_row);
        let b = p.b.as_ptr().add(n);
        let out = out.add(m * p.out_row + n);
        let mut sums = [[V::splat(0.0); N]; R];
        if p.accumulate {
            for (r, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = V::load_ptr(out.add(r * p.out_row + v * LANES));
                }
            }
        }
        elements!(p.k.clone(), B, |k, part| {
            let mut right = [V::splat(0.0); N];
            for (v, right) in right.iter_mut().enumerate() {
                *right = B::load(std::slice::from_raw_parts(b.add(k * p.b_row + v * LANES), LANES));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let left = V::splat(*a.add(r * p.a_row + k * p.a_k));
                for (sum, &right) in row.iter_mut().zip(&right) {
                    *sum = Matmul::<B>::add(part, left, right, *sum);
                }
            }
        });
        for (r, row) in sums.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                sum.store_ptr(out.add(r * p.out_row + v * LANES));
            }
        }
    }
}

/// Computes a tile of `R` rows and the last `left` < 16 columns.
///
/// # Safety
/// Same as for [`micro`].
#[inline(always)]
unsafe fn edge<V: Simd, B: Right, const R: usize>(p: &Matmul<'_, B>, out: *mut f32, m: usize, n: usize, left: usize) {
    // SAFETY: the caller guarantees that every slice below lies inside its operand. The matmul borrows `out`
    // exclusively.
    unsafe {
        let a = p.a.as_ptr().add(m * p.a_row);
        let b = p.b.as_ptr().add(n);
        let out = out.add(m * p.out_row + n);
        let mut sums = [V::splat(0.0); R];
        if p.accumulate {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = V::load_partial(std::slice::from_raw_parts(out.add(r * p.out_row), left), left);
            }
        }
        elements!(p.k.clone(), B, |k, part| {
            let right = B::load_partial::<V>(std::slice::from_raw_parts(b.add(k * p.b_row), left), left);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = Matmul::<B>::add(part, V::splat(*a.add(r * p.a_row + k * p.a_k)), right, *sum);
            }
        });
        for (r, sum) in sums.iter().enumerate() {
            sum.store_partial(std::slice::from_raw_parts_mut(out.add(r * p.out_row), left), left);
        }
    }
}
