//! The 16-lane vector in plain Rust, for every architecture.

use super::{Kernel, LANES, Simd, tiles};

/// 16 lanes in an array. `mul_add` is fused on every target (in software on CPUs without the instruction). With
/// `FLUSHED`, additions, multiplications and multiply-adds treat denormals as zeros, as x86 does with flush-to-zero and
/// denormals-are-zero.
#[derive(Clone, Copy)]
pub(crate) struct F32x16<const FLUSHED: bool = false>([f32; LANES]);

/// Runs `kernel` with the vector in plain Rust.
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<F32x16>()
}

/// Runs `kernel`, a bf16 matmul, with denormals treated as zeros.
pub fn run_flushing<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<F32x16<true>>()
}

#[inline(always)]
fn zip<const FLUSHED: bool>(a: F32x16<FLUSHED>, b: F32x16<FLUSHED>, f: impl Fn(f32, f32) -> f32) -> F32x16<FLUSHED> {
    F32x16(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

impl<const FLUSHED: bool> Simd for F32x16<FLUSHED> {
    type Mask = [bool; LANES];
    const GEMM_ROWS: usize = 4;
    const GEMM_VECTORS: usize = 1;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        F32x16([x; LANES])
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        F32x16(from[..LANES].try_into().expect("16 elements"))
    }
    #[inline(always)]
    fn load_partial(from: &[f32], n: usize) -> Self {
        let mut lanes = [0.0; LANES];
        lanes[..n].copy_from_slice(&from[..n]);
        F32x16(lanes)
    }
    #[inline(always)]
    unsafe fn load_ptr(from: *const f32) -> Self {
        // SAFETY: the caller guarantees 16 readable elements. The alignment of f32 suffices for the array.
        F32x16(unsafe { from.cast::<[f32; LANES]>().read() })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[..LANES].copy_from_slice(&self.0);
    }
    #[inline(always)]
    fn store_partial(self, to: &mut [f32], n: usize) {
        to[..n].copy_from_slice(&self.0[..n]);
    }
    #[inline(always)]
    unsafe fn store_ptr(self, to: *mut f32) {
        // SAFETY: the caller guarantees 16 writable elements.
        unsafe { to.cast::<[f32; LANES]>().write(self.0) }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        zip(self, b, |a, b| if FLUSHED { tiles::add(a, b) } else { a + b })
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        zip(self, b, |a, b| if FLUSHED { tiles::add(a, -b) } else { a - b })
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        zip(self, b, |a, b| if FLUSHED { tiles::fma(a, b, -0.0) } else { a * b })
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        zip(self, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        F32x16(std::array::from_fn(|i| {
            let (a, b, c) = (self.0[i], b.0[i], c.0[i]);
            if FLUSHED { tiles::fma(a, b, c) } else { a.mul_add(b, c) }
        }))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        F32x16(self.0.map(f32::sqrt))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        zip(self, b, |a, b| if b > a { b } else { a })
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        zip(self, b, |a, b| if b < a { b } else { a })
    }
    #[inline(always)]
    fn mul_pow2(self, shifted: Self) -> Self {
        zip(self, shifted, |a, n| f32::from_bits(a.to_bits().wrapping_add(n.to_bits() << 23)))
    }
    #[inline(always)]
    fn split_exponent(self) -> (Self, Self) {
        let exponent = self.0.map(|a| ((a.to_bits() >> 23) as i32 - 127) as f32);
        let significand = self.0.map(|a| f32::from_bits((a.to_bits() & 0x007f_ffff) | 0x3f80_0000));
        (F32x16(exponent), F32x16(significand))
    }
    #[inline(always)]
    fn lt(self, b: Self) -> Self::Mask {
        std::array::from_fn(|i| self.0[i] < b.0[i])
    }
    #[inline(always)]
    fn first(n: usize) -> Self::Mask {
        std::array::from_fn(|i| i < n)
    }
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        F32x16(std::array::from_fn(|i| if mask[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        self.0
    }
}
