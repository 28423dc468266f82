//! Tests of finding and parsing numbers in texts.

use super::*;

#[test]
fn decimals_are_formatted_in_canonical_form() {
    for (text, shown) in [
        ("0", "0"),
        ("007", "7"),
        ("-0.50", "-0.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("12.5e1", "125"),
        ("12.5e-2", "0.125"),
        ("1.25e3", "1250"),
        ("-3E2", "-300"),
        ("5e0", "5"),
    ] {
        assert_eq!(Decimal::parse(text).unwrap().to_string(), shown, "{text}");
    }
    assert!(Decimal::parse("1e400").is_some() && Decimal::parse("1e-400").is_some());
    assert!(Decimal::parse("1e401").is_none() && Decimal::parse("1e-401").is_none());
    let number = |n, d| Number::of(Rational::new(n, d).unwrap());
    for (n, d, shown, value) in
        [(3, 2, "1.5", 1.5), (-3, 8, "-0.375", -0.375), (7, 1, "7", 7.0), (-2, 3, "-2/3", -2.0 / 3.0)]
    {
        assert_eq!((number(n, d).to_string().as_str(), number(n, d).to_f64()), (shown, Some(value)));
    }
    // A fraction with at most thirty decimal places becomes a decimal.
    assert!(matches!(number(1, 1 << 30), Number::Decimal(_)) && matches!(number(1, 1 << 31), Number::Fraction(_)));
}

/// Each case has a text and its numbers, each as written and with its value.
#[test]
fn numbers_include_their_sign_and_end_before_other_text() {
    for (text, expected) in [
        ("5", "5:5"),
        ("a 5.", "5:5"),
        ("1,234.50", "1,234.50:1234.5"),
        ("1,23 1,2345", "1:1 23:23 1:1 2345:2345"),
        ("1,234,567", "1,234,567:1234567"),
        ("1.234,567", "1.234:1.234 567:567"),
        (".5 x.5", ".5:0.5 .5:0.5"),
        ("1.2.3", "1.2:1.2 3:3"),
        ("1..2", "1:1 .2:0.2"),
        ("is -3", "-3:-3"),
        ("-3", "-3:-3"),
        ("(-3", "-3:-3"),
        ("= \u{2212}3", "\u{2212}3:-3"),
        ("-$3", "-$3:-3"),
        ("-\\$3", "-\\$3:-3"),
        ("$3", "3:3"),
        ("5-3", "5:5 3:3"),
        ("5 -3", "5:5 3:3"),
        ("x-3", "3:3"),
        ("x -3", "-3:-3"),
        ("f(x)-3", "3:3"),
        ("f(x) -3", "3:3"),
        ("\u{bd} -3", "3:3"),
        ("- 3", "3:3"),
        ("-0", "-0:0"),
        ("none", ""),
        ("", ""),
        (".", ""),
    ] {
        let found = numbers(text).map(|found| format!("{}:{}", &text[found.start..found.end], found.value));
        assert_eq!(found.collect::<Vec<_>>().join(" "), expected, "{text}");
    }
}

/// The numbers have several parts. The value is missing if it is undefined or overflows.
#[test]
fn fractions_exponents_and_mixed_numbers_are_single_numbers() {
    for (text, expected) in [
        ("84/2", "84/2=42"),
        ("84 / 2", "84 / 2=42"),
        ("84/ 2", "84/ 2=42"),
        ("84 /2", "84 /2=42"),
        ("84  /2", "84=84;2=2"),
        ("1/3", "1/3=1/3"),
        ("1/0", "1/0="),
        ("12/25/2020", "12/25/2020="),
        ("4.2e1", "4.2e1=42"),
        ("4.2E+1", "4.2E+1=42"),
        ("42e-1", "42e-1=4.2"),
        ("42E-1", "42E-1=4.2"),
        ("-5e-3", "-5e-3=-0.005"),
        ("4e1.5", "4=4;1.5=1.5"),
        ("4f1", "4=4;1=1"),
        ("1e999", "1e999="),
        ("1/3e2", "1/3e2="),
        ("1/4e2", "1/4e2=25"),
        ("1 1/2", "1 1/2=1.5"),
        ("2 3/4 of 5", "2 3/4=2.75;5=5"),
        ("2 1/3", "2 1/3=7/3"),
        ("1 1/0", "1 1/0="),
        ("-1 1/2", "-1 1/2=-1.5"),
        ("4 10/3", "4 10/3="),
        ("1.5 1/2", "1.5=1.5;1/2=0.5"),
        ("1  1/2", "1=1;1/2=0.5"),
        ("1 2 3/4", "1=1;2 3/4=2.75"),
        ("1/2 3/4", "1/2=0.5;3/4=0.75"),
        ("1 1/2/3", "1 1/2/3="),
        ("1 1 /2", "1=1;1 /2=0.5"),
        ("5, 6", "5=5;6=6"),
    ] {
        let shown = |group: Group| {
            let value = group.value.map(|value| value.to_string()).unwrap_or_default();
            format!("{}={value}", &text[group.start..group.end])
        };
        assert_eq!(groups(text).map(shown).collect::<Vec<_>>().join(";"), expected, "{text}");
    }
    for (text, plain) in [
        ("\\frac{84}{2}", "84/2"),
        ("x\\dfrac{ -1,000.5 } { 2 }y", "x-1,000.5/2y"),
        ("\\tfrac12", "1/2"),
        ("\\frac 1 2", "1/2"),
        ("-\\frac12", "-1/2"),
        ("-\\frac{-1}{2}", "1/2"),
        ("\\frac{1}{-2}", "-1/2"),
        ("12\\frac12", "12 1/2"),
        ("12 \\tfrac{1}{2}", "12 1/2"),
        ("5-\\frac12", "5 -1/2"),
        ("2½ or -⅓", "2 1/2 or -1/3"),
        ("3 \\times 10^5, 3\\cdot10^{-5}, 3×10^5", "3e5, 3e-5, 3e5"),
        ("42^\\circ, 42^{\\circ}", "42°, 42°"),
        ("\\frac{x}{2}", "\\frac{x}{2}"),
    ] {
        assert_eq!(latex_fractions(text), plain, "{text}");
    }
}

/// In some of these texts the number 42 is the whole answer, in others it is not.
#[test]
fn a_number_inside_a_longer_expression_is_not_an_answer() {
    let meant = |text: &str| {
        let start = text.find("42").unwrap();
        is_meant(text, start, start + 2)
    };
    for text in [
        "42",
        "is 42.",
        "$42",
        "\u{20ac}42",
        "US$42",
        "a$42",
        "usd42",
        "Rs42",
        "x = 42: so",
        "42kg",
        "42 nd",
        "42am",
        "42PM",
        "42apples",
        "42abc",
        "(42)",
        "+ 42",
    ] {
        assert!(meant(text), "{text}");
    }
    for text in [
        "x42",
        "x_42",
        "abc42",
        "usx42",
        "3:42",
        "2^42",
        "2^{42}",
        "\u{221a}42",
        "\u{b1}42",
        "\\sqrt{42}",
        "\\sqrt[3]{42}",
        "\\log 42",
        "\\cdot42",
        "6*42",
        "x/42",
        "\\frac{x}{42}",
        "2-(42",
        "2 * (42",
        "42:00",
        "42nd",
        "42k",
        "42x",
        "42ab",
        "42dozen",
        "not 42",
        "42 is wrong",
        "42 or 43",
    ] {
        assert!(!meant(text), "{text}");
    }
}
