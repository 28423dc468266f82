//! Tests of the parsing of expressions and of dataset cells.

use super::*;

#[test]
fn expressions_are_computed_exactly() {
    for (text, numbers, value) in [
        ("5", &[5][..], Some((5, 1))),
        (" `5` ", &[5], Some((5, 1))),
        ("2+3-4", &[2, 3, 4], Some((1, 1))),
        ("2-3+4", &[2, 3, 4], Some((3, 1))),
        ("2*3/4", &[2, 3, 4], Some((3, 2))),
        ("2/3*4", &[2, 3, 4], Some((8, 3))),
        ("2/3/4", &[2, 3, 4], Some((1, 6))),
        ("2+3*4", &[2, 3, 4], Some((14, 1))),
        ("2(3)[4]", &[2, 3, 4], Some((24, 1))),
        ("-2*-3", &[2, 3], Some((6, 1))),
        ("+-2", &[2], Some((-2, 1))),
        ("2--3", &[2, 3], Some((5, 1))),
        ("1/(2-2)", &[1, 2, 2], None),
        ("1/(2-2)+3", &[1, 2, 2, 3], None),
        ("3+1/(2-2)", &[3, 1, 2, 2], None),
        ("3*(1/0)", &[3, 1, 0], None),
        ("007", &[7], Some((7, 1))),
    ] {
        let computed = compute(text).unwrap_or_else(|| panic!("no expression: {text}"));
        let value = value.map(|(n, d)| Rational::new(n, d).unwrap());
        assert_eq!((&computed.numbers[..], computed.value), (numbers, value), "{text}");
    }
    for text in ["", "2 3", "2 +", "* 2", "2 ** 3", "(2", "2)", "(2]", "[2)", "()", "2.5", "x", "2^3", "(2)3", "1 2+3"]
    {
        assert!(compute(text).is_none(), "{text}");
    }
    // Spaces next to signs do not separate digits.
    assert!(compute("1 +2").is_some() && compute("1+ 2").is_some() && compute("( 1 )").is_some());
    // Nested fractions are accepted up to a depth of ten.
    let fractions = |depth: usize| "\\frac{".repeat(depth) + "1" + &"}{1}".repeat(depth);
    let ones = |depth: usize| score(&fractions(depth), &vec![1; depth + 1], 1);
    assert_eq!((ones(9), ones(10), ones(11)), (1.0, 1.0, 0.0));
}

#[test]
fn dataset_cells_are_parsed_as_whole_numbers() {
    let text = |text: &str| Value::from(text);
    let list = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (cell, number, numbers) in [
        (list("5"), Some(5), None),
        (list("-5"), Some(-5), None),
        (list("5.5"), None, None),
        (text(" 5 "), Some(5), Some(vec![5])),
        (text("1, 2  3"), None, Some(vec![1, 2, 3])),
        (text("[1,-2]"), None, Some(vec![1, -2])),
        (text("1;2"), None, None),
        (text(""), None, Some(vec![])),
        (list("[1, \"2\"]"), None, Some(vec![1, 2])),
        (list("[1, null]"), None, None),
        (list("null"), None, None),
        (list("{}"), None, None),
    ] {
        assert_eq!((whole(&cell), whole_numbers(&cell)), (number, numbers), "{cell}");
    }
    let of = |numbers: &str, target: &str| {
        let options = CountdownOptions { numbers: numbers.into(), target: target.into(), ..Default::default() };
        let columns = [(numbers, vec![text("1 2")]), (target, vec![text("x")])];
        scores(&Countdown::build(options).unwrap(), &["1 + 2"], columns)
    };
    let message = of("n", "t").problems[0].to_string();
    let expected = "reward `countdown` gave no score for 1 completion: column `n` must have a list of whole \
                    numbers, and column `t` a whole number, for example \"1 2\" and \"x\"";
    assert_eq!(message, expected);
    for format_score in [f64::NAN, f64::INFINITY] {
        let wrong = CountdownOptions { format_score, ..Default::default() };
        let message = Countdown::build(wrong).unwrap_err().to_string();
        assert_eq!(message, format!("reward `countdown`: `format_score` must be a finite number, got {format_score}"));
    }
}

/// A number may be used as often as it is given. Unused numbers matter only if all numbers must be used.
#[test]
fn each_number_must_be_used_once() {
    let verdict = |text: &str, numbers: &[i128], use_all: bool| {
        let options = CountdownOptions { format_score: 0.25, use_all, ..Default::default() };
        let verdict = Countdown::build(options).unwrap().verdict(text, numbers, 6);
        (verdict.score, verdict.answered)
    };
    for (text, numbers, all, some) in [
        ("2 + 4", &[2, 4][..], 1.0, 1.0),
        ("3 + 3", &[3, 3], 1.0, 1.0),
        ("3 + 3", &[3], 0.0, 0.0),
        ("3 + 3", &[3, 3, 3], 0.0, 1.0),
        ("2 + 3", &[2, 3], 0.25, 0.25),
        ("2 + 3", &[2, 3, 4], 0.0, 0.25),
        ("6", &[6], 1.0, 1.0),
        ("6 / 4 * 4", &[4, 4, 6], 1.0, 1.0),
        ("13 / 2", &[2, 13], 0.25, 0.25),
    ] {
        assert_eq!(
            (verdict(text, numbers, true), verdict(text, numbers, false)),
            ((all, true), (some, true)),
            "{text}"
        );
    }
    assert_eq!(verdict("six", &[6], true), (0.0, false));
    // In an equation, the answer is the side with an operation, or the first side if both have one.
    for (text, score) in [("6 = 2 + 4", 1.0), ("2 + 4 = 6", 1.0), ("2 + 4 = 4 + 3", 1.0), ("4 + 3 = 2 + 4", 0.0)] {
        assert_eq!(verdict(text, &[2, 4], true).0, score, "{text}");
    }
}
