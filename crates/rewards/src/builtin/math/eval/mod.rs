//! Evaluates a [`Node`] to an exact fraction where possible, else to a complex number in f64, given the values of its
//! variables.

mod residues;

pub(super) use residues::residues;

use super::super::rational::Rational;
use super::parse::{Node, Op};
use super::units::unit;
use std::collections::BTreeSet;

/// The value of a fractional power of a negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    /// The real root if the degree is odd, as in school: (−8)^{1/3} is −2.
    Real,
    /// The principal value: (−8)^{1/3} is 1 + √3 i.
    Principal,
}

const TRIGONOMETRIC: [&str; 6] = ["sin", "cos", "tan", "cot", "sec", "csc"];

/// The exact value, if it is a fraction that fits a [`Rational`].
pub(super) fn exact(node: &Node) -> Option<Rational> {
    match node {
        Node::Number(number) => Some(*number),
        Node::Unit(inside, _) => exact(inside),
        Node::Percent(inside) => exact(inside)?.div(Rational::new(100, 1)?),
        Node::Based(digits, base) => Rational::new(i128::from_str_radix(digits, *base).ok()?, 1),
        Node::Op(op @ (Op::Max | Op::Min | Op::Gcd | Op::Lcm), parts) => {
            let parts: Option<Vec<Rational>> = parts.iter().map(exact).collect();
            parts?.into_iter().map(Some).reduce(|a, b| exact_binary(*op, a?, b?))?
        }
        Node::Op(op, parts) => {
            let x = exact(&parts[0])?;
            let y = || exact(parts.get(1)?);
            match op {
                Op::Mod => {
                    let (n, d) = (x.integer()?, y()?.integer().filter(|d| *d > 0)?);
                    Rational::new(n.rem_euclid(d), 1)
                }
                Op::Add => x.add(y()?),
                Op::Neg => x.neg(),
                Op::Mul => x.mul(y()?),
                Op::Div => x.div(y()?),
                Op::Pow => match y()?.integer() {
                    Some(power) => x.pow(power),
                    None => None,
                },
                Op::Root => y()?.root(u32::try_from(x.integer()?).ok().filter(|degree| *degree > 0)?),
                Op::Factorial => (1..=x.integer().filter(|n| (0..=33).contains(n))?)
                    .try_fold(Rational::new(1, 1)?, |product, n| product.mul(Rational::new(n, 1)?)),
                Op::Binomial => {
                    let (n, k) = (x.integer()?, y()?.integer()?);
                    let k = if (k..).contains(&n) { k.min(n - k) } else { k };
                    if !(0..=100).contains(&k) {
                        return None;
                    }
                    (0..k).try_fold(Rational::new(1, 1)?, |product, i| product.mul(Rational::new(n - i, i + 1)?))
                }
                Op::Abs if x.to_f64() < 0.0 => x.neg(),
                Op::Abs => Some(x),
                Op::Floor | Op::Ceil | Op::PlusMinus | Op::Max | Op::Min | Op::Gcd | Op::Lcm => None,
            }
        }
        _ => None,
    }
}

/// The exact value of an operation on two values, such as the maximum or the greatest common divisor.
fn exact_binary(op: Op, a: Rational, b: Rational) -> Option<Rational> {
    let less = b.add(a.neg()?)?.parts().0 > 0;
    match op {
        Op::Max => Some(if less { b } else { a }),
        Op::Min => Some(if less { a } else { b }),
        _ => {
            let (mut n, mut d) = (a.integer()?.checked_abs()?, b.integer()?.checked_abs()?);
            let product = n.checked_mul(d)?;
            while d != 0 {
                (n, d) = (d, n % d);
            }
            Rational::new(if op == Op::Gcd { n } else { product.checked_div(n)? }, 1)
        }
    }
}

/// A complex number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Complex {
    pub re: f64,
    pub im: f64,
}

impl Complex {
    fn real(re: f64) -> Complex {
        Complex { re, im: 0.0 }
    }

    pub fn abs(self) -> f64 {
        libm::hypot(self.re, self.im)
    }

    pub fn sub(self, other: Complex) -> Complex {
        Complex { re: self.re - other.re, im: self.im - other.im }
    }

    fn add(self, other: Complex) -> Complex {
        Complex { re: self.re + other.re, im: self.im + other.im }
    }

    fn mul(self, other: Complex) -> Complex {
        if self.im == 0.0 && other.im == 0.0 {
            // Avoids inf × 0.
            return Complex::real(self.re * other.re);
        }
        Complex { re: self.re * other.re - self.im * other.im, im: self.re * other.im + self.im * other.re }
    }

    pub fn div(self, other: Complex) -> Complex {
        if self.im == 0.0 && other.im == 0.0 {
            return Complex::real(self.re / other.re);
        }
        let norm = other.re * other.re + other.im * other.im;
        self.mul(Complex { re: other.re / norm, im: -other.im / norm })
    }

    /// The value; `None` if it underflowed to 0 although the exact value is not 0 (`zero` is false): e^{−1000} is not
    /// e^{−1001}.
    fn unless_lost(self, zero: bool) -> Option<Complex> {
        (zero || self.abs() >= f64::MIN_POSITIVE || self.abs().is_nan()).then_some(self)
    }

    fn exp(self) -> Complex {
        let size = libm::exp(self.re);
        Complex { re: size * libm::cos(self.im), im: size * libm::sin(self.im) }
    }

    fn ln(self) -> Complex {
        Complex { re: libm::log(self.abs()), im: libm::atan2(self.im, self.re) }
    }

    fn pow(self, power: Complex) -> Complex {
        if power.im == 0.0 && power.re.fract() == 0.0 && power.re.abs() <= 1024.0 {
            let product = (0..power.re.abs() as u32).fold(Complex::real(1.0), |product, _| product.mul(self));
            return if power.re < 0.0 { Complex::real(1.0).div(product) } else { product };
        }
        if self.im == 0.0 && self.re >= 0.0 && power.im == 0.0 {
            return Complex::real(libm::pow(self.re, power.re));
        }
        power.mul(self.ln()).exp()
    }

    fn sin(self) -> Complex {
        Complex { re: libm::sin(self.re) * libm::cosh(self.im), im: libm::cos(self.re) * libm::sinh(self.im) }
    }

    fn cos(self) -> Complex {
        Complex { re: libm::cos(self.re) * libm::cosh(self.im), im: -libm::sin(self.re) * libm::sinh(self.im) }
    }
}

/// The value of a node, with the values of variables from `point`; `None` if it is undefined.
pub(super) fn value(node: &Node, point: &dyn Fn(&str) -> f64) -> Option<Complex> {
    value_of(node, point, Power::Real)
}

/// Like [`value`], with a choice of fractional powers.
pub(super) fn value_of(node: &Node, point: &dyn Fn(&str) -> f64, power: Power) -> Option<Complex> {
    Evaluation { point, degree: 1.0, power }.value(node)
}

/// How variables, degrees and powers are evaluated.
#[derive(Clone, Copy)]
struct Evaluation<'a> {
    point: &'a dyn Fn(&str) -> f64,
    /// The factor of a degree: 1 if the degree is a unit that may be omitted, π/180 in the argument of a sine.
    degree: f64,
    power: Power,
}

impl Evaluation<'_> {
    fn value(self, node: &Node) -> Option<Complex> {
        let of = |node: &Node| self.value(node);
        let value = match node {
            Node::Large(digits) => Complex::real(digits.parse().ok()?),
            Node::Infinity => Complex::real(f64::INFINITY),
            Node::Symbol(name) => match name.as_str() {
                "pi" => Complex::real(std::f64::consts::PI),
                "e" => Complex::real(std::f64::consts::E),
                "i" => Complex { re: 0.0, im: 1.0 },
                name => Complex::real((self.point)(name)),
            },
            Node::Unit(inside, name) if unit(name) == Some("degree") => of(inside)?.mul(Complex::real(self.degree)),
            Node::Unit(inside, _) => of(inside)?,
            Node::Percent(inside) => of(inside)?.div(Complex::real(100.0)),
            Node::Function(name, argument, base) => {
                let trigonometric = TRIGONOMETRIC.contains(&name.as_str());
                let degree = if trigonometric { std::f64::consts::PI / 180.0 } else { self.degree };
                let argument = Evaluation { degree, ..self }.value(argument)?;
                function(name, argument, base.as_ref().map_or(Some(None), |base| of(base).map(Some))?)?
            }
            Node::Op(op, parts) => self.operation(node, *op, parts)?,
            other => Complex::real(exact(other)?.to_f64()),
        };
        // A value that overflowed is unknown, so it must not equal anything.
        let finite = value.re.is_finite() && value.im.is_finite();
        (finite || infinite(node)).then_some(value)
    }

    fn operation(self, node: &Node, op: Op, parts: &[Node]) -> Option<Complex> {
        let of = |node: &Node| self.value(node);
        // `exact` counts a degree as 1, so it is right only outside of the arguments of sines.
        if let Some(exact) = exact(node).filter(|_| self.degree == 1.0) {
            return Some(Complex::real(exact.to_f64()));
        }
        let x = of(&parts[0])?;
        let y = || of(parts.get(1)?);
        let integer = |x: Complex| (x.im == 0.0 && x.re.fract() == 0.0 && x.re >= 0.0).then_some(x.re);
        Some(match op {
            Op::Add => x.add(y()?),
            Op::Neg => Complex::real(-1.0).mul(x),
            Op::Mul => {
                let y = y()?;
                let zero = x.abs() == 0.0 || y.abs() == 0.0;
                x.mul(y).unless_lost(zero)?
            }
            Op::Div => x.div(y()?).unless_lost(x.abs() == 0.0)?,
            Op::Pow => {
                let odd = parts.get(1).and_then(exact).and_then(odd_root).filter(|_| self.power == Power::Real);
                match odd {
                    Some((power, odd)) if x.im == 0.0 && x.re < 0.0 => {
                        let size = Complex::real(libm::pow(-x.re, power)).unless_lost(false)?;
                        if odd { Complex::real(-1.0).mul(size) } else { size }
                    }
                    _ => x.pow(y()?).unless_lost(x.abs() == 0.0)?,
                }
            }
            Op::Root if self.power == Power::Principal => y()?.pow(Complex::real(1.0).div(x)),
            Op::Root => root(y()?, x)?,
            Op::Factorial => Complex::real((1..=integer(x).filter(|n| *n <= 170.0)? as u32).map(f64::from).product()),
            Op::Binomial => {
                let (n, k) = (x, integer(y()?).filter(|k| *k <= 100.0)?);
                (0..k as u32).map(f64::from).fold(Complex::real(1.0), |product, i| {
                    product.mul(n.sub(Complex::real(i))).div(Complex::real(i + 1.0))
                })
            }
            Op::Abs => Complex::real(x.abs()),
            Op::Floor if x.im == 0.0 => Complex::real(x.re.floor()),
            Op::Ceil if x.im == 0.0 => Complex::real(x.re.ceil()),
            Op::Max | Op::Min => {
                let values: Option<Vec<f64>> =
                    parts.iter().map(|part| of(part).filter(|x| x.im == 0.0).map(|x| x.re)).collect();
                let pick = if op == Op::Max { f64::max } else { f64::min };
                Complex::real(values?.into_iter().reduce(pick)?)
            }
            Op::Floor | Op::Ceil | Op::PlusMinus | Op::Mod | Op::Gcd | Op::Lcm => return None,
        })
    }
}

/// The value of an exponent p/q in lowest terms with an odd q above 1, and whether p is odd.
fn odd_root(exponent: Rational) -> Option<(f64, bool)> {
    let (p, q) = exponent.parts();
    (q > 1 && q % 2 == 1).then(|| (exponent.to_f64(), p % 2 != 0))
}

/// Whether a node is ∞ or −∞.
fn infinite(node: &Node) -> bool {
    match node {
        Node::Infinity => true,
        Node::Op(Op::Neg, parts) => parts[0] == Node::Infinity,
        _ => false,
    }
}

/// The principal root, or for a negative real number and an odd degree the real root.
fn root(x: Complex, degree: Complex) -> Option<Complex> {
    let odd = degree.im == 0.0 && degree.re.rem_euclid(2.0) == 1.0;
    Some(match (x.im == 0.0, x.re < 0.0) {
        (true, true) if odd => Complex::real(-libm::pow(-x.re, 1.0 / degree.re)),
        (true, false) if degree.re == 2.0 => Complex::real(x.re.sqrt()),
        (true, true) if degree.re == 2.0 => Complex { re: 0.0, im: (-x.re).sqrt() },
        _ => x.pow(Complex::real(1.0).div(degree)),
    })
}

fn function(name: &str, x: Complex, base: Option<Complex>) -> Option<Complex> {
    let one = Complex::real(1.0);
    let real = |f: fn(f64) -> f64| (x.im == 0.0).then(|| Complex::real(f(x.re)));
    let inverse = |f: fn(f64) -> f64| (x.im == 0.0).then(|| Complex::real(f(1.0 / x.re)));
    // Both e^x and e^{-x} must be finite.
    let both = || {
        let (grows, falls) = (x.exp(), Complex::real(-1.0).mul(x).exp());
        (grows.abs().is_finite() && falls.abs().is_finite()).then_some((grows, falls))
    };
    let half = Complex::real(0.5);
    let cosh = || both().map(|(grows, falls)| grows.add(falls).mul(half));
    let sinh = || {
        if x.im == 0.0 {
            return Some(Complex::real(libm::sinh(x.re))).filter(|x| x.re.is_finite());
        }
        both().map(|(grows, falls)| grows.sub(falls).mul(half))
    };
    let value = match name {
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.sin().div(x.cos()),
        "cot" => x.cos().div(x.sin()),
        "sec" => one.div(x.cos()),
        "csc" => one.div(x.sin()),
        "sinh" => sinh()?,
        "cosh" => cosh()?,
        "tanh" => sinh()?.div(cosh()?),
        "coth" => cosh()?.div(sinh()?),
        "sech" => one.div(cosh()?),
        "csch" => one.div(sinh()?),
        "exp" => x.exp().unless_lost(false)?,
        "arcsin" => real(libm::asin)?,
        "arccos" => real(libm::acos)?,
        "arctan" => real(libm::atan)?,
        "arcsec" => inverse(libm::acos)?,
        "arccsc" => inverse(libm::asin)?,
        "arsinh" | "arcsinh" => real(libm::asinh)?,
        "arcosh" | "arccosh" => real(libm::acosh)?,
        "artanh" | "arctanh" => real(libm::atanh)?,
        "lg" => x.ln().div(Complex::real(std::f64::consts::LN_10)),
        // "log" without a base is the natural logarithm, as in sympy.
        "ln" | "log" => match base {
            Some(base) => x.ln().div(base.ln()),
            None => x.ln(),
        },
        _ => return None,
    };
    // acosh(0) is NaN.
    (!value.re.is_nan() && !value.im.is_nan()).then_some(value)
}

/// Adds the names of the variables in a node to `names`.
pub(super) fn variables(node: &Node, names: &mut BTreeSet<String>) {
    match node {
        Node::Symbol(name) if !["pi", "e", "i"].contains(&name.as_str()) => {
            names.insert(name.clone());
        }
        Node::Op(_, parts)
        | Node::Union(parts)
        | Node::Ratio(parts)
        | Node::Clock(parts, _)
        | Node::Relation(parts, _) => {
            for part in parts {
                variables(part, names);
            }
        }
        Node::List { items, .. } => items.iter().for_each(|item| variables(item, names)),
        Node::Function(_, argument, base) => {
            variables(argument, names);
            if let Some(base) = base {
                variables(base, names);
            }
        }
        Node::Unit(inside, _) | Node::Percent(inside) => variables(inside, names),
        Node::Member(left, right) => [left, right].into_iter().for_each(|side| variables(side, names)),
        Node::Matrix(rows) => rows.iter().flatten().for_each(|item| variables(item, names)),
        _ => {}
    }
}
