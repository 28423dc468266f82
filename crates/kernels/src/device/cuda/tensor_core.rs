//! The formula of tensor cores: what `mma.sync` computes of f16 or bf16 with f32 sums, family by family.
//!
//! NVIDIA documents no rounding. The formula is what was published of measurements: MMA-Sim (Xie et al., arXiv
//! 2511.10909, whose program has the exponent of zeros), which agrees with "Numerical behavior of NVIDIA tensor cores"
//! (Fasi et al., PeerJ CS 2021) on V100, T4 and A100, and with "Accurate Models of NVIDIA Tensor Cores" (Khattak and
//! Mikaitis, arXiv 2512.07004) on the widths of V100 to B200. A step takes c and the products of `depth` pairs at once:
//!
//! ```text
//! exponent of a factor: that of its leading bit, at least -126 (f32, bf16) or -14 (f16)
//! exponent of a term:   the sum of its factors' (c: its own); of a term that is 0: `zero`
//! e = the largest exponent of the step's terms;  u = 2^(e - fraction)
//! c = sum of u · trunc(term / u), which is exact, cut off (not rounded) to a number of f32
//! ```
//!
//! so the order within a step does not matter. Denormals are taken and left. What is infinite or NaN follows
//! IEEE 754, with one NaN, 0x7fffffff; from 2^128 on a sum is infinite; a sum of 0 is +0, and what is cut off to 0
//! keeps its sign. A dot product is one chain of steps over ascending k, filled up with zeros to a multiple of
//! [`DEPTH`].
//!
//! A device is compared with it before it multiplies ([`super::self_test`]); `mma.cuh` has the emulator's, in C++.

/// Terms of a sum that one `mma.sync` of the kernels takes.
pub(crate) const DEPTH: usize = 16;
/// The NaN that tensor cores write.
const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// Numbers that are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    Bf16,
    #[cfg_attr(not(test), allow(dead_code, reason = "for V100 and T4, whose kernels there are none of yet"))]
    F16,
}

/// A binary floating-point format.
#[derive(Clone, Copy)]
struct Format {
    /// Bits of the significand after its point.
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

/// Tensor cores that compute alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// As a run's record names it.
    pub name: &'static str,
    /// Bits after the point of an aligned term: F.
    pub fraction: u32,
    /// Products that a step takes.
    pub depth: usize,
    /// The exponent of a term that is 0.
    pub zero: i32,
}

/// Compute capability 7.0; f16 alone.
pub(crate) const VOLTA: Family = Family { name: "volta", fraction: 23, depth: 4, zero: -131 };
/// 7.5; f16 alone.
pub(crate) const TURING: Family = Family { name: "turing", fraction: 24, depth: 8, zero: -132 };
/// 8.0 to 8.9, Ada among them: an instruction of 16 terms is two steps.
pub(crate) const AMPERE: Family = Family { name: "ampere", fraction: 24, depth: 8, zero: -132 };
/// From 9.0 on, Blackwell among them.
pub(crate) const HOPPER: Family = Family { name: "hopper", fraction: 25, depth: 16, zero: -133 };

/// A number as `significand · 2^(exponent - fraction)`.
#[derive(Clone, Copy)]
struct Parts {
    negative: bool,
    significand: u64,
    exponent: i32,
}

impl Parts {
    /// The parts of a finite number that the format can represent.
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
    /// The tensor cores of a device of this compute capability; none where it has none.
    pub(crate) fn of(major: i32, minor: i32) -> Option<Family> {
        match (major, minor) {
            (..=6, _) => None,
            (7, ..=4) => Some(VOLTA),
            (7, _) => Some(TURING),
            (8, _) => Some(AMPERE),
            _ => Some(HOPPER),
        }
    }

    /// Whether there is an instruction for bf16.
    pub(crate) fn has_bf16(self) -> bool {
        self == AMPERE || self == HOPPER
    }

    /// The family of this name.
    pub(crate) fn named(name: &str) -> Option<Family> {
        [VOLTA, TURING, AMPERE, HOPPER].into_iter().find(|family| family.name == name)
    }

    /// `c` plus at most `depth` products: one step.
    pub(crate) fn step(self, factor: Factor, c: f32, terms: &[(f32, f32)]) -> f32 {
        assert!(terms.len() <= self.depth, "more terms than a step takes");
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
        let largest = all().map(|(_, _, exponent)| exponent).max().expect("c is a term");
        let sum: i64 = all()
            .map(|(negative, significand, exponent)| {
                let units = (significand >> (largest - exponent).min(63)) as i64;
                if negative { -units } else { units }
            })
            .sum();
        cut_off(sum, largest - self.fraction as i32)
    }

    /// `c` plus products, [`DEPTH`] with each instruction.
    pub(crate) fn chain(self, factor: Factor, c: f32, terms: impl IntoIterator<Item = (f32, f32)>) -> f32 {
        let mut terms: Vec<(f32, f32)> = terms.into_iter().collect();
        terms.resize(terms.len().next_multiple_of(DEPTH), (0.0, 0.0));
        terms.chunks(self.depth).fold(c, |c, terms| self.step(factor, c, terms))
    }
}

/// The sum where a term is infinite or NaN.
fn special(c: f32, terms: &[(f32, f32)]) -> Option<f32> {
    if c.is_finite() && terms.iter().all(|(a, b)| a.is_finite() && b.is_finite()) {
        return None;
    }
    // A product of two finite numbers must not count as infinite: f64 has room for it.
    let sum: f64 = terms.iter().fold(c.into(), |sum, &(a, b)| sum + f64::from(a) * f64::from(b));
    Some(if sum.is_nan() { NAN } else { sum as f32 })
}

/// The number of f32 next to `units · 2^scale` towards 0.
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
        // The leading bit of a normal number adds one to the exponent's field.
        _ => (((least - F32.least) as u32) << F32.fraction) + significand,
    };
    f32::from_bits(bits | if units < 0 { 1 << 31 } else { 0 })
}
