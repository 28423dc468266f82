//! VDPBF16PS, the dot product of pairs of bf16 (AVX-512 BF16): whether the processor has it, whether it gives the bits
//! of a chain of multiply-adds, and whether it is worth using.
//!
//! Measurements on Zen 4 show that the instruction adds two terms to a sum, the second of a pair first, rounds each
//! step to nearest even, and treats denormals as zeros. No manual documents this, so each process compares the
//! instruction with this formula.

use super::{Kernel, LANES, Simd, tiles};
#[cfg(target_arch = "x86_64")]
use super::{avx512, control};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// The reason that [`refusal`] gives for a processor whose instruction computes a different result.
const OTHER_BITS: &str =
    "the processor has AVX-512 BF16, but its dot products differ from two multiply-adds that flush denormals";

/// The reason why this process may not use AVX-512 BF16, on a processor with AVX-512; `None` if it may. Determined
/// once.
#[cfg(target_arch = "x86_64")]
pub fn refusal() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&'static str>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if !is_x86_feature_detected!("avx512bf16") {
            return Some("this processor has no dot products of pairs of bf16 (avx512_bf16)");
        }
        // SAFETY: the caller has checked that the processor has AVX-512, and the line above has checked AVX-512 BF16.
        let agrees = self_test(|sums| unsafe { control::flushing(avx512::run_dots::<Sums<'_>>, Sums(sums)) });
        (!agrees).then_some(OTHER_BITS)
    })
}

/// Speed of the instruction as a multiple of FMA's multiply-adds per second, measured once in about 0.1 ms; `None` if
/// it may not be used. Call this only on processors with AVX-512. (The result comes from the fastest of several passes,
/// because a busy machine only makes passes slower.)
#[cfg(target_arch = "x86_64")]
pub fn gain() -> Option<f64> {
    static FOUND: OnceLock<Option<f64>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if refusal().is_some() {
            return None;
        }
        let seconds = |pass: &dyn Fn()| {
            let start = Instant::now();
            pass();
            start.elapsed().as_secs_f64()
        };
        let (mut best_fma, mut best_dots) = (f64::INFINITY, f64::INFINITY);
        let rounds = 1 << 10;
        for _ in 0..12 {
            // SAFETY: the caller has checked that the processor has AVX-512, and `refusal` has checked AVX-512 BF16.
            let (fma, dots) = unsafe {
                (
                    seconds(&|| avx512::run(Spin::<false> { rounds })),
                    seconds(&|| control::flushing(avx512::run_dots::<Spin<true>>, Spin { rounds })),
                )
            };
            (best_fma, best_dots) = (best_fma.min(fma), best_dots.min(dots));
        }
        Some(2.0 * best_fma / best_dots.max(1e-9))
    })
}

/// Number of independent chains in [`Spin`]: enough to hide the latency, few enough to stay in registers.
const CHAINS: usize = 20;

/// A kernel that measures a peak: independent chains of dot products of pairs (with `DOTS`) or of multiply-adds, which
/// touch no memory.
pub struct Spin<const DOTS: bool> {
    /// Number of multiply-adds or dot products in each chain.
    pub rounds: usize,
}

impl<const DOTS: bool> Spin<DOTS> {
    /// Floating-point operations of one run of the kernel, a multiply-add counted as two.
    pub fn flops(&self) -> f64 {
        let flops_per_step = if DOTS { 4 } else { 2 };
        (self.rounds * CHAINS * LANES * flops_per_step) as f64
    }
}

impl<const DOTS: bool> Kernel for Spin<DOTS> {
    type Output = ();
    #[inline(always)]
    fn run<V: Simd>(self) {
        let mut sums = [V::splat(black_box(1.0)); CHAINS];
        // The sums do not change, so no denormal or infinity slows them.
        let (a, b) = (V::splat(black_box(1.0)), V::splat(black_box(-0.0)));
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = if DOTS { sum.dot(a, b) } else { a.fma(b, *sum) };
            }
        }
        let all = sums.into_iter().fold(V::splat(0.0), |all, sum| all.add(sum));
        black_box(all.to_array());
    }
}

/// Test data: the sums to start from, and two words of pairs of bf16 that are multiplied and added to them.
struct Sum {
    start: [f32; LANES],
    a: [f32; LANES],
    b: [f32; LANES],
}

struct Sums<'a>(&'a [Sum]);

impl Kernel for Sums<'_> {
    type Output = Vec<[f32; LANES]>;
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let mut out = vec![[0.0; LANES]; self.0.len()];
        for (sum, out) in self.0.iter().zip(&mut out) {
            *out = V::load(&sum.start).dot(V::load(&sum.a), V::load(&sum.b)).to_array();
        }
        out
    }
}

/// Whether `dot` gives the bits of the formula for numbers of every size, with many results near the largest denormal.
fn self_test(dot: impl Fn(&[Sum]) -> Vec<[f32; LANES]>) -> bool {
    let mut state = 1u32;
    let mut next = |n: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % n
    };
    let sums: Vec<Sum> = (0..768)
        .map(|i| {
            // Ranges of exponents: all numbers; factors whose products are near half of the smallest denormal or near
            // 2^-126, and sums that start there; ordinary numbers.
            let (least, most) = [(0, 255), (50, 55), (110, 140), (0, 140), (0, 255), (52, 76)][i % 6];
            let half = |next: &mut dyn FnMut(u32) -> u32| {
                let bits = if i % 6 == 1 { next(4) << 5 } else { next(128) };
                f32::from_bits((next(2) << 15 | (least + next(most - least)) << 7 | bits) << 16)
            };
            let mut word = || {
                let (first, second) = (half(&mut next), half(&mut next));
                f32::from_bits(first.to_bits() | second.to_bits() >> 16)
            };
            let (a, b) = (std::array::from_fn(|_| word()), std::array::from_fn(|_| word()));
            let start = std::array::from_fn(|_| match i % 6 {
                1 | 5 => {
                    f32::from_bits(next(2) << 31 | f32::MIN_POSITIVE.to_bits().wrapping_add(next(5)).wrapping_sub(2))
                }
                _ => f32::from_bits(next(2) << 31 | (least + next(most - least)) << 23 | next(1 << 23)),
            });
            Sum { start, a, b }
        })
        .collect();
    let halves = |x: f32| (f32::from_bits(x.to_bits() & !0xffff), f32::from_bits(x.to_bits() << 16));
    dot(&sums).iter().zip(&sums).all(|(got, sum)| {
        (0..LANES).all(|lane| {
            let ((a0, a1), (b0, b1)) = (halves(sum.a[lane]), halves(sum.b[lane]));
            let expected = tiles::fma(a1, b1, tiles::fma(a0, b0, sum.start[lane]));
            got[lane].to_bits() == expected.to_bits() || got[lane].is_nan() && expected.is_nan()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// Two multiply-adds that flush denormals pass the self-test on every instruction set. Three wrong variants fail
    /// it: one keeps denormals, one adds the pairs in the other order, and one keeps results that are normal only
    /// because they were rounded to a denormal's precision.
    #[test]
    fn the_self_test_detects_wrong_results() {
        for isa in Isa::present() {
            assert!(self_test(|sums| isa.run_flushing(Sums(sums))), "{isa:?}");
            assert!(!self_test(|sums| isa.run(Sums(sums))), "{isa:?}");
        }
        let of = |dot: fn([f32; 2], [f32; 2], f32) -> f32| {
            self_test(|sums| {
                let halves = |x: f32| [x.to_bits() & !0xffff, x.to_bits() << 16].map(f32::from_bits);
                let lane = |sum: &Sum, l: usize| dot(halves(sum.a[l]), halves(sum.b[l]), sum.start[l]);
                sums.iter().map(|sum| std::array::from_fn(|l| lane(sum, l))).collect()
            })
        };
        assert!(of(|a, b, c| tiles::fma(a[1], b[1], tiles::fma(a[0], b[0], c))));
        assert!(!of(|a, b, c| tiles::fma(a[0], b[0], tiles::fma(a[1], b[1], c))));
        assert!(!of(|a, b, c| {
            let flushed = |x: f32| if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x };
            let fma = |a: f32, b: f32, c: f32| flushed(flushed(a).mul_add(flushed(b), flushed(c)));
            fma(a[1], b[1], fma(a[0], b[0], c))
        }));
    }

    /// The probe must find AVX-512 BF16 if and only if Linux reports it. The gain is measured only if the instruction
    /// may be used.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn the_avx512_bf16_probe_agrees_with_linux() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else { return };
        let Some(flags) = text.lines().find(|line| line.starts_with("flags")) else { return };
        let has = |flag: &str| flags.split_whitespace().any(|own| own == flag);
        let refusal = Isa::dots_refusal();
        if !has("avx512f") {
            assert_eq!(refusal, Some("this processor has no AVX-512"));
        } else if !has("avx512_bf16") {
            assert_eq!(refusal, Some("this processor has no dot products of pairs of bf16 (avx512_bf16)"));
        } else {
            assert!(refusal.is_none_or(|why| why == OTHER_BITS));
        }
        assert_eq!(Isa::dots_gain().is_some(), refusal.is_none());
        assert!(Isa::dots_gain().is_none_or(|gain| gain > 0.0 && gain.is_finite()));
    }
}
