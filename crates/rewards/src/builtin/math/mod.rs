//! `math`: 1 if the completion's final answer equals the dataset's answer mathematically, not only as text; else 0.
//!
//! The completion's answer is the content of its last `\boxed{…}` or `<answer>`; else (unless `strict`) the text after
//! the last "answer is", `Answer:` or `####`; else its last formula (`$…$`, `\(…\)`); else its last number (`extract`).
//! Both answers are parsed (`parse`): numbers, fractions, roots, powers, functions, tuples, intervals, sets, lists,
//! matrices, equations, inequalities, ratios, units. Fractions are compared exactly, other values to ten digits, and
//! expressions with variables at several points (`equal`). An answer that cannot be parsed equals only the same text.
//! No part of a completion is executed, and the work is limited by the length of the answer.
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

use super::answer::plain_digits;
use super::grader::Grader;
use super::markup::{bare, emphasized, undecorated};
use super::units;
use crate::Result;
use crate::batch::Verdict;

/// The options of [`Math`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MathOptions {
    /// The dataset column with the answer, or with a solution whose answer is in a box.
    pub column: String,
    /// Whether only an answer in `\boxed{}` or `<answer>` is accepted.
    pub strict: bool,
}

impl Default for MathOptions {
    fn default() -> Self {
        MathOptions { column: "answer".into(), strict: false }
    }
}

/// The `math` reward; the header of `math/mod.rs` describes it.
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
        // Emphasis may select the answer ("**5** of them") or only decorate the answer, so both readings are tried.
        let foreign = |c: char| c.is_numeric() && !c.is_ascii() && plain_digits(&c.to_string()) != c.to_string();
        let digits = if completion.chars().any(foreign) { plain_digits(completion) } else { completion.into() };
        let completion = &*digits;
        let (emphasized, plain) = (emphasized(completion), undecorated(completion));
        let answers = [&emphasized, &plain].map(|text| extract::answer_of(text, self.options.strict).map(bare));
        // Each item of a list may have its own box.
        let boxes = extract::boxes(&plain).filter(|_| gold.contains(','));
        let given = answers.iter().any(Option::is_some).then(|| answers.into_iter().flatten().chain(boxes.as_deref()));
        Some(Verdict::of(given, |mut given| given.any(|given| equal::equal(&gold, given))))
    }

    fn unread(&self, _: [&Value; 1]) -> (String, Option<String>) {
        (format!("no answer in column `{}`", self.options.column), None)
    }
}

#[cfg(test)]
mod tests;
