//! `math`: 1 if the completion's final answer is equal to the answer's, as mathematics and not as text, else 0.
//!
//! The completion's answer is the inside of its last `\boxed{…}` or `<answer>`; else (unless `strict`) what follows
//! the last "answer is", `Answer:` or `####`, else its last formula (`$…$`, `\(…\)`), else its last number
//! (`extract`). Both answers are parsed (`parse`): numbers, fractions, roots, powers, functions, tuples, intervals,
//! sets, lists, matrices, equations, inequalities, ratios, units. Fractions are compared exactly; other values to ten
//! digits, and expressions with variables at six points (`equal`). What is not understood is equal to the same text
//! alone. Nothing that a completion says is run, and the work is bounded by the answer's length.
//!
//! Dataset: Hendrycks et al. 2021, "Measuring Mathematical Problem Solving With the MATH Dataset",
//! <https://arxiv.org/abs/2103.03874>.

mod equal;
mod eval;
mod extract;
mod lex;
mod parse;
mod units;

pub(super) use units::{is_unit, never_unit};

use serde::Deserialize;
use serde_json::Value;

use super::Builtin;
use crate::batch::Verdict;
use crate::{Result, Reward, RewardBatch, Scores};

/// Options of [`Math`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Options {
    /// The dataset column with the answer, or with a solution that boxes it.
    pub column: String,
    /// Accept only an answer in `\boxed{}` or `<answer>`.
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
            let gold = extract::gold(answer)?;
            Some(Verdict::of(extract::answer_of(text, *strict), |given| equal::equal(&gold, given)))
        })
    }
}

#[cfg(test)]
mod tests;
