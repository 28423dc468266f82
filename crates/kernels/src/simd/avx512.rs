//! The 16-lane vector as one AVX-512 register.
//!
//! VDPBF16PS computes two multiply-adds per lane, on Zen 4 in the time of one. It adds the second number of a pair
//! first, so 32-bit words store the two numbers in reverse order. `dots.rs` compares the instruction's arithmetic with
//! the formula.

use super::{Kernel, LANES, Simd};
use half::bf16;
use std::arch::x86_64::*;

/// 16 lanes in a ZMM register. With `DOTS`, [`Simd::dot`] is the instruction VDPBF16PS.
#[derive(Clone, Copy)]
pub(super) struct F32x16<const DOTS: bool = false>(__m512);

/// Runs `kernel` compiled with AVX-512 enabled.
///
/// # Safety
/// The processor supports AVX-512 F, BW, DQ, VL, AVX2 and FMA. Values of [`F32x16`] exist only inside this function.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<F32x16>()
}

/// Runs `kernel` compiled with AVX-512 and AVX-512 BF16, whose dot products of pairs [`Simd::dot`] then uses.
///
/// # Safety
/// Same as for [`run`]. Also, the processor supports AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
pub unsafe fn run_dots<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<F32x16<true>>()
}

/// Runs register-only intrinsics. This is sound: a value of the vector type exists only while [`run`] runs, and the
/// caller of `run` has checked with CPUID that the processor has the instructions.
macro_rules! lanes {
    ($e:expr) => {{
        // SAFETY: the intrinsic only uses registers, and runs inside `run` (see the macro's comment).
        unsafe { $e }
    }};
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    debug_assert!(n <= LANES);
    ((1u32 << n) - 1) as __mmask16
}

/// Rounds each lane to the nearest bf16, whose bits are the upper halves of the result's 32-bit words.
#[inline(always)]
fn nearest_bf16(x: __m512) -> __m512i {
    lanes!({
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
        let below = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
        let nearest = _mm512_mask_add_epi32(below, odd, below, _mm512_set1_epi32(1));
        // NaN becomes a quiet NaN.
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        _mm512_mask_or_epi32(nearest, nan, bits, _mm512_set1_epi32(0x0040_0000))
    })
}

/// Reduces 16 lanes to one: combines the upper half of the lanes with the lower one, from 16 lanes to 8, 4, 2, 1.
macro_rules! folded {
    ($with:ident, $x:expr) => {{
        let x: Self = $x;
        let x = x.$with(F32x16(lanes!(_mm512_shuffle_f32x4::<0b01_00_11_10>(x.0, x.0))));
        let x = x.$with(F32x16(lanes!(_mm512_shuffle_f32x4::<0b10_11_00_01>(x.0, x.0))));
        let x = x.$with(F32x16(lanes!(_mm512_permute_ps::<0b01_00_11_10>(x.0))));
        let x = x.$with(F32x16(lanes!(_mm512_permute_ps::<0b10_11_00_01>(x.0))));
        lanes!(_mm512_cvtss_f32(x.0))
    }};
}

impl<const DOTS: bool> Simd for F32x16<DOTS> {
    type Mask = __mmask16;
    const GEMM_ROWS: usize = 12;
    const GEMM_VECTORS: usize = 2;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        F32x16(lanes!(_mm512_set1_ps(x)))
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
        // SAFETY: the slice has n elements, and the masked lanes are not read.
        F32x16(unsafe { _mm512_maskz_loadu_ps(mask(n), from.as_ptr()) })
    }
    #[inline(always)]
    unsafe fn load_ptr(from: *const f32) -> Self {
        // SAFETY: the caller guarantees 16 readable elements.
        F32x16(unsafe { _mm512_loadu_ps(from) })
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
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask(n), self.0) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, to: *mut f32) {
        // SAFETY: the caller guarantees 16 writable elements.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    fn load_bf16(from: &[bf16]) -> Self {
        let from = &from[..LANES];
        // SAFETY: the slice has 16 elements of two bytes, as checked above.
        let halves = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
        F32x16(lanes!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))))
    }
    #[inline(always)]
    fn store_bf16(self, to: &mut [bf16]) {
        Self(lanes!(_mm512_castsi512_ps(nearest_bf16(self.0)))).store_exact_bf16(to);
    }
    #[inline(always)]
    fn store_exact_bf16(self, to: &mut [bf16]) {
        let to = &mut to[..LANES];
        let upper = lanes!({
            // Selects the words 1, 3, … 31, in memory order.
            let odd = _mm512_set_epi32(
                0, 0, 0, 0, 0, 0, 0, 0, 0x1f_001d, 0x1b_0019, 0x17_0015, 0x13_0011, 0xf_000d, 0xb_0009, 0x7_0005,
                0x3_0001,
            );
            _mm512_castsi512_si256(_mm512_permutexvar_epi16(odd, _mm512_castps_si512(self.0)))
        });
        // SAFETY: the slice has 16 elements of two bytes, as checked above.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), upper) }
    }
    #[inline(always)]
    fn rounded_to_bf16(self) -> Self {
        let upper = lanes!(_mm512_and_si512(nearest_bf16(self.0), _mm512_set1_epi32(!0xffff)));
        F32x16(lanes!(_mm512_castsi512_ps(upper)))
    }
    #[inline(always)]
    fn store_pairs(even: Self, odd: Self, to: &mut [bf16]) {
        let to = &mut to[..2 * LANES];
        let pairs = lanes!({
            let low = _mm512_srli_epi32::<16>(nearest_bf16(even.0));
            _mm512_mask_blend_epi16(0xaaaa_aaaa, low, nearest_bf16(odd.0))
        });
        // SAFETY: the slice has 32 elements of two bytes, as checked above.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) }
    }
    #[inline(always)]
    fn zip_bf16(even: &[bf16], odd: &[bf16], to: &mut [bf16]) {
        let (even, odd, to) = (&even[..2 * LANES], &odd[..2 * LANES], &mut to[..4 * LANES]);
        // SAFETY: each slice has 32 elements of two bytes, as checked above.
        let (even, odd) =
            unsafe { (_mm512_loadu_si512(even.as_ptr().cast()), _mm512_loadu_si512(odd.as_ptr().cast())) };
        // First interleaves pairs 0–3, 8–11, 16–19, 24–27 and the other pairs, then puts the quarters of both in order.
        let zipped = lanes!({
            let (a, b) = (_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd));
            let (first, last) =
                (_mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15));
            [_mm512_permutex2var_epi64(a, first, b), _mm512_permutex2var_epi64(a, last, b)]
        });
        // SAFETY: the slice has 64 elements of two bytes, as checked above.
        unsafe {
            _mm512_storeu_si512(to.as_mut_ptr().cast(), zipped[0]);
            _mm512_storeu_si512(to.as_mut_ptr().add(2 * LANES).cast(), zipped[1]);
        }
    }
    #[inline(always)]
    fn load_pairs(from: &[bf16]) -> (Self, Self) {
        let from = &from[..2 * LANES];
        // SAFETY: the slice has 32 elements of two bytes, as checked above.
        let pairs = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        let odd = lanes!(_mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff)));
        (F32x16(lanes!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)))), F32x16(lanes!(_mm512_castsi512_ps(odd))))
    }
    #[inline(always)]
    fn load_words(from: &[bf16]) -> Self {
        let from = &from[..2 * LANES];
        // SAFETY: the slice has 32 elements of two bytes, as checked above.
        let pairs = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        F32x16(lanes!(_mm512_castsi512_ps(_mm512_rol_epi32::<16>(pairs))))
    }
    #[inline(always)]
    fn word(first: Self, second: Self) -> Self {
        F32x16(lanes!({
            let second = _mm512_srli_epi32::<16>(_mm512_castps_si512(second.0));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(first.0), second))
        }))
    }
    #[inline(always)]
    fn halves(self) -> [Self; 2] {
        lanes!({
            let words = _mm512_castps_si512(self.0);
            let first = _mm512_and_si512(words, _mm512_set1_epi32(!0xffff));
            let second = _mm512_slli_epi32::<16>(words);
            [F32x16(_mm512_castsi512_ps(first)), F32x16(_mm512_castsi512_ps(second))]
        })
    }
    #[inline(always)]
    fn dot(self, a: Self, b: Self) -> Self {
        if DOTS {
            // The instruction adds the lower halves last. Its second factor may be broadcast from memory.
            return F32x16(lanes!({
                let a = std::mem::transmute::<__m512, __m512bh>(a.0);
                let b = std::mem::transmute::<__m512, __m512bh>(b.0);
                _mm512_dpbf16_ps(self.0, b, a)
            }));
        }
        let ([a0, a1], [b0, b1]) = (a.halves(), b.halves());
        a1.fma(b1, a0.fma(b0, self))
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
        F32x16(lanes!(_mm512_add_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        F32x16(lanes!(_mm512_sub_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        F32x16(lanes!(_mm512_mul_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        F32x16(lanes!(_mm512_div_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        F32x16(lanes!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        F32x16(lanes!(_mm512_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // MAXPS returns its second operand unless the first is greater.
        F32x16(lanes!(_mm512_max_ps(b.0, self.0)))
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        F32x16(lanes!(_mm512_min_ps(b.0, self.0)))
    }
    #[inline(always)]
    fn mul_pow2(self, shifted: Self) -> Self {
        F32x16(lanes!({
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted.0));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), exponent))
        }))
    }
    #[inline(always)]
    fn split_exponent(self) -> (Self, Self) {
        lanes!({
            let bits = _mm512_castps_si512(self.0);
            let exponent = _mm512_sub_epi32(_mm512_srli_epi32::<23>(bits), _mm512_set1_epi32(127));
            let significand =
                _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi32(0x007f_ffff)), _mm512_set1_epi32(0x3f80_0000));
            (F32x16(_mm512_cvtepi32_ps(exponent)), F32x16(_mm512_castsi512_ps(significand)))
        })
    }
    #[inline(always)]
    fn lt(self, b: Self) -> Self::Mask {
        lanes!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn first(n: usize) -> Self::Mask {
        mask(n.min(LANES))
    }
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        F32x16(lanes!(_mm512_mask_blend_ps(mask, b.0, a.0)))
    }
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // Transposes 4 × 4 blocks inside the 128-bit quarters, then moves the quarters among the registers.
        lanes!({
            let mut q = [_mm512_setzero_ps(); LANES];
            for i in 0..4 {
                let (a, b, c, d) = (rows[4 * i].0, rows[4 * i + 1].0, rows[4 * i + 2].0, rows[4 * i + 3].0);
                let (ab_lo, ab_hi) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_lo, cd_hi) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                q[4 * i] = _mm512_shuffle_ps::<0x44>(ab_lo, cd_lo);
                q[4 * i + 1] = _mm512_shuffle_ps::<0xee>(ab_lo, cd_lo);
                q[4 * i + 2] = _mm512_shuffle_ps::<0x44>(ab_hi, cd_hi);
                q[4 * i + 3] = _mm512_shuffle_ps::<0xee>(ab_hi, cd_hi);
            }
            let mut out = [F32x16(_mm512_setzero_ps()); LANES];
            for j in 0..4 {
                // Quarter p of q[4 i + j] holds rows 4 i .. 4 i + 4 of column 4 p + j.
                let even_lo = _mm512_shuffle_f32x4::<0x88>(q[j], q[4 + j]);
                let odd_lo = _mm512_shuffle_f32x4::<0xdd>(q[j], q[4 + j]);
                let even_hi = _mm512_shuffle_f32x4::<0x88>(q[8 + j], q[12 + j]);
                let odd_hi = _mm512_shuffle_f32x4::<0xdd>(q[8 + j], q[12 + j]);
                out[j] = F32x16(_mm512_shuffle_f32x4::<0x88>(even_lo, even_hi));
                out[8 + j] = F32x16(_mm512_shuffle_f32x4::<0xdd>(even_lo, even_hi));
                out[4 + j] = F32x16(_mm512_shuffle_f32x4::<0x88>(odd_lo, odd_hi));
                out[12 + j] = F32x16(_mm512_shuffle_f32x4::<0xdd>(odd_lo, odd_hi));
            }
            out
        })
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
