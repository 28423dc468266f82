//! `math`: 1 if the completion's final answer is equal to the answer's, as mathematics and not as text, else 0.
//!
//! The completion's answer is the inside of its last `\boxed{…}`; else (unless `strict`) what follows the last "answer
//! is" or `####`, else its last `$…$`, else its last number. Both answers are parsed (`parse`): numbers, fractions,
//! roots, powers, functions, tuples, intervals, sets, lists, matrices, equations, inequalities, units. Fractions are
//! compared exactly; other values to ten digits, and expressions with variables at six points (`equal`). What is not
//! understood is equal to the same text alone. Nothing that a completion says is run, and the work is bounded by the
//! answer's length.
//!
//! Dataset: Hendrycks et al. 2021, "Measuring Mathematical Problem Solving With the MATH Dataset",
//! <https://arxiv.org/abs/2103.03874>.

mod equal;
mod eval;
mod lex;
mod parse;
mod units;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use std::sync::LazyLock;

use super::Builtin;
use super::gsm8k::last_boxed;
use crate::batch::Verdict;
use crate::{Result, Reward, RewardBatch, Scores};

/// Options of [`Math`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Options {
    /// The dataset column with the answer, or with a solution that boxes it.
    pub column: String,
    /// Accept only an answer in `\boxed{}`.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { column: "answer".into(), strict: false }
    }
}

/// The reward; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Math {
    name: String,
    options: Options,
}

impl Builtin for Math {
    const KIND: &'static str = "math";
    const MAIN_OPTION: Option<&'static str> = Some("column");
    type Options = Options;

    fn build(name: String, options: Options) -> Result<Self> {
        Ok(Math { name, options })
    }
}

impl Reward for Math {
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
        let unread = |_: &Value| (format!("no answer in column `{column}`"), None);
        batch.score_by_answer(&self.name, column, unread, |answer, text| {
            let gold = gold(answer)?;
            Some(Verdict::of(answer_of(text, *strict), |given| equal::equal(&gold, given)))
        })
    }
}

/// The answer of a dataset's row.
fn gold(answer: &Value) -> Option<String> {
    let text = match answer {
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let marked = text.rsplit_once("####").map(|(_, tail)| tail);
            last_boxed(text).or(marked).unwrap_or(text).trim().to_owned()
        }
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// The final answer of a completion, if it has one.
fn answer_of(completion: &str, strict: bool) -> Option<&str> {
    if let Some(boxed) = last_boxed(completion) {
        return Some(boxed);
    }
    if strict {
        return None;
    }
    let said = ["####", "answer is", "Answer:", "answer:"]
        .iter()
        .filter_map(|words| completion.rfind(words).map(|at| at + words.len()));
    said.max()
        .and_then(|at| sentence(&completion[at..]))
        .or_else(|| in_dollars(completion))
        .or_else(|| last_number(completion))
}

/// The first formula or else the rest of the first sentence.
fn sentence(text: &str) -> Option<&str> {
    let line = text.trim_start_matches([' ', ':', '\n', '*']).lines().next()?;
    if let Some(formula) = line.strip_prefix('$').and_then(|rest| rest.split('$').next()) {
        return Some(formula);
    }
    let end = line.find(". ").unwrap_or(line.len());
    Some(line[..end].trim().trim_end_matches(['.', '*'])).filter(|answer| !answer.is_empty())
}

/// The last number, with its sign and a denominator.
fn last_number(text: &str) -> Option<&str> {
    static NUMBER: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?").expect("a regular expression"));
    NUMBER.find_iter(text).last().map(|found| found.as_str().trim_end_matches(','))
}

fn in_dollars(text: &str) -> Option<&str> {
    let mut parts = text.rsplit('$');
    parts.next()?;
    let inside = parts.next()?;
    // An opening dollar, and something between them.
    (parts.next().is_some() && !inside.trim().is_empty()).then_some(inside)
}

#[cfg(test)]
mod tests;
