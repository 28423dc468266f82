//! Compares every vector operation on every instruction set of this machine with plain Rust, lane by lane, as bits.

use super::{Kernel, LANES, SHIFT, Simd, tiles};
use crate::Isa;

/// Inputs of the tests: ordinary, tiny and huge numbers, signed zeros, infinities, NaN, denormals, ties.
const SPECIAL: [f32; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    1e-38,
    1e-45,
    -1e-45,
    3.4e38,
    -3.4e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    std::f32::consts::PI,
    -0.333_333_34,
    8_388_609.0,
    -8_388_609.5,
    1.000_000_1,
    0.999_999_94,
    123.456,
    -7e-6,
];

fn vectors() -> Vec<[f32; LANES]> {
    let mut stream = crate::rng::Stream::new(3, 0);
    (0..40)
        .map(|_| {
            std::array::from_fn(|_| match stream.below(3) {
                0 => SPECIAL[stream.below(SPECIAL.len() as u64) as usize],
                1 => stream.next_normal() as f32,
                _ => f32::from_bits(stream.next_u64() as u32),
            })
        })
        .collect()
}

/// The bits of the lanes. All NaNs are replaced by one NaN, because payloads may differ.
fn bits(x: [f32; LANES]) -> [u32; LANES] {
    x.map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
}

type Op = fn(f32, f32, f32) -> f32;

/// Lane-wise operations of three vectors.
struct Lanes([[f32; LANES]; 3]);

impl Kernel for Lanes {
    type Output = Vec<(&'static str, [f32; LANES], Op)>;
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let [a, b, c] = self.0.map(|x| V::load(&x));
        vec![
            ("add", a.add(b).to_array(), |a, b, _| a + b),
            ("sub", a.sub(b).to_array(), |a, b, _| a - b),
            ("mul", a.mul(b).to_array(), |a, b, _| a * b),
            ("div", a.div(b).to_array(), |a, b, _| a / b),
            ("fma", a.fma(b, c).to_array(), |a, b, c| a.mul_add(b, c)),
            ("sqrt", a.sqrt().to_array(), |a, _, _| a.sqrt()),
            ("max", a.max(b).to_array(), |a, b, _| if b > a { b } else { a }),
            ("min", a.min(b).to_array(), |a, b, _| if b < a { b } else { a }),
            ("lt", V::select(a.lt(b), c, a).to_array(), |a, b, c| if a < b { c } else { a }),
        ]
    }
}

#[test]
fn every_lane_operation_matches_ieee_754() {
    let vectors = vectors();
    for isa in Isa::present() {
        for (i, &a) in vectors.iter().enumerate() {
            let (b, c) = (vectors[(i * 7 + 3) % vectors.len()], vectors[(i * 5 + 1) % vectors.len()]);
            for (name, got, expected) in isa.run(Lanes([a, b, c])) {
                let expected = std::array::from_fn(|l| expected(a[l], b[l], c[l]));
                assert_eq!(bits(got), bits(expected), "{name} on {isa:?} of {a:?}, {b:?}, {c:?}");
            }
        }
    }
}

/// The operations that bf16 matmuls consist of.
struct Flushing([[f32; LANES]; 3]);

impl Kernel for Flushing {
    type Output = Vec<(&'static str, [f32; LANES], Op)>;
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let [a, b, c] = self.0.map(|x| V::load(&x));
        vec![
            ("add", a.add(b).to_array(), |a, b, _| tiles::add(a, b)),
            ("sub", a.sub(b).to_array(), |a, b, _| tiles::add(a, -b)),
            ("mul", a.mul(b).to_array(), |a, b, _| tiles::fma(a, b, -0.0)),
            ("fma", a.fma(b, c).to_array(), |a, b, c| tiles::fma(a, b, c)),
        ]
    }
}

/// Three vectors whose sums are near the smallest normal number, slightly above and below it, or round to it.
fn near_denormals(stream: &mut crate::rng::Stream) -> [[f32; LANES]; 3] {
    let mut below = |n: u64| stream.below(n) as i32;
    let a = std::array::from_fn(|_| (1 + below(3)) as f32 * 2.0f32.powi(-70 - below(8)));
    let b = std::array::from_fn(|_| (below(3) - 1) as f32 * 2.0f32.powi(-70 - below(8)));
    let c = std::array::from_fn(|_| {
        let bits = f32::MIN_POSITIVE.to_bits().wrapping_add_signed(below(5) - 2);
        f32::from_bits(bits | (below(2) as u32) << 31)
    });
    [a, b, c]
}

#[test]
fn bf16_matmul_operations_flush_denormals_on_every_isa() {
    let (vectors, mut decided) = (vectors(), 0);
    let mut all: Vec<_> = (0..vectors.len())
        .map(|i| [vectors[i], vectors[(i * 7 + 3) % vectors.len()], vectors[(i * 5 + 1) % vectors.len()]])
        .collect();
    let mut stream = crate::rng::Stream::new(5, 0);
    all.extend((0..400).map(|_| near_denormals(&mut stream)));
    for isa in Isa::present() {
        for &[a, b, c] in &all {
            for (name, got, expected) in isa.run_flushing(Flushing([a, b, c])) {
                let expected = std::array::from_fn(|l| expected(a[l], b[l], c[l]));
                assert_eq!(bits(got), bits(expected), "{name} on {isa:?} of {a:?}, {b:?}, {c:?}");
            }
            // Operations before and after a flushing kernel keep denormals.
            for (name, got, expected) in isa.run(Lanes([a, b, c])) {
                let expected = std::array::from_fn(|l| expected(a[l], b[l], c[l]));
                assert_eq!(bits(got), bits(expected), "{name} on {isa:?} of {a:?}, {b:?}, {c:?}");
                decided += expected.iter().filter(|x| x.is_subnormal()).count();
            }
        }
    }
    assert!(decided > 1000, "few results are denormal: {decided}");
}

struct Horizontal([f32; LANES], usize);

impl Kernel for Horizontal {
    type Output = (f32, f32, Vec<f32>, Vec<f32>, [f32; LANES], [f32; LANES], ([f32; LANES], [f32; LANES]));
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let Horizontal(x, n) = self;
        let a = V::load(&x);
        let mut partial = vec![7.0; LANES];
        a.store_partial(&mut partial, n);
        let mut whole = vec![7.0; LANES + 1];
        a.store(&mut whole[1..]);
        let first = V::select(V::first(n), V::splat(1.0), V::splat(0.0)).to_array();
        let few = V::load_partial(&x[..n], n).to_array();
        let positive = V::load(&x.map(|x| f32::from_bits(x.to_bits() & 0x3fff_ffff | 0x0080_0000)));
        let (e, m) = positive.split_exponent();
        (a.sum(), a.max_lane(), partial, whole, first, few, (e.to_array(), m.to_array()))
    }
}

#[test]
fn sums_tails_masks_and_exponents_match_plain_rust() {
    for isa in Isa::present() {
        for (i, x) in vectors().into_iter().enumerate() {
            let n = i % (LANES + 1);
            let (sum, max, partial, whole, first, few, (e, m)) = isa.run(Horizontal(x, n));
            let tree = |with: fn(f32, f32) -> f32| {
                let mut tree = x;
                for half in [8, 4, 2, 1] {
                    for l in 0..half {
                        tree[l] = with(tree[l], tree[l + half]);
                    }
                }
                [tree[0]; LANES]
            };
            assert_eq!(bits([sum; LANES]), bits(tree(|a, b| a + b)), "{isa:?}");
            assert_eq!(bits([max; LANES]), bits(tree(|a, b| if b > a { b } else { a })), "{isa:?}");
            let expected: [f32; LANES] = std::array::from_fn(|l| if l < n { x[l] } else { 7.0 });
            assert_eq!(bits(partial.try_into().unwrap()), bits(expected), "{isa:?} {n}");
            assert_eq!((whole[0], bits(whole[1..].try_into().unwrap())), (7.0, bits(x)), "{isa:?}");
            assert_eq!(first, std::array::from_fn(|l| if l < n { 1.0 } else { 0.0 }), "{isa:?} {n}");
            assert_eq!(bits(few), bits(std::array::from_fn(|l| if l < n { x[l] } else { 0.0 })), "{isa:?} {n}");
            for l in 0..LANES {
                let value = f32::from_bits(x[l].to_bits() & 0x3fff_ffff | 0x0080_0000);
                assert!((1.0..2.0).contains(&m[l]), "{isa:?} {value}");
                assert_eq!(f64::from(m[l]) * f64::from(e[l]).exp2(), f64::from(value), "{isa:?}");
            }
        }
    }
}

struct Transpose;

impl Kernel for Transpose {
    type Output = [[f32; LANES]; LANES];
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let rows = std::array::from_fn(|r| V::load(&std::array::from_fn::<f32, LANES, _>(|c| (r * 100 + c) as f32)));
        V::transpose(rows).map(|row| row.to_array())
    }
}

struct Pow2;

impl Kernel for Pow2 {
    type Output = Vec<(i32, [f32; LANES])>;
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        (-126..=127).map(|n| (n, V::splat(1.25).mul_pow2(V::splat(n as f32 + SHIFT)).to_array())).collect()
    }
}

#[test]
fn transposes_and_powers_of_two_match_plain_rust() {
    for isa in Isa::present() {
        for (r, row) in isa.run(Transpose).iter().enumerate() {
            assert_eq!(*row, std::array::from_fn(|c| (c * 100 + r) as f32), "{isa:?} row {r}");
        }
        for (n, lanes) in isa.run(Pow2) {
            assert_eq!(lanes, [(1.25 * f64::from(n).exp2()) as f32; LANES], "{isa:?} 2^{n}");
        }
    }
}

struct Zip<'a>(&'a [half::bf16], &'a [half::bf16]);

impl Kernel for Zip<'_> {
    type Output = Vec<half::bf16>;
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let mut out = vec![half::bf16::NAN; 4 * LANES];
        V::zip_bf16(self.0, self.1, &mut out);
        out
    }
}

#[test]
fn zip_bf16_interleaves_two_rows() {
    let row = |first: u16| (0..32).map(|i| half::bf16::from_bits(first + i)).collect::<Vec<_>>();
    let (even, odd) = (row(100), row(1000));
    for isa in Isa::present() {
        let bits: Vec<u16> = isa.run(Zip(&even, &odd)).iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, (0..32).flat_map(|i| [100 + i, 1000 + i]).collect::<Vec<_>>(), "{isa:?}");
    }
}

struct Pairs([f32; LANES], [f32; LANES]);

impl Kernel for Pairs {
    type Output = [half::bf16; 2 * LANES];
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let mut out = [half::bf16::ZERO; 2 * LANES];
        V::store_pairs(V::load(&self.0), V::load(&self.1), &mut out);
        out
    }
}

#[test]
fn store_pairs_rounds_as_store_bf16_does() {
    let tie = f32::from_bits(0x3f80_8000);
    let odd_tie = f32::from_bits(0x3f81_8000);
    let even = [
        1.0,
        -2.5,
        tie,
        odd_tie,
        f32::NAN,
        f32::INFINITY,
        -0.0,
        1e-40,
        3.4e38,
        f32::MIN,
        0.1,
        7.3,
        -tie,
        5.0,
        0.3,
        9.9,
    ];
    let mut odd = even;
    odd.reverse();
    let wanted: Vec<u16> =
        even.iter().zip(&odd).flat_map(|(&e, &o)| [e, o].map(|x| half::bf16::from_f32(x).to_bits())).collect();
    for isa in Isa::present() {
        assert_eq!(isa.run(Pairs(even, odd)).map(|x| x.to_bits())[..], wanted, "{isa:?}");
    }
}

struct Exact<'a>(&'a [half::bf16]);

impl Kernel for Exact<'_> {
    type Output = [half::bf16; LANES];
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let mut out = [half::bf16::ZERO; LANES];
        V::load_bf16(self.0).store_exact_bf16(&mut out);
        out
    }
}

#[test]
fn storing_a_loaded_bf16_keeps_its_bits() {
    // Every number except signalling NaN, which may become quiet.
    let signals = |bits: u16| bits & 0x7fc0 == 0x7f80 && bits & 0x3f != 0;
    for first in (0..=u16::MAX).step_by(LANES) {
        let all: Vec<_> = (0..LANES as u16).map(|i| half::bf16::from_bits(first + i)).collect();
        for isa in Isa::present() {
            for (stored, wanted) in isa.run(Exact(&all)).iter().zip(&all) {
                assert!(stored.to_bits() == wanted.to_bits() || signals(wanted.to_bits()), "{isa:?} {wanted:?}");
            }
        }
    }
}

struct Unzip<'a>(&'a [half::bf16]);

impl Kernel for Unzip<'_> {
    type Output = [[f32; LANES]; 2];
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let (even, odd) = V::load_pairs(self.0);
        [even.to_array(), odd.to_array()]
    }
}

#[test]
fn load_pairs_widens_even_and_odd_elements() {
    for first in (0..=u16::MAX).step_by(31) {
        let pairs: Vec<_> = (0..32).map(|i| half::bf16::from_bits(first.wrapping_add(401 * i))).collect();
        let wanted =
            [0, 1].map(|i| (0..LANES).map(|lane| u32::from(pairs[2 * lane + i].to_bits()) << 16).collect::<Vec<_>>());
        for isa in Isa::present() {
            assert_eq!(isa.run(Unzip(&pairs)).map(|lanes| lanes.map(f32::to_bits).to_vec()), wanted, "{isa:?}");
        }
    }
}

struct Words([[f32; LANES]; 3]);

impl Kernel for Words {
    type Output = ([f32; LANES], [[f32; LANES]; 2], [f32; LANES], [f32; LANES], [f32; LANES]);
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let [first, second, sum] = self.0.map(|x| V::load(&x));
        let (first, second) = (first.rounded_to_bf16(), second.rounded_to_bf16());
        let word = V::word(first, second);
        let mut pairs = [half::bf16::ZERO; 2 * LANES];
        V::store_pairs(first, second, &mut pairs);
        let dot = sum.dot(word, V::word(sum.rounded_to_bf16(), first));
        (
            word.to_array(),
            word.halves().map(|half| half.to_array()),
            V::load_words(&pairs).to_array(),
            dot.to_array(),
            first.to_array(),
        )
    }
}

#[test]
fn words_have_the_first_number_in_the_upper_half() {
    let rounded = |x: f32| half::bf16::from_f32(x).to_f32();
    let word = |a: f32, b: f32| rounded(a).to_bits() | rounded(b).to_bits() >> 16;
    let mut stream = crate::rng::Stream::new(9, 0);
    for _ in 0..20 {
        let [a, b, c]: [[f32; LANES]; 3] = [0; 3].map(|_| std::array::from_fn(|_| stream.next_normal() as f32));
        for isa in Isa::present() {
            let (words, halves, loaded, dot, first) = isa.run(Words([a, b, c]));
            for l in 0..LANES {
                assert_eq!(words[l].to_bits(), word(a[l], b[l]), "{isa:?}");
                assert_eq!(
                    (halves[0][l], halves[1][l], first[l]),
                    (rounded(a[l]), rounded(b[l]), rounded(a[l])),
                    "{isa:?}"
                );
                assert_eq!(loaded[l].to_bits(), words[l].to_bits(), "{isa:?}");
                // The expected value: two multiply-adds, the first numbers of the pairs before the second ones.
                let [x, y, z] = [a[l], b[l], c[l]].map(rounded);
                assert_eq!(dot[l].to_bits(), y.mul_add(x, x.mul_add(z, c[l])).to_bits(), "{isa:?}");
            }
        }
    }
}

/// Loads, stores and converts `n` elements of a type.
struct Elements<'a, E>(&'a [E], usize);

impl<E: super::Element> Kernel for Elements<'_, E> {
    type Output = ([f32; LANES], Vec<E>, Vec<E>, Vec<E>, [f32; LANES], Vec<f32>);
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let Elements(from, n) = self;
        let partial: V = E::load_partial(from, n);
        let whole: V = E::load(from);
        let third = whole.mul(V::splat(1.0 / 3.0));
        let (mut stored, mut few, mut exact) = (from.to_vec(), from.to_vec(), from.to_vec());
        E::store(third, &mut stored[1..]);
        E::store_partial(third, &mut few, n);
        E::store_rounded(E::rounded(third), &mut exact[2..]);
        let mut wide = vec![-7.0; n + 20];
        super::element::widen_into::<V, E>(&from[..n + 1], &mut wide[..n + 1]);
        (partial.to_array(), stored, few, exact, E::rounded(third).to_array(), wide)
    }
}

fn check_elements<E: super::Element + PartialEq + std::fmt::Debug>() {
    let from: Vec<E> = (0..40).map(|i| E::narrow(i as f32 - 9.5)).collect();
    for isa in Isa::present() {
        for n in 0..=LANES {
            let (partial, stored, few, exact, rounded, wide) = isa.run(Elements(&from, n));
            let third = |l: usize| E::narrow(from[l].widen() * (1.0 / 3.0));
            let of = |l: usize, from_l: usize, len: usize| {
                if (from_l..from_l + len).contains(&l) { third(l - from_l) } else { from[l] }
            };
            assert_eq!(partial, std::array::from_fn(|l| if l < n { from[l].widen() } else { 0.0 }), "{isa:?} {n}");
            assert_eq!(stored, (0..40).map(|l| of(l, 1, LANES)).collect::<Vec<_>>(), "{isa:?}");
            assert_eq!(few, (0..40).map(|l| of(l, 0, n)).collect::<Vec<_>>(), "{isa:?} {n}");
            assert_eq!(exact, (0..40).map(|l| of(l, 2, LANES)).collect::<Vec<_>>(), "{isa:?}");
            assert_eq!(rounded, std::array::from_fn(|l| third(l).widen()), "{isa:?}");
            let expected: Vec<f32> = (0..n + 20).map(|l| if l <= n { from[l].widen() } else { -7.0 }).collect();
            assert_eq!(wide, expected, "{isa:?} {n}");
        }
    }
}

#[test]
fn elements_load_store_and_round_by_their_type() {
    check_elements::<f32>();
    check_elements::<half::bf16>();
    assert_eq!(<half::bf16 as super::Element>::narrow(1.001).to_f32(), 1.0);
    assert_eq!(<f32 as super::Element>::narrow(1.001), 1.001);
}
