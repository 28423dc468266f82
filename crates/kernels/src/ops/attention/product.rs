//! The small product that attention is made of, register-tiled: out (+)= a · b, one ascending FMA chain per element.
//! What is bf16 in memory is widened as it is loaded.

use crate::Isa;
use crate::simd::{Element, Kernel, LANES, Simd};
use std::ops::Range;

/// `out[m, n] (+)= Σ_{k in range} a[m·a_row + k·a_k] · b[k·b_row + n]` for m < `rows`, n < `columns`, k ascending.
pub(super) struct Product<'a, E> {
    pub a: &'a [f32],
    pub a_row: usize,
    pub a_k: usize,
    pub b: &'a [E],
    pub b_row: usize,
    pub out: &'a mut [f32],
    pub out_row: usize,
    pub rows: usize,
    pub columns: usize,
    pub k: Range<usize>,
    /// Continue from what `out` holds; otherwise overwrite it.
    pub accumulate: bool,
}

impl<E: Element> Product<'_, E> {
    /// Computes it. `F` is what the numbers were stored in, whatever they were widened to: their chains flush denormals
    /// or keep them.
    #[inline(always)]
    pub fn compute<F: Element>(&mut self, isa: Isa) {
        if F::FLUSHES { isa.run_flushing(self) } else { isa.run(self) }
    }
}

/// By reference, so that its fields are not copied at each call.
impl<E: Element> Kernel for &mut Product<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<V: Simd>(self) {
        if self.rows == 0 || self.columns == 0 || (self.k.is_empty() && self.accumulate) {
            return;
        }
        // Every access below lies under these last ones.
        if let Some(k) = self.k.clone().last() {
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
                // Six rows a tile, the rest shared out evenly: 8 rows are two tiles of 4.
                let rest = self.rows - m;
                let rows = rest.div_ceil(rest.div_ceil(6));
                // SAFETY: rows m..m + rows and the columns chosen lie below `rows` and `columns`: see the assertions.
                unsafe {
                    macro_rules! tile {
                        ($($r:literal)*) => {
                            match rows {
                                $($r if vectors == 4 => micro::<V, E, $r, 4>(self, out, m, n),
                                $r if vectors == 2 => micro::<V, E, $r, 2>(self, out, m, n),
                                $r if left >= LANES => micro::<V, E, $r, 1>(self, out, m, n),
                                $r => edge::<V, E, $r>(self, out, m, n, left),)*
                                _ => unreachable!("at most six rows"),
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

/// A tile of `R` rows and `N` whole vectors.
///
/// # Safety
/// The tile lies inside the product, whose accesses are in bounds.
#[inline(always)]
unsafe fn micro<V: Simd, E: Element, const R: usize, const N: usize>(
    p: &Product<'_, E>,
    out: *mut f32,
    m: usize,
    n: usize,
) {
    // SAFETY: the caller's promise, for every pointer below. `out` is borrowed exclusively by the product.
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
        for k in p.k.clone() {
            let mut right = [V::splat(0.0); N];
            for (v, right) in right.iter_mut().enumerate() {
                *right = E::load(std::slice::from_raw_parts(b.add(k * p.b_row + v * LANES), LANES));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let left = V::splat(*a.add(r * p.a_row + k * p.a_k));
                for (sum, &right) in row.iter_mut().zip(&right) {
                    *sum = left.fma(right, *sum);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                sum.store_ptr(out.add(r * p.out_row + v * LANES));
            }
        }
    }
}

/// A tile of `R` rows and the last `left` < 16 columns.
///
/// # Safety
/// As [`micro`].
#[inline(always)]
unsafe fn edge<V: Simd, E: Element, const R: usize>(
    p: &Product<'_, E>,
    out: *mut f32,
    m: usize,
    n: usize,
    left: usize,
) {
    // SAFETY: the caller's promise, for every slice below. `out` is borrowed exclusively by the product.
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
        for k in p.k.clone() {
            let right = E::load_partial::<V>(std::slice::from_raw_parts(b.add(k * p.b_row), left), left);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = V::splat(*a.add(r * p.a_row + k * p.a_k)).fma(right, *sum);
            }
        }
        for (r, sum) in sums.iter().enumerate() {
            sum.store_partial(std::slice::from_raw_parts_mut(out.add(r * p.out_row), left), left);
        }
    }
}
