//! Tests all graders on one corpus of answers. `corpus/answers.tsv` has completions whose scores were decided by hand
//! before the graders were changed, `corpus/markup.tsv` has markup around answers, and `corpus/rewritings.tsv` has six
//! ways to write an answer of MATH-500. `conformance/answer_corpus.py` runs math-verify on the same tables for
//! comparison.

use serde_json::{Value, json};

use crate::{Columns, Content, RewardBatch, build};

/// A completion and its expected score.
struct Case {
    grader: String,
    right: bool,
    answer: String,
    completion: String,
}

/// For each grader, an answer of the dataset, a right completion and a wrong completion.
const ANSWERS: [(&str, &str, &str, &str); 6] = [
    ("math", "73", "73", "74"),
    ("math", "\\frac{3}{4}", "\\frac{3}{4}", "\\frac{3}{5}"),
    ("gsm8k", "73", "73", "37"),
    ("exact_match", "Paris", "Paris", "Rome"),
    ("multiple_choice", "B", "B", "C"),
    ("countdown", "14", "(3 + 4) * 2", "3 + 4 * 2"),
];

fn lines(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

fn answers(table: &str) -> Vec<Case> {
    let case = |cells: Vec<&str>| {
        let [grader, truth, answer, completion] = cells[..] else { panic!("expected four cells, got {cells:?}") };
        let completion = match grader {
            "box" => format!("\\boxed{{{completion}}}"),
            _ => completion.replace('⏎', "\n"),
        };
        let grader = if grader == "box" { "math" } else { grader };
        Case { grader: grader.into(), right: truth == "=", answer: answer.into(), completion }
    };
    lines(table).map(case).collect()
}

fn markup() -> Vec<Case> {
    let mut cases = Vec::new();
    for cells in lines(include_str!("corpus/markup.tsv")) {
        let [which, truth, template] = cells[..] else { panic!("expected three cells, got {cells:?}") };
        for (grader, answer, good, bad) in ANSWERS {
            if which == "last" && !["math", "gsm8k"].contains(&grader) {
                continue;
            }
            let text =
                |given: &str| format!("First, 12 of 42 remain.\n{}", template.replace('⏎', "\n")).replace('%', given);
            let case =
                |given, right| Case { grader: grader.into(), right, answer: answer.into(), completion: text(given) };
            cases.push(case(good, truth == "="));
            cases.push(case(bad, false));
        }
    }
    cases
}

/// The answer with its last digit changed; `other` if the answer has no digit.
fn near_miss(answer: &str, other: &str) -> String {
    let Some(at) = answer.rfind(|c: char| c.is_ascii_digit()) else { return other.to_owned() };
    let digit = (answer.as_bytes()[at] - b'0' + 1) % 10;
    format!("{}{digit}{}", &answer[..at], &answer[at + 1..])
}

fn rewritten(answer: &str, how: &str) -> String {
    let integer = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match how {
        "dfrac" => answer.replace("\\frac", "\\dfrac"),
        "spaces" => answer.replace(' ', ""),
        "value" => {
            let (sign, size) = answer.strip_prefix('-').map_or(("", answer), |size| ("-", size));
            let fraction = size.strip_prefix("\\frac{").and_then(|rest| rest.strip_suffix('}')?.split_once("}{"));
            match fraction {
                _ if integer(size) => format!("{answer}.0"),
                Some((top, bottom)) if integer(top) && integer(bottom) => format!("{sign}{top}/{bottom}"),
                _ => answer.replace("\\left", "").replace("\\right", ""),
            }
        }
        _ => answer.to_owned(),
    }
}

fn math500() -> Vec<Case> {
    let Some(file) = testing::shared("data/math/math500.jsonl") else { return Vec::new() };
    let text = std::fs::read_to_string(file).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let golds: Vec<&str> = rows.iter().map(|row| row["answer"].as_str().unwrap()).collect();
    let mut cases = Vec::new();
    for (i, gold) in golds.iter().enumerate() {
        let wrong = near_miss(gold, golds[(i + 1) % golds.len()]);
        for cells in lines(include_str!("corpus/rewritings.tsv")) {
            for (given, right) in [(*gold, true), (&wrong, false)] {
                let completion = cells[1].replace('%', &rewritten(given, cells[0]));
                cases.push(Case { grader: "math".into(), right, answer: (*gold).into(), completion });
            }
        }
    }
    cases
}

/// Whether the grader of a case accepts the completion of the case.
fn accepts(case: &Case) -> bool {
    let mut reward = build(&case.grader.as_str().into(), "r".into()).unwrap();
    let completion = [Content::from(case.completion.as_str())];
    let cells = [("answer", json!(case.answer)), ("nums", json!([3, 4, 2])), ("target", json!(14))];
    let scores = reward.score(&RewardBatch {
        prompts: &completion,
        completions: &completion,
        completion_ids: &[vec![]],
        columns: &Columns::from(cells.map(|(name, value)| (name.to_owned(), vec![value]))),
        rows: &[],
        step: model::Step(0),
    });
    scores.values == [Some(1.0)]
}

/// Right completions of the corpus that nevertheless score 0.
const MISSED: [(&str, &str, &str); 10] = [
    // Signs after a number that are not known units.
    ("math", "1000.99", "\\boxed{1,000.99€}"),
    ("math", "1000.99", "\\boxed{1,000.99m²}"),
    // An inequality that must still be multiplied by −1, or whose middle is a function.
    ("math", "x < 1", "\\boxed{-x > -1}"),
    ("math", "x <= 1", "\\boxed{-x >= -1}"),
    ("math", "0<f(x)<1", "\\boxed{(0,1)}"),
    // The completion has only the value, but the dataset's answer also has a name of several letters.
    ("math", "S_{MBCN}:S=7:32", "\\boxed{7:32}"),
    ("math", "V_{1}:V_{2}=11:21", "\\boxed{11:21}"),
    ("math", "\\frac{NO}{BO}=\\frac{1}{\\sqrt{6}}", "\\boxed{\\frac{1}{\\sqrt{6}}}"),
    ("math", "|AB|=1", "\\boxed{1}"),
    // An exclamation mark after brackets may be a factorial.
    ("math", "\\frac{3}{4}", "First, 12 of 42 remain.\nThe answer is \\frac{3}{4}!"),
];

/// Checks that no wrong completion scores 1, and that exactly the right completions in `MISSED` score 0.
fn check(cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let missed = MISSED.contains(&(&*case.grader, &*case.answer, &*case.completion));
        let expected = case.right && !missed;
        if accepts(case) != expected {
            let score = u8::from(case.right);
            wrong.push(format!("{} should be {score}: {} | {}", case.grader, case.answer, case.completion));
        }
    }
    let right = cases.iter().filter(|case| case.right).count();
    println!("{} right, {} wrong, {} unexpected", right, cases.len() - right, wrong.len());
    assert!(wrong.is_empty(), "{} of {} have unexpected scores:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn answers_of_the_corpus_get_the_scores_decided_by_hand() {
    check(&answers(include_str!("corpus/answers.tsv")));
}

#[test]
fn forms_of_answers_get_the_scores_decided_by_hand() {
    check(&answers(include_str!("corpus/forms.tsv")));
}

#[test]
fn answers_written_from_the_documentation_get_the_expected_scores() {
    check(&answers(include_str!("corpus/afresh.tsv")));
}

#[test]
fn markup_around_an_answer_does_not_change_its_score() {
    check(&markup());
}

#[test]
fn rewritten_answers_of_math_500_score_1_and_near_misses_0() {
    check(&math500());
}
