//! Compares the formula of tensor cores with exact sums: terms are integers of 640 bits in units of 2⁻³⁰⁰, and a binary
//! search over all f32 numbers finds the result.

use crate::device::cuda::tensor_core::{AMPERE, DEPTH, Factor, Family, HOPPER, TURING, VOLTA};
use crate::rng::Stream;
use half::{bf16, f16};
use std::cmp::Ordering;

const FAMILIES: [Family; 4] = [VOLTA, TURING, AMPERE, HOPPER];
const UNIT: i32 = -300;
const WORDS: usize = 10;

/// A natural number in units of 2^[`UNIT`], the lowest word first.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Exact([u64; WORDS]);

impl Exact {
    /// The number `mantissa · 2^exponent`.
    fn of(mantissa: u64, exponent: i32) -> Exact {
        let (at, mut words) = ((exponent - UNIT) as usize, [0; WORDS]);
        assert!(exponent >= UNIT && at + 64 < 64 * WORDS);
        let wide = u128::from(mantissa) << (at % 64);
        (words[at / 64], words[at / 64 + 1]) = (wide as u64, (wide >> 64) as u64);
        Exact(words)
    }
    /// The absolute value of `x`.
    fn from_f32(x: f32) -> Exact {
        let (mantissa, exponent) = pair(x);
        Exact::of(mantissa, exponent)
    }
    fn add(mut self, other: Exact) -> Exact {
        let mut carry = false;
        for (word, more) in self.0.iter_mut().zip(other.0) {
            let (sum, first) = word.overflowing_add(more);
            let (sum, second) = sum.overflowing_add(carry.into());
            (*word, carry) = (sum, first || second);
        }
        self
    }
    /// `self - other`, where `other` is not larger than `self`.
    fn minus(mut self, other: Exact) -> Exact {
        let mut borrow = false;
        for (word, less) in self.0.iter_mut().zip(other.0) {
            let (rest, first) = word.overflowing_sub(less);
            let (rest, second) = rest.overflowing_sub(borrow.into());
            (*word, borrow) = (rest, first || second);
        }
        assert!(!borrow);
        self
    }
    /// The number rounded down to a multiple of 2^exponent.
    fn cut_off(mut self, exponent: i32) -> Exact {
        let bits = (exponent - UNIT) as usize;
        self.0[..bits / 64].fill(0);
        self.0[bits / 64] = self.0[bits / 64] >> (bits % 64) << (bits % 64);
        self
    }
    fn cmp(&self, other: &Exact) -> Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

/// The absolute value of `x` as an integer and the exponent of its unit.
fn pair(x: f32) -> (u64, i32) {
    let x = f64::from(x.abs());
    if x == 0.0 {
        return (0, 0);
    }
    // Every f32 number is normal in f64.
    let exponent = (x.to_bits() >> 52) as i32 - 1023 - 52;
    let mantissa = x.to_bits() & ((1 << 52) - 1) | 1 << 52;
    let zeros = mantissa.trailing_zeros();
    (mantissa >> zeros, exponent + zeros as i32)
}

/// The exponent of the leading bit of `x`, but at least `least`.
fn exponent(x: f32, least: i32) -> i32 {
    let (mantissa, unit) = pair(x);
    (63 - mantissa.leading_zeros() as i32 + unit).max(least)
}

/// The result of one step of the formula, computed exactly.
fn exact_step(family: Family, factor: Factor, c: f32, terms: &[(f32, f32)]) -> f32 {
    let least = if factor == Factor::F16 { -14 } else { -126 };
    let mut all: Vec<(bool, Exact, i32)> = Vec::new();
    for &(a, b) in terms {
        let ((m, i), (n, j)) = (pair(a), pair(b));
        let zero = m * n == 0;
        let (value, e) = if zero {
            (Exact::of(0, 0), family.zero)
        } else {
            (Exact::of(m * n, i + j), exponent(a, least) + exponent(b, least))
        };
        all.push((a.is_sign_negative() != b.is_sign_negative(), value, e));
    }
    let e = if c == 0.0 { family.zero } else { exponent(c, -126) };
    all.push((c.is_sign_negative(), Exact::from_f32(c), e));
    let unit = all.iter().map(|term| term.2).max().unwrap() - family.fraction as i32;
    let sum = |negative: bool| {
        let same_sign = all.iter().filter(|term| term.0 == negative);
        same_sign.fold(Exact::of(0, 0), |sum, term| sum.add(term.1.cut_off(unit)))
    };
    let (up, down) = (sum(false), sum(true));
    let (negative, size) = match up.cmp(&down) {
        Ordering::Equal => return 0.0,
        Ordering::Greater => (false, up.minus(down)),
        Ordering::Less => (true, down.minus(up)),
    };
    // Finds the largest f32 number that is not greater. The number after the last finite one is infinity.
    let (mut low, mut high) = (0u32, f32::INFINITY.to_bits());
    let reached = |bits: u32| {
        let number =
            if bits == f32::INFINITY.to_bits() { Exact::of(1, 128) } else { Exact::from_f32(f32::from_bits(bits)) };
        number.cmp(&size) != Ordering::Greater
    };
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if reached(middle) { low = middle } else { high = middle - 1 }
    }
    f32::from_bits(low | u32::from(negative) << 31)
}

/// A random number in the format of `factor`. `kind` chooses its size: ordinary, any, near the denormals, or 0.
pub(crate) fn number(stream: &mut Stream, factor: Factor, kind: u64) -> f32 {
    let random = stream.next_u64();
    let bits = match (factor, kind) {
        (Factor::Bf16, 0) => random as u16 & 0x83ff | 0x3c00,
        (Factor::Bf16, 1) => random as u16,
        (Factor::Bf16, 2) => random as u16 & 0x81ff,
        (Factor::Bf16, _) => random as u16 & 0x87ff | 0x1c00,
        (Factor::F16, 0) => random as u16 & 0x87ff | 0x3800,
        (Factor::F16, 1) => random as u16,
        (Factor::F16, _) => random as u16 & 0x87ff,
    };
    let bits = if random >> 32 & 7 == 0 { bits & 0x8000 } else { bits };
    match factor {
        Factor::Bf16 => bf16::from_bits(bits).to_f32(),
        Factor::F16 => f16::from_bits(bits).to_f32(),
    }
}

/// A random `c` and the terms of one step; some cancel each other except for a small remainder.
fn case(stream: &mut Stream, factor: Factor, depth: usize) -> (f32, Vec<(f32, f32)>) {
    let kind = stream.below(5);
    let mut terms: Vec<(f32, f32)> = (0..depth)
        .map(|_| {
            let (one, two) = if kind == 4 { (stream.below(4), stream.below(4)) } else { (kind, kind) };
            (number(stream, factor, one), number(stream, factor, two))
        })
        .collect();
    let c = match stream.below(4) {
        0 => 0.0f32.copysign(stream.next_normal() as f32),
        1 => f32::from_bits(stream.next_u64() as u32),
        2 => f32::from_bits(stream.next_u64() as u32 & 0x80ff_ffff),
        _ => terms[0].0 * terms[0].1 * (1.0 + stream.next_normal() as f32),
    };
    if stream.below(3) == 0 {
        for i in 1..depth / 2 {
            terms[2 * i] = (-terms[2 * i - 1].0, terms[2 * i - 1].1);
        }
    }
    (c, terms)
}

#[test]
fn a_tensor_core_step_equals_the_exact_truncated_sum() {
    let (mut stream, mut compared, mut zeros, mut denormals, mut infinite) = (Stream::new(19, 0), 0, 0, 0, 0);
    for _ in 0..30_000 {
        let family = FAMILIES[stream.below(4) as usize];
        let factor = if stream.below(2) == 0 { Factor::Bf16 } else { Factor::F16 };
        let (c, terms) = case(&mut stream, factor, family.depth);
        if !c.is_finite() || terms.iter().any(|(a, b)| !(a.is_finite() && b.is_finite())) {
            continue;
        }
        let (got, expected) = (family.step(factor, c, &terms), exact_step(family, factor, c, &terms));
        assert_eq!(
            got.to_bits(),
            expected.to_bits(),
            "{} {factor:?} {got:e} {expected:e} {c:e} {terms:?}",
            family.name
        );
        compared += 1;
        zeros += usize::from(got == 0.0);
        denormals += usize::from(got.is_subnormal());
        infinite += usize::from(got.is_infinite());
    }
    assert!(
        compared > 15_000 && zeros > 100 && denormals > 500 && infinite > 50,
        "{compared} {zeros} {denormals} {infinite}"
    );
}

/// The order of the terms within a step does not matter; the order of the steps does.
#[test]
fn the_order_of_terms_within_a_step_does_not_matter() {
    let (mut stream, mut differ) = (Stream::new(20, 0), 0);
    for _ in 0..500 {
        for family in FAMILIES {
            let (c, terms) = case(&mut stream, Factor::Bf16, DEPTH);
            let turned = |by: usize| terms.iter().cycle().skip(by).take(DEPTH).copied().collect::<Vec<_>>();
            let mut within = terms.clone();
            within.chunks_mut(family.depth).for_each(|step| step.reverse());
            let chain = |terms: &[(f32, f32)]| family.chain(Factor::Bf16, c, terms.iter().copied()).to_bits();
            assert_eq!(chain(&terms), chain(&within));
            differ += usize::from(chain(&terms) != chain(&turned(family.depth.min(8))));
            if family.depth == DEPTH {
                assert_eq!(chain(&terms), chain(&turned(5)));
            }
        }
    }
    assert!(differ > 50, "{differ}");
}

fn two(x: i32) -> f32 {
    2.0f32.powi(x)
}

/// These sums were computed by hand. They show how many bits and terms each family keeps.
#[test]
fn tensor_core_families_differ_in_kept_bits_and_terms() {
    let chain = |family: Family, c: f32, terms: &[(f32, f32)]| family.chain(Factor::Bf16, c, terms.iter().copied());
    let pad = |n: usize| vec![(0.0, 0.0); n];
    // One step of 16 terms adds two halves of the last bit of 1.0. Two steps of 8 terms cut off each half.
    let halves = [vec![(1.0, 1.0), (two(-12), two(-12))], pad(6), vec![(two(-12), two(-12))]].concat();
    assert_eq!(chain(HOPPER, 0.0, &halves), 1.0 + two(-23));
    assert_eq!(chain(AMPERE, 0.0, &halves), 1.0);
    let beside = [vec![(1.0, 1.0)], vec![(two(-12), two(-12)); 2]].concat();
    assert_eq!([AMPERE, HOPPER, TURING].map(|f| chain(f, 0.0, &beside)), [1.0 + two(-23); 3]);
    // Volta has no bit for half of the last bit, and only Hopper keeps quarters of it and can add four of them.
    assert_eq!(chain(VOLTA, 0.0, &beside), 1.0);
    let quarters = [vec![(1.0, 1.0)], vec![(two(-12), two(-13)); 4]].concat();
    assert_eq!(chain(HOPPER, 0.0, &quarters), 1.0 + two(-23));
    assert_eq!(chain(AMPERE, 0.0, &quarters), 1.0);
    // Terms are aligned with the accumulator, too: a large accumulator cuts off terms whose sum would otherwise change
    // the result.
    assert_eq!(chain(HOPPER, two(27), &[(1.0, 1.0), (1.0, 1.0)]), two(27));
    assert_eq!(chain(HOPPER, two(25), &[(3.0, 1.0), (1.0, 1.0)]), two(25) + 4.0);
    // Sums are truncated towards 0, never rounded.
    let three = [(two(-12), 1.75 * two(-11))];
    assert_eq!(chain(HOPPER, 1.0, &three), 1.0 + two(-23));
    assert_eq!(chain(HOPPER, -1.0, &[(-three[0].0, three[0].1)]), -1.0 - two(-23));
    // A product of significands of 2 or more keeps the exponent of a smaller product, and so loses one bit.
    assert_eq!(chain(HOPPER, 0.0, &[(1.5, 1.5), (two(-12), two(-13))]), 2.25);
}

#[test]
fn tensor_cores_sum_small_integers_exactly() {
    let mut stream = Stream::new(21, 0);
    for _ in 0..200 {
        let terms: Vec<_> =
            (0..100).map(|_| (stream.below(255) as f32 - 127.0, stream.below(255) as f32 - 127.0)).collect();
        let sum: f32 = terms.iter().map(|(a, b)| a * b).sum();
        for family in FAMILIES {
            assert_eq!(family.chain(Factor::Bf16, 5.0, terms.iter().copied()), 5.0 + sum);
        }
    }
}

#[test]
fn infinities_and_nan_follow_ieee_754() {
    let (inf, nan, huge) = (f32::INFINITY, f32::NAN, two(127));
    for family in FAMILIES {
        let step = |c: f32, terms: &[(f32, f32)]| family.chain(Factor::Bf16, c, terms.iter().copied());
        for no_number in [
            step(0.0, &[(nan, 0.0)]),
            step(nan, &[(1.0, 1.0)]),
            step(0.0, &[(inf, 0.0)]),
            step(inf, &[(-1.0, inf)]),
            step(0.0, &[(inf, 1.0), (inf, -1.0)]),
        ] {
            assert_eq!(no_number.to_bits(), 0x7fff_ffff, "{}", family.name);
        }
        assert_eq!(step(1.0, &[(inf, 2.0), (huge, -huge)]), inf);
        assert_eq!(step(-inf, &[(huge, huge)]), -inf);
        // The result overflows only if the sum of the whole step is too large.
        assert_eq!(step(0.0, &[(huge, huge)]), inf);
        assert_eq!(step(1.0, &[(huge, huge), (-huge, huge)]), 0.0);
        assert_eq!(step(f32::MAX, &[(huge, two(-24))]), f32::MAX);
        assert_eq!(step(f32::MAX, &[(huge, two(-23))]), inf);
        assert_eq!(step(-huge, &[(-huge, 1.0)]), -inf);
    }
}

#[test]
fn zero_terms_keep_their_sign_and_exponent() {
    let least = f32::from_bits(1);
    for family in FAMILIES {
        let chain = |c: f32, terms: &[(f32, f32)]| family.chain(Factor::Bf16, c, terms.iter().copied()).to_bits();
        assert_eq!(chain(-0.0, &[(-0.0, 1.0)]), 0);
        assert_eq!(chain(1.0, &[(-1.0, 1.0)]), 0);
        assert_eq!(chain(-0.0, &[]), (-0.0f32).to_bits(), "no instruction");
        // A sum that is truncated to 0 keeps its sign, until a step with only zeros follows.
        let below = family.step(Factor::Bf16, 0.0, &[(-two(-75), two(-75))]);
        assert_eq!(below.to_bits(), (-0.0f32).to_bits());
        assert_eq!(family.step(Factor::Bf16, below, &[(0.0, 0.0)]).to_bits(), 0);
        // Denormal inputs and results are kept.
        assert_eq!(chain(least, &[(0.0, two(100))]), 1);
        assert_eq!(chain(least, &[(two(-75), two(-74))]), 2);
        assert_eq!(chain(least, &[(two(-126) / 128.0, 1.0)]), 1 + (1 << 16));
        // A sum that starts at 0 is computed in finer units than a sum that starts at the smallest denormal.
        let tiny = vec![(two(-76), two(-73) / family.depth as f32); family.depth];
        assert_eq!(family.step(Factor::Bf16, 0.0, &tiny), least);
        assert_eq!(family.step(Factor::Bf16, least, &tiny), least);
    }
    // These factors are denormal in f16.
    let small = two(-24);
    assert_eq!(HOPPER.chain(Factor::F16, 0.0, [(small, small), (small, 1.0)]), small + small * small);
    assert_eq!(HOPPER.chain(Factor::F16, two(-23), [(small, two(-14))]), two(-23) + two(-38));
}

#[test]
fn compute_capabilities_map_to_tensor_core_families() {
    let of = |capability: (i32, i32)| Family::of(capability.0, capability.1).map(|family| family.name);
    assert_eq!([(6, 1), (7, 0), (7, 2), (7, 5)].map(of), [None, Some("volta"), Some("volta"), Some("turing")]);
    assert_eq!([(8, 0), (8, 6), (8, 9)].map(of), [Some("ampere"); 3]);
    assert_eq!([(9, 0), (10, 0), (12, 0)].map(of), [Some("hopper"); 3]);
    assert!(FAMILIES.into_iter().all(|family| Family::named(family.name) == Some(family)));
}
