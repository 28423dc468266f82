//! `gsm8k`: 1 if the completion's final number equals that of the answer, else 0.
//!
//! The answer column holds GSM8K's solution text, whose number follows `####`, or just the number. The completion's
//! number is the number after its last `####`; else the number in its last `<answer>` or `\boxed{…}`; else (unless
//! `strict`) the number after "answer is", or the last number of the text. The words around the number must not retract
//! it (`not 42`, `42 or 43`, `42:00`). Numbers are compared exactly, never as floats: `1,000.50`, `$1000.5`, `1000.5
//! %`, `2001/2`, `\frac{2001}{2}`, `1000½` and `1.0005e3` are equal. A formula has a number only if the number is alone
//! in it: `$6 \times 7$` has none. For a row whose answer has no number, the score is `None` with a problem.
//!
//! Dataset: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems", <https://arxiv.org/abs/2110.14168>.

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{announced, closed, first_line, hashed, plain_digits, regex, taken_back_before, taken_back_behind};
use super::formulas::formulas;
use super::grader::Grader;
use super::markup::undecorated;
use super::number::{Decimal, Group, NUMBER, Number, groups, is_meant, latex_fractions};
use super::units::is_unit;
use crate::Result;
use crate::batch::Verdict;

/// The options of [`Gsm8k`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gsm8kOptions {
    /// The dataset column with the answer.
    pub column: String,
    /// Whether only a number after `####`, in `<answer>` or in `\boxed{}` is accepted.
    pub strict: bool,
}

impl Default for Gsm8kOptions {
    fn default() -> Self {
        Gsm8kOptions { column: "answer".into(), strict: false }
    }
}

/// The `gsm8k` reward; the header of `gsm8k.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Gsm8k {
    options: Gsm8kOptions,
}

impl Grader<1> for Gsm8k {
    const KIND: &'static str = "gsm8k";
    type Options = Gsm8kOptions;

    fn build(options: Gsm8kOptions) -> Result<Self> {
        Ok(Gsm8k { options })
    }

    fn columns(&self) -> [&str; 1] {
        [&self.options.column]
    }

    fn grade(&self, [answer]: [&Value; 1], completion: &str) -> Option<Verdict> {
        let gold = gold(answer)?;
        Some(Verdict::of(answer_of(completion, self.options.strict), |given| given == gold))
    }

    fn unread(&self, [answer]: [&Value; 1]) -> (String, Option<String>) {
        (format!("no number in column `{}`", self.options.column), Some(format!("in {answer}")))
    }
}

/// The number of a dataset answer: a JSON number, a string with `####`, or a string that is a number.
pub(super) fn gold(answer: &Value) -> Option<Number> {
    match answer {
        Value::Number(number) => Decimal::parse(&number.to_string()).map(Number::Decimal),
        Value::String(text) => {
            let text = &*plain_numbers(text);
            match hashed(text) {
                Some(tail) => groups(tail).next()?.value,
                None => groups(text).last()?.value,
            }
        }
        _ => None,
    }
}

/// The final number of a completion, if it has one. With `strict` it must be marked by `####`, `<answer>` or a box.
pub fn answer_of(completion: &str, strict: bool) -> Option<Number> {
    let text = &*joined_digits(&plain_digits(&undecorated(completion)));
    let text = &*latex_fractions(text);
    let (hashes, closed) = (hashed(text), closed(text));
    let marked = hashes.and_then(|tail| first_number(first_line(tail))).or_else(|| closed.and_then(only_number));
    // If there is a mark, but without exactly one number, the completion has no number.
    if marked.is_some() || strict || hashes.is_some() || closed.is_some() {
        return marked;
    }
    match announced(text).map(first_line) {
        Some(line) if begins_with_number(line) || groups(line).take(2).count() == 1 => first_number(line),
        _ => last_number(text),
    }
}

/// The number in `text`, if there is exactly one (besides units and currency signs), or one on a side of `=`.
pub(super) fn only_number(text: &str) -> Option<Number> {
    number_of_sides(&plain_numbers(&undecorated(text)), Only::Number)
}

/// Rewrites LaTeX's thousands separators between digits, as in `1{,}000` and `1\,000`, in plain notation.
fn joined_digits(text: &str) -> String {
    static SPACE: LazyLock<Regex> = LazyLock::new(|| regex(r"([0-9])\\[,!]([0-9])"));
    static COMMA: LazyLock<Regex> = LazyLock::new(|| regex(r"([0-9])\{,\}([0-9])"));
    SPACE.replace_all(&COMMA.replace_all(text, "$1,$2"), "$1$2").into_owned()
}

/// Rewrites the numbers of a text in plain notation: LaTeX writes a thousand as `1{,}000` or `1\,000`.
fn plain_numbers(text: &str) -> String {
    let plain = plain_digits(text).replace("{,}", ",").replace("\\,", "").replace("\\!", "");
    latex_fractions(&plain).into_owned()
}

/// The first number of a line, before any explanation.
fn first_number(line: &str) -> Option<Number> {
    static EXPLANATION: LazyLock<Regex> =
        LazyLock::new(|| regex(r"(?i)\b(?:because|since|so|which|where|given|as)\b|[;(]|,\s+[a-z]|\.\s"));
    static APART: LazyLock<Regex> = LazyLock::new(|| regex(r"^(\s*[-\u{2212}])\s+([$€£]?[0-9.])"));
    // Joins a sign and its number: "- 1234".
    let line = &*APART.replace(line, "$1$2");
    let line = &*latex_fractions(line);
    // The line may begin with a bracket around the number, "(42)", so the search for an explanation starts after the
    // number.
    let from = groups(line).next()?.end;
    let end = EXPLANATION.find_at(line, from).map_or(line.len(), |found| found.start());
    // The text after the number may retract it: "42 (wrong)".
    let stated = &line[..end];
    if taken_back_behind(&line[from..], &NUMBER) { None } else { number_of_sides(stated, Only::First) }
}

fn begins_with_number(line: &str) -> bool {
    let decoration = |c: char| c.is_whitespace() || ":*_$\"'`([{\\-\u{2212}€£¥₹~".contains(c);
    line.trim_start_matches(decoration).starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// The text that a side of an equation may have besides its number.
#[derive(Clone, Copy, PartialEq)]
enum Only {
    /// Any text, including other numbers.
    First,
    /// Any text except another number.
    Number,
    /// Units, brackets and signs that do not change the number.
    Formula,
}

/// The number on the last side of an equation, or else on the first side. If a side may have several numbers, the first
/// is used.
fn number_of_sides(text: &str, only: Only) -> Option<Number> {
    let all: Vec<Group> = groups(text).collect();
    let last = text.rfind('=').map_or(0, |at| at + 1);
    // Relations other than equations have no result: "42 != 42", "x <= 42".
    let relation = ["!=", "<=", ">=", "/=", "\\not="].iter().any(|sign| text[..last].ends_with(sign));
    let first = (last > 0 && !relation).then(|| 0..text.find('=').unwrap_or(0));
    [Some(last..text.len()), first].into_iter().flatten().find_map(|side| {
        let mut own = all.iter().filter(|group| group.start >= side.start && group.end <= side.end);
        let group = own.next().filter(|group| stands(text, group))?;
        let others = only != Only::First && own.next().is_some();
        let more =
            || only == Only::Formula && !leaves_as_it_is(&text[side.start..group.start], &text[group.end..side.end]);
        if others || more() { None } else { group.value.clone() }
    })
}

/// The last number of a text, unless the words around the number retract it. "42 or 42" counts as 42.
fn last_number(text: &str) -> Option<Number> {
    let (mut before, mut last): (Option<Group>, Option<Group>) = (None, None);
    for group in groups(text) {
        before = last.replace(group);
    }
    let mut last = last?;
    // A number in a formula is used only if the number is alone, unlike in `6 \times 7` or `\frac{x}{4}`.
    let before_last = formulas(text).take_while(|formula| formula.start <= last.start);
    if let Some(inside) = before_last.last().map(|formula| formula.inside) {
        let start = inside.as_ptr() as usize - text.as_ptr() as usize;
        if (start..start + inside.len()).contains(&last.start) {
            return number_of_sides(inside, Only::Formula)
                .filter(|_| stands_outside(text, start, start + inside.len()));
        }
    }
    if let Some(before) = before
        && before.value == last.value
        && text[before.end..last.start].trim() == "or"
    {
        last.start = before.start;
    }
    if stands(text, &last) { last.value } else { None }
}

/// Whether a number is a complete answer in its text: not in `6*7`, `42^2` or `42 and 43`, and not if [`is_meant`] is
/// false.
fn stands(text: &str, group: &Group) -> bool {
    /// Matches text after a number that makes it part of something longer: a time, a power, an operation, a list, a
    /// range.
    static GOES_ON: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"(?x) ^:\d | ^[\^_½⅓⅔¼¾⁰¹²³⁴⁵⁶⁷⁸⁹] | ^\{?\}?\s*(?:\\pi|\\sqrt|\\times|\\cdot|\\div|\\pm|[π√±×÷]) | ^\s+\d
            | ^\s*[-+*·/\u{2212}–—~]\s*[\d(] | ^\s*x\s*\d
            | ^\s+(?:and\s+(?:a|one)\s+(?:half|third|quarter) | (?:hundred|thousand|million|billion|trillion|dozen)s?)\b
            | ^(?:, | \s*[;&,] | \s+(?:and|to|through))\s*\$?[-\u{2212}]?\.?\d",
        )
    });
    !GOES_ON.is_match(&text[group.end..]) && is_meant(text, group.start, group.end)
}

/// Whether the number of a formula is a complete answer, given the text before and after the formula.
fn stands_outside(text: &str, start: usize, end: usize) -> bool {
    let signs = |c: char| matches!(c, '$' | '\\' | '(' | '[' | ')' | ']') || c.is_whitespace();
    let (before, after) = (text[..start].trim_end_matches(signs), text[end..].trim_start_matches(signs));
    static SCALE: LazyLock<Regex> =
        LazyLock::new(|| regex(r"^(?:(?:hundred|thousand|million|billion|trillion|dozen)s?|nd|rd|st|th)\b"));
    !taken_back_before(before) && !taken_back_behind(after, &NUMBER) && !SCALE.is_match(after)
}

/// Whether the text around a number in a formula leaves its value unchanged: units, brackets, spaces, a relation sign.
fn leaves_as_it_is(before: &str, after: &str) -> bool {
    static MARKUP: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"(?x) \\(?:text\w*|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{[^{}]*\}(?:\^\{?[0-9]\}?)?
            | \\(?:left|right|approx|simeq|quad|qquad|therefore|Rightarrow|Longrightarrow|rightarrow|implies|to|degree
                |displaystyle|textstyle|boxed|fbox|textbf|mathbf|bf|rm|[bB]igg?[lr]?)(?:[^A-Za-z]|$)
            | \^\{?\\circ\}? | \\[$%,;:!\ ] | [\s$(){}\[\]%°.,;:~≈€£¥₹]",
        )
    });
    let words = |rest: &str| {
        rest.split(|c: char| !c.is_alphabetic())
            .all(|word| word.is_empty() || word.chars().count() >= 3 || is_unit(word))
            && rest.chars().all(char::is_alphabetic)
    };
    // A plus sign does not change a number: "+5".
    let before = before.trim_end().strip_suffix('+').filter(|rest| rest.trim().is_empty()).unwrap_or(before);
    [before, after].iter().all(|part| words(&MARKUP.replace_all(part, "")))
}

#[cfg(test)]
mod tests {
    mod parts;

    use super::super::grader::scores;
    use super::super::rational::Rational;
    use super::*;
    use crate::Scores;

    fn answer(text: &str) -> Option<Number> {
        answer_of(text, false)
    }

    fn number(text: &str) -> Option<Number> {
        Some(Number::Decimal(Decimal::parse(text).unwrap()))
    }

    #[test]
    fn the_final_number_of_a_completion_is_found() {
        for (text, expected) in [
            ("so 9 * 2 = 18\n#### 18", "18"),
            ("#### 1,234", "1234"),
            ("#### $1,234.50 per day", "1234.5"),
            ("#### -7.", "-7"),
            ("####\n42", "42"),
            ("#### 3\n wait, #### 4\nor 5", "4"),
            ("#### 50%", "50"),
            ("thus \\boxed{18}", "18"),
            ("thus \\boxed {18}, not 19", "18"),
            ("thus $\\boxed 18$, not 19", "18"),
            ("thus \\fbox{18}, not 19", "18"),
            ("\\boxed{3} then \\boxed{\\text{about } \\$1{,}000}", "1000"),
            ("\\boxed{\\text{a {nested} one: } 12}", "12"),
            ("\\boxed{5} and an open \\boxed{6", "5"),
            ("The answer is 12,345,678.", "12345678"),
            ("The answer is $12{,}345{,}678$.", "12345678"),
            ("so they pay \\$1\\,000 in all", "1000"),
            ("a total of 2\\!500\\,\\text{cm}", "2500"),
            ("#### 1{,}000", "1000"),
            ("It costs -$3.50", "-3.5"),
            ("x = \u{2212}3", "-3"),
            ("10 - 12", "12"),
            ("10 -12", "12"),
            ("The answer is -3", "-3"),
            ("we have 5-3", "3"),
            ("it is x-5", "5"),
            ("of 1,2,3", "3"),
            ("of 1,2345", "2345"),
            ("of 1,234,5678", "5678"),
            (".5 or 0.50", "0.5"),
            ("007", "7"),
            ("version 1.2.3", "3"),
            ("123456789012345678901234567890.10", "123456789012345678901234567890.1"),
        ] {
            assert_eq!(answer(text), number(expected), "{text}");
        }
        // A comma that does not separate thousands separates two numbers.
        for text in ["", "none", "5 #### none", "#### 1,2345", "\\boxed{\\frac{1}{0}}", "... - ,"] {
            assert_eq!(answer(text), None, "{text}");
        }
        assert_eq!(answer_of("it is 5", true), None);
        assert_eq!(answer_of("it is #### 5", true), number("5"));
        assert_eq!(answer_of("it is \\boxed{5}", true), number("5"));
    }

    /// The texts have numbers in different notations, after different marks, or retracted by the text around them.
    #[test]
    fn numbers_in_common_notations_are_found_unless_retracted() {
        for (text, expected) in [
            ("#### 84/2", "42"),
            ("#### 4.2e1", "42"),
            ("#### 4.2E+1", "42"),
            ("#### 1/2", "0.5"),
            ("#### 1 1/2 hours", "1.5"),
            ("\\boxed{\\frac{84}{2}}", "42"),
            ("\\boxed{\\dfrac12}", "0.5"),
            ("it is 84/2", "42"),
            ("it is 4.2e1.", "42"),
            ("#### 6*7 = 42", "42"),
            ("#### x = 42", "42"),
            ("#### 42 = 6 * 7", "42"),
            ("\\boxed{6 \\times 7 = 42}", "42"),
            ("<answer>42</answer>", "42"),
            ("<think>6 * 7</think><answer> 42 apples </answer> of 50", "42"),
            ("<answer>\\boxed{42}</answer>", "42"),
            ("<SOLUTION>42</SOLUTION>", "42"),
            ("The answer is 42 (6 * 7).", "42"),
            ("The answer is 42, because 6 * 7 is that.", "42"),
            ("**Answer:** $42 of the 50", "42"),
            ("answer=42; 50 are left", "42"),
            ("The answer is the sum of 20 and 22, that is 42", "42"),
            ("#### 42kg", "42"),
            ("#### 42 (not 43)", "42"),
            ("#### US$42", "42"),
            ("#### **42**", "42"),
            ("#### (42)", "42"),
            ("####٤٢", "42"),
            ("#### ４２", "42"),
            ("it is 42, or so", "42"),
            ("42 is right", "42"),
            ("She did not pay. He paid 42", "42"),
        ] {
            assert_eq!(answer(text), number(expected), "{text}");
        }
        for text in [
            "#### not 42",
            "#### 42:00",
            "#### 42 or 43",
            "#### x42",
            "#### 42nd",
            "#### 42k",
            "#### 42 million",
            "#### 42 and 43",
            "#### 42-43",
            "#### 42 to 43",
            "#### 42 43",
            "#### less than 42",
            "#### at least 42",
            "#### 42 is wrong",
            "#### 42 (wrong)",
            "#### 42^2",
            "#### 42*2",
            "#### 42!=42",
            "#### 42/0",
            "#### 12/25/2020",
            "#### ≠ 42",
            "#### 3x",
            "\\boxed{not 42}",
            "\\boxed{42 \\text{ or } 43}",
            "\\boxed{x \\ne 42}",
            "\\boxed{\\sqrt{42}}",
            "\\boxed{42 \\text{ is wrong}}",
            "\\boxed{x^{42}}",
            "\\boxed{42:00}",
            "<answer>not 42</answer>",
            "<answer>42 or 43</answer>",
            "<answer></answer> 42",
            "The answer is not 42",
            "The answer cannot be 42",
            "it isn't 42",
            "it is 41 or 42",
            "either 41 or 42",
            "x42",
            "at 9:42",
            "x ≠ 42",
            "more than 42",
            "42 is wrong",
            "the 42nd",
        ] {
            assert_eq!(answer(text), None, "{text}");
        }
        assert_eq!(answer("#### 1/3"), Some(Number::Fraction(Rational::new(1, 3).unwrap())));
        // The answer of a row is parsed by the same rules as that of a completion.
        assert_eq!(gold(&"1/3".into()), answer("#### 2/6"));
        for text in ["<answer>42</answer>", "#### 42", "\\boxed{42}"] {
            assert_eq!(answer_of(text, true), number("42"), "{text}");
        }
        for text in ["answer: 42", "42"] {
            assert_eq!(answer_of(text, true), None, "{text}");
        }
    }

    #[test]
    fn the_last_mark_of_a_solution_counts() {
        let solution = |text: &str| gold(&Value::from(text));
        assert_eq!(solution("2 + 2 = 4, not #### 5\n#### 4 apples"), number("4"));
        assert_eq!(solution("so 7"), number("7"));
        assert_eq!(solution("#### none"), None);
        assert_eq!((solution("#### 5 of 6"), solution("5 of 6")), (number("5"), number("6")));
        assert_eq!((solution("#### 1{,}000"), solution("")), (number("1000"), None));
        assert_eq!(
            (gold(&18.5.into()), gold(&(-3).into()), gold(&1e300.into())),
            (number("18.5"), number("-3"), number("1e300"))
        );
        assert_eq!((gold(&Value::Null), gold(&true.into()), gold(&vec![5].into())), (None, None, None));
    }

    fn score(completions: &[&str], answers: Vec<Value>) -> Scores {
        scores(&Gsm8k::build(Gsm8kOptions::default()).unwrap(), completions, [("answer", answers)])
    }

    #[test]
    fn rows_whose_answer_has_no_number_are_reported() {
        let scores = score(
            &["#### 18", "#### 19", "18.0", "18", "18"],
            vec!["9 * 2 = 18\n#### 18".into(), "#### 18".into(), 18.into(), 18.0.into(), "eighteen".into()],
        );
        assert_eq!(scores.values, [Some(1.0), Some(0.0), Some(1.0), Some(1.0), None]);
        assert_eq!(scores.problems.len(), 1);
        assert!(scores.problems[0].to_string().contains(", for example in \"eighteen\""), "{}", scores.problems[0]);
        assert_eq!(scores.problems[0].rows, 1);
    }

    /// Every answer of the real dataset has a number, and each reference solution scores 1 against its own answer.
    #[test]
    fn reference_solutions_of_gsm8k_score_1() {
        let Some(file) = testing::shared("data/gsm8k/test.jsonl") else { return };
        let text = std::fs::read_to_string(file).unwrap();
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let solutions: Vec<&str> = rows.iter().map(|row| row["answer"].as_str().unwrap()).collect();
        assert_eq!(solutions.len(), 1319);
        let answers = || solutions.iter().map(|&solution| solution.into()).collect();
        let right = score(&solutions, answers());
        assert!(right.problems.is_empty() && right.values.iter().all(|&value| value == Some(1.0)));
        // Without the marked answer, nearly all solutions still end with the answer.
        let unmarked: Vec<&str> = solutions.iter().map(|s| s.split("####").next().unwrap()).collect();
        let found = score(&unmarked, answers()).values.iter().flatten().sum::<f64>();
        assert!(found > 1200.0, "{found}");
    }

    /// The published solutions of four models end with, for example, `A: 18`. Exactly those that the dataset's authors
    /// counted as right must score 1.
    #[test]
    fn published_model_solutions_are_scored_as_by_their_authors() {
        let Some(file) = testing::shared("data/gsm8k/example_model_solutions.jsonl") else { return };
        let text = std::fs::read_to_string(file).unwrap();
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let golds: Vec<Value> = rows.iter().map(|row| row["ground_truth"].clone()).collect();
        let own: Vec<&str> = golds.iter().map(|gold| gold.as_str().unwrap()).collect();
        assert_eq!(score(&own, golds.clone()).values, vec![Some(1.0); 1319]);
        for (model, right) in
            [("6b_finetuning", 286), ("6b_verification", 515), ("175b_finetuning", 458), ("175b_verification", 742)]
        {
            let solutions: Vec<&str> = rows.iter().map(|row| row[model]["solution"].as_str().unwrap()).collect();
            let labels: Vec<bool> = rows.iter().map(|row| row[model]["is_correct"].as_bool().unwrap()).collect();
            let scores = score(&solutions, golds.clone());
            assert!(scores.problems.is_empty());
            let scored: Vec<bool> = scores.values.iter().map(|value| *value == Some(1.0)).collect();
            let other = (0..1319).filter(|&i| scored[i] != labels[i]).map(|i| solutions[i]).collect::<Vec<_>>();
            assert!(other.is_empty(), "{model}: unexpected scores: {other:#?}");
            assert_eq!(scored.iter().filter(|right| **right).count(), right, "{model}");
        }
    }

    #[test]
    fn a_missing_column_gives_no_score_and_names_existing_columns() {
        let of = |options: Gsm8kOptions| {
            scores(&Gsm8k::build(options).unwrap(), &["#### 1"], [("solution", vec!["1".into()])])
        };
        let missing = of(Gsm8kOptions::default());
        assert_eq!(missing.values, [None]);
        assert!(missing.problems[0].message.contains("`answer`") && missing.problems[0].message.contains("`solution`"));
        assert_eq!(of(Gsm8kOptions { column: "solution".into(), strict: true }).values, [Some(1.0)]);
    }
}
