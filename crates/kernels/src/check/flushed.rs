//! Numbers for tests of bf16 matmuls: f32 numbers that flush denormals, and matrices in which flushing matters.

use super::Float;
use crate::rng::Stream;
use crate::simd::tiles;
use half::bf16;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// An f32 whose additions, multiplications and multiply-adds treat denormal inputs and results as zeros. A reference
/// matmul of this type has the same arithmetic as bf16 matmuls in chains of multiply-adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Flushed(pub f32);

impl Flushed {
    /// Wraps every number of `x`.
    pub fn all(x: &[f32]) -> Vec<Flushed> {
        x.iter().map(|&x| Flushed(x)).collect()
    }
    /// The plain numbers of `x`.
    pub fn values(x: &[Flushed]) -> Vec<f32> {
        x.iter().map(|x| x.0).collect()
    }
}

impl Float for Flushed {
    fn of(x: f64) -> Flushed {
        Flushed(x as f32)
    }
    fn f64(self) -> f64 {
        self.0.into()
    }
    fn mul_add(self, b: Flushed, c: Flushed) -> Flushed {
        Flushed(tiles::fma(self.0, b.0, c.0))
    }
    fn exp(self) -> Flushed {
        unimplemented!("only matmul arithmetic flushes denormals")
    }
    fn ln(self) -> Flushed {
        unimplemented!("only matmul arithmetic flushes denormals")
    }
    fn sqrt(self) -> Flushed {
        unimplemented!("only matmul arithmetic flushes denormals")
    }
}
impl Add for Flushed {
    type Output = Flushed;
    fn add(self, b: Flushed) -> Flushed {
        Flushed(tiles::add(self.0, b.0))
    }
}
impl Sub for Flushed {
    type Output = Flushed;
    fn sub(self, b: Flushed) -> Flushed {
        self + -b
    }
}
impl Mul for Flushed {
    type Output = Flushed;
    fn mul(self, b: Flushed) -> Flushed {
        Flushed(tiles::fma(self.0, b.0, -0.0))
    }
}
impl Div for Flushed {
    type Output = Flushed;
    fn div(self, _: Flushed) -> Flushed {
        unimplemented!("matmuls do not divide")
    }
}
impl Neg for Flushed {
    type Output = Flushed;
    fn neg(self) -> Flushed {
        Flushed(-self.0)
    }
}
impl AddAssign for Flushed {
    fn add_assign(&mut self, b: Flushed) {
        *self = *self + b;
    }
}
impl Sum for Flushed {
    fn sum<I: Iterator<Item = Flushed>>(all: I) -> Flushed {
        all.fold(Flushed::default(), |sum, x| sum + x)
    }
}

/// A test matrix `[rows, columns]` of numbers that bf16 can represent, most of whose products are near the largest
/// denormal. There are four kinds of rows: ordinary numbers, numbers whose products with each other are about 2⁻¹²⁶, a
/// mixture of these with denormals, and −0.
pub fn planted(seed: u64, rows: usize, columns: usize) -> Vec<f32> {
    let mut stream = Stream::new(0x6c6f_636b, seed);
    let mut numbers = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        for _ in 0..columns {
            let x = bf16::from_f64(stream.next_normal()).to_f32();
            let kind = if row % 4 == 2 { 2 + stream.below(6) } else { (row % 4) as u64 };
            numbers.push(match kind {
                1 | 4 => x * 2.0f32.powi(-63),
                3 => -0.0,
                5 => f32::MIN_POSITIVE.copysign(x),
                6 => bf16::from_bits((stream.below(0x80) | u64::from(x.is_sign_negative()) << 15) as u16).to_f32(),
                7 => x * 2.0f32.powi(-100),
                _ => x,
            });
        }
    }
    numbers
}

mod tests {
    use super::*;
    use crate::check::normal;

    #[test]
    fn flushed_numbers_treat_denormals_as_zeros() {
        let (tiny, half) = (Flushed(f32::MIN_POSITIVE), Flushed(f32::MIN_POSITIVE / 2.0));
        assert_eq!((tiny + tiny, half + tiny, tiny - half), (Flushed(2.0 * tiny.0), tiny, tiny));
        assert_eq!((tiny * Flushed(0.5), tiny * Flushed(2.0), -tiny), (Flushed(0.0), tiny + tiny, Flushed(-tiny.0)));
        assert_eq!(Flushed(3.0).mul_add(Flushed(5.0), Flushed(7.0)), Flushed(22.0));
        assert_eq!(Flushed(10.0) - Flushed(4.0), Flushed(6.0));
        let mut sum = Flushed(1.0);
        sum += Flushed(2.5);
        assert_eq!((sum, [sum, sum].into_iter().sum::<Flushed>()), (Flushed(3.5), Flushed(7.0)));
        assert_eq!((Flushed::of(0.1), Flushed(0.5).f64()), (Flushed(0.1), 0.5));
        assert_eq!(Flushed::values(&Flushed::all(&[1.0, -2.0])), [1.0, -2.0]);
    }

    #[test]
    fn planted_rows_have_four_kinds_of_numbers() {
        let numbers = planted(3, 8, 50);
        assert_eq!((numbers.len(), &numbers), (400, &planted(3, 8, 50)));
        assert_ne!(numbers, planted(4, 8, 50));
        assert!(
            numbers.iter().all(|x| bf16::from_f32(*x).to_f32().to_bits() == x.to_bits()),
            "bf16 can represent them"
        );
        let row = |row: usize| &numbers[row * 50..][..50];
        let near = |x: f32, exponent: i32| (1e-4..10.0).contains(&(x.abs() / 2.0f32.powi(exponent)));
        for first in [0, 4] {
            assert!(row(first).iter().all(|&x| near(x, 0)));
            assert!(row(first + 1).iter().all(|&x| near(x, -63)));
            assert!(row(first + 2).iter().any(|x| x.is_subnormal()) && row(first + 2).iter().any(|&x| near(x, -100)));
            assert!(row(first + 3).iter().all(|x| x.to_bits() == (-0.0f32).to_bits()));
        }
        let normal: Vec<f64> = normal(5, 20_000);
        let mean = normal.iter().sum::<f64>() / 20_000.0;
        let variance = normal.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
