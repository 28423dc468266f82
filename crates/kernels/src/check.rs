//! The floating-point trait that losses and reference implementations are generic over, and tools for tests.

#![allow(clippy::disallowed_methods)]

use crate::rng::Stream;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

#[cfg(test)]
pub(crate) mod flushed;

/// The number type of a reference implementation or of a loss: f32 or f64.
pub trait Float:
    Copy
    + PartialOrd
    + Default
    + std::fmt::Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + Sum
{
    /// The number nearest to `x`.
    fn of(x: f64) -> Self;
    /// The number as f64.
    fn f64(self) -> f64;
    /// The fused multiply-add `self · b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// e^`self`.
    fn exp(self) -> Self;
    /// The natural logarithm of `self`.
    fn ln(self) -> Self;
    /// The square root of `self`.
    fn sqrt(self) -> Self;
}

macro_rules! float {
    ($t:ty) => {
        impl Float for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn f64(self) -> f64 {
                self as f64
            }
            fn mul_add(self, b: Self, c: Self) -> Self {
                <$t>::mul_add(self, b, c)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
        }
    };
}
float!(f32);
float!(f64);

/// `n` standard normal random numbers from the seed `seed`.
pub fn normal<T: Float>(seed: u64, n: usize) -> Vec<T> {
    let mut stream = Stream::new(0x6c6f_636b, seed);
    (0..n).map(|_| T::of(stream.next_normal())).collect()
}

/// The relative error ‖a − b‖ / ‖b‖, or ‖a‖ if b is 0; NaN if an element is NaN.
pub fn relative_error<A: Float, B: Float>(a: &[A], b: &[B]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: f64| x.sqrt();
    let difference = norm(a.iter().zip(b).map(|(a, b)| (a.f64() - b.f64()).powi(2)).sum());
    let size = norm(b.iter().map(|b| b.f64().powi(2)).sum());
    if size == 0.0 { difference } else { difference / size }
}

/// Checks a gradient: compares `g`, the claimed gradient of `f` at `x`, with a fourth-order central difference. Returns
/// the largest |⟨g, v⟩ − (slope of `f` along v)| / (‖g‖ ‖v‖) over eight random directions v.
pub fn directional_error(x: &[f64], g: &[f64], f: impl Fn(&[f64]) -> f64) -> f64 {
    assert_eq!(x.len(), g.len());
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut worst = 0.0f64;
    for direction in 0..8 {
        let v: Vec<f64> = normal(1000 + direction, x.len());
        let h = 1e-3 / (1.0 + norm(&v));
        let at = |s: f64| f(&x.iter().zip(&v).map(|(x, v)| x + s * h * v).collect::<Vec<_>>());
        let slope = (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * h);
        let claimed: f64 = g.iter().zip(&v).map(|(g, v)| g * v).sum();
        let error = (claimed - slope).abs() / (norm(g) * norm(&v)).max(f64::MIN_POSITIVE);
        worst = if error.is_nan() { f64::NAN } else { worst.max(error) };
        if worst.is_nan() {
            return worst;
        }
    }
    worst
}

/// Runs `f` on a thread that flushes denormals to zero. Other libraries may leave the caller's thread in this state,
/// which must not change the results of kernels.
pub fn with_flush_to_zero<T>(f: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    let _restored = {
        const FLUSHING: u32 = 0x1f80 | 0x8040;
        let mut callers = 0u32;
        // SAFETY: the SSE control word belongs to the thread, and is restored below. The compiler assumes the default
        // word, but results that the compiler folds are not tested here.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &mut callers, options(nostack));
            std::arch::asm!("ldmxcsr [{}]", in(reg) &FLUSHING, options(nostack));
        }
        struct Restore(u32);
        impl Drop for Restore {
            fn drop(&mut self) {
                // SAFETY: this restores the word saved above on the same thread.
                unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &self.0, options(nostack)) }
            }
        }
        Restore(callers)
    };
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_check_detects_a_wrong_gradient() {
        let x: Vec<f64> = normal(1, 7);
        let f = |x: &[f64]| x.iter().map(|x| x.exp() * x).sum::<f64>();
        let g: Vec<f64> = x.iter().map(|x| x.exp() * (x + 1.0)).collect();
        assert!(directional_error(&x, &g, f) < 1e-9);
        let mut spoiled = g.clone();
        spoiled[3] *= 1.01;
        assert!(directional_error(&x, &spoiled, f) > 1e-5);
        assert!(directional_error(&x, &[f64::NAN; 7], f).is_nan());
    }

    #[test]
    fn relative_error_is_relative_to_the_expected_values() {
        assert_eq!(relative_error(&[3.0, 4.0], &[0.0, 0.0]), 5.0);
        assert_eq!(relative_error(&[6.0, 12.0], &[3.0, 8.0f32]), 5.0 / 73f64.sqrt());
        assert_eq!(relative_error::<f64, f64>(&[], &[]), 0.0);
        assert!(relative_error(&[1.0, f64::NAN], &[1.0, 1.0]).is_nan());
        assert!(std::panic::catch_unwind(|| relative_error(&[1.0], &[1.0, 2.0])).is_err());
        assert!(std::panic::catch_unwind(|| directional_error(&[1.0], &[1.0, 2.0], |_| 0.0)).is_err());
        // A gradient of 0 is correct for a constant function.
        assert_eq!(directional_error(&[1.0, 2.0], &[0.0, 0.0], |_| 3.0), 0.0);
    }
}
