//! Finds numbers in a text (decimals of any length, fractions, exponents), and checks the text around them. This file
//! does not know the answer.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::answer::{regex, taken_back_before, taken_back_behind};
use super::rational::Rational;

/// Matches the beginning of a number after a word such as "or".
pub(super) static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"^[\s$*(\\]*[-\u{2212}]?\$?\.?\d"));

/// Whether the number from byte `start` to `end` is separate, and not retracted by the text around it. This is false in
/// `x42`, `42nd`, `42:00`, `42 or 43`, `not 42` and `42 is wrong`.
pub(super) fn is_meant(text: &str, start: usize, end: usize) -> bool {
    /// Matches text before a number that makes it part of something longer.
    static BELONGS: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"(?x) (?: \d: | [\^_√±] | [\^_]\{ | \\(?:sqrt|log|ln|sin|cos|tan|pm)\s*(?:\[[^\]]*\])?\s*\{?
            | [-+*/\u{2212}]\s*\(
            # A part of a fraction or a product, or what is divided.
            | \}\s*\{\s* | \\[dtc]?(?:frac|binom)\s*\{\s*
            | (?:[\p{N})\]}]|\b\p{L})[\ \t]*[*×·÷⋅∗][\ \t]*
            | \\(?:times|cdot|div|ast|pi|theta)\s* | (?:\b\p{L}|[)\]}²³])/ )$",
        )
    });
    const CURRENCIES: [&str; 12] = ["rs", "usd", "eur", "gbp", "inr", "rm", "us", "aud", "cad", "hk", "cny", "rmb"];
    let whole = &text[..start];
    let before = whole.trim_end_matches(['$', '€', '£', '¥', '₹']);
    let letters = before.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
    let word = &before[letters.len()..];
    let attached = before.len() == whole.len()
        && !word.is_empty()
        && !word.ends_with(is_of_script_without_spaces)
        && !letters.ends_with('\\')
        && !CURRENCIES.contains(&word.to_lowercase().as_str());
    let after = &text[end..];
    let suffix: String = after.chars().take_while(|c| c.is_alphabetic() && !is_of_script_without_spaces(*c)).collect();
    let scaled = |c: char| "十百千万萬亿億兆만억조천백분".contains(c);
    !(attached
        || after.starts_with(scaled)
        || before.ends_with(|c: char| scaled(c) || "〇一二三四五六七八九两点點又".contains(c))
        || BELONGS.is_match(before)
        || after.strip_prefix(':').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || !is_unit(&suffix)
        || taken_back_before(before)
        || taken_back_behind(after, &NUMBER))
}

/// Whether a letter is Chinese, Japanese, Korean, Thai, Lao, Khmer or Burmese. In these scripts, words follow numbers
/// without a space.
pub(super) fn is_of_script_without_spaces(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{1100}'..='\u{11ff}'
        | '\u{3040}'..='\u{30ff}' | '\u{3130}'..='\u{318f}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Whether letters may follow a number without a space as a unit: `5kg` is allowed, `42nd`, `5k` and `3x` are not.
fn is_unit(suffix: &str) -> bool {
    let known = || super::units::is_unit(suffix) || ["am", "pm"].contains(&suffix.to_lowercase().as_str());
    suffix.is_empty() || known() || suffix.chars().count() >= 3 && !super::units::never_unit(suffix)
}

/// The value of a fraction character such as `½`.
pub(super) fn vulgar_fraction(c: char) -> Option<(u8, u8)> {
    Some(match c {
        '½' => (1, 2),
        '⅓' => (1, 3),
        '⅔' => (2, 3),
        '¼' => (1, 4),
        '¾' => (3, 4),
        '⅕' => (1, 5),
        '⅖' => (2, 5),
        '⅗' => (3, 5),
        '⅘' => (4, 5),
        '⅙' => (1, 6),
        '⅚' => (5, 6),
        '⅐' => (1, 7),
        '⅛' => (1, 8),
        '⅜' => (3, 8),
        '⅝' => (5, 8),
        '⅞' => (7, 8),
        '⅑' => (1, 9),
        '⅒' => (1, 10),
        _ => return None,
    })
}

/// Matches a LaTeX fraction of two numbers, with its sign and the whole part of a mixed number.
static FRACTION: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?x) (?:(?P<whole>[0-9]+)(?:\s|\\[,;:!\ ])*)? (?P<minus>[-\u{2212}])?
        \\[dtc]?frac\s*(?: \{\s*(?P<top>[-\u{2212}]?[0-9.,]+)\s*\}\s*\{\s*(?P<bottom>[-\u{2212}]?[0-9.,]+)\s*\}
            | (?P<top2>[0-9])\s*(?P<bottom2>[0-9]) | (?P<top3>[0-9])\s*\{\s*(?P<bottom3>[0-9]+)\s*\}
            | \{\s*(?P<top4>[0-9]+)\s*\}\s*(?P<bottom4>[0-9]) )",
    )
});

/// The last LaTeX fraction of a text, if it contains the number that begins at `at`.
pub(super) fn latex_fraction_around(text: &str, at: usize) -> Option<std::ops::Range<usize>> {
    FRACTION.find_iter(text).map(|found| found.range()).filter(|range| range.contains(&at)).last()
}

/// Rewrites fractions and powers of ten in plain notation: `\frac{84}{2}` becomes `84/2`, `2\frac12` and `2½` become
/// `2 1/2`, and `3 \times 10^5` becomes `3e5`.
pub(super) fn latex_fractions(text: &str) -> Cow<'_, str> {
    static POWER_OF_TEN: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"(?x) ([0-9])\s*(?:\\times|\\cdot|[×·*])\s*10\s*\^\s*
            (?: \{\s*([-\u{2212}]?[0-9]{1,3})\s*\} | ([-\u{2212}]?[0-9]{1,3})\b )",
        )
    });
    static DEGREE: LazyLock<Regex> = LazyLock::new(|| regex(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)"));
    let mut text = Cow::Borrowed(text);
    if text.contains("\\circ") {
        text = Cow::Owned(DEGREE.replace_all(&text, "°").into_owned());
    }
    if text.contains("frac") {
        let plain = |found: &regex::Captures<'_>| {
            let part =
                |names: [&str; 4]| names.iter().find_map(|name| found.name(name)).map_or("", |part| part.as_str());
            let (top, bottom) =
                (part(["top", "top2", "top3", "top4"]), part(["bottom", "bottom2", "bottom3", "bottom4"]));
            let minus = |text: &str| text.starts_with(['-', '\u{2212}']);
            let digits = |text: &str| text.trim_start_matches(['-', '\u{2212}']).to_owned();
            let whole = found.name("whole").map_or("", |whole| whole.as_str());
            // A number followed by a minus sign is not the whole part of a mixed number.
            let between = if whole.is_empty() { "" } else { " " };
            let signs = [found.name("minus").is_some(), minus(top), minus(bottom)];
            let sign = if signs.iter().filter(|minus| **minus).count() % 2 == 1 { "-" } else { "" };
            format!("{whole}{between}{sign}{}/{}", digits(top), digits(bottom))
        };
        text = Cow::Owned(FRACTION.replace_all(&text, plain).into_owned());
    }
    if text.chars().any(|c| vulgar_fraction(c).is_some()) {
        let mut plain = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            match vulgar_fraction(c) {
                Some((top, bottom)) => {
                    let gap = if plain.ends_with(|c: char| c.is_ascii_digit()) { " " } else { "" };
                    plain.push_str(&format!("{gap}{top}/{bottom}"));
                }
                None => plain.push(c),
            }
        }
        text = Cow::Owned(plain);
    }
    if text.contains("10") && POWER_OF_TEN.is_match(&text) {
        let exponent = |found: &regex::Captures<'_>| {
            let exponent = found.get(2).or(found.get(3)).map_or("", |exponent| exponent.as_str());
            format!("{}e{}", &found[1], exponent.replace('\u{2212}', "-"))
        };
        text = Cow::Owned(POWER_OF_TEN.replace_all(&text, exponent).into_owned());
    }
    text
}

/// A number in a text, including its exponent, its denominator, or the whole part of a mixed number.
pub(super) struct Group {
    /// The value; `None` if it divides by zero or overflows.
    pub value: Option<Number>,
    pub start: usize,
    pub end: usize,
}

/// The numbers of a text in order. Unlike in [`numbers`], each of `4.2e1`, `84/2` and `1 1/2` is one number.
pub(super) fn groups(text: &str) -> impl Iterator<Item = Group> + '_ {
    let mut rest = numbers(text).peekable();
    std::iter::from_fn(move || {
        let first = rest.next()?;
        let (start, mut end) = (first.start, first.end);
        let mut value = Some(Number::Decimal(first.value));
        let mut parts = vec![];
        let bytes = text.as_bytes();
        while let Some(next) = rest.peek() {
            let between = &text[end..next.start];
            let digits = |range: std::ops::Range<usize>| text[range].bytes().all(|b| b.is_ascii_digit());
            let whole_text = &text[start..end];
            let whole_part = whole_text.trim_start_matches(['-', '\u{2212}']);
            let proper = || parts.is_empty() && whole_part.bytes().all(|b| b.is_ascii_digit());
            match between {
                "e" | "E" | "e+" | "E+" | "e-" | "E-" if digits(next.start..next.end) => {
                    let sign = if between.ends_with('-') { "-" } else { "" };
                    let exponent = format!("{sign}{}", &text[next.start..next.end]);
                    value = value.and_then(|v| v.shifted(&exponent));
                }
                "/" | " / " | "/ " | " /" => {
                    let bottom = Number::Decimal(next.value.clone());
                    value = value.and_then(|v| v.over(&bottom));
                    parts.push("/");
                }
                // A whole number before a fraction is part of a mixed number.
                " " if proper() && bytes.get(next.end) == Some(&b'/') => {
                    let whole = value.clone();
                    let top = rest.next()?;
                    end = top.end;
                    let bottom = rest.next_if(|bottom| &text[top.end..bottom.start] == "/")?;
                    end = end.max(bottom.end);
                    let negative = whole_part.len() < whole_text.len();
                    value = Number::Decimal(top.value)
                        .over(&Number::Decimal(bottom.value))
                        // "4 10/3" is not a mixed number, since 10/3 exceeds 1.
                        .filter(|part| part.to_f64().is_some_and(|part| (0.0..1.0).contains(&part)))
                        .and_then(|part| if negative { part.negative() } else { Some(part) })
                        .and_then(|part| whole?.plus(&part));
                    parts.push("/");
                    continue;
                }
                _ => break,
            }
            end = next.end;
            rest.next();
        }
        // 12/25/2020 is a date and has no value.
        if parts.len() > 1 {
            value = None;
        }
        Some(Group { value, start, end })
    })
}

/// A decimal number found in a text.
pub(super) struct Found {
    value: Decimal,
    /// Byte offset of the number's sign or first digit.
    pub start: usize,
    /// Byte offset just after the number.
    pub end: usize,
}

/// All numbers of a text in order: digits with commas between thousands and one decimal point. A sign is part of the
/// number unless it follows a number or word (`5-3` is 5 and 3, `= -3` is −3). A `$` may be between the sign and the
/// digits.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = Found> + '_ {
    let bytes = text.as_bytes();
    let digit = move |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    std::iter::from_fn(move || {
        // A number may begin with a point, as in ".5", but not with the second point of "1.2.3".
        let point = |i: usize| bytes[i] == b'.' && digit(i + 1) && (i == 0 || !digit(i - 1));
        while at < bytes.len() && !(digit(at) || point(at)) {
            at += 1;
        }
        if at >= bytes.len() {
            return None;
        }
        let sign = sign_before(&text[..at]);
        let start = sign.unwrap_or(at);
        let mut plain = String::from(if sign.is_some() { "-" } else { "" });
        let mut has_point = false;
        while at < bytes.len() {
            match bytes[at] {
                b'0'..=b'9' => plain.push(bytes[at] as char),
                // A comma is part of the number only before exactly three digits.
                b',' if !has_point && (1..=3).all(|i| digit(at + i)) && !digit(at + 4) => {}
                b'.' if !has_point && digit(at + 1) => {
                    has_point = true;
                    plain.push('.');
                }
                _ => break,
            }
            at += 1;
        }
        Some(Found { value: Decimal::parse(&plain)?, start, end: at })
    })
}

/// The byte offset of a minus at the end of `before`, the text before a number, if the minus is a sign, not an operator
/// or a hyphen.
fn sign_before(before: &str) -> Option<usize> {
    let before = before.strip_suffix('$').unwrap_or(before);
    let before = before.strip_suffix('\\').unwrap_or(before);
    let rest = before.strip_suffix('-').or_else(|| before.strip_suffix('\u{2212}'))?;
    // The minus is an operator in "a-3" and "5 -3", but a sign in "is -3".
    let operator = rest.ends_with(|c: char| c.is_alphanumeric() || c == ')')
        || rest.trim_end().ends_with(|c: char| c.is_numeric() || c == ')');
    (!operator).then_some(rest.len())
}

/// A number: a decimal, or a fraction without a finite decimal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Decimal(Decimal),
    Fraction(Rational),
}

impl Number {
    fn rational(&self) -> Option<Rational> {
        match self {
            Number::Decimal(decimal) => decimal.rational(),
            Number::Fraction(fraction) => Some(*fraction),
        }
    }

    /// Converts a fraction to a number: a decimal if possible.
    fn of(fraction: Rational) -> Number {
        let places = (0..=30).find_map(|places| {
            let scaled = fraction.mul(Rational::new(10i128.pow(places), 1)?)?.integer()?;
            Decimal::parse(&format!("{scaled}e-{places}"))
        });
        places.map_or(Number::Fraction(fraction), Number::Decimal)
    }

    fn over(&self, bottom: &Number) -> Option<Number> {
        Some(Number::of(self.rational()?.div(bottom.rational()?)?))
    }

    fn negative(&self) -> Option<Number> {
        Some(Number::of(self.rational()?.neg()?))
    }

    fn plus(&self, other: &Number) -> Option<Number> {
        Some(Number::of(self.rational()?.add(other.rational()?)?))
    }

    /// The number times ten to the power of `exponent`.
    fn shifted(&self, exponent: &str) -> Option<Number> {
        match self {
            Number::Decimal(decimal) => Decimal::parse(&format!("{decimal}e{exponent}")).map(Number::Decimal),
            Number::Fraction(_) => None,
        }
    }

    pub fn to_f64(&self) -> Option<f64> {
        match self {
            Number::Decimal(decimal) => decimal.to_string().parse().ok(),
            Number::Fraction(fraction) => Some(fraction.to_f64()),
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Decimal(decimal) => decimal.fmt(f),
            Number::Fraction(fraction) => write!(f, "{}/{}", fraction.parts().0, fraction.parts().1),
        }
    }
}

/// A decimal number in one canonical form (no leading or trailing zeros, no −0), so that equal numbers have equal
/// fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    whole: String,
    fraction: String,
}

impl Decimal {
    /// Parses `[-]digits[.digits]` (also with an exponent, as JSON writes large and small numbers).
    pub fn parse(text: &str) -> Option<Self> {
        let (text, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok().filter(|e| e.abs() <= 400)?),
            None => (text, 0),
        };
        let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let (mut whole, mut fraction) = (whole.to_owned(), fraction.to_owned());
        for _ in 0..exponent.unsigned_abs() {
            if exponent > 0 {
                whole.push(if fraction.is_empty() { '0' } else { fraction.remove(0) });
            } else {
                fraction.insert(0, whole.pop().unwrap_or('0'));
            }
        }
        let whole = whole.trim_start_matches('0').to_owned();
        let fraction = fraction.trim_end_matches('0').to_owned();
        Some(Decimal { negative: negative && !(whole.is_empty() && fraction.is_empty()), whole, fraction })
    }

    fn rational(&self) -> Option<Rational> {
        let size = Rational::decimal(&format!("{}.{}", self.whole, self.fraction))?;
        if self.negative { size.neg() } else { Some(size) }
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let whole = if self.whole.is_empty() { "0" } else { &self.whole };
        let point = if self.fraction.is_empty() { "" } else { "." };
        write!(f, "{sign}{whole}{point}{}", self.fraction)
    }
}

#[cfg(test)]
mod tests {
    mod parts;

    use super::*;

    #[test]
    fn decimals_are_exact_and_have_a_canonical_form() {
        assert_eq!(Decimal::parse("-0.00"), Decimal::parse("0"));
        assert_eq!(Decimal::parse("1.5e3"), Decimal::parse("1500"));
        assert_eq!(Decimal::parse("15e-3"), Decimal::parse("0.0150"));
        // These two numbers would be equal as floats.
        assert_ne!(Decimal::parse("9007199254740993"), Decimal::parse("9007199254740992"));
        for bad in ["", "-", ".", "1.2.3", "1a", "--1", "1e", "1e999999999"] {
            assert_eq!(Decimal::parse(bad), None, "{bad}");
        }
    }
}
