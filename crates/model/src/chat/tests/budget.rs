//! How much of a rendering's budget each operator, filter and method takes: the elements and bytes that it reads and
//! may build, worked out by hand.

use super::super::limits::{self, BUDGET};
use super::*;

/// What a rendering of this template took of its budget.
fn taken(template: &str) -> usize {
    const MAX_COST: usize = 4096;
    let x = json!({"s": "héllo", "x": [1, 2, 3, 4], "m": {"a": 1}, "n": 1, "w": 40, "a_b": "a b\nc", "e": "",
        "f": "%s=%d", "pad": "%40d", "star": "%d*", "braces": "{}{}", "t": "abcdefgh"});
    render(template, x);
    limits::charge(BUDGET - MAX_COST).unwrap_or_else(|_| panic!("{template}: more than {MAX_COST}"));
    MAX_COST - (0..=MAX_COST).take_while(|_| limits::charge(1).is_ok()).count()
}

/// What the evaluation of an expression takes that is not printed.
fn evaluated(expression: &str) -> usize {
    taken(&format!("{{% set y = {expression} %}}"))
}

fn all_take(cases: &[(&str, usize)]) {
    let found: Vec<(&str, usize)> = cases.iter().map(|&(expression, _)| (expression, evaluated(expression))).collect();
    assert_eq!(found, cases);
}

#[test]
fn operators() {
    all_take(&[
        ("n", 0),
        ("n + n", 0),
        // Strings: both lengths, in bytes.
        ("s + t", 6 + 8),
        // Lists: both are read, and each element of the result is built.
        ("x + [n]", 2 + 5 + 2 + 5),
        ("s * 3", 18),
        ("3 * s", 18),
        ("n * 3", 0),
        ("x * 3", 15 + 12),
        ("s ~ n", 6 + 3),
        ("x ~ e", 4 * 3 + 2),
        ("s[1:3]", 24),
        ("x[1:]", 4 + 3),
        ("x == x", 10),
        ("x != m", 5 + 3),
        ("x == n", 0),
        ("n == x", 0),
        ("s == s", 0),
        ("s in t", 6 + 4),
        ("n in x", 4),
        ("x in x", 5 + 5),
        ("n not in m", 1),
        ("[s, n]", 3),
        ("(s, n)", 3),
        ("[x, n]", 1 + 5 + 1),
        ("{s: n}", 1 + 3),
        ("{s: n, t: x}", 2 + 1 + 2 + 1 + 5),
        ("[]", 0),
        ("{}", 0),
        ("dict(a=n)", 3),
    ]);
}

#[test]
fn filters() {
    all_take(&[
        ("s | upper", 1 + 3 * 10),
        ("s | lower", 1 + 3 * 10),
        ("s | title", 1 + 3 * 10),
        ("s | capitalize", 1 + 3 * 10),
        ("s | trim", 1 + 10),
        ("s | pprint", 1 + 10),
        ("s | escape", 1 + 6 * 10),
        ("s | e", 1 + 6 * 10),
        ("s | bool", 1 + 6),
        // Each of the two `l` may become `LL`; the three texts are printed.
        ("s | replace('l', 'LLL')", 3 + (10 + 5 + 7) + 2 * 3 + (6 + 1 + 3)),
        // Between all bytes, and at both ends.
        ("s | replace('', 'ab')", 3 + (10 + 4 + 6) + 7 * 2 + (6 + 2)),
        ("x | join('--')", 6 + (5 * 8 + 6) + 6 * 2),
        ("s | join('--')", 2 + (10 + 6) + (2 + 6) * 6),
        // The indentation is taken, too, and each line with it.
        ("s | indent(3)", 2 + (10 + 8) + 3 + 3 + 4),
        ("s | indent(width=7)", 4 + (10 + 8 + 9 + 8) + 7 + 7 + 8),
        ("s | indent", 1 + 10 + 4 + 4 + 5),
        ("a_b | indent(5)", 2 + (9 + 8) + 2 * 5 + 5 + 2 * 6),
        // A width is taken, too, and a text that is put in.
        ("f | format('x', 30)", 3 + (9 + 5 + 8) + 2 * (9 + 5 + 8) + 1),
        ("pad | format(3)", 2 + (8 + 8) + (8 + 8 + 40) + 40),
        ("star | format(w)", 2 + (7 + 8) + (7 + 8 + 40)),
        ("x | batch(3) | list", (5 + 1 + 3) + (1 + 4 + 2)),
        ("s | split('l')", 2 + (10 + 5) + 3 * 32),
        ("a_b | split", 1 + 9 + 3 * 32),
        ("a_b | lines", 1 + 9 + 2 * 32),
        ("s | list", 1 + 6 * 32),
        ("x | list", 5),
        ("s | reverse", 1 + 6 * 32),
        ("x | reverse", 5 + 4),
        ("x | min", 5),
        ("x | sum", 5),
        ("m | items", 3 + 1),
    ]);
}

#[test]
fn methods() {
    all_take(&[
        ("s.upper()", 1 + 3 * 10),
        ("s.strip()", 1 + 10),
        ("s.replace('l', 'LLL')", 3 + (10 + 5 + 7) + 2 * 3),
        ("s.split('l')", 2 + (10 + 5) + 3 * 32),
        ("a_b.splitlines()", 1 + 9 + 2 * 32),
        ("braces.format(n, w)", 3 + (8 + 8 + 8) + 2 * (8 + 8 + 8)),
        ("m.items()", 3 + 1),
        // A look-up is free.
        ("m.get('a')", 0),
    ]);
}

#[test]
fn what_is_printed() {
    for (template, expected) in [
        ("{{ s }}", 6),
        ("{{ n }}", 3),
        ("{{ gone }}", 0),
        // Elements and brackets.
        ("{{ x }}", 4 * 3 + 2),
        // Quotes are of the string: its length, and what is written, and 2.
        ("{% for i in [s] %}{% endfor %}", 2),
        ("{{ m }}", 1 + 3 + 2 + 3 + 2),
        ("{% set y = x | tojson %}", 5 * (2 + 2 + 2)),
        ("{% set y = x | tojson(indent=3) %}", (2 + 1 + 2) + 4 * (2 + 1 + 2 + 3)),
        ("{% set y = s | tojson %}", 2 + 2 + 2 + 6),
        ("{% set y = m | tojson %}", 6 + 1 + 6),
        ("{% set y = {n: s} | tojson %}", (1 + 3) + 6 + (6 + 1) + (6 + 6)),
    ] {
        assert_eq!(taken(template), expected, "{template}");
    }
}

#[test]
fn numbers_are_compared_as_pythons() {
    let x = json!({"n": 1, "a": "a"});
    let template = "{{ n < 1 }} {{ n <= 1 }} {{ n > 1 }} {{ n >= 1 }} {{ n < 2 }} {{ n > 0 }} {{ n == 1 }} \
                    {{ n != 1 }} {{ n <= 0 }} {{ n >= 2 }} {{ a == 'b' }} {{ a != 'b' }}";
    let expected = "False True False True True True True False False False False True";
    assert_eq!(render(template, x), expected);
}
