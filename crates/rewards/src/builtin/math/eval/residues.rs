//! Computes fractions that do not fit a `Rational` modulo large primes. So 2^{200} equals 4^{100}, but not 2^{200}+1.

use super::super::super::rational::Rational;
use super::super::parse::{Node, Op};
use super::exact;

/// The primes. It is very unlikely that two different numbers in answers have equal remainders modulo all three.
const PRIMES: [u64; 3] = [(1 << 61) - 1, (1 << 62) - 57, (1 << 63) - 25];

/// The largest exponent or factorial that is computed.
const MAX_STEPS: i128 = 10_000;

/// A number modulo each of [`PRIMES`].
pub(in super::super) type Residues = [u64; 3];

/// The value of a node modulo the primes, if the node is a fraction of any size. Each variable has a fixed value modulo
/// each prime, so two quotients of polynomials with equal values are almost certainly equal (Schwartz and Zippel).
pub(in super::super) fn residues(node: &Node) -> Option<Residues> {
    if let Some(value) = exact(node) {
        return of(value);
    }
    let hundred = || of(Rational::new(100, 1)?);
    match node {
        Node::Large(digits) => decimal(digits),
        Node::Symbol(name) if !["pi", "e", "i", "R"].contains(&name.as_str()) => Some(variable_value(name)),
        Node::Unit(inside, _) => residues(inside),
        Node::Percent(inside) => divided(residues(inside)?, hundred()?),
        Node::Op(Op::Factorial, parts) => {
            let n = exact(&parts[0])?.integer().filter(|n| (0..=MAX_STEPS).contains(n))?;
            (1..=n).try_fold([1; 3], |product, n| Some(multiplied(product, whole(n))))
        }
        Node::Op(op @ (Op::Add | Op::Neg | Op::Mul | Op::Div | Op::Pow), parts) => {
            let x = residues(&parts[0])?;
            let y = || residues(parts.get(1)?);
            match op {
                Op::Add => Some(each(x, y()?, |x, y, p| (x + y) % p)),
                Op::Neg => Some(each([0; 3], x, |zero, x, p| (zero + p - x) % p)),
                Op::Mul => Some(multiplied(x, y()?)),
                Op::Div => divided(x, y()?),
                _ => {
                    let exponent = exact(&parts[1])?.integer().filter(|n| n.abs() <= MAX_STEPS)?;
                    let power = raised(x, exponent.unsigned_abs());
                    if exponent < 0 { divided([1; 3], power) } else { Some(power) }
                }
            }
        }
        _ => None,
    }
}

/// The value of a variable: the hash FNV-1a of the name and the prime.
fn variable_value(name: &str) -> Residues {
    PRIMES.map(|p| {
        let bytes = name.bytes().chain(p.to_le_bytes());
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) % p
    })
}

fn each(x: Residues, y: Residues, f: impl Fn(u128, u128, u128) -> u128) -> Residues {
    std::array::from_fn(|i| f(x[i].into(), y[i].into(), PRIMES[i].into()) as u64)
}

fn multiplied(x: Residues, y: Residues) -> Residues {
    each(x, y, |x, y, p| x * y % p)
}

fn raised(x: Residues, exponent: u128) -> Residues {
    power(x, [exponent; 3])
}

/// `x` to the power of `exponents`, which has one exponent for each prime.
fn power(mut x: Residues, mut exponents: [u128; 3]) -> Residues {
    let mut product = [1; 3];
    while exponents.iter().any(|exponent| *exponent > 0) {
        let odd = multiplied(product, x);
        product = std::array::from_fn(|i| if exponents[i] % 2 == 1 { odd[i] } else { product[i] });
        x = multiplied(x, x);
        exponents = exponents.map(|exponent| exponent / 2);
    }
    product
}

/// `x / y` by Fermat's inverse; `None` if `y` is 0 modulo any of the primes.
fn divided(x: Residues, y: Residues) -> Option<Residues> {
    let inverse = power(y, PRIMES.map(|p| u128::from(p) - 2));
    (!y.contains(&0)).then(|| multiplied(x, inverse))
}

fn whole(n: i128) -> Residues {
    PRIMES.map(|p| n.rem_euclid(i128::from(p)) as u64)
}

fn of(value: Rational) -> Option<Residues> {
    let (numerator, denominator) = value.parts();
    if denominator == 1 { Some(whole(numerator)) } else { divided(whole(numerator), whole(denominator)) }
}

fn decimal(text: &str) -> Option<Residues> {
    let (before, after) = text.split_once('.').unwrap_or((text, ""));
    let digits = before.chars().chain(after.chars()).try_fold([0; 3], |sum, c| {
        let digit = whole(c.to_digit(10)?.into());
        Some(each(multiplied(sum, whole(10)), digit, |x, y, p| (x + y) % p))
    })?;
    divided(digits, raised(whole(10), after.len() as u128))
}
