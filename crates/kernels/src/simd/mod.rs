//! One formula, every instruction set: a vector of 16 f32 lanes and the operations that kernels are written in.
//!
//! A kernel is a struct that implements [`Kernel`]; [`crate::Isa::run`] compiles its body once per instruction set.
//! Every operation is defined lane by lane (IEEE, round to nearest even, fused multiply-add), and horizontal sums have
//! one fixed tree, so a kernel gives the same bits on all of them. No approximate reciprocal, no libm.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod control;
pub(crate) mod dots;
pub(crate) mod element;
pub(crate) mod portable;
#[cfg(test)]
mod tests;
pub(crate) mod tiles;

pub use element::Element;

use half::bf16;

/// Lanes of a vector, on every instruction set.
pub const LANES: usize = 16;

/// Numbers near it have no fraction: of a small x, x + `SHIFT` is an integer n + `SHIFT`, n the nearest to x (ties to
/// even), and n is its lowest bits.
pub const SHIFT: f32 = 12_582_912.0;

/// A computation that [`crate::Isa::run`] compiles for an instruction set.
pub trait Kernel {
    /// What the kernel returns.
    type Output;
    /// The body. Mark every implementation, and every function it calls with a `V`, `#[inline(always)]`: only code
    /// inlined into the instruction set's entry point is compiled with its instructions. A closure cannot be marked:
    /// one that takes or gives vectors may end as a function without them (`cargo xtask check vectors` looks for such).
    fn run<V: Simd>(self) -> Self::Output;
}

/// A vector of 16 f32 lanes.
///
/// Comparisons give a [`Simd::Mask`]; tails use [`Simd::load_partial`] and [`Simd::store_partial`], which touch only
/// the first `n` elements.
pub trait Simd: Copy + Send + Sync + 'static {
    /// One truth value per lane.
    type Mask: Copy;
    /// Rows of the matmul's register tile: `GEMM_ROWS × GEMM_VECTORS` accumulators fit the register file.
    const GEMM_ROWS: usize;
    /// Vectors of the matmul's register tile.
    const GEMM_VECTORS: usize;

    /// All lanes `x`.
    fn splat(x: f32) -> Self;
    /// The first 16 elements of `from`.
    fn load(from: &[f32]) -> Self;
    /// The first `n` ≤ 16 elements of `from`, the rest 0.
    fn load_partial(from: &[f32], n: usize) -> Self;
    /// 16 elements from `from`, which the caller promises to be readable.
    ///
    /// # Safety
    /// `from..from + 16` lies inside one allocation.
    unsafe fn load_ptr(from: *const f32) -> Self;
    /// Writes the first 16 elements of `to`.
    fn store(self, to: &mut [f32]);
    /// Writes the first `n` ≤ 16 elements of `to`.
    fn store_partial(self, to: &mut [f32], n: usize);
    /// 16 elements to `to`, which the caller promises to be writable.
    ///
    /// # Safety
    /// `to..to + 16` lies inside one allocation, and no other thread touches it.
    unsafe fn store_ptr(self, to: *mut f32);
    /// The first 16 elements of `from`, widened exactly.
    #[inline(always)]
    fn load_bf16(from: &[bf16]) -> Self {
        let lanes: [f32; LANES] = std::array::from_fn(|i| from[i].widen());
        Self::load(&lanes)
    }
    /// Writes the first 16 elements of `to`, rounded to nearest even; NaN stays NaN.
    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16]) {
        to[..LANES].iter_mut().zip(self.to_array()).for_each(|(to, x)| *to = bf16::narrow(x));
    }
    /// [`Simd::store_bf16`] of lanes that are bf16 already.
    #[inline(always)]
    fn store_exact_bf16(self, to: &mut [bf16]) {
        self.store_bf16(to);
    }
    /// Lanes rounded as [`Simd::store_bf16`] does.
    #[inline(always)]
    fn rounded_to_bf16(self) -> Self {
        let mut all = [bf16::ZERO; LANES];
        self.store_bf16(&mut all);
        Self::load_bf16(&all)
    }
    /// The first 32 elements of two rows side by side: `even[i]`, `odd[i]`, for i below 16 in `low` and from 16 in
    /// `high`.
    #[inline(always)]
    fn zip_bf16(even: &[bf16], odd: &[bf16], to: &mut [bf16]) {
        let pairs = even[..2 * LANES].iter().zip(&odd[..2 * LANES]);
        let to = to[..4 * LANES].chunks_exact_mut(2);
        pairs.zip(to).for_each(|((&even, &odd), to)| to.copy_from_slice(&[even, odd]));
    }

    /// Writes the first 32 elements of `to`: lane by lane the nearest bf16 of `even` and of `odd`, side by side.
    #[inline(always)]
    fn store_pairs(even: Self, odd: Self, to: &mut [bf16]) {
        let pairs = even.to_array().into_iter().zip(odd.to_array());
        let to = to[..2 * LANES].chunks_exact_mut(2);
        pairs.zip(to).for_each(|((even, odd), to)| to.copy_from_slice(&[bf16::narrow(even), bf16::narrow(odd)]));
    }

    /// The reverse of it: the even and the odd ones of the first 32 elements of `from`, widened exactly.
    #[inline(always)]
    fn load_pairs(from: &[bf16]) -> (Self, Self) {
        let [even, odd]: [[f32; LANES]; 2] = [0, 1].map(|i| std::array::from_fn(|lane| from[2 * lane + i].widen()));
        (Self::load(&even), Self::load(&odd))
    }

    /// 16 words of the first 32 elements of `from`: neighbours together, the first in the upper half of its lane.
    #[inline(always)]
    fn load_words(from: &[bf16]) -> Self {
        let (first, second) = Self::load_pairs(from);
        Self::word(first, second)
    }
    /// Words of lanes that bf16 has: `first` in the upper halves, `second` in the lower ones.
    #[inline(always)]
    fn word(first: Self, second: Self) -> Self {
        let (first, second) = (first.to_array(), second.to_array());
        let words: [f32; LANES] =
            std::array::from_fn(|i| f32::from_bits(first[i].to_bits() | second[i].to_bits() >> 16));
        Self::load(&words)
    }
    /// The reverse of it.
    #[inline(always)]
    fn halves(self) -> [Self; 2] {
        let words = self.to_array().map(f32::to_bits);
        [Self::load(&words.map(|w| f32::from_bits(w & !0xffff))), Self::load(&words.map(|w| f32::from_bits(w << 16)))]
    }
    /// `self` plus the products of the words' first halves, then of their second ones: two multiply-adds that flush
    /// denormals, where this vector's do.
    #[inline(always)]
    fn dot(self, a: Self, b: Self) -> Self {
        let ([a0, a1], [b0, b1]) = (a.halves(), b.halves());
        a1.fma(b1, a0.fma(b0, self))
    }

    /// Prefetches the cache line at `at`, which need not exist, into the second cache. Changes no result.
    #[inline(always)]
    fn prefetch<T>(_at: *const T) {}
    /// [`Simd::prefetch`] into the first cache.
    #[inline(always)]
    fn prefetch_near<T>(_at: *const T) {}

    /// `self + b`
    fn add(self, b: Self) -> Self;
    /// `self − b`
    fn sub(self, b: Self) -> Self;
    /// `self · b`
    fn mul(self, b: Self) -> Self;
    /// `self / b`, correctly rounded.
    fn div(self, b: Self) -> Self;
    /// `self · b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// `b > self ? b : self`: if either is NaN, `self`.
    fn max(self, b: Self) -> Self;
    /// `b < self ? b : self`: if either is NaN, `self`.
    fn min(self, b: Self) -> Self;
    /// `self · 2^n`, where lanes of `shifted` hold integers n + [`SHIFT`], and `self` and the result are normal: what
    /// is added to the bits of the exponent.
    fn mul_pow2(self, shifted: Self) -> Self;
    /// For positive normal lanes: the exponent `e` (as f32) and the significand in [1, 2), `self = m · 2^e`.
    fn split_exponent(self) -> (Self, Self);

    /// `self < b` (false if either is NaN)
    fn lt(self, b: Self) -> Self::Mask;
    /// Lanes below `n`.
    fn first(n: usize) -> Self::Mask;
    /// Lane by lane `mask ? a : b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    /// The 16 × 16 matrix of these rows, transposed.
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let rows = rows.map(|row| row.to_array());
        std::array::from_fn(|c| {
            let column: [f32; LANES] = std::array::from_fn(|r| rows[r][c]);
            Self::load(&column)
        })
    }
    /// The lanes as an array.
    fn to_array(self) -> [f32; LANES];

    /// Sum of the lanes in the order that all instruction sets share: halves folded onto each other, 8, 4, 2, 1.
    #[inline(always)]
    fn sum(self) -> f32 {
        folded(self.to_array(), |a, b| a + b)
    }

    /// Largest lane: halves folded onto each other with [`Simd::max`] in the same order. If any lane is NaN, one of the
    /// lanes.
    #[inline(always)]
    fn max_lane(self) -> f32 {
        folded(self.to_array(), |a, b| if b > a { b } else { a })
    }
}

/// The lower half of the lanes with the upper one, then the lower quarter with the next, down to one lane.
#[inline(always)]
fn folded(mut lanes: [f32; LANES], with: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = with(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}
