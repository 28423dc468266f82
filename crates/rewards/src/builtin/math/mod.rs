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

use serde::Deserialize;
use serde_json::Value;

use super::grader::Grader;
use super::units;
use crate::Result;
use crate::batch::Verdict;

/// The options of [`Math`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MathOptions {
    /// The dataset column with the answer, or with a solution that boxes it.
    pub column: String,
    /// Accept only an answer in `\boxed{}` or `<answer>`.
    pub strict: bool,
}

impl Default for MathOptions {
    fn default() -> Self {
        MathOptions { column: "answer".into(), strict: false }
    }
}

/// The reward; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Math {
    options: MathOptions,
}

impl Grader<1> for Math {
    const KIND: &'static str = "math";
    type Options = MathOptions;

    fn build(options: MathOptions) -> Result<Self> {
        Ok(Math { options })
    }

    fn columns(&self) -> [&str; 1] {
        [&self.options.column]
    }

    fn grade(&self, [answer]: [&Value; 1], completion: &str) -> Option<Verdict> {
        let gold = extract::gold(answer)?;
        Some(Verdict::of(extract::answer_of(completion, self.options.strict), |given| equal::equal(&gold, given)))
    }

    fn unread(&self, _: [&Value; 1]) -> (String, Option<String>) {
        (format!("no answer in column `{}`", self.options.column), None)
    }
}

#[cfg(test)]
mod tests;
