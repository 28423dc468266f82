//! Decides whether two mathematical answers are equal.

use super::super::answer::{plain_digits, regex};
use super::super::rational::Rational;
use super::eval::{Complex, Power, exact, residues, value, value_of, variables};
use super::parse::{Node, Op, Reading, parse};
use super::units::{power, unit};
use regex::{Captures, Regex};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The relative difference up to which two irrational values are equal.
const PRECISION: f64 = 1e-10;

/// The number of points at which expressions with variables are compared. A point assigns a value to each variable.
const POINTS: u64 = 6;

/// Further points with larger or smaller coordinates: the size, and the relative difference up to which values are
/// equal at that size. They distinguish |x − 3| from 3 − x. Values that are undefined at a point, or imprecise because
/// of rounding, are not compared.
const FAR: [(f64, f64); 6] = [(12.0, 1e-8), (40.0, 1e-7), (900.0, 1e-6), (1e4, 1e-5), (3e4, 1e-4), (1e-3, 1e-6)];

/// Answers longer than this many bytes are compared only as text.
pub(super) const MAX_BYTES: usize = 2000;

/// Whether the completion's answer `given` equals the dataset's answer `gold`.
pub(super) fn equal(gold: &str, given: &str) -> bool {
    let (gold, given) = (&*plain_digits(gold), &*plain_digits(given));
    let (gold, given) = (&*in_one_form(gold, given), &*in_one_form(given, gold));
    let (left, right) = (text_form(gold), text_form(given));
    if left == right {
        return !left.is_empty();
    }
    if gold.len() > MAX_BYTES || given.len() > MAX_BYTES {
        return false;
    }
    // "1,234" may be one number or two. The answers are equal if they are equal in either reading.
    let equal = |decimal_log: bool| {
        let read = |text: &str, thousands: bool| parse(text, Reading { thousands, decimal_log });
        let readings = |text: &str| [read(text, true), text.contains([',', 'e']).then(|| read(text, false)).flatten()];
        let (golds, givens) = (readings(gold), readings(given));
        golds.iter().flatten().any(|gold| givens.iter().flatten().any(|given| same(gold, given)))
    };
    // \log 100 may be 2 or 4.6…, but the base must be the same in both answers.
    equal(false) || (gold.contains("log") || given.contains("log")) && equal(true)
}

/// Rewrites equivalent notations in one form. Letters after a number (`5 m^2`, `7 h`) are a unit only if the other
/// answer has a unit.
fn in_one_form<'t>(text: &'t str, other: &str) -> Cow<'t, str> {
    static COMMA: LazyLock<Regex> = LazyLock::new(|| regex(r"([0-9])\{,\}([0-9]+)"));
    static SPACES: LazyLock<Regex> = LazyLock::new(|| regex(r"^\s*-?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?\s*$"));
    static CHOOSE: LazyLock<Regex> = LazyLock::new(|| regex(r"\{\s*([^{}\\]+?)\s*\\choose\s*([^{}\\]+?)\s*\}"));
    static MODULUS: LazyLock<Regex> = LazyLock::new(|| regex(r"\\pmod\s*\{\s*([^{}]*?)\s*\}"));
    static LETTERS: LazyLock<Regex> =
        LazyLock::new(|| regex(r"^(\s*-?[0-9][0-9.,/]*)\s+([A-Za-z]+)(?:\^\{?([0-9])\}?)?\s*$"));
    // A quotient of units: `\frac{\text{m}}{\text{s}}`, `\text{m}/\text{s}`.
    static QUOTIENT: LazyLock<Regex> = LazyLock::new(|| {
        let unit = |begin: &str, end: &str| {
            format!(r"{begin}\\(?:text|mathrm|rm)\s*\{{\s*([A-Za-z]+(?:\^[0-9])?)\s*\}}\s*{end}")
        };
        let fraction = [unit(r"\\[dt]?frac\s*\{\s*", r"\}\s*"), unit(r"\{\s*", r"\}")].concat();
        let slash = [unit("", "/"), unit(r"\s*", "")].concat();
        regex(&format!("{fraction}|{slash}"))
    });
    let mut text = Cow::Borrowed(text);
    if text.contains("{,}") {
        // A comma is a decimal comma unless three digits follow. In brackets, a comma separates two items.
        let thousands = if text.contains(['(', '[']) || text.contains("\\{") { "" } else { "," };
        let point = |found: &Captures<'_>| {
            let sign = if found[2].len() == 3 { thousands } else { "." };
            format!("{}{sign}{}", &found[1], &found[2])
        };
        // The loop handles numbers with several commas. It ends, since each replacement shortens the text.
        while let Cow::Owned(next) = COMMA.replace_all(&text, point) {
            text = Cow::Owned(next);
        }
    }
    if text.contains("frac") || text.contains("}/\\") {
        text = Cow::Owned(QUOTIENT.replace_all(&text, "\\text{ $1$3/$2$4}").into_owned());
    }
    if text.contains(' ') && SPACES.is_match(&text) {
        text = Cow::Owned(text.split_whitespace().collect());
    }
    if text.contains("\\choose") {
        text = Cow::Owned(CHOOSE.replace_all(&text, "\\binom{$1}{$2}").into_owned());
    }
    if text.contains("\\pmod") {
        text = Cow::Owned(MODULUS.replace_all(&text, "\\pmod $1").into_owned());
    }
    if other.contains("\\text") || other.contains("\\mathrm") || other.contains(' ') {
        let known = LETTERS.captures(&text).filter(|found| unit(&found[2]).is_some());
        let written = known.map(|found| {
            let power = found.get(3).map_or(String::new(), |power| format!("^{}", power.as_str()));
            format!("{}\\text{{ {}}}{power}", &found[1], &found[2])
        });
        text = written.map_or(text, Cow::Owned);
    }
    text
}

/// The text of an answer without markup: `\text{(C)}` becomes `C`.
fn text_form(text: &str) -> String {
    let mut text = text.to_owned();
    for command in ["\\textbf", "\\text", "\\mbox", "\\mathrm", "\\mathbf", "\\left", "\\right", "\\!", "\\,", "\\ "] {
        text = text.replace(command, " ");
    }
    let words = !text.contains(['\\', '^', '_']);
    let dropped = |c: char| c.is_whitespace() || c == '$' || words && matches!(c, '{' | '}');
    let digit = |c: char| c.is_ascii_digit() || c == '.';
    let mut kept = String::new();
    for piece in text.split(dropped).filter(|piece| !piece.is_empty()) {
        // A space keeps digits apart: "1 1/2" is not 11/2, and "2{3}" is not 23.
        if kept.ends_with(digit) && piece.starts_with(digit) && piece != "." {
            kept.push(' ');
        }
        kept.push_str(piece);
    }
    // The dots of "42..." stay, since the number continues.
    let text = kept.strip_suffix('.').filter(|text| !text.ends_with('.')).unwrap_or(&kept);
    let inside = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    inside.filter(|inside| inside.len() == 1).unwrap_or(text).to_owned()
}

/// An answer in a normal form for comparison.
fn canonical(node: &Node) -> Node {
    let list = |items: Vec<Node>| Node::List { open: ' ', close: ' ', items };
    match node {
        // "x ∈ S" equals "S". `same` treats "x = 5" and "5" in the same way.
        Node::Member(_, set) => canonical(set),
        // The symbol ℝ.
        Node::Symbol(name) if name == "R" => {
            Node::List { open: '(', close: ')', items: vec![Node::Op(Op::Neg, vec![Node::Infinity]), Node::Infinity] }
        }
        Node::List { open: open @ (' ' | '{'), items, .. } => {
            let flat = items.iter().map(canonical).flat_map(|item| match item {
                Node::List { open: ' ', items, .. } => items,
                other => vec![other],
            });
            let mut items: Vec<Node> = flat.collect();
            if *open == '{' {
                // Duplicate elements of a set are removed.
                let mut once: Vec<Node> = Vec::new();
                for item in items {
                    if !once.iter().any(|other| same(other, &item)) {
                        once.push(item);
                    }
                }
                items = once;
            }
            if items.len() == 1 { items.remove(0) } else { list(items) }
        }
        _ => match [plus_minus(node, false), plus_minus(node, true)] {
            [Some(plus), Some(minus)] => list(vec![plus, minus]),
            _ => inequality(node).unwrap_or_else(|| node.clone()),
        },
    }
}

/// The node with each `±` replaced by plus, or by minus if `minus` is set. `None` if the node has no `±`.
fn plus_minus(node: &Node, minus: bool) -> Option<Node> {
    match node {
        Node::Op(Op::PlusMinus, parts) => {
            let second = if minus { Node::Op(Op::Neg, vec![parts[1].clone()]) } else { parts[1].clone() };
            Some(Node::Op(Op::Add, vec![parts[0].clone(), second]))
        }
        Node::Op(op, parts) => {
            let changed: Vec<_> = parts.iter().map(|part| plus_minus(part, minus)).collect();
            changed.iter().any(Option::is_some).then(|| {
                let parts = changed.into_iter().zip(parts).map(|(new, old)| new.unwrap_or_else(|| old.clone()));
                Node::Op(*op, parts.collect())
            })
        }
        Node::Relation(sides, signs) if sides.len() == 2 => {
            let right = plus_minus(&sides[1], minus)?;
            Some(Node::Relation(vec![sides[0].clone(), right], signs.clone()))
        }
        Node::Unit(inside, name) => Some(Node::Unit(plus_minus(inside, minus)?.into(), name.clone())),
        _ => None,
    }
}

/// An inequality such as `x > 3` or `1 < x ≤ 2` as an interval.
fn inequality(node: &Node) -> Option<Node> {
    let Node::Relation(sides, signs) = node else { return None };
    let variable = |node: &Node| matches!(node, Node::Symbol(name) if !["pi", "e", "i"].contains(&name.as_str()));
    let up = |sign: char| matches!(sign, '<' | '≤');
    let closed = |sign: char| matches!(sign, '≤' | '≥');
    if signs.iter().any(|sign| matches!(sign, '=' | '≠')) {
        return None;
    }
    let interval =
        |open, low: &Node, high: &Node, close| Node::List { open, close, items: vec![low.clone(), high.clone()] };
    let bracket = |sign: char, pair: [char; 2]| pair[usize::from(closed(sign))];
    let (low, high) = (|sign| bracket(sign, ['(', '[']), |sign| bracket(sign, [')', ']']));
    let infinite = Node::Op(Op::Neg, vec![Node::Infinity]);
    match (sides.as_slice(), signs.as_slice()) {
        ([x, a], &[sign]) if variable(x) => Some(if up(sign) {
            interval('(', &infinite, a, high(sign))
        } else {
            interval(low(sign), a, &Node::Infinity, ')')
        }),
        ([a, x], &[sign]) if variable(x) => Some(if up(sign) {
            interval(low(sign), a, &Node::Infinity, ')')
        } else {
            interval('(', &infinite, a, high(sign))
        }),
        ([a, x, b], &[first, second]) if variable(x) && up(first) == up(second) => Some(if up(first) {
            interval(low(first), a, b, high(second))
        } else {
            interval(low(second), b, a, high(first))
        }),
        _ => None,
    }
}

fn same(gold: &Node, given: &Node) -> bool {
    let (gold, given) = (&canonical(gold), &canonical(given));
    match (gold, given) {
        (Node::List { open, close, items }, Node::List { open: open2, close: close2, items: items2 }) => {
            (open, close) == (open2, close2)
                && items.len() == items2.len()
                && if *open == ' ' { unordered(items, items2) } else { ordered(items, items2) }
        }
        // All parts of a time, or of a ratio that contains 0, are compared: 0:30 is not 0:45.
        (Node::Clock(parts, _), Node::Clock(parts2, _) | Node::Ratio(parts2))
        | (Node::Ratio(parts), Node::Clock(parts2, true)) => ordered(parts, parts2),
        (Node::Ratio(parts), Node::Ratio(parts2) | Node::Clock(parts2, false))
            if parts.iter().chain(parts2).any(is_zero) =>
        {
            ordered(parts, parts2)
        }
        (Node::Clock(parts, false), Node::Op(Op::Div, fraction))
        | (Node::Op(Op::Div, fraction), Node::Clock(parts, false)) => ordered(parts, fraction),
        (Node::Ratio(parts), Node::Ratio(parts2) | Node::Clock(parts2, false)) => {
            let product = |a: &Node, b: &Node| Node::Op(Op::Mul, vec![a.clone(), b.clone()]);
            let scaled = |(a, b): (&Node, &Node)| numbers(&product(a, &parts2[0]), &product(b, &parts[0]));
            parts.len() == parts2.len() && parts.iter().zip(parts2).all(scaled)
        }
        // A ratio such as 3:2 is compared as a fraction.
        (Node::Ratio(parts), fraction @ Node::Op(Op::Div, _))
        | (fraction @ Node::Op(Op::Div, _), Node::Ratio(parts)) => {
            parts.len() == 2 && numbers(&Node::Op(Op::Div, parts.clone()), fraction)
        }
        (Node::Union(parts), Node::Union(parts2)) => unordered(parts, parts2),
        (Node::Matrix(rows), Node::Matrix(rows2)) => {
            rows.len() == rows2.len() && rows.iter().zip(rows2).all(|(row, row2)| ordered(row, row2))
        }
        (Node::Text(text), Node::Text(text2)) => text_form(text).to_lowercase() == text_form(text2).to_lowercase(),
        // A relation does not equal a value, except that `x = 5` equals 5.
        (Node::Relation(sides, signs), Node::Relation(sides2, signs2)) => relations([sides, sides2], [signs, signs2]),
        (Node::Relation(sides, signs), given) => named_value(sides, signs).is_some_and(|side| same(side, given)),
        (gold, Node::Relation(sides, signs)) => stated(gold, sides, signs).is_some_and(|side| same(gold, side)),
        _ => same_value(gold, given),
    }
}

/// Whether a node is 0 at every point where it is defined.
fn is_zero(node: &Node) -> bool {
    numbers(node, &Node::Number(Rational::ZERO))
}

fn ordered(left: &[Node], right: &[Node]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
}

/// Whether two lists are equal in some order.
fn unordered(left: &[Node], right: &[Node]) -> bool {
    let mut free = vec![true; right.len()];
    left.len() == right.len()
        && left.iter().all(|node| {
            let place = (0..right.len()).find(|&i| free[i] && same(node, &right[i]));
            place.is_some_and(|i| std::mem::replace(&mut free[i], false))
        })
}

/// The right side of an equation whose left side is a name: 5 for `x = 5` and `f(x) = 5`.
fn named_value<'n>(sides: &'n [Node], signs: &[char]) -> Option<&'n Node> {
    let [name, side] = sides else { return None };
    let tuple = |node: &Node| match (node, side) {
        (Node::List { items, .. }, Node::List { .. }) => items.iter().all(|item| matches!(item, Node::Symbol(_))),
        _ => false,
    };
    ((is_name(name) || tuple(name)) && signs == ['=']).then_some(side)
}

fn is_name(node: &Node) -> bool {
    match node {
        Node::Symbol(name) => name != "pi",
        Node::Op(Op::Mul, parts) => matches!(&parts[..], [Node::Symbol(_), Node::Symbol(_)]),
        Node::Text(_) => true,
        _ => false,
    }
}

/// The value that a chain of equations states: 5 for `m + n = 2 + 3 = 5`. Every other side must equal the value or be a
/// name for it. Sides such as 2x and y + 1 are not names, since such an equation is not solved.
fn stated<'n>(gold: &Node, sides: &'n [Node], signs: &[char]) -> Option<&'n Node> {
    let (last, others) = sides.split_last()?;
    let closed = names([gold, last]).is_empty();
    let names_it = |side: &Node| {
        is_name(side)
            || closed
                && match side {
                    Node::Op(Op::Abs, _) | Node::Function(..) => !names([side, side]).is_empty(),
                    // A function value such as f(2) is a name.
                    Node::Op(Op::Mul, parts) if matches!(parts[0], Node::Symbol(_)) => is_name(&parts[0]),
                    side => names([side, side]).len() > 1,
                }
    };
    let agree = || others.iter().all(|side| names_it(side) || same(side, last));
    (signs.iter().all(|sign| *sign == '=') && agree()).then_some(last)
}

/// Whether two relations are equal. Two equations are equal if the differences of their sides are equal up to a factor.
fn relations(sides: [&[Node]; 2], signs: [&[char]; 2]) -> bool {
    if signs[0] != signs[1] {
        return false;
    }
    if ordered(sides[0], sides[1]) {
        return true;
    }
    let [[left, right], [left2, right2]] = sides else { return false };
    if *signs[0] != ['='] {
        return false;
    }
    let minus = |a: &Node, b: &Node| Node::Op(Op::Add, vec![a.clone(), Node::Op(Op::Neg, vec![b.clone()])]);
    let (first, second) = (minus(left, right), minus(left2, right2));
    let names = names([&first, &second]);
    let mut ratios = Vec::new();
    for point in 0..POINTS {
        let at = |name: &str| coordinate(name, point);
        let (Some(first), Some(second)) = (value(&first, &at), value(&second, &at)) else { return false };
        if first.abs() < PRECISION || second.abs() < PRECISION {
            return false;
        }
        ratios.push(first.div(second));
    }
    !names.is_empty() && ratios.windows(2).all(|pair| near(pair[0], pair[1]))
}

fn names(nodes: [&Node; 2]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for node in nodes {
        variables(node, &mut all);
    }
    all
}

/// The value of the variable `name` at point number `point`: between −3 and 3, and different for each name.
fn coordinate(name: &str, point: u64) -> f64 {
    // The hash FNV-1a, and a multiplication that spreads its last bits.
    let hash = name
        .bytes()
        .chain(point.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let unit = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64;
    6.0 * unit - 3.0
}

/// Whether the node has a subtraction in which rounding may give a nonzero result for equal values.
fn cancels(node: &Node) -> bool {
    match node {
        Node::Function(..) | Node::Op(Op::Add, _) => true,
        Node::Op(_, parts) => parts.iter().any(cancels),
        Node::Unit(inside, _) | Node::Percent(inside) => cancels(inside),
        _ => false,
    }
}

/// Whether a value is 0 up to rounding: \sin\pi is 10⁻¹⁶ in f64, but π·10⁻¹⁶ is not 0.
fn vanishes(zero: Complex, rest: Complex, node: &Node) -> bool {
    zero.abs() == 0.0 && rest.abs() <= 1e-13 && cancels(node)
}

fn near(a: Complex, b: Complex) -> bool {
    within(a, b, PRECISION)
}

fn within(a: Complex, b: Complex, precision: f64) -> bool {
    // Equal infinities must not be subtracted.
    a == b || a.abs().max(b.abs()).is_finite() && a.sub(b).abs() <= precision * a.abs().max(b.abs())
}

/// Whether two expressions with variables differ at a point far from the points of `coordinate`.
fn differ_far(gold: &Node, given: &Node) -> bool {
    FAR.iter().enumerate().any(|(i, &(size, precision))| {
        (0..4).any(|sign: u64| {
            // The variables' signs vary, so that some pairs of variables have equal signs and others different signs.
            let at = |name: &str| {
                let unit = coordinate(name, 100 + i as u64).abs() / 6.0 + 0.5;
                let bit = if sign < 2 { sign } else { sign ^ u64::from(coordinate(name, 99) > 0.0) };
                if bit % 2 == 0 { size * unit } else { -size * unit }
            };
            let real = |node: &Node| {
                let found = value(node, &at)?;
                (found.im == 0.0 && found.re.is_finite() && (1e-6..1e15).contains(&found.re.abs())).then_some(found)
            };
            let lost = |x: Complex, y: Complex| {
                // If large terms cancel, both values are imprecise.
                x.abs().max(y.abs()) < 1e-3 * size.min(1.0)
            };
            real(gold).zip(real(given)).is_some_and(|(x, y)| !lost(x, y) && !within(x, y, precision))
        })
    })
}

/// Whether two values are equal. A unit or a percent sign may be missing: `50 %` equals both one half and 50.
fn same_value(gold: &Node, given: &Node) -> bool {
    match (gold, given) {
        (Node::Unit(x, name), Node::Unit(y, name2)) => {
            let known = unit(name).zip(unit(name2));
            let differ = known.is_some_and(|(unit, unit2)| unit != unit2 || power(name) != power(name2));
            let halves = half_of_day(name).zip(half_of_day(name2)).is_some_and(|(half, half2)| half != half2);
            !differ && !halves && same(x, y)
        }
        (Node::Percent(x), Node::Percent(y)) => same_value(x, y),
        (Node::Percent(x), Node::Unit(y, name)) | (Node::Unit(y, name), Node::Percent(x)) => {
            unit(name) == Some("percent") && same(x, y)
        }
        // `x` is compared only once; otherwise each nested unit would double the work.
        (Node::Unit(x, name), y) | (y, Node::Unit(x, name)) => {
            same(x, y) || unit(name) == Some("percent") && hundredfold(x, y)
        }
        (Node::Percent(x), y) | (y, Node::Percent(x)) => {
            let whole = value(y, &|_| 0.0).is_some_and(|y| y.abs() >= 1.0);
            whole && same(x, y) || hundredfold(x, y)
        }
        // The base may be missing.
        (Node::Based(digits, base), Node::Based(digits2, base2)) => {
            base == base2 && digits == digits2 || base != base2 && numbers(gold, given)
        }
        (Node::Based(digits, _), Node::Number(number)) | (Node::Number(number), Node::Based(digits, _)) => {
            number.integer().is_some_and(|n| n.to_string() == *digits)
        }
        (Node::Large(digits), Node::Large(digits2)) => {
            digits.trim_start_matches('0') == digits2.trim_start_matches('0')
        }
        _ => numbers(gold, given),
    }
}

/// The first letter of "am" or "p.m." after a time.
fn half_of_day(name: &str) -> Option<char> {
    let letters: String = name.to_lowercase().chars().filter(|c| c.is_alphabetic()).collect();
    matches!(&*letters, "am" | "pm").then(|| letters.chars().next())?
}

/// Whether `percents` is 100 times `part`.
fn hundredfold(percents: &Node, part: &Node) -> bool {
    let hundred = Node::Number(Rational::new(100, 1).expect("a fraction"));
    numbers(percents, &Node::Op(Op::Mul, vec![part.clone(), hundred]))
}

/// Whether two values are equal: exactly if both are fractions, else at each of several points.
fn numbers(gold: &Node, given: &Node) -> bool {
    if let (Some(x), Some(y)) = (exact(gold), exact(given)) {
        return x == y;
    }
    if let (Some(x), Some(y)) = (residues(gold), residues(given)) {
        return x == y;
    }
    let variables = !names([gold, given]).is_empty();
    let points = if variables { POINTS } else { 1 };
    let mut compared = 0;
    for point in 0..points {
        let at = |name: &str| coordinate(name, point);
        let equal = |x: Complex, y: Complex| near(x, y) || vanishes(x, y, given) || vanishes(y, x, gold);
        match (value(gold, &at), value(given, &at)) {
            (Some(x), Some(y)) if equal(x, y) => compared += 1,
            // For negative x, neither x^{1/3} x^{1/6} nor \sqrt{x} is real, but their principal values are equal.
            (Some(x), Some(y)) if variables && (x.im != 0.0 || y.im != 0.0) => {
                let principal = |node: &Node| value_of(node, &at, Power::Principal);
                if !principal(gold).zip(principal(given)).is_some_and(|(x, y)| equal(x, y)) {
                    return false;
                }
                compared += 1;
            }
            (None, None) => {}
            _ => return false,
        }
    }
    compared > 0 && !(variables && differ_far(gold, given))
}

#[cfg(test)]
mod tests;
