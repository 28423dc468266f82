//! Tests of the values of parsed answers: exact fractions, complex numbers, and remainders modulo primes.

#![allow(clippy::disallowed_methods)] // No bit of a program depends on these values.

use super::super::super::rational::Rational;
use super::super::eval::{exact, residues, value, variables};
use super::super::parse::{Node, Reading, parse};
use std::collections::BTreeSet;
use std::f64::consts::{E, PI, SQRT_2};

fn node(text: &str) -> Node {
    parse(text, Reading::default()).unwrap_or_else(|| panic!("cannot parse {text}"))
}

#[test]
fn rational_answers_have_exact_values() {
    for (text, expected) in [
        ("5", Some((5, 1))),
        ("2.50", Some((5, 2))),
        ("5\\text{ cm}", Some((5, 1))),
        ("50\\%", Some((1, 2))),
        ("\\frac13\\%", Some((1, 300))),
        ("101_2", Some((5, 1))),
        ("12_3", Some((5, 1))),
        ("102_2", None),
        ("\\frac23+\\frac34", Some((17, 12))),
        ("\\frac23-\\frac34", Some((-1, 12))),
        ("\\frac23\\cdot\\frac54", Some((5, 6))),
        ("\\frac23/\\frac54", Some((8, 15))),
        ("\\frac10", None),
        ("(\\frac23)^3", Some((8, 27))),
        ("(\\frac23)^{-2}", Some((9, 4))),
        ("2^{1/2}", None),
        ("0^{-1}", None),
        ("\\sqrt[3]{-\\frac{8}{27}}", Some((-2, 3))),
        ("\\sqrt{16}", Some((4, 1))),
        ("\\sqrt[4]{16}", Some((2, 1))),
        ("\\sqrt[0]{1}", None),
        ("\\sqrt[1]{5}", Some((5, 1))),
        ("\\sqrt[-2]{4}", None),
        ("\\sqrt2", None),
        // Remainders are never negative, and are undefined for fractions and for the divisor 0.
        ("17 \\bmod 5", Some((2, 1))),
        ("-(7 \\bmod 3)", Some((-1, 1))),
        ("(-7) \\bmod 3", Some((2, 1))),
        ("7 \\bmod 1", Some((0, 1))),
        ("7 \\bmod 0", None),
        ("7 \\bmod (-3)", None),
        ("7.5 \\bmod 3", None),
        ("7 \\bmod 2.5", None),
        ("0!", Some((1, 1))),
        ("1!", Some((1, 1))),
        ("5!", Some((120, 1))),
        ("33!", Some((8_683_317_618_811_886_495_518_194_401_280_000_000, 1))),
        ("34!", None),
        ("(-1)!", None),
        ("2.5!", None),
        ("\\binom52", Some((10, 1))),
        ("\\binom73", Some((35, 1))),
        ("\\binom55", Some((1, 1))),
        ("\\binom50", Some((1, 1))),
        ("\\binom56", Some((0, 1))),
        ("\\binom5{-1}", None),
        ("\\binom{-1}{2}", Some((1, 1))),
        ("\\binom{-2}{3}", Some((-4, 1))),
        ("\\binom{1000}{999}", Some((1000, 1))),
        ("\\binom{-1}{100}", Some((1, 1))),
        ("\\binom{-1}{101}", None),
        ("\\binom{2.5}{2}", None),
        ("|-\\frac23|", Some((2, 3))),
        ("|\\frac23|", Some((2, 3))),
        ("|0|", Some((0, 1))),
        ("\\max(1,\\frac72,3)", Some((7, 2))),
        ("\\max(-1,-2)", Some((-1, 1))),
        ("\\min(3,1,2)", Some((1, 1))),
        ("\\min(1,3,2)", Some((1, 1))),
        ("gcd(12,18,27)", Some((3, 1))),
        ("gcd(-12,18)", Some((6, 1))),
        ("gcd(0,5)", Some((5, 1))),
        ("gcd(1.5,3)", None),
        ("lcm(4,6,10)", Some((60, 1))),
        ("lcm(-4,6)", Some((12, 1))),
        ("lcm(0,5)", Some((0, 1))),
        ("lcm(0,0)", None),
        ("\\max(1,x)", None),
        ("\\lfloor 2.5 \\rfloor", None),
        ("1\\pm2", None),
        ("x", None),
        ("\\pi", None),
        ("(1,2)", None),
    ] {
        let expected = expected.map(|(n, d)| Rational::new(n, d).unwrap());
        assert_eq!(exact(&node(text)), expected, "{text}");
    }
}

/// Evaluates a node at x = 0.5 and y = 2.
fn at(node: &Node) -> Option<(f64, f64)> {
    value(node, &|name| if name == "x" { 0.5 } else { 2.0 }).map(|value| (value.re, value.im))
}

fn check(cases: &[(&str, (f64, f64))]) {
    for &(text, (re, im)) in cases {
        let (found_re, found_im) = at(&node(text)).unwrap_or_else(|| panic!("no value for {text}"));
        let size = re.hypot(im).max(1e-3);
        let close = |a: f64, b: f64| a == b || (a - b).abs() < 1e-12 * size;
        assert!(
            close(found_re, re) && close(found_im, im),
            "{text}: expected {re} + {im} i, got {found_re} + {found_im} i"
        );
    }
}

#[test]
fn irrational_answers_have_complex_values() {
    let power = |re: f64, im: f64| (re.exp() * im.cos(), re.exp() * im.sin());
    check(&[
        ("x-y", (-1.5, 0.0)),
        ("\\pi", (PI, 0.0)),
        ("e", (E, 0.0)),
        ("i", (0.0, 1.0)),
        ("\\sqrt2+i", (SQRT_2, 1.0)),
        ("(1+2i)-(3-5i)", (-2.0, 7.0)),
        ("-(1+2i)", (-1.0, -2.0)),
        ("(1+2i)(3-5i)", (13.0, 1.0)),
        ("(1+2i)\\cdot3", (3.0, 6.0)),
        ("3(1+2i)", (3.0, 6.0)),
        ("\\frac{1+2i}{3-4i}", (-0.2, 0.4)),
        ("\\frac{1+2i}{2}", (0.5, 1.0)),
        ("\\frac{2}{1+i}", (1.0, -1.0)),
        ("\\frac{x}{y}", (0.25, 0.0)),
        ("(1+2i)^2", (-3.0, 4.0)),
        ("(1+2i)^{-1}", (0.2, -0.4)),
        ("(1+2i)^0", (1.0, 0.0)),
        ("x^{-3}", (8.0, 0.0)),
        ("y^{x}", (SQRT_2, 0.0)),
        ("0^{x}", (0.0, 0.0)),
        ("(-y)^{x}", (0.0, SQRT_2)),
        ("i^{x}", (SQRT_2 / 2.0, SQRT_2 / 2.0)),
        ("(1+i)^i", power(-PI / 4.0, SQRT_2.ln())),
        ("2^i", power(0.0, 2f64.ln())),
        ("(x+\\pi)\\%", ((0.5 + PI) / 100.0, 0.0)),
        ("(x+1)\\text{ cm}", (1.5, 0.0)),
        // A root is real if possible, otherwise the principal root.
        ("\\sqrt{x}", (SQRT_2 / 2.0, 0.0)),
        ("\\sqrt{-x}", (0.0, SQRT_2 / 2.0)),
        ("\\sqrt[3]{-y}", (-2f64.cbrt(), 0.0)),
        ("\\sqrt[3]{y}", (2f64.cbrt(), 0.0)),
        ("\\sqrt[4]{-y}", (2f64.powf(0.25) * SQRT_2 / 2.0, 2f64.powf(0.25) * SQRT_2 / 2.0)),
        ("\\sqrt[-3]{-y}", (-1.0 / 2f64.cbrt(), 0.0)),
        ("\\sqrt{i}", (SQRT_2 / 2.0, SQRT_2 / 2.0)),
        ("\\sqrt[3]{i}", (3f64.sqrt() / 2.0, 0.5)),
        ("\\sqrt[\\pi]{2}", (2f64.powf(1.0 / PI), 0.0)),
        // Functions.
        ("\\sin(1+2i)", (1f64.sin() * 2f64.cosh(), 1f64.cos() * 2f64.sinh())),
        ("\\cos(1+2i)", (1f64.cos() * 2f64.cosh(), -1f64.sin() * 2f64.sinh())),
        ("\\tan x", (0.5f64.tan(), 0.0)),
        ("\\cot x", (1.0 / 0.5f64.tan(), 0.0)),
        ("\\sec x", (1.0 / 0.5f64.cos(), 0.0)),
        ("\\csc x", (1.0 / 0.5f64.sin(), 0.0)),
        ("\\exp(1+2i)", power(1.0, 2.0)),
        ("\\arcsin x", (PI / 6.0, 0.0)),
        ("\\arccos x", (PI / 3.0, 0.0)),
        ("\\arctan 1", (PI / 4.0, 0.0)),
        ("\\ln x", (0.5f64.ln(), 0.0)),
        ("\\ln(3i)", (3f64.ln(), PI / 2.0)),
        ("\\ln(-3)", (3f64.ln(), PI)),
        ("\\log x", (0.5f64.ln(), 0.0)),
        ("\\log_2 y", (1.0, 0.0)),
        ("\\log_{x} 8", (-3.0, 0.0)),
        // A degree is 1, except in the argument of a trigonometric function, where it is π/180.
        ("90^\\circ+x", (90.5, 0.0)),
        ("\\sin 30^\\circ", (0.5, 0.0)),
        ("\\sin(30^\\circ+60^\\circ)", (1.0, 0.0)),
        ("\\cos(\\frac{60^\\circ+60^\\circ}{2})", (0.5, 0.0)),
        ("\\sin(\\exp(2^\\circ))", ((PI / 90.0).exp().sin(), 0.0)),
        ("\\ln(30^\\circ+x)", (30.5f64.ln(), 0.0)),
        // These values exceed 128 bits.
        ("34!", (2.952_327_990_396_041_4e38, 0.0)),
        ("170!", (7.257_415_615_307_994e306, 0.0)),
        ("\\binom{200}{100}", (9.054_851_465_610_328e58, 0.0)),
        ("\\binom{\\pi}{2}", (PI * (PI - 1.0) / 2.0, 0.0)),
        ("\\binom{\\pi}{3}", (PI * (PI - 1.0) * (PI - 2.0) / 6.0, 0.0)),
        ("\\binom{\\pi}{0}", (1.0, 0.0)),
        ("123456789012345678901234567890123456789012345", (1.234_567_890_123_456_8e44, 0.0)),
        // Absolute values, rounding, maxima.
        ("|3-4i|", (5.0, 0.0)),
        ("|-x|", (0.5, 0.0)),
        ("\\lfloor 2.5 \\rfloor", (2.0, 0.0)),
        ("\\lfloor -\\pi \\rfloor", (-4.0, 0.0)),
        ("\\lceil \\pi \\rceil", (4.0, 0.0)),
        ("\\max(x,y,1)", (2.0, 0.0)),
        ("\\min(1,x,y)", (0.5, 0.0)),
        ("\\infty", (f64::INFINITY, 0.0)),
        ("-\\infty", (f64::NEG_INFINITY, 0.0)),
    ]);
    assert!(at(&node("\\binom{\\pi}{100}")).is_some());
    for text in [
        "x/0",
        "2\\infty",
        "-2\\infty",
        "\\infty-1",
        "171!",
        "(-x)!",
        "x!",
        "i!",
        "(2+i)!",
        "\\binom{x}{101}",
        "\\binom{5}{x}",
        "\\binom{5}{-1}",
        "\\lfloor i \\rfloor",
        "\\lceil i \\rceil",
        "\\max(1,i)",
        "\\min(i,1)",
        "\\arcsin 2",
        "\\arcsin i",
        "\\ln 0",
        "10^{400}x",
        "1\\pm x",
        "x \\bmod 2",
        "gcd(x,2)",
        "lcm(x,2)",
        "(1,2)",
        "\\text{five}",
        "x=5",
    ] {
        assert_eq!(at(&node(text)), None, "{text}");
    }
}

#[test]
fn variables_are_found_anywhere_in_an_answer() {
    for (text, expected) in [
        ("5+\\pi e i", ""),
        ("x+y_1z", "x y_1 z"),
        ("(a,b)", "a b"),
        ("\\{a,b\\}", "a b"),
        ("(a,2)\\cup(b,3)", "a b"),
        ("a:b", "a b"),
        ("a<b=c", "a b c"),
        ("\\sin a", "a"),
        ("\\log_b a", "a b"),
        ("a\\text{ cm}", "a"),
        ("a\\%", "a"),
        ("a \\in \\{b\\}", "a b"),
        ("\\begin{pmatrix}a&1\\\\2&b\\end{pmatrix}", "a b"),
        ("\\text{abc}", ""),
        ("\\infty", ""),
    ] {
        let mut names = BTreeSet::new();
        variables(&node(text), &mut names);
        assert_eq!(names.into_iter().collect::<Vec<_>>().join(" "), expected, "{text}");
    }
}

/// The expected remainders are computed by definition: each operation separately, modulo 2^61 − 1, 2^62 − 57 and 2^63 −
/// 25.
#[test]
fn large_fractions_have_remainders_modulo_primes() {
    let primes = [(1u128 << 61) - 1, (1 << 62) - 57, (1 << 63) - 25];
    let power = |x: u128, n: u128, p: u128| (0..n).fold(1, |product, _| product * x % p);
    // Division multiplies by the modular inverse.
    let inverse = |x: u128, p: u128| {
        let (mut a, mut b, mut s, mut t) = (x as i128, p as i128, 1i128, 0i128);
        while b != 0 {
            let q = a / b;
            (a, b, s, t) = (b, a - q * b, t, s - q * t);
        }
        s.rem_euclid(p as i128) as u128
    };
    let check = |text: &str, expected: &dyn Fn(u128) -> u128| {
        let expected = primes.map(|p| (expected(p) % p) as u64);
        assert_eq!(residues(&node(text)), Some(expected), "{text}");
    };
    check("7", &|_| 7);
    check("-7", &|p| p - 7);
    check("\\frac23", &|p| 2 * inverse(3, p));
    check("-\\frac23", &|p| p - 2 * inverse(3, p) % p);
    check("2^{200}", &|p| power(2, 200, p));
    check("-2^{200}", &|p| p - power(2, 200, p));
    check("3^{201}+5", &|p| power(3, 201, p) + 5);
    check("3^{200}-2^{300}", &|p| power(3, 200, p) + p - power(2, 300, p));
    check("7\\cdot3^{201}", &|p| 7 * power(3, 201, p));
    check("\\frac{3^{201}}{7}", &|p| power(3, 201, p) * inverse(7, p));
    check("\\frac{7}{3^{201}}", &|p| 7 * inverse(power(3, 201, p), p));
    check("3^{-201}", &|p| inverse(power(3, 201, p), p));
    check("(2^{200})^0", &|_| 1);
    check("3^{200}\\text{ cm}", &|p| power(3, 200, p));
    check("3^{200}\\%", &|p| power(3, 200, p) * inverse(100, p));
    check("50!", &|p| (1..=50).fold(1, |product, n| product * n % p));
    check("10000!", &|p| (1..=10_000).fold(1, |product, n| product * n % p));
    check("3^{10000}", &|p| power(3, 10_000, p));
    check("3^{-10000}", &|p| inverse(power(3, 10_000, p), p));
    let digits = "123456789012345678901234567890123456789012345";
    let decimal = |digits: &str, p: u128| digits.bytes().fold(0, |sum, b| (sum * 10 + u128::from(b - b'0')) % p);
    check(digits, &|p| decimal(digits, p));
    let with_point = format!("{}.{}", &digits[..3], &digits[3..]);
    check(&with_point, &|p| decimal(digits, p) * inverse(power(10, 42, p), p));
    for text in [
        "10001!",
        "(-1)!",
        "(2^{200})!",
        "3^{10001}",
        "3^{-10001}",
        "3^{1/2}",
        "3^{2^{200}}",
        "3^{x}",
        "x+\\pi",
        "\\sqrt{2^{200}+1}",
        "\\frac{2^{200}}{2^{200}-2^{200}}",
        "(1,2)",
    ] {
        assert_eq!(residues(&node(text)), None, "{text}");
    }
    // The first prime is 0 modulo itself, so the quotient is undefined.
    assert_eq!(residues(&node("\\frac{2^{200}}{2305843009213693951}")), None);
}
