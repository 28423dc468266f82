//! The formula of tensor cores, by family. It gives the bits of `mma.sync` with f16 or bf16 factors and f32 sums.
//!
//! NVIDIA does not document the rounding. The formula comes from published measurements: MMA-Sim (Xie et al., arXiv
//! 2511.10909; its code gives the exponent of zeros). MMA-Sim agrees with "Numerical behavior of NVIDIA tensor cores"
//! (Fasi et al., PeerJ CS 2021) on V100, T4 and A100, and with "Accurate Models of NVIDIA Tensor Cores" (Khattak and
//! Mikaitis, arXiv 2512.07004) on the widths of V100 to B200. One step adds `depth` products to the sum c at once:
//!
//! ```text
//! exponent of a factor: that of its leading bit, at least -126 (f32, bf16) or -14 (f16)
//! exponent of a term:   the sum of its factors' (c: its own); of a term that is 0: `zero`
//! e = the largest exponent of the step's terms;  u = 2^(e - fraction)
//! c = sum of u · trunc(term / u), which is exact, cut off (not rounded) to a number of f32
//! ```
//!
//! So the order within a step does not matter. Denormal inputs and results are kept. Infinities and NaN follow IEEE
//! 754, with a single NaN, 0x7fffffff. A sum of 2^128 or more is infinite. A sum of 0 is +0, but a sum that is
//! truncated to 0 keeps its sign. A dot product is one chain of steps over ascending k, padded with zeros to a multiple
//! of [`DEPTH`].
//!
//! [`super::self_test`] compares a device with this formula before its first matmul; `mma.cuh` implements the same
//! formula in C++, for the emulator.

/// Number of terms of a sum that one `mma.sync` adds.
pub(crate) const DEPTH: usize = 16;
/// The bits of the NaN that tensor cores return.
const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// The type of the factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    Bf16,
    #[cfg_attr(not(test), allow(dead_code, reason = "for V100 and T4, which have no kernels yet"))]
    F16,
}

/// A binary floating-point format.
#[derive(Clone, Copy)]
struct Format {
    /// Bits of the significand after the binary point.
    fraction: u32,
    /// The exponent of the smallest normal number.
    least: i32,
}

const F32: Format = Format { fraction: 23, least: -126 };

impl Factor {
    fn format(self) -> Format {
        match self {
            Factor::Bf16 => Format { fraction: 7, least: -126 },
            Factor::F16 => Format { fraction: 10, least: -14 },
        }
    }
}

/// Tensor cores that give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// The family's name in a training run's record.
    pub name: &'static str,
    /// Bits after the binary point of an aligned term.
    pub fraction: u32,
    /// Number of products that one step adds.
    pub depth: usize,
    /// The exponent assigned to a term of 0.
    pub zero: i32,
}

/// Tensor cores of compute capability 7.0, which have f16 but no bf16.
pub(crate) const VOLTA: Family = Family { name: "volta", fraction: 23, depth: 4, zero: -131 };
/// Tensor cores of compute capability 7.5, which have f16 but no bf16.
pub(crate) const TURING: Family = Family { name: "turing", fraction: 24, depth: 8, zero: -132 };
/// Tensor cores of compute capability 8.0 to 8.9 (Ada included). An instruction with 16 terms takes two steps.
pub(crate) const AMPERE: Family = Family { name: "ampere", fraction: 24, depth: 8, zero: -132 };
/// Tensor cores of compute capability 9.0 and above (Blackwell included).
pub(crate) const HOPPER: Family = Family { name: "hopper", fraction: 25, depth: 16, zero: -133 };

/// A floating-point number as `significand · 2^(exponent - fraction)`.
#[derive(Clone, Copy)]
struct Parts {
    negative: bool,
    significand: u64,
    exponent: i32,
}

impl Parts {
    /// Splits a finite number, which `format` must be able to represent.
    fn of(x: f32, format: Format) -> Parts {
        let bits = x.to_bits();
        let (field, low) = ((bits >> 23 & 0xff) as i32, u64::from(bits & 0x7f_ffff));
        let (significand, exponent) = if field == 0 { (low, -126) } else { (low | 1 << 23, field - 127) };
        if significand == 0 {
            return Parts { negative: x.is_sign_negative(), significand, exponent: format.least };
        }
        let below = (format.least - exponent).max(0);
        let shift = below as u32 + F32.fraction - format.fraction;
        debug_assert!(significand.trailing_zeros() >= shift, "{x:e} has more bits than its format");
        Parts { negative: x.is_sign_negative(), significand: significand >> shift, exponent: exponent + below }
    }
}

impl Family {
    /// The family of devices with this compute capability; `None` if they have no tensor cores.
    pub(crate) fn of(major: i32, minor: i32) -> Option<Family> {
        match (major, minor) {
            (..=6, _) => None,
            (7, ..=4) => Some(VOLTA),
            (7, _) => Some(TURING),
            (8, _) => Some(AMPERE),
            _ => Some(HOPPER),
        }
    }

    /// Whether the tensor cores multiply bf16.
    pub(crate) fn has_bf16(self) -> bool {
        self == AMPERE || self == HOPPER
    }

    /// The family with this name.
    pub(crate) fn named(name: &str) -> Option<Family> {
        [VOLTA, TURING, AMPERE, HOPPER].into_iter().find(|family| family.name == name)
    }

    /// The result of one step: `c` plus at most `depth` products.
    pub(crate) fn step(self, factor: Factor, c: f32, terms: &[(f32, f32)]) -> f32 {
        assert!(terms.len() <= self.depth, "a step must have at most `depth` terms");
        if let Some(sum) = special(c, terms) {
            return sum;
        }
        let format = factor.format();
        let aligned = |parts: Parts, fraction: u32| match parts.significand {
            0 => (parts.negative, 0, self.zero),
            significand => (parts.negative, significand << (self.fraction - fraction), parts.exponent),
        };
        let products = terms.iter().map(|&(a, b)| {
            let (a, b) = (Parts::of(a, format), Parts::of(b, format));
            let (significand, exponent) = (a.significand * b.significand, a.exponent + b.exponent);
            aligned(Parts { negative: a.negative != b.negative, significand, exponent }, 2 * format.fraction)
        });
        let all = || products.clone().chain([aligned(Parts::of(c, F32), F32.fraction)]);
        let largest = all().map(|(_, _, exponent)| exponent).max().expect("c is always a term");
        let sum: i64 = all()
            .map(|(negative, significand, exponent)| {
                let units = (significand >> (largest - exponent).min(63)) as i64;
                if negative { -units } else { units }
            })
            .sum();
        cut_off(sum, largest - self.fraction as i32)
    }

    /// `c` plus any number of products, [`DEPTH`] per instruction.
    pub(crate) fn chain(self, factor: Factor, c: f32, terms: impl IntoIterator<Item = (f32, f32)>) -> f32 {
        let mut terms: Vec<(f32, f32)> = terms.into_iter().collect();
        terms.resize(terms.len().next_multiple_of(DEPTH), (0.0, 0.0));
        terms.chunks(self.depth).fold(c, |c, terms| self.step(factor, c, terms))
    }
}

/// The sum if a term is infinite or NaN; `None` otherwise.
fn special(c: f32, terms: &[(f32, f32)]) -> Option<f32> {
    if c.is_finite() && terms.iter().all(|(a, b)| a.is_finite() && b.is_finite()) {
        return None;
    }
    // A product of two finite numbers must not become infinite, so the sum is f64.
    let sum: f64 = terms.iter().fold(c.into(), |sum, &(a, b)| sum + f64::from(a) * f64::from(b));
    Some(if sum.is_nan() { NAN } else { sum as f32 })
}

/// `units · 2^scale` as f32, rounded towards 0.
fn cut_off(units: i64, scale: i32) -> f32 {
    let magnitude = units.unsigned_abs();
    if magnitude == 0 {
        return 0.0;
    }
    let exponent = 63 - magnitude.leading_zeros() as i32 + scale;
    let least = exponent.max(F32.least);
    let drop = least - F32.fraction as i32 - scale;
    let significand = if drop < 0 { magnitude << -drop } else { magnitude >> drop.min(63) } as u32;
    let bits = match exponent {
        128.. => f32::INFINITY.to_bits(),
        // The leading bit of a normal number's significand adds one to the exponent field.
        _ => (((least - F32.least) as u32) << F32.fraction) + significand,
    };
    f32::from_bits(bits | if units < 0 { 1 << 31 } else { 0 })
}
