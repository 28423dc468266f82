use super::super::grader::scores;
use super::equal::equal;
use super::extract::answer_of;
use super::*;
use crate::Scores;
use proptest::prelude::*;

mod tokens;
mod trees;
mod values;

/// The rows of `pairs.tsv`: `=` or `!` (as true or false), and two answers.
fn pairs() -> impl Iterator<Item = (bool, &'static str, &'static str)> {
    include_str!("pairs.tsv").lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut cells = line.split('\t');
        let mut cell = || cells.next().unwrap_or_else(|| panic!("expected three cells: {line}"));
        (cell() == "=", cell(), cell())
    })
}

#[test]
fn pairs_of_the_table_compare_as_expected_in_both_directions() {
    assert!(pairs().filter(|pair| pair.0).count() >= 150 && pairs().filter(|pair| !pair.0).count() >= 80);
    let wrong: Vec<_> =
        pairs().filter(|&(expected, a, b)| equal(a, b) != expected || equal(b, a) != expected).collect();
    assert!(wrong.is_empty(), "{} unexpected results:\n{wrong:#?}", wrong.len());
}

/// The second answer states the value in the first answer. In the other direction, the answers are not equal.
#[test]
fn an_answer_may_include_the_name_of_its_value() {
    for (gold, given) in [
        ("(1,2)", "(x,y)=(1,2)"),
        ("(1,2,3)", "(a,b,c)=(1,2,3)"),
        ("5", "f(2)=5"),
        ("5", "2+3=5"),
        ("2.5", "\\frac52=2.5"),
        ("\\frac52", "\\frac52\\approx2.5"),
        ("5", "x=2+3=5"),
        ("5", "m+n=2+3=5"),
        ("5", "a+b=5"),
        ("5", "100m+n=5"),
        ("5", "ABC=5"),
        ("60^\\circ", "\\angle ABC=60^\\circ"),
        ("60", "m\\angle ABC=60^\\circ"),
        ("5", "|z|=5"),
        ("5", "x_{max}=5"),
        ("25", "\\text{Area}=25"),
        ("25", "\\text{The area is } A = 25"),
        ("1,2", "a=1, b=1+1=2"),
        ("x^2+2x+1", "f(x)=(x+1)^2=x^2+2x+1"),
    ] {
        assert!(equal(gold, given), "{gold}, {given}");
    }
    for (gold, given) in [
        ("5", "2+2=5"),
        ("5", "x=2+2=5"),
        ("0.333", "\\frac13\\approx0.333"),
        ("3.14", "\\pi=3.14"),
        // Equations that are not solved are wrong.
        ("10", "2x=10"),
        ("5", "x+3=5"),
        ("2x+3", "y+1=2x+3"),
        ("x+1", "2x=x+1"),
        ("5", "a+b<5"),
        ("5", "a+b=6"),
        ("(1,3)", "(1,2)=(1,3)"),
        // If the dataset's answer is an equation, only a value is wrong.
        ("a+b=5", "5"),
        ("ABC=5", "5"),
    ] {
        assert!(!equal(gold, given), "{gold}, {given}");
    }
}

#[test]
fn a_fraction_after_a_number_is_parsed_once() {
    // The digits of a fraction must not be parsed a second time.
    for (a, b) in [("2\\frac1x", "\\frac{2}{x}"), ("2\\frac12x", "\\frac{5x}{2}"), ("2\\frac x3", "\\frac{2x}{3}")] {
        assert!(equal(a, b) && equal(b, a), "{a}, {b}");
    }
    assert!(!equal("2\\frac1x", "2"));
    // The same holds if parsing as a mixed number fails: √1 2 is not √2.
    assert!(!equal("1\\frac{\\sqrt12}{3}", "\\frac{\\sqrt2}{3}"));
}

/// If the work doubled with each level, these comparisons would never end.
#[test]
fn nested_units_and_fractions_are_compared_in_linear_time() {
    let percent = "7".to_owned() + &" percent^1".repeat(150);
    assert!(!equal("5", &percent) && !equal(&percent, "5"));
    assert!(equal("7", &percent) && equal("0.07", "7 percent") && !equal("0.08", "7 percent"));
    let fractions = "1\\frac{".repeat(58) + "?";
    assert!(!equal("5", &fractions));
}

fn score(completions: &[&str], answers: &[&str], options: MathOptions) -> Scores {
    let answers = answers.iter().map(|&answer| answer.into()).collect();
    scores(&Math::build(options).unwrap(), completions, [("answer", answers)])
}

#[test]
fn the_final_answer_of_a_completion_is_found() {
    for (completion, answer) in [
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{1} no, \\boxed{2}", "2"),
        ("The answer is $x = 5$. Done.", "x = 5"),
        ("Therefore the answer is 12 cm.", "12 cm"),
        ("**Answer:** 3/4", "3/4"),
        ("we get $a$ and then $b+1$", "b+1"),
        ("in all 1,234 ways", "1,234"),
        ("it is -3/4", "-3/4"),
        ("so #### 18", "18"),
    ] {
        assert_eq!(answer_of(completion, false), Some(answer), "{completion}");
    }
    for text in ["", "no idea", "the answer is "] {
        assert_eq!(answer_of(text, false), None, "{text}");
    }
    assert_eq!(answer_of("the answer is 5", true), None);
}

#[test]
fn rows_whose_solution_has_no_answer_are_reported() {
    let completions = ["\\boxed{0.5}", "\\boxed{0.6}", "I do not know", "$\\frac12$", "5"];
    let scores = score(&completions, &["\\frac{1}{2}", "1/2", "1/2", "so \\boxed{0.5}", " "], MathOptions::default());
    assert_eq!(scores.values, [Some(1.0), Some(0.0), Some(0.0), Some(1.0), None]);
    assert_eq!((scores.problems.len(), scores.problems[0].rows), (1, 1));
    // A row whose solution has a very long answer, or marks none, is reported: no completion could be right.
    let golds = ["We add 3 and 4. So it is 7.", &"1+".repeat(1001), "so \\fbox{7}", "seven"];
    let scores = score(&["\\boxed{7}"; 4], &golds, MathOptions::default());
    assert_eq!(scores.values, [None, None, Some(1.0), Some(0.0)]);
    assert_eq!((scores.problems.len(), scores.problems[0].rows), (1, 2));
    let strict = MathOptions { strict: true, ..MathOptions::default() };
    assert_eq!(score(&["the answer is 5"], &["5"], strict).values, [Some(0.0)]);
}

/// Ways to write an answer.
fn rewritings(answer: &str) -> Vec<String> {
    let mut all = vec![
        format!("${answer}$"),
        format!(" {answer} "),
        format!("{answer}."),
        answer.replace(' ', ""),
        answer.replace("\\frac", "\\dfrac").replace("\\dd", "\\d"),
        answer.replace("\\left", "").replace("\\right", ""),
        answer.replace('(', "\\left(").replace("\\left\\left", "\\left"),
        answer.replace("\\text", "\\mbox"),
        answer.replace("^\\circ", "^{\\circ}"),
        answer.replace("pmatrix", "bmatrix"),
        answer.replace(",\\!", ","),
    ];
    if answer.parse::<f64>().is_ok() {
        all.extend([
            format!("\\text{{about }} {answer}"),
            format!("{answer} \\text{{ units}}"),
            format!("x = {answer}"),
        ]);
    }
    all
}

/// Every answer of MATH-500 equals itself and its rewritings, and differs from the answer of the next problem, except
/// for the pairs in `NEIGHBOURS`.
#[test]
fn answers_of_math_500_equal_only_their_rewritings() {
    let Some(file) = testing::shared("data/math/math500.jsonl") else { return };
    let text = std::fs::read_to_string(file).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answers: Vec<&str> = rows.iter().map(|row| row["answer"].as_str().unwrap()).collect();
    assert_eq!(answers.len(), 500);
    let mut wrong = Vec::new();
    for answer in &answers {
        wrong.extend(rewritings(answer).into_iter().filter(|new| !equal(answer, new)).map(|new| (*answer, new)));
    }
    assert!(wrong.is_empty(), "not equal: {wrong:#?}");
    let not_understood: Vec<_> = answers
        .iter()
        .filter(|a| parse::parse(a, parse::Reading { thousands: true, ..Default::default() }).is_none())
        .collect();
    assert!(not_understood.is_empty(), "not parsed: {not_understood:?}");
    let neighbours: Vec<_> =
        answers.windows(2).filter(|pair| equal(pair[0], pair[1])).map(|pair| (pair[0], pair[1])).collect();
    assert_eq!(neighbours, NEIGHBOURS);
    // The solutions have these answers in boxes.
    let solutions: Vec<&str> = rows.iter().map(|row| row["solution"].as_str().unwrap()).collect();
    let scores = score(&solutions, &answers, MathOptions { strict: true, ..MathOptions::default() });
    let missed: Vec<_> = (0..500).filter(|&i| scores.values[i] != Some(1.0)).map(|i| answers[i]).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// Consecutive problems of MATH-500 with equal answers, found by hand.
const NEIGHBOURS: [(&str, &str); 3] = [("5", "x=5"), ("7", "7"), ("3", "3")];

proptest! {
    #![proptest_config(testing::foreign::few())]

    /// Any text can be compared quickly and without a panic.
    #[test]
    fn any_text_is_scored(text in "[-+*/^_=<>(){}\\[\\]|,.;!%$&\\\\0-9a-zπ√ ]{0,60}", other in "\\PC{0,40}") {
        let _ = (equal(&text, &other), equal("\\frac{1}{2}", &text), equal(&text, "x^2+1"));
        // Equality is symmetric except for equations: 2 + 3 = 5 is accepted for the answer 5, but not the reverse.
        let equation = text.contains('=') || text.contains("approx") || text.contains("equiv");
        prop_assert!(text.trim().is_empty() || equation || equal("5", &text) == equal(&text, "5"));
    }
    #[test]
    fn commands_in_any_order_are_compared(words in proptest::collection::vec(0usize..WORDS.len(), 0..25)) {
        let text: String = words.iter().map(|&i| WORDS[i]).collect();
        let _ = (equal("3", &text), equal(&text, "x+1"), equal(&text, "(1,2)"));
    }
    /// Sums of fractions equal their result, in two notations.
    #[test]
    fn sums_of_fractions(a in -999i64..999, b in 1i64..99, c in -999i64..999, d in 1i64..99) {
        let (sum, top) = (format!("\\frac{{{a}}}{{{b}}}+{c}/{d}"), a * d + c * b);
        let over = |top: i64| format!("{top}/{}", b * d);
        prop_assert!(equal(&sum, &over(top)) && !equal(&sum, &over(top + 1)));
    }
}

const WORDS: [&str; 30] = [
    "\\frac",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "\\{",
    "\\}",
    "1",
    "23",
    "x",
    "\\sqrt",
    "^",
    "_",
    "\\pi ",
    "\\pm ",
    ",",
    "=",
    "<",
    "\\cup ",
    "\\text{a}",
    "|",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "&",
    "\\\\",
    "\\sin ",
    "!",
    "\\%",
];

#[test]
fn nested_answers_and_large_numbers_are_compared_quickly() {
    for text in [
        "(".repeat(5000),
        "{".repeat(1900),
        "-".repeat(1900),
        "\\sqrt".repeat(390),
        "9^".repeat(900) + "9",
        "5!".repeat(900),
        "5".to_owned() + &"!".repeat(1990),
        "5".to_owned() + &"%".repeat(1990),
        "5".to_owned() + &"%".repeat(590),
        "\\$".repeat(990) + "5",
        "1_".repeat(990) + "5",
        "\\begin{matrix}".repeat(140) + "5",
        "x+".repeat(990) + "x",
        "x+".repeat(290) + "x",
        "\\binom{-1}{1000}+".repeat(80) + "x",
    ] {
        assert!(!equal("5", &text), "{}", &text[..20]);
    }
    for text in ["9^{9^{9^9}}", "(10^9)!", "\\binom{10^9}{10^9}", "2^{-1000000000}"] {
        assert!(!equal("5", text), "{text}");
    }
}
