//! The vector of 16 f32 lanes in which kernels are written: one formula for every instruction set.
//!
//! A kernel is a struct that implements [`Kernel`]; [`crate::Isa::run`] compiles its body once per instruction set.
//! Every operation is defined lane by lane (IEEE, round to nearest even, fused multiply-add), and horizontal sums have
//! one fixed tree, so a kernel gives the same bits on every instruction set. It uses neither approximate reciprocals
//! nor libm.

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

/// Number of lanes of a vector, the same on every instruction set.
pub const LANES: usize = 16;

/// 1.5 · 2^23: all f32 near it are integers. For small x, x + `SHIFT` rounds to n + `SHIFT`, where n is the integer
/// nearest to x (ties to even), and the lowest bits of this sum contain n.
pub const SHIFT: f32 = 12_582_912.0;

/// A computation that [`crate::Isa::run`] compiles for each instruction set.
pub trait Kernel {
    /// The type that the kernel returns.
    type Output;
    /// The kernel's body. Mark every implementation, and every function that it calls with a `V`, `#[inline(always)]`:
    /// only code inlined into the instruction set's entry point is compiled with its instructions. A closure cannot be
    /// marked, so a closure that takes or returns vectors may be compiled without these instructions (`cargo xtask
    /// check vectors` finds such closures).
    fn run<V: Simd>(self) -> Self::Output;
}

/// A vector of 16 f32 lanes.
///
/// Comparisons return a [`Simd::Mask`]. For the end of a slice there are [`Simd::load_partial`] and
/// [`Simd::store_partial`], which access only the first `n` elements.
pub trait Simd: Copy + Send + Sync + 'static {
    /// A mask: one boolean per lane, from a comparison.
    type Mask: Copy;
    /// Rows of the register tile of a matmul: `GEMM_ROWS × GEMM_VECTORS` accumulators fit the register file.
    const GEMM_ROWS: usize;
    /// Vectors side by side in the register tile of a matmul.
    const GEMM_VECTORS: usize;

    /// A vector with `x` in all lanes.
    fn splat(x: f32) -> Self;
    /// Loads the first 16 elements of `from`.
    fn load(from: &[f32]) -> Self;
    /// Loads the first `n` ≤ 16 elements of `from`; the other lanes are 0.
    fn load_partial(from: &[f32], n: usize) -> Self;
    /// Loads 16 elements from the address `from`, without a check.
    ///
    /// # Safety
    /// `from..from + 16` lies inside one allocation and is readable.
    unsafe fn load_ptr(from: *const f32) -> Self;
    /// Stores the lanes in the first 16 elements of `to`.
    fn store(self, to: &mut [f32]);
    /// Stores the first `n` ≤ 16 lanes in the first `n` elements of `to`.
    fn store_partial(self, to: &mut [f32], n: usize);
    /// Stores 16 lanes at the address `to`, without a check.
    ///
    /// # Safety
    /// `to..to + 16` lies inside one allocation and is writable, and no other thread accesses it.
    unsafe fn store_ptr(self, to: *mut f32);
    /// Loads the first 16 elements of `from`, which are bf16, widened exactly.
    #[inline(always)]
    fn load_bf16(from: &[bf16]) -> Self {
        let lanes: [f32; LANES] = std::array::from_fn(|i| from[i].widen());
        Self::load(&lanes)
    }
    /// Stores the lanes in the first 16 elements of `to` as bf16, rounded to nearest even; NaN stays NaN.
    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16]) {
        to[..LANES].iter_mut().zip(self.to_array()).for_each(|(to, x)| *to = bf16::narrow(x));
    }
    /// Like [`Simd::store_bf16`], for lanes that bf16 represents exactly and that need no rounding.
    #[inline(always)]
    fn store_exact_bf16(self, to: &mut [bf16]) {
        self.store_bf16(to);
    }
    /// The lanes rounded to bf16, as [`Simd::store_bf16`] does, and widened again.
    #[inline(always)]
    fn rounded_to_bf16(self) -> Self {
        let mut all = [bf16::ZERO; LANES];
        self.store_bf16(&mut all);
        Self::load_bf16(&all)
    }
    /// Interleaves the first 32 elements of two rows into `to`: `even[0]`, `odd[0]`, `even[1]`, ….
    #[inline(always)]
    fn zip_bf16(even: &[bf16], odd: &[bf16], to: &mut [bf16]) {
        let pairs = even[..2 * LANES].iter().zip(&odd[..2 * LANES]);
        let to = to[..4 * LANES].chunks_exact_mut(2);
        pairs.zip(to).for_each(|((&even, &odd), to)| to.copy_from_slice(&[even, odd]));
    }

    /// Rounds the lanes of both vectors to the nearest bf16 and interleaves them into the first 32 elements of `to`:
    /// `even[0]`, `odd[0]`, `even[1]`, ….
    #[inline(always)]
    fn store_pairs(even: Self, odd: Self, to: &mut [bf16]) {
        let pairs = even.to_array().into_iter().zip(odd.to_array());
        let to = to[..2 * LANES].chunks_exact_mut(2);
        pairs.zip(to).for_each(|((even, odd), to)| to.copy_from_slice(&[bf16::narrow(even), bf16::narrow(odd)]));
    }

    /// The inverse of [`Simd::store_pairs`]: the elements of `from[..32]` at even indices, and those at odd ones,
    /// widened exactly.
    #[inline(always)]
    fn load_pairs(from: &[bf16]) -> (Self, Self) {
        let [even, odd]: [[f32; LANES]; 2] = [0, 1].map(|i| std::array::from_fn(|lane| from[2 * lane + i].widen()));
        (Self::load(&even), Self::load(&odd))
    }

    /// Loads the first 32 elements of `from` as 16 words of 32 bits for [`Simd::dot`]: each word contains two
    /// consecutive elements, the first in its upper half.
    #[inline(always)]
    fn load_words(from: &[bf16]) -> Self {
        let (first, second) = Self::load_pairs(from);
        Self::word(first, second)
    }
    /// Packs two vectors of numbers that bf16 represents exactly into words for [`Simd::dot`]: `first` in the upper
    /// halves, `second` in the lower ones.
    #[inline(always)]
    fn word(first: Self, second: Self) -> Self {
        let (first, second) = (first.to_array(), second.to_array());
        let words: [f32; LANES] =
            std::array::from_fn(|i| f32::from_bits(first[i].to_bits() | second[i].to_bits() >> 16));
        Self::load(&words)
    }
    /// The inverse of [`Simd::word`]: the numbers in the words' upper halves, and those in the lower ones.
    #[inline(always)]
    fn halves(self) -> [Self; 2] {
        let words = self.to_array().map(f32::to_bits);
        [Self::load(&words.map(|w| f32::from_bits(w & !0xffff))), Self::load(&words.map(|w| f32::from_bits(w << 16)))]
    }
    /// For words `a` and `b` of pairs of bf16: `self` plus the products of their first numbers, then plus the products
    /// of their second ones. These are two multiply-adds, which flush denormals where this vector type does.
    #[inline(always)]
    fn dot(self, a: Self, b: Self) -> Self {
        let ([a0, a1], [b0, b1]) = (a.halves(), b.halves());
        a1.fma(b1, a0.fma(b0, self))
    }

    /// Prefetches the cache line at `at` into the second-level cache. The address need not be valid. Does not change a
    /// result.
    #[inline(always)]
    fn prefetch<T>(_at: *const T) {}
    /// [`Simd::prefetch`] into the first-level cache.
    #[inline(always)]
    fn prefetch_near<T>(_at: *const T) {}

    /// `self + b`, lane by lane.
    fn add(self, b: Self) -> Self;
    /// `self − b`, lane by lane.
    fn sub(self, b: Self) -> Self;
    /// `self · b`, lane by lane.
    fn mul(self, b: Self) -> Self;
    /// `self / b`, lane by lane, correctly rounded.
    fn div(self, b: Self) -> Self;
    /// `self · b + c`, lane by lane, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// Square root of each lane, correctly rounded.
    fn sqrt(self) -> Self;
    /// `b > self ? b : self`, which is `self` if either is NaN.
    fn max(self, b: Self) -> Self;
    /// `b < self ? b : self`, which is `self` if either is NaN.
    fn min(self, b: Self) -> Self;
    /// `self · 2^n`, where lanes of `shifted` are n + [`SHIFT`] with integers n. Adds n to the bits of the exponent, so
    /// `self` and the result must be normal numbers.
    fn mul_pow2(self, shifted: Self) -> Self;
    /// Splits positive normal lanes into exponent `e` (as f32) and significand `m` in [1, 2), with `self = m · 2^e`.
    fn split_exponent(self) -> (Self, Self);

    /// The mask of `self < b`, which is false if either is NaN.
    fn lt(self, b: Self) -> Self::Mask;
    /// The mask of the lanes below `n`.
    fn first(n: usize) -> Self::Mask;
    /// `mask ? a : b`, lane by lane.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    /// Transposes the 16 × 16 matrix of these rows.
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

    /// Sum of the lanes, in an order that all instruction sets share: the upper half of the lanes is added to the lower
    /// one, from 16 lanes to 8, 4, 2, 1.
    #[inline(always)]
    fn sum(self) -> f32 {
        folded(self.to_array(), |a, b| a + b)
    }

    /// The largest lane by [`Simd::max`], in the order of [`Simd::sum`]. If any lane is NaN, the result is one of the
    /// lanes.
    #[inline(always)]
    fn max_lane(self) -> f32 {
        folded(self.to_array(), |a, b| if b > a { b } else { a })
    }
}

/// Reduces 16 lanes to one: combines the upper half of the lanes with the lower one by `with`, from 16 lanes to 8, 4,
/// 2, 1.
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
