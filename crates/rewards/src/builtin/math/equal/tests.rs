use super::*;

fn node(text: &str) -> Node {
    parse(text, Reading::default()).unwrap_or_else(|| panic!("cannot parse {text}"))
}

#[test]
fn answers_are_compared_without_markup() {
    for (text, expected) in [
        ("", ""),
        (" a b ", "ab"),
        ("$5$", "5"),
        ("\\text{(C)}", "C"),
        ("(C)", "C"),
        ("(CD)", "(CD)"),
        ("(C", "(C"),
        ("\\textbf{(C)}", "C"),
        ("\\mbox{a} \\mathrm{b}", "ab"),
        ("\\left(x\\right)", "x"),
        ("a\\!b\\,c\\ d", "abcd"),
        ("{a}", "a"),
        ("a^{2}", "a^{2}"),
        ("a_{2}", "a_{2}"),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
        // Digits separated by a space stay separate.
        ("1 2", "1 2"),
        ("1 .5", "1 .5"),
        ("1. 5", "1. 5"),
        ("2{3}", "2 3"),
        ("1 x 2", "1x2"),
        ("x 2", "x2"),
        ("5 .", "5"),
        ("5.", "5"),
        ("5..", "5.."),
        ("5...", "5..."),
        ("a.", "a"),
        (".", ""),
    ] {
        assert_eq!(text_form(text), expected, "{text}");
    }
    assert!(equal("a.", "a") && !equal("", "") && !equal("$ $", "$$"));
}

#[test]
fn long_answers_are_compared_only_as_text() {
    let sum = |bytes: usize| format!("2{}+3", " ".repeat(bytes - 3));
    for (bytes, expected) in [(1999, true), (2000, true), (2001, false)] {
        let long = sum(bytes);
        assert_eq!(long.len(), bytes);
        assert_eq!((equal("5", &long), equal(&long, "5")), (expected, expected), "{bytes}");
        assert!(equal(&long, "2+3"));
    }
}

#[test]
fn points_assign_values_between_minus_3_and_3_to_variables() {
    let values: Vec<f64> = ["x", "y", "z", "x_1", "alpha"]
        .iter()
        .flat_map(|name| (0..6).map(move |point| coordinate(name, point)))
        .collect();
    assert!(values.iter().all(|value| (-3.0..3.0).contains(value)), "{values:?}");
    for third in [-3.0..-1.0, -1.0..1.0, 1.0..3.0] {
        assert!(values.iter().filter(|value| third.contains(*value)).count() >= 5, "{third:?}: {values:?}");
    }
    let mut different: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 30);
}

#[test]
fn values_are_compared_with_a_relative_tolerance() {
    let real = |re: f64| Complex { re, im: 0.0 };
    let (infinite, one) = (real(f64::INFINITY), real(1.0));
    for (a, b, expected) in [
        (one, one, true),
        (one, real(1.0 + 0.9e-10), true),
        (one, real(1.0 + 1.1e-10), false),
        (one, real(-1.0), false),
        (real(1e30), real(1e30 + 0.9e20), true),
        (real(1e30), real(1e30 + 1.1e20), false),
        (real(1e-30), real(1.000_000_000_2e-30), false),
        (real(0.0), real(1e-30), false),
        (real(0.0), real(0.0), true),
        (one, Complex { re: 1.0, im: 0.9e-10 }, true),
        (one, Complex { re: 1.0, im: 1.1e-10 }, false),
        (infinite, infinite, true),
        (infinite, real(f64::NEG_INFINITY), false),
        (infinite, one, false),
        (one, infinite, false),
    ] {
        assert_eq!(near(a, b), expected, "{a:?} {b:?}");
    }
}

/// A value that should be 0 may be up to 1e-13 if rounding can explain that.
#[test]
fn rounding_errors_of_zero_count_as_zero() {
    let real = |re: f64| Complex { re, im: 0.0 };
    let (sum, product) = (node("\\pi-x"), node("\\pi x"));
    assert!(vanishes(real(0.0), real(1e-13), &sum) && vanishes(real(0.0), real(-1e-14), &sum));
    assert!(!vanishes(real(0.0), real(1.1e-13), &sum) && !vanishes(real(0.0), real(1e-14), &product));
    assert!(!vanishes(real(1e-20), real(1e-14), &sum));
    for (text, expected) in [
        ("x", false),
        ("2x^2", false),
        ("-x", false),
        ("x+1", true),
        ("2(x+1)", true),
        ("-(x-1)", true),
        ("\\sin x", true),
        ("\\sqrt{x-1}", true),
        ("x\\text{ cm}", false),
        ("(x+1)\\text{ cm}", true),
        ("x\\%", false),
        ("(x-1)\\%", true),
        ("\\text{abc}", false),
        ("(x+1,2)", false),
    ] {
        assert_eq!(cancels(&node(text)), expected, "{text}");
    }
}

/// Each pair has a dataset's answer and a completion's answer, compared only in this direction.
#[test]
fn answers_with_the_same_meaning_are_equal() {
    for (gold, given) in [
        // Units and percent.
        ("5\\text{ cm}", "5"),
        ("5\\text{ cm}^2", "5\\text{ square cm}"),
        ("50\\text{ percent}", "50\\%"),
        ("50\\text{ percent}", "0.5"),
        ("0.5", "50\\text{ percent}"),
        ("50\\text{ percent}", "50"),
        ("100\\%", "1"),
        ("1\\%", "1"),
        ("1\\%", "0.01"),
        ("50\\%", "-(-50)"),
        ("-1\\%", "-1"),
        ("x\\%", "\\frac{x}{100}"),
        // Digits of a base.
        ("101_2", "101"),
        ("101", "101_2"),
        ("101010_2", "52_8"),
        // The order of the parts of a ratio matters.
        ("3:2", "9:6"),
        ("3:2", "\\frac{9}{6}"),
        ("\\frac{9}{6}", "3:2"),
        ("1:2:3", "2:4:6"),
        // The order of a list matters only if the list has brackets.
        ("[1,2]", "[1,2]"),
        ("1,2,2", "2,1,2"),
        ("x \\in \\{1,2\\}", "\\{2,1\\}"),
        ("\\{1,1\\}", "1"),
        ("\\{\\{1,2\\},3\\}", "1,2,3"),
        ("\\pm1,\\pm2", "1,-1,2,-2"),
        ("\\mathbb{R}", "(-\\infty,\\infty)"),
        ("x=\\pm2", "2,-2"),
        ("2\\pm1\\text{ cm}", "1,3"),
        ("1+(2\\pm3)", "6,0"),
        // Inequalities.
        ("x<2", "(-\\infty,2)"),
        ("x\\le2", "(-\\infty,2]"),
        ("x>2", "(2,\\infty)"),
        ("x\\ge2", "[2,\\infty)"),
        ("2<x", "(2,\\infty)"),
        ("2\\le x", "[2,\\infty)"),
        ("2>x", "(-\\infty,2)"),
        ("2\\ge x", "(-\\infty,2]"),
        ("1<x\\le2", "(1,2]"),
        ("1\\le x<2", "[1,2)"),
        ("2\\ge x>1", "(1,2]"),
        ("2>x\\ge1", "[1,2)"),
        ("x<y", "x<y"),
        // Relations.
        ("y=2x", "2y=4x"),
        ("y=2x", "2x=y"),
        ("y=2x", "y-2x=0"),
        ("y=2x", "-y=-2x"),
        ("x\\ne1", "x\\ne1"),
        ("x=y=z", "x=y=z"),
        ("f(x)=3", "3"),
        ("\\text{Area}=3", "3"),
        // Values of expressions.
        ("\\frac{x^2-1}{x-1}", "x+1"),
        ("2^{200}", "4^{100}"),
        ("123456789012345678901234567890123456789012345", "0123456789012345678901234567890123456789012345"),
        ("\\log 1000", "3"),
        ("1,234", "1234"),
        ("1,234", "1,234"),
        ("2e-3", "2\\cdot e-3"),
        ("2e-3", "0.002"),
    ] {
        assert!(equal(gold, given), "{gold}, {given}");
    }
    for (gold, given) in [
        ("5\\text{ cm}", "5\\text{ m}"),
        ("5\\text{ cm}^2", "5\\text{ cm}^3"),
        ("5\\text{ cm}", "6\\text{ cm}"),
        ("50\\text{ percent}", "60\\%"),
        ("50\\text{ cm}", "50\\%"),
        ("50\\%", "50\\text{ cm}"),
        ("50\\text{ cm}", "0.5"),
        ("0.5\\%", "0.5"),
        ("0.99\\%", "0.99"),
        ("x\\%", "x"),
        ("50\\%", "51"),
        ("50\\%", "0.51"),
        ("101_2", "102"),
        ("101_2", "5"),
        ("101_2", "101_3"),
        ("101_2", "100_2"),
        ("101010_2", "53_8"),
        ("101_2", "1.01"),
        ("3:2", "2:3"),
        ("3:2", "3:2:1"),
        ("3:2:1", "\\frac32"),
        ("3:2", "\\frac{2}{3}"),
        ("1:2:3", "1:2:4"),
        ("1:2:3", "1:3:3"),
        ("[1,2]", "[2,1]"),
        ("[1,2]", "(1,2]"),
        ("[1,2]", "[1,2)"),
        ("(1,2)", "(1,2,3)"),
        ("1,2,2", "1,1,2"),
        ("1,2", "1,2,3"),
        ("\\{1,2\\}", "\\{1,2,3\\}"),
        ("\\{1,2\\}", "\\{1,3\\}"),
        ("(1,2)\\cup(3,4)", "(1,2)\\cup(3,5)"),
        ("(1,2)\\cup(3,4)", "(1,2)\\cup(3,4)\\cup(5,6)"),
        ("\\pm2", "-2"),
        ("x<2", "(-\\infty,2]"),
        ("x\\le2", "(-\\infty,2)"),
        ("x<2", "(2,\\infty)"),
        ("x\\ge2", "(2,\\infty)"),
        ("2>x", "(-\\infty,2]"),
        ("2<x", "[2,\\infty)"),
        ("1<x<2", "[1,2)"),
        ("1<x<2", "(1,2]"),
        ("1<x<2", "(2,1)"),
        ("2>x>1", "(2,1)"),
        ("1<x>2", "(1,2)"),
        ("e<2", "(-\\infty,2)"),
        ("x\\ne1", "x=1"),
        ("x\\ne2", "y\\ne2"),
        ("y<2x", "2y<4x"),
        ("y=2x", "y=3x"),
        ("y=2x", "y=2x=0"),
        ("1=2", "2=3"),
        ("x-x=0", "y=2"),
        ("y=2", "x-x=0"),
        ("\\pi=3", "3"),
        ("2x=4", "4"),
        ("x<4", "4"),
        ("x=y=3", "3"),
        ("3", "x+y<3"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
        ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\1&2\\end{pmatrix}"),
        ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1&2&3\\end{pmatrix}"),
        ("123456789012345678901234567890123456789012345", "1234567890123456789012345678901234567890123450"),
        ("x", "x_1"),
        ("\\arcsin 2", "\\arcsin 3"),
        ("\\log 1000", "4"),
        ("\\ln 1000", "3"),
        ("1,234", "1235"),
        ("1234", "1.234"),
    ] {
        assert!(!equal(gold, given), "{gold}, {given}");
    }
}

/// Each case has a dataset's answer, a chain of equations, and the value that the chain states, if any.
#[test]
fn each_side_of_a_chain_must_equal_the_value_or_name_it() {
    for (gold, given, expected) in [
        ("5", "x=5", true),
        ("5", "xy=5", true),
        ("5", "xyz=5", true),
        ("5", "\\text{area}=5", true),
        ("5", "\\pi=5", false),
        ("5", "2x=5", false),
        ("5", "x+1=5", false),
        ("5", "x+y=5", true),
        ("5", "|x|=5", true),
        ("5", "|3|=5", false),
        ("5", "\\sin x=5", true),
        ("5", "f(2)=5", true),
        ("5", "2(f)=5", false),
        ("5", "2+3=5", true),
        ("5", "2+4=5", false),
        ("5", "x=2+3=5", true),
        ("5", "x=5=6", false),
        ("6", "x=5=6", false),
        ("5", "x<5", false),
        ("5", "x=y<5", false),
        ("2z", "x=2z", true),
        ("2z", "x+y=2z", false),
        ("2z", "|x|=2z", false),
        ("z", "x=z", true),
    ] {
        assert_eq!(equal(gold, given), expected, "{gold}: {given}");
    }
}
