//! `gsm8k`: 1 if the completion's final number equals the answer's, else 0.
//!
//! The answer column holds GSM8K's solution text, whose number follows `####`, or just the number. The completion's
//! number is the one after its last `####`; else the one in its last `\boxed{…}`; else (unless `strict`) the last
//! number in it. Numbers are compared as exact decimals, never as floats: `1,000.50`, `$1000.5` and `1000.5 %` are
//! equal. A row whose answer has no number gives `None` with a problem. Knows no other mathematics than decimals.
//!
//! Dataset: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems", <https://arxiv.org/abs/2110.14168>.

use serde::Deserialize;
use serde_json::Value;

use super::Builtin;
use super::boxed::last_boxed;
use crate::batch::Verdict;
use crate::{Result, Reward, RewardBatch, Scores};

/// Options of [`Gsm8k`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Options {
    /// The dataset column with the answer.
    pub column: String,
    /// Accept only a number after `####` or in `\boxed{}`, not just any last number.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { column: "answer".into(), strict: false }
    }
}

/// The reward; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Gsm8k {
    name: String,
    options: Options,
}

impl Builtin for Gsm8k {
    const KIND: &'static str = "gsm8k";
    const MAIN_OPTION: Option<&'static str> = Some("column");
    type Options = Options;

    fn build(name: String, options: Options) -> Result<Self> {
        Ok(Gsm8k { name, options })
    }
}

impl Reward for Gsm8k {
    fn name(&self) -> &str {
        &self.name
    }

    fn required_columns(&self) -> Vec<String> {
        vec![self.options.column.clone()]
    }

    fn scores_by_group(&self) -> bool {
        true
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let Options { column, strict } = &self.options;
        let unread = |answer: &Value| (format!("no number in column `{column}`"), Some(format!("in {answer}")));
        batch.score_by_answer(&self.name, column, unread, |answer, text| {
            let gold = gold(answer)?;
            Some(Verdict::of(answer_of(text, *strict), |given| given == gold))
        })
    }
}

/// The number of a dataset answer: a JSON number, a text with `####`, or a text that is a number.
pub(super) fn gold(answer: &Value) -> Option<Decimal> {
    match answer {
        Value::Number(number) => Decimal::parse(&number.to_string()),
        Value::String(text) => match text.rsplit_once("####") {
            Some((_, tail)) => numbers(tail).next().map(|found| found.value),
            None => only_number(text).or_else(|| numbers(text).last().map(|found| found.value)),
        },
        _ => None,
    }
}

/// The final number of a completion, if it has one. `strict`: only after `####` or in `\boxed{}`.
pub fn answer_of(completion: &str, strict: bool) -> Option<Decimal> {
    let marked = completion.rsplit_once("####").and_then(|(_, tail)| {
        let line = tail.trim_start().lines().next()?;
        let first = numbers(line).next()?;
        // "1/2" is not the answer 1.
        (!line[first.end..].trim_start().starts_with('/')).then_some(first.value)
    });
    marked.or_else(|| last_boxed(completion).and_then(only_number)).or_else(|| {
        let anywhere = || numbers(completion).last().map(|found| found.value);
        // A completion that marks its answer and puts no single number there has given no number.
        let marks = completion.contains("####") || last_boxed(completion).is_some();
        if strict || marks { None } else { anywhere() }
    })
}

/// The number in `text` if there is exactly one (beside units and signs of currency).
pub(super) fn only_number(text: &str) -> Option<Decimal> {
    // LaTeX writes thousands as `1{,}000` or `1\,000`.
    let plain = text.replace("{,}", ",").replace("\\,", "").replace("\\!", "");
    let mut found = numbers(&plain);
    let first = found.next()?;
    found.next().is_none().then_some(first.value)
}

/// A number found in a text.
pub(super) struct Found {
    value: Decimal,
    /// Byte offset of its sign or first digit.
    pub start: usize,
    /// Byte offset just after it.
    pub end: usize,
}

/// All numbers of a text in order: digits with thousands commas and one decimal point, with a sign if the character
/// before the sign is not part of a number or word (`5-3` is 5 and 3, `= -3` is −3). A `$` may stand between.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = Found> + '_ {
    let bytes = text.as_bytes();
    let digit = move |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    std::iter::from_fn(move || {
        // ".5" starts at its point, but the point of "1.2.3" that follows a number starts nothing.
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
                // A comma belongs to the number only before exactly three digits.
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

/// Where the text before a number has a minus at its end that is a sign, and not an operator or a hyphen.
fn sign_before(before: &str) -> Option<usize> {
    let before = before.strip_suffix('$').unwrap_or(before);
    let before = before.strip_suffix('\\').unwrap_or(before);
    let rest = before.strip_suffix('-').or_else(|| before.strip_suffix('\u{2212}'))?;
    // "a-3" and "5 -3" subtract, "is -3" does not.
    let operator = rest.ends_with(|c: char| c.is_alphanumeric() || c == ')')
        || rest.trim_end().ends_with(|c: char| c.is_numeric() || c == ')');
    (!operator).then_some(rest.len())
}

/// A decimal number in one canonical form, so that equality is exact: no leading or trailing zeros, no −0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
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
    use super::*;
    use crate::{Columns, Content};

    fn answer(text: &str) -> Option<Decimal> {
        answer_of(text, false)
    }

    fn number(text: &str) -> Option<Decimal> {
        Some(Decimal::parse(text).unwrap())
    }

    #[test]
    fn finds_the_final_number() {
        for (text, expected) in [
            ("so 9 * 2 = 18\n#### 18", "18"),
            ("#### 1,234", "1234"),
            ("#### 1,2345", "1"),
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
        for text in ["", "none", "5 #### none", "#### 1/2", "\\boxed{\\frac{1}{2}}", "... - ,"] {
            assert_eq!(answer(text), None, "{text}");
        }
        assert_eq!(answer_of("it is 5", true), None);
        assert_eq!(answer_of("it is #### 5", true), number("5"));
        assert_eq!(answer_of("it is \\boxed{5}", true), number("5"));
    }

    #[test]
    fn of_a_solution_the_last_mark_counts() {
        let solution = |text: &str| gold(&Value::from(text));
        assert_eq!(solution("2 + 2 = 4, not #### 5\n#### 4 apples"), number("4"));
        assert_eq!(solution("so 7"), number("7"));
        assert_eq!(solution("#### none"), None);
    }

    #[test]
    fn decimals_are_exact_and_canonical() {
        assert_eq!(Decimal::parse("-0.00"), Decimal::parse("0"));
        assert_eq!(Decimal::parse("1.5e3"), Decimal::parse("1500"));
        assert_eq!(Decimal::parse("15e-3"), Decimal::parse("0.0150"));
        // As floats these two are equal.
        assert_ne!(Decimal::parse("9007199254740993"), Decimal::parse("9007199254740992"));
        for bad in ["", "-", ".", "1.2.3", "1a", "--1", "1e", "1e999999999"] {
            assert_eq!(Decimal::parse(bad), None, "{bad}");
        }
    }

    fn score(completions: &[&str], answers: Vec<Value>) -> Scores {
        let completions: Vec<Content> = completions.iter().map(|&c| c.into()).collect();
        let ids = vec![vec![]; completions.len()];
        let columns = Columns::from([("answer".to_owned(), answers)]);
        let prompts = vec![Content::from("q"); completions.len()];
        let batch = RewardBatch {
            prompts: &prompts,
            completions: &completions,
            completion_ids: &ids,
            columns: &columns,
            rows: &[],
            step: 0,
        };
        Gsm8k::build("gsm8k".into(), Options::default()).unwrap().score(&batch)
    }

    #[test]
    fn scores_and_says_what_it_cannot_judge() {
        let scores = score(
            &["#### 18", "#### 19", "18.0", "18", "18"],
            vec!["9 * 2 = 18\n#### 18".into(), "#### 18".into(), 18.into(), 18.0.into(), "eighteen".into()],
        );
        assert_eq!(scores.values, [Some(1.0), Some(0.0), Some(1.0), Some(1.0), None]);
        assert_eq!(scores.problems.len(), 1);
        assert!(scores.problems[0].to_string().contains(", for example in \"eighteen\""), "{}", scores.problems[0]);
        assert_eq!(scores.problems[0].rows, 1);
    }

    /// The answers of the real dataset all have a number, and a solution is right by its own answer.
    #[test]
    fn judges_the_real_data_set() {
        let Some(file) = testing::shared("data/gsm8k/test.jsonl") else { return };
        let text = std::fs::read_to_string(file).unwrap();
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let solutions: Vec<&str> = rows.iter().map(|row| row["answer"].as_str().unwrap()).collect();
        assert_eq!(solutions.len(), 1319);
        let answers = || solutions.iter().map(|&solution| solution.into()).collect();
        let right = score(&solutions, answers());
        assert!(right.problems.is_empty() && right.values.iter().all(|&value| value == Some(1.0)));
        // Without the marked answer, the last number of nearly all solutions is still the answer.
        let unmarked: Vec<&str> = solutions.iter().map(|s| s.split("####").next().unwrap()).collect();
        let found = score(&unmarked, answers()).values.iter().flatten().sum::<f64>();
        assert!(found > 1200.0, "{found}");
    }

    /// Of the solutions that four models wrote, exactly those are right that the dataset's authors counted. They end in
    /// `A: 18`.
    #[test]
    fn counts_the_published_solutions_as_their_authors_did() {
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
            let judged: Vec<bool> = scores.values.iter().map(|value| *value == Some(1.0)).collect();
            let other = (0..1319).filter(|&i| judged[i] != labels[i]).map(|i| solutions[i]).collect::<Vec<_>>();
            assert!(other.is_empty(), "{model}: judged otherwise: {other:#?}");
            assert_eq!(judged.iter().filter(|right| **right).count(), right, "{model}");
        }
    }

    #[test]
    fn a_missing_column_gives_none_and_names_what_there_is() {
        let prompts = [Content::from("q")];
        let columns = Columns::from([("solution".to_owned(), vec!["1".into()])]);
        let completions = [Content::assistant("#### 1")];
        let batch = RewardBatch {
            prompts: &prompts,
            completions: &completions,
            completion_ids: &[vec![]],
            columns: &columns,
            rows: &[],
            step: 0,
        };
        let mut reward = Gsm8k::build("gsm8k".into(), Options::default()).unwrap();
        let scores = reward.score(&batch);
        assert_eq!(scores.values, [None]);
        assert!(scores.problems[0].message.contains("`answer`") && scores.problems[0].message.contains("`solution`"));
        let options = Options { column: "solution".into(), strict: true };
        assert_eq!(Gsm8k::build("gsm8k".into(), options).unwrap().score(&batch).values, [Some(1.0)]);
    }
}
