//! Exact fractions of two `i128`. An operation whose result does not fit returns `None`.

/// A fraction in lowest terms with a positive denominator, so that equal numbers have equal fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rational {
    numerator: i128,
    denominator: i128,
}

impl Rational {
    pub const ZERO: Rational = Rational { numerator: 0, denominator: 1 };

    /// The fraction `numerator` / `denominator`; `None` for a denominator of 0.
    pub fn new(numerator: i128, denominator: i128) -> Option<Rational> {
        let divisor = i128::try_from(gcd(numerator.unsigned_abs(), denominator.unsigned_abs())).ok()?;
        if denominator == 0 {
            return None;
        }
        let sign = denominator.signum();
        let numerator = (numerator / divisor).checked_mul(sign)?;
        Some(Rational { numerator, denominator: (denominator / divisor).checked_mul(sign)? })
    }

    /// Parses a decimal number without sign: `12`, `.5`, `3.`, `2.50`.
    pub fn decimal(text: &str) -> Option<Rational> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let fraction = fraction.trim_end_matches('0');
        let numerator = format!("0{whole}{fraction}").parse().ok()?;
        Rational::new(numerator, 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)
    }

    /// The integer value, if the fraction is an integer.
    pub fn integer(self) -> Option<i128> {
        (self.denominator == 1).then_some(self.numerator)
    }

    /// The numerator and the denominator.
    pub fn parts(self) -> (i128, i128) {
        (self.numerator, self.denominator)
    }

    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    pub fn neg(self) -> Option<Rational> {
        Some(Rational { numerator: self.numerator.checked_neg()?, ..self })
    }

    pub fn add(self, other: Rational) -> Option<Rational> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Rational::new(left.checked_add(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    pub fn mul(self, other: Rational) -> Option<Rational> {
        // Common factors are cancelled crosswise first, so that no intermediate product overflows if the result fits.
        let (a, b) =
            (Rational::new(self.numerator, other.denominator)?, Rational::new(other.numerator, self.denominator)?);
        let numerator = a.numerator.checked_mul(b.numerator)?;
        Rational::new(numerator, a.denominator.checked_mul(b.denominator)?)
    }

    pub fn div(self, other: Rational) -> Option<Rational> {
        self.mul(Rational::new(other.denominator, other.numerator)?)
    }

    /// The fraction to an integer power; 0⁰ is 1.
    pub fn pow(self, exponent: i128) -> Option<Rational> {
        let power = u32::try_from(exponent.unsigned_abs()).ok()?;
        let (n, d) = (self.numerator.checked_pow(power)?, self.denominator.checked_pow(power)?);
        if exponent < 0 { Rational::new(d, n) } else { Rational::new(n, d) }
    }

    /// The real root of the given degree, if it is a fraction; for a negative number the degree must be odd.
    pub fn root(self, degree: u32) -> Option<Rational> {
        if self.numerator < 0 && degree.is_multiple_of(2) {
            return None;
        }
        let root = |n: i128| {
            let near = libm::pow((n as f64).abs(), 1.0 / f64::from(degree)).round() as i128 * n.signum();
            (near.checked_pow(degree)? == n).then_some(near)
        };
        Rational::new(root(self.numerator)?, root(self.denominator)?)
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(n: i128, d: i128) -> Rational {
        Rational::new(n, d).unwrap()
    }

    #[test]
    fn fractions_are_exact_and_in_lowest_terms() {
        assert_eq!((q(2, -4), Rational::new(1, 0), Rational::new(0, 0)), (q(-1, 2), None, None));
        assert_eq!(Rational::decimal("0.250"), Some(q(1, 4)));
        assert_eq!((Rational::decimal(".5"), Rational::decimal("3.")), (Some(q(1, 2)), Some(q(3, 1))));
        assert_eq!(Rational::decimal("1.2.3"), None);
        assert_eq!(q(1, 3).add(q(1, 6)), Some(q(1, 2)));
        assert_eq!((q(2, 3).mul(q(3, 4)), q(2, 3).div(q(4, 3))), (Some(q(1, 2)), Some(q(1, 2))));
        assert_eq!(q(1, 3).div(q(0, 1)), None);
        assert_eq!((q(2, 3).pow(-2), q(0, 1).pow(-1), q(-2, 1).pow(3)), (Some(q(9, 4)), None, Some(q(-8, 1))));
        assert_eq!((q(4, 9).root(2), q(2, 1).root(2), q(-8, 27).root(3)), (Some(q(2, 3)), None, Some(q(-2, 3))));
        assert_eq!(q(-4, 1).root(2), None);
    }

    #[test]
    fn overflowing_operations_return_none() {
        let large = q(i128::MAX, 1);
        assert_eq!((large.add(q(1, 1)), large.mul(large), large.pow(2)), (None, None, None));
        assert_eq!(Rational::new(i128::MIN, -1), None);
        assert_eq!(large.mul(q(1, i128::MAX)), Some(q(1, 1)));
        assert_eq!(Rational::new(i128::MIN, i128::MIN), None);
        assert_eq!(Rational::decimal(&"9".repeat(60)), None);
    }

    #[test]
    fn integers_signs_powers_and_roots_are_exact() {
        assert_eq!((q(6, 3).integer(), q(6, 4).integer(), q(-6, 3).integer()), (Some(2), None, Some(-2)));
        assert_eq!((q(6, 4).parts(), q(-6, 4).parts(), q(6, -4).parts()), ((3, 2), (-3, 2), (-3, 2)));
        assert_eq!((q(-3, 4).to_f64(), q(-3, 4).neg(), q(i128::MIN, 1).neg()), (-0.75, Some(q(3, 4)), None));
        assert_eq!((q(1, 3).add(q(-1, 2)), q(2, 3).mul(q(-5, 7))), (Some(q(-1, 6)), Some(q(-10, 21))));
        assert_eq!((q(2, 3).div(q(5, 7)), q(2, 3).div(q(-5, 7))), (Some(q(14, 15)), Some(q(-14, 15))));
        assert_eq!((q(2, 3).pow(0), q(0, 1).pow(0), q(2, 3).pow(1)), (Some(q(1, 1)), Some(q(1, 1)), Some(q(2, 3))));
        assert_eq!((q(2, 3).pow(3), q(2, 3).pow(-3), q(2, 1).pow(1 << 40)), (Some(q(8, 27)), Some(q(27, 8)), None));
        assert_eq!(
            (q(0, 1).root(2), q(-1, 1).root(5), q(16, 81).root(4)),
            (Some(q(0, 1)), Some(q(-1, 1)), Some(q(2, 3)))
        );
        assert_eq!((q(4, 2).root(1), q(4, 3).root(2), q(3, 4).root(2)), (Some(q(2, 1)), None, None));
        assert_eq!((Rational::decimal("007.500"), Rational::decimal("0")), (Some(q(15, 2)), Some(q(0, 1))));
        assert_eq!(
            (Rational::decimal(""), Rational::decimal("x"), Rational::decimal("1.x")),
            (Some(q(0, 1)), None, None)
        );
        // A decimal with 38 places fits; a decimal with 39 places does not.
        let places = |n: usize| Rational::decimal(&format!("0.{}1", "0".repeat(n - 1)));
        assert_eq!((places(38), places(39)), (Some(q(1, 10i128.pow(38))), None));
        assert_eq!((gcd(12, 18), gcd(18, 12), gcd(0, 5), gcd(5, 0), gcd(7, 9)), (6, 6, 5, 5, 1));
    }
}
