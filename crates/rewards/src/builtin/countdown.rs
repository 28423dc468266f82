//! `countdown`: 1 if the completion's expression uses exactly the given numbers and equals the target, else 0.
//!
//! The expression is the one in the last `<answer>…</answer>` or `\boxed{}`, else the one after `####` or "Answer:",
//! else the one in the last line. In an equation, it is the side with an operation. It may contain integers, `+ - * /`
//! (also `×`, `÷`, `\times`, `\div`, `\frac`), signs and brackets. It is parsed and evaluated with exact fractions,
//! never by an interpreter. Each given number must be used once (with `use_all = false`: at most once), and no other
//! number may occur. An expression with the right numbers and a wrong value scores `format_score`. Powers and
//! concatenated digits are not accepted.
//!
//! Task: Gandhi et al. 2024, "Stream of Search", <https://arxiv.org/abs/2404.03683>; TinyZero's reward.

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Mark, announced, first_line, marked, plain_digits, regex};
use super::grader::Grader;
use super::markup::{bare_sentence, first_sentence, undecorated, unstyled};
use super::rational::Rational;
use crate::batch::Verdict;
use crate::{Error, Result};

/// The deepest nesting of brackets.
const MAX_DEPTH: usize = 50;

/// The deepest nesting of `\frac`.
const MAX_FRACTIONS: usize = 10;

/// The options of [`Countdown`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CountdownOptions {
    /// The dataset column with the numbers: a list, or a string such as `3, 7, 25`.
    pub numbers: String,
    /// The dataset column with the target number.
    pub target: String,
    /// Whether every number must be used.
    pub use_all: bool,
    /// The score of an expression with the right numbers and a wrong value.
    pub format_score: f64,
}

impl Default for CountdownOptions {
    fn default() -> Self {
        CountdownOptions { numbers: "nums".into(), target: "target".into(), use_all: true, format_score: 0.0 }
    }
}

/// The `countdown` reward; the header of `countdown.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Countdown {
    options: CountdownOptions,
}

impl Grader<2> for Countdown {
    const KIND: &'static str = "countdown";
    const MAIN_OPTION: Option<&'static str> = None;
    type Options = CountdownOptions;

    fn build(options: CountdownOptions) -> Result<Self> {
        if !options.format_score.is_finite() {
            return Err(Error::options(
                "countdown",
                format!("`format_score` must be a finite number, got {}", options.format_score),
            ));
        }
        Ok(Countdown { options })
    }

    fn columns(&self) -> [&str; 2] {
        [&self.options.numbers, &self.options.target]
    }

    fn grade(&self, [numbers, target]: [&Value; 2], completion: &str) -> Option<Verdict> {
        Some(self.verdict(completion, &whole_numbers(numbers)?, whole(target)?))
    }

    fn unread(&self, [numbers, target]: [&Value; 2]) -> (String, Option<String>) {
        let [column, other] = self.columns();
        let message =
            format!("column `{column}` must have a list of whole numbers, and column `{other}` a whole number");
        (message, Some(format!("{numbers} and {target}")))
    }
}

impl Countdown {
    fn verdict(&self, text: &str, numbers: &[i128], target: i128) -> Verdict {
        let Some(computed) = answer(text) else { return Verdict { score: 0.0, answered: false } };
        let mut left = numbers.to_vec();
        let given = computed
            .numbers
            .iter()
            .all(|number| left.iter().position(|own| own == number).map(|place| left.swap_remove(place)).is_some());
        let score = match given && (left.is_empty() || !self.options.use_all) {
            false => 0.0,
            true if computed.value.is_some_and(|value| value.integer() == Some(target)) => 1.0,
            true => self.options.format_score,
        };
        Verdict { score, answered: true }
    }
}

fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Number(number) => number.as_i64().map(i128::from),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn whole_numbers(value: &Value) -> Option<Vec<i128>> {
    match value {
        Value::Array(items) => items.iter().map(whole).collect(),
        Value::String(text) => {
            let plain = text.trim().trim_start_matches('[').trim_end_matches(']');
            plain
                .split(|c: char| c == ',' || c.is_whitespace())
                .filter(|word| !word.is_empty())
                .map(|w| w.parse().ok())
                .collect()
        }
        _ => None,
    }
}

/// The final expression of a completion, evaluated.
fn answer(text: &str) -> Option<Computed> {
    let text = &*undecorated(text);
    let text = &*plain_digits(text);
    let marked =
        marked(text).map(|marked| if marked.mark == Mark::Closed { marked.text } else { first_line(marked.text) });
    let part = marked.unwrap_or_else(|| text.trim().lines().next_back().unwrap_or_default());
    // Inside tags, words may precede the expression: "the answer is 3 + 4".
    let part = announced(part).unwrap_or(part);
    let plain = plain(unstyled(bare_sentence(first_sentence(part))));
    let mut sides: Vec<Computed> = plain.split('=').filter_map(compute).collect();
    // The answer is the side with an operation, in `14 = (3 + 4) * 2` as in `(3 + 4) * 2 = 14`.
    let place = sides.iter().position(|side| side.numbers.len() > 1).unwrap_or(0);
    let mut computed = (place < sides.len()).then(|| sides.swap_remove(place))?;
    // A wrong equation is not an answer: `(3 + 4) * 2 = 15`, even if the target is 14.
    if sides.iter().any(|side| side.numbers.len() == 1 && side.value != computed.value) {
        computed.value = None;
    }
    Some(computed)
}

/// Converts an expression to ASCII signs, and removes LaTeX and Markdown markup around it.
fn plain(text: &str) -> String {
    /// Matches an innermost `\frac{3 + 4}{2}`.
    static FRACTION: LazyLock<Regex> = LazyLock::new(|| regex(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"));
    let mut text = text.to_owned();
    for _ in 0..MAX_FRACTIONS {
        match FRACTION.replace_all(&text, "(($1)/($2))") {
            std::borrow::Cow::Borrowed(_) => break,
            std::borrow::Cow::Owned(new) => text = new,
        }
    }
    for (latex, sign) in [
        ("\\times", "*"),
        ("\\cdot", "*"),
        ("\\ast", "*"),
        ("\\div", "/"),
        ("\\left", ""),
        ("\\right", ""),
        ("\\(", " "),
        ("\\)", " "),
        ("\\[", " "),
        ("\\]", " "),
        ("\\,", " "),
        ("\\;", " "),
        ("\\!", ""),
        ("\\ ", " "),
        ("\\approx", "="),
        ("\\to", "="),
        ("\\rightarrow", "="),
        ("\\Rightarrow", "="),
        ("=>", "="),
        ("->", "="),
        ("==", "="),
    ] {
        text = text.replace(latex, sign);
    }
    let signs = text.chars().map(|c| match c {
        '×' | '·' | '⋅' | '∙' | '•' | '∗' | '✕' | '✖' | 'x' | 'X' => '*',
        '÷' | '∕' | '⁄' => '/',
        '−' | '–' | '—' | '‐' | '‑' | '‒' | '➖' => '-',
        '➕' => '+',
        '→' | '⇒' | '≈' | '≡' | '⟹' => '=',
        '{' => '(',
        '}' => ')',
        c => c,
    });
    let text: String = signs.collect();
    // Removes a label before a colon, and decoration at both ends, as in "**3 + 4**.". A `**` in the middle is a power,
    // which the parser rejects.
    let text = text.rsplit(':').next().unwrap_or_default();
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '$' | '*' | '`' | '"' | '.' | ',' | ';' | '!'))
        .to_owned()
}

/// The numbers in an expression, and its value (`None` if it divides by zero).
struct Computed {
    numbers: Vec<i128>,
    value: Option<Rational>,
}

fn compute(text: &str) -> Option<Computed> {
    let text = text.trim().trim_matches(['$', '`']);
    // Digits separated by a space are two numbers, which is not an expression.
    let apart = text.split_whitespace().collect::<Vec<_>>();
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    if apart.windows(2).any(|pair| digit(pair[0].chars().next_back()) && digit(pair[1].chars().next())) {
        return None;
    }
    let signs = text.chars().filter(|c| !c.is_whitespace()).collect();
    let mut parser = Parser { signs, at: 0, depth: 0, numbers: Vec::new() };
    let value = parser.sum()?;
    (parser.at == parser.signs.len()).then_some(Computed { numbers: parser.numbers, value })
}

struct Parser {
    signs: Vec<char>,
    at: usize,
    depth: usize,
    numbers: Vec<i128>,
}

/// A recursive-descent parser. Each method returns `None` if the text is not an expression, and `Some(None)` if the
/// expression divides by zero.
impl Parser {
    fn sign(&mut self, accepted: [char; 2]) -> Option<char> {
        let sign = self.signs.get(self.at).copied().filter(|sign| accepted.contains(sign))?;
        self.at += 1;
        Some(sign)
    }

    fn sum(&mut self) -> Option<Option<Rational>> {
        let mut sum = self.product()?;
        while let Some(sign) = self.sign(['+', '-']) {
            let term = self.product()?;
            let signed = if sign == '-' { term.and_then(Rational::neg) } else { term };
            sum = sum.zip(signed).and_then(|(sum, term)| sum.add(term));
        }
        Some(sum)
    }

    fn product(&mut self) -> Option<Option<Rational>> {
        let mut product = self.factor()?;
        loop {
            // 2(3 + 4) is a product without a multiplication sign.
            let next = self.signs.get(self.at);
            let sign = if matches!(next, Some('(' | '[')) { Some('*') } else { self.sign(['*', '/']) };
            let Some(sign) = sign else { return Some(product) };
            let factor = self.factor()?;
            product = product.zip(factor).and_then(|(a, b)| if sign == '*' { a.mul(b) } else { a.div(b) });
        }
    }

    fn factor(&mut self) -> Option<Option<Rational>> {
        if let Some(sign) = self.sign(['+', '-']) {
            let factor = self.nested(Parser::factor)?;
            return Some(if sign == '-' { factor.and_then(Rational::neg) } else { factor });
        }
        if let Some(open) = self.sign(['(', '[']) {
            let inside = self.nested(Parser::sum)?;
            let close = if open == '(' { ')' } else { ']' };
            self.sign([close; 2])?;
            return Some(inside);
        }
        let digits: String = self.signs[self.at..].iter().take_while(|c| c.is_ascii_digit()).collect();
        self.at += digits.len();
        let number = digits.parse().ok()?;
        self.numbers.push(number);
        Some(Rational::new(number, 1))
    }

    fn nested(&mut self, read: fn(&mut Parser) -> Option<Option<Rational>>) -> Option<Option<Rational>> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let inside = read(self);
        self.depth -= 1;
        inside
    }
}

#[cfg(test)]
mod tests {
    mod parts;

    use super::super::grader::scores;
    use super::*;
    use proptest::prelude::*;

    fn score(text: &str, numbers: &[i128], target: i128) -> f64 {
        let options = CountdownOptions { format_score: 0.1, ..CountdownOptions::default() };
        Countdown::build(options).unwrap().verdict(text, numbers, target).score
    }

    #[test]
    fn an_expression_must_use_the_numbers_and_equal_the_target() {
        for (expression, expected) in [
            ("(3 + 7) * 25", 1.0),
            ("25 * (7+3) = 250", 1.0),
            ("[3 + 7] × 25", 1.0),
            ("$25 \\times \\left(3 + 7\\right)$", 1.0),
            ("3 + 7 * 25", 0.1),
            ("25 / (3 - 7)", 0.1),
            ("25 / (7 - 7)", 0.0),
            ("(3 + 7) * 25 + 0", 0.0),
            ("250", 0.0),
            ("(3 + 7) * 5 * 5", 0.0),
            ("3 + 7", 0.0),
            ("(3 + 7) * 25 * 25 / 25", 0.0),
            ("37 + 25", 0.0),
            ("3 7 + 25", 0.0),
            ("-(-3 - 7) * 25", 1.0),
            ("250 = (3 + 7) * 25", 1.0),
            ("x = (3 + 7) * 25", 1.0),
            ("The answer is (3 + 7) * 25.", 1.0),
            ("Answer: (3 + 7) * 25", 1.0),
            ("**(3 + 7) * 25**", 1.0),
            ("`(3 + 7) * 25`", 1.0),
            ("(3 + 7) ⋅ 25 → 250", 1.0),
            ("（３＋７）×２５", 1.0),
            ("{3 + 7} * 25", 1.0),
            ("25(3 + 7)", 1.0),
            ("\\[25 \\cdot (3 + 7)\\]", 1.0),
            ("+25 * (3 + 7)", 1.0),
            ("(3 + 7) * 25 == 250", 1.0),
            ("--25 * (3 + 7)", 1.0),
            ("(3 + 7] * 25", 0.0),
            ("(3 + 7)25", 0.0),
            ("250 = 250", 0.0),
            ("251 = (3 + 7) * 26", 0.0),
            ("not (3 + 7) * 25", 0.0),
            ("(3 + 7) ** 25", 0.0),
            ("(3 + 7) * 25)", 0.0),
            ("((3 + 7) * 25", 0.0),
            ("__import__('os').system('x') or 250", 0.0),
            ("", 0.0),
        ] {
            assert_eq!(score(&format!("so <answer>{expression}</answer>"), &[25, 3, 7], 250), expected, "{expression}");
        }
        for (expression, expected) in
            [("14=(3+4)*2", 1.0), ("-(-3-4)*2", 1.0), ("\\frac{3+4}{\\frac{1}{2}}", 0.0), ("2\\times(3+4)=14", 1.0)]
        {
            assert_eq!(score(expression, &[2, 3, 4], 14), expected, "{expression}");
        }
        assert_eq!(score("\\dfrac{3+5}{2}", &[2, 3, 5], 4), 1.0);
        // "3 7" is two numbers, even though 37 is one of the given numbers.
        assert_eq!(score("3 7 + 25", &[37, 25], 62), 0.0);
        assert_eq!(score("37 + 25", &[37, 25], 62), 1.0);
        // Adjacent brackets are not nested.
        let ones = |each: String, count: usize| score(&vec![each; count].join("+"), &vec![1; count], count as i128);
        assert_eq!(ones("(1)".to_owned(), 51), 1.0);
        assert_eq!(ones(format!("{}1{}", "(".repeat(50), ")".repeat(50)), 1), 1.0);
        assert_eq!(ones(format!("{}1{}", "(".repeat(51), ")".repeat(51)), 1), 0.0);
        assert_eq!(ones(format!("{}1", "-".repeat(5000)), 1), 0.0);
        // Intermediate fractions are exact.
        assert_eq!(score("(1 / 3) * 6 * 2", &[1, 2, 3, 6], 4), 1.0);
        assert_eq!(score("7 / 2 + 7 / 2", &[7, 2, 7, 2], 7), 1.0);
        assert_eq!(score("8 / (3 - 8 / 3)", &[3, 3, 8, 8], 24), 1.0);
        assert_eq!(score("6 / (3 - 3)", &[3, 3, 6], 0), 0.1);
    }

    #[test]
    fn the_final_expression_of_a_completion_is_found() {
        for text in [
            "try 1+2\n\\boxed{1 + 2}",
            "<answer>9</answer> <answer> 1 + 2 = 3 </answer>",
            "thinking\n1 + 2",
            "<answer>\\boxed{1 + 2}</answer>",
            "so #### 1 + 2\nand that is 3",
            "The answer is 1 + 2\nas you see",
            "<SOLUTION>1 + 2</SOLUTION>",
        ] {
            assert_eq!(score(text, &[1, 2], 3), 1.0, "{text}");
        }
        let some = CountdownOptions { use_all: false, ..CountdownOptions::default() };
        assert_eq!(Countdown::build(some).unwrap().verdict("1 + 2", &[1, 2, 9], 3).score, 1.0);
        assert_eq!(score("1 + 2", &[1, 2, 9], 3), 0.0);
    }

    #[test]
    fn number_cells_may_be_lists_or_strings_and_others_give_no_score() {
        let columns = [
            ("nums", vec![serde_json::json!([1, 2]), "1,2".into(), "[2, 1]".into(), "one".into()]),
            ("target", vec![3.into(), "3".into(), 4.into(), 3.into()]),
        ];
        let scores = scores(&Countdown::build(CountdownOptions::default()).unwrap(), &["1 + 2"; 4], columns);
        assert_eq!(scores.values, [Some(1.0), Some(1.0), Some(0.0), None]);
        assert!(scores.problems[0].to_string().contains("\"one\" and 3"), "{}", scores.problems[0]);
    }

    /// A brute-force search solves every puzzle of the dataset, and each solution scores 1.
    #[test]
    fn solutions_of_the_datasets_puzzles_score_1() {
        let Some(file) = testing::shared("data/countdown/countdown_cd3_test.jsonl") else { return };
        let text = std::fs::read_to_string(file).unwrap();
        let mut solved = 0;
        for line in text.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let (numbers, target) = (whole_numbers(&row["input"]).unwrap(), whole(&row["output"]).unwrap());
            let solution = search(&numbers, target).unwrap_or_else(|| panic!("no solution: {line}"));
            assert_eq!(score(&solution, &numbers, target), 1.0, "{solution}");
            assert_eq!(score(&solution, &numbers, target + 1), 0.1, "{solution}");
            solved += 1;
        }
        assert_eq!(solved, 256);
    }

    /// Searches for an expression with the three `numbers` that equals `target`: tries every order, operator and
    /// bracketing.
    fn search(numbers: &[i128], target: i128) -> Option<String> {
        let value = |text: &str| compute(text).and_then(|computed| computed.value)?.integer();
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        orders.iter().find_map(|order| {
            let [a, b, c] = order.map(|i| numbers[i]);
            let pairs = ["+", "-", "*", "/"].into_iter().flat_map(|p| ["+", "-", "*", "/"].map(|q| (p, q)));
            let texts = pairs.flat_map(|(p, q)| [format!("({a} {p} {b}) {q} {c}"), format!("{a} {p} ({b} {q} {c})")]);
            texts.into_iter().find(|text| value(text) == Some(target))
        })
    }

    proptest! {
        #[test]
        fn any_text_is_scored(text in "[-+*/() 0-9x=]{0,40}") {
            let value = score(&text, &[1, 2, 3], 6);
            prop_assert!([0.0, 0.1, 1.0].contains(&value));
        }
    }
}
