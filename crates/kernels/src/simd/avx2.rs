//! The 16-lane vector as two AVX2 registers.

use super::{Kernel, LANES, Simd};
use half::bf16;
use std::arch::x86_64::*;

/// 16 lanes in two YMM registers, lanes 0–7 first.
#[derive(Clone, Copy)]
pub(super) struct F32x16(__m256, __m256);

/// Runs `kernel` compiled with AVX2 and FMA enabled.
///
/// # Safety
/// The processor supports AVX2 and FMA. Values of [`F32x16`] exist only inside this function.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<F32x16>()
}

/// Runs register-only intrinsics. This is sound: a value of the vector type exists only while [`run`] runs, and the
/// caller of `run` has checked with CPUID that the processor has the instructions.
macro_rules! both {
    ($f:ident, $($a:expr),+) => {{
        // SAFETY: the intrinsic only uses registers, and runs inside `run` (see the macro's comment).
        unsafe { F32x16($f($($a.0),+), $f($($a.1),+)) }
    }};
}

/// A mask of half `half` (0 or 1) of the vector, all ones in the lanes below `n`.
#[inline(always)]
fn half_mask(n: usize, half: usize) -> __m256i {
    const EDGE: [i32; 32] = {
        let mut e = [0; 32];
        let mut i = 0;
        while i < 16 {
            e[i] = -1;
            i += 1;
        }
        e
    };
    debug_assert!(n <= LANES);
    // SAFETY: the load ends at element 16 − n + 8·half + 8 ≤ 32 of the constant.
    unsafe { _mm256_loadu_si256(EDGE.as_ptr().add(16 - n + 8 * half).cast()) }
}

/// Rounds each lane to the nearest bf16, whose bits are the upper halves of the result's 32-bit words.
#[inline(always)]
fn nearest_bf16(x: __m256) -> __m256i {
    // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        _mm256_blendv_epi8(nearest, quiet, nan)
    }
}

/// The bf16 in the lower halves of 32-bit words, widened to f32.
#[inline(always)]
fn lower_widened(words: __m256i) -> __m256 {
    // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)) }
}

/// The bf16 in the upper halves of 32-bit words, widened to f32.
#[inline(always)]
fn upper_widened(words: __m256i) -> __m256 {
    // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(!0xffff))) }
}

/// Reduces 16 lanes to one: combines the upper half of the lanes with the lower one, from 16 lanes to 8, 4, 2, 1.
macro_rules! folded {
    ($with:ident, $x:expr) => {{
        // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
        unsafe {
            let x = $with!(_mm256, $x.0, $x.1);
            let x = $with!(_mm, _mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = $with!(_mm, x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32($with!(_mm, x, _mm_shuffle_ps::<1>(x, x)))
        }
    }};
}
macro_rules! add {
    (_mm256, $a:expr, $b:expr) => {
        _mm256_add_ps($a, $b)
    };
    (_mm, $a:expr, $b:expr) => {
        _mm_add_ps($a, $b)
    };
}
/// Lane-wise maximum as [`Simd::max`] defines it: the first operand, unless the second is greater.
macro_rules! max {
    (_mm256, $a:expr, $b:expr) => {
        _mm256_max_ps($b, $a)
    };
    (_mm, $a:expr, $b:expr) => {
        _mm_max_ps($b, $a)
    };
}

impl Simd for F32x16 {
    type Mask = (__m256, __m256);
    const GEMM_ROWS: usize = 6;
    const GEMM_VECTORS: usize = 1;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: the intrinsic only uses registers, and the caller of `run` has checked for AVX2.
        let v = unsafe { _mm256_set1_ps(x) };
        F32x16(v, v)
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        let from = &from[..LANES];
        // SAFETY: the slice has 16 elements, as checked above.
        unsafe { Self::load_ptr(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_partial(from: &[f32], n: usize) -> Self {
        let from = &from[..n];
        // SAFETY: the slice has n elements, and the masked lanes are not read. `wrapping_add` may form an address past
        // the end.
        unsafe {
            F32x16(
                _mm256_maskload_ps(from.as_ptr(), half_mask(n, 0)),
                _mm256_maskload_ps(from.as_ptr().wrapping_add(8), half_mask(n, 1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_ptr(from: *const f32) -> Self {
        // SAFETY: the caller guarantees 16 readable elements.
        unsafe { F32x16(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        let to = &mut to[..LANES];
        // SAFETY: the slice has 16 elements, as checked above.
        unsafe { self.store_ptr(to.as_mut_ptr()) }
    }
    #[inline(always)]
    fn store_partial(self, to: &mut [f32], n: usize) {
        let to = &mut to[..n];
        // SAFETY: the slice has n elements, and the masked lanes are not written.
        unsafe {
            _mm256_maskstore_ps(to.as_mut_ptr(), half_mask(n, 0), self.0);
            _mm256_maskstore_ps(to.as_mut_ptr().wrapping_add(8), half_mask(n, 1), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, to: *mut f32) {
        // SAFETY: the caller guarantees 16 writable elements.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    fn load_bf16(from: &[bf16]) -> Self {
        let from = &from[..LANES];
        // SAFETY: `from` has 16 elements of two bytes, as checked above. The other intrinsics only use registers,
        // inside `run`.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.as_ptr().cast()), _mm_loadu_si128(from.as_ptr().add(8).cast()));
            let (low, high) = (_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high));
            F32x16(lower_widened(low), lower_widened(high))
        }
    }
    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16]) {
        // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
        let nearest =
            unsafe { F32x16(_mm256_castsi256_ps(nearest_bf16(self.0)), _mm256_castsi256_ps(nearest_bf16(self.1))) };
        nearest.store_exact_bf16(to);
    }
    #[inline(always)]
    fn store_exact_bf16(self, to: &mut [bf16]) {
        let to = &mut to[..LANES];
        // SAFETY: `to` has 16 elements of two bytes, as checked above. The other intrinsics only use registers, inside
        // `run`.
        unsafe {
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.0));
            let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.1));
            // Packing works within 128-bit halves, so the middle quarters are swapped.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), packed);
        }
    }
    #[inline(always)]
    fn store_pairs(even: Self, odd: Self, to: &mut [bf16]) {
        let to = to[..2 * LANES].as_mut_ptr().cast::<__m256i>();
        // SAFETY: `to` has 32 elements of two bytes, as checked above. The other intrinsics only use registers, inside
        // `run`.
        unsafe {
            let low = _mm256_srli_epi32::<16>(nearest_bf16(even.0));
            let high = _mm256_srli_epi32::<16>(nearest_bf16(even.1));
            _mm256_storeu_si256(to, _mm256_blend_epi16::<0b1010_1010>(low, nearest_bf16(odd.0)));
            _mm256_storeu_si256(to.add(1), _mm256_blend_epi16::<0b1010_1010>(high, nearest_bf16(odd.1)));
        }
    }
    #[inline(always)]
    fn rounded_to_bf16(self) -> Self {
        F32x16(upper_widened(nearest_bf16(self.0)), upper_widened(nearest_bf16(self.1)))
    }
    #[inline(always)]
    fn load_pairs(from: &[bf16]) -> (Self, Self) {
        let from = &from[..2 * LANES];
        let from = from.as_ptr().cast::<__m256i>();
        // SAFETY: the slice has 32 elements of two bytes, as checked above.
        let (low, high) = unsafe { (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) };
        let even = F32x16(lower_widened(low), lower_widened(high));
        (even, F32x16(upper_widened(low), upper_widened(high)))
    }
    #[inline(always)]
    fn prefetch<T>(at: *const T) {
        // SAFETY: a prefetch is only a hint. It never faults, even if the address is invalid.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    fn prefetch_near<T>(at: *const T) {
        // SAFETY: a prefetch is only a hint. It never faults, even if the address is invalid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        both!(_mm256_add_ps, self, b)
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        both!(_mm256_sub_ps, self, b)
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        both!(_mm256_mul_ps, self, b)
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        both!(_mm256_div_ps, self, b)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        both!(_mm256_fmadd_ps, self, b, c)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        both!(_mm256_sqrt_ps, self)
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // MAXPS returns its second operand unless the first is greater.
        both!(_mm256_max_ps, b, self)
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        both!(_mm256_min_ps, b, self)
    }
    #[inline(always)]
    fn mul_pow2(self, shifted: Self) -> Self {
        #[inline(always)]
        fn half(a: __m256, n: __m256) -> __m256 {
            // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
            unsafe {
                let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent))
            }
        }
        F32x16(half(self.0, shifted.0), half(self.1, shifted.1))
    }
    #[inline(always)]
    fn split_exponent(self) -> (Self, Self) {
        #[inline(always)]
        fn half(a: __m256) -> (__m256, __m256) {
            // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
            unsafe {
                let bits = _mm256_castps_si256(a);
                let exponent = _mm256_sub_epi32(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(127));
                let significand = _mm256_or_si256(
                    _mm256_and_si256(bits, _mm256_set1_epi32(0x007f_ffff)),
                    _mm256_set1_epi32(0x3f80_0000),
                );
                (_mm256_cvtepi32_ps(exponent), _mm256_castsi256_ps(significand))
            }
        }
        let ((e0, s0), (e1, s1)) = (half(self.0), half(self.1));
        (F32x16(e0, e1), F32x16(s0, s1))
    }
    #[inline(always)]
    fn lt(self, b: Self) -> Self::Mask {
        // SAFETY: the intrinsic only uses registers, and the caller of `run` has checked for AVX2.
        unsafe { (_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, b.0), _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, b.1)) }
    }
    #[inline(always)]
    fn first(n: usize) -> Self::Mask {
        let n = n.min(LANES);
        // SAFETY: the intrinsic only uses registers, and the caller of `run` has checked for AVX2.
        unsafe { (_mm256_castsi256_ps(half_mask(n, 0)), _mm256_castsi256_ps(half_mask(n, 1))) }
    }
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        // SAFETY: the intrinsic only uses registers, and the caller of `run` has checked for AVX2.
        unsafe { F32x16(_mm256_blendv_ps(b.0, a.0, mask.0), _mm256_blendv_ps(b.1, a.1, mask.1)) }
    }
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        #[inline(always)]
        fn eight(rows: [__m256; 8]) -> [__m256; 8] {
            // Transposes 4 × 4 blocks inside the 128-bit halves, then moves the halves among the registers.
            // SAFETY: the intrinsics only use registers, and the caller of `run` has checked for AVX2.
            unsafe {
                let mut q = [_mm256_setzero_ps(); 8];
                for i in 0..2 {
                    let (a, b, c, d) = (rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]);
                    let (ab_lo, ab_hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                    let (cd_lo, cd_hi) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                    q[4 * i] = _mm256_shuffle_ps::<0x44>(ab_lo, cd_lo);
                    q[4 * i + 1] = _mm256_shuffle_ps::<0xee>(ab_lo, cd_lo);
                    q[4 * i + 2] = _mm256_shuffle_ps::<0x44>(ab_hi, cd_hi);
                    q[4 * i + 3] = _mm256_shuffle_ps::<0xee>(ab_hi, cd_hi);
                }
                let mut out = [_mm256_setzero_ps(); 8];
                for j in 0..4 {
                    out[j] = _mm256_permute2f128_ps::<0x20>(q[j], q[4 + j]);
                    out[4 + j] = _mm256_permute2f128_ps::<0x31>(q[j], q[4 + j]);
                }
                out
            }
        }
        let zero = Self::splat(0.0);
        let mut quarters = [[zero.0; 8]; 4];
        for r in 0..8 {
            (quarters[0][r], quarters[1][r]) = (rows[r].0, rows[r].1);
            (quarters[2][r], quarters[3][r]) = (rows[8 + r].0, rows[8 + r].1);
        }
        let [a, b, c, d] = quarters;
        let (a, b, c, d) = (eight(a), eight(b), eight(c), eight(d));
        let mut columns = [zero; LANES];
        for i in 0..8 {
            (columns[i], columns[8 + i]) = (F32x16(a[i], c[i]), F32x16(b[i], d[i]));
        }
        columns
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        folded!(add, self)
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        folded!(max, self)
    }
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes
    }
}
