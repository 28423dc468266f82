//! `length`: a reward for the length n of a completion, in tokens or characters.
//!
//! With `target` t the score is max(0, 1 − |n − t| / t): 1 at n = t, falling linearly to 0 at n = 0 and n = 2t. With
//! `max` L and `margin` c it is the soft overlong punishment of DAPO (Yu et al. 2025,
//! <https://arxiv.org/abs/2503.14476>, equation 13): 0 for n ≤ L − c, then (L − c − n) / c, and −1 for n > L. Exactly
//! one of `target` and `max` must be set.

use serde::Deserialize;
use serde_json::Value;

use super::Builtin;
use crate::{Error, Result, RewardBatch, Scores};

/// The unit in which length is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// The number of token ids of the completion.
    #[default]
    Tokens,
    /// The number of Unicode scalar values of the completion's text.
    Chars,
}

/// The options of [`Length`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LengthOptions {
    /// The length with the best score.
    pub target: Option<u32>,
    /// The length above which the score is −1.
    pub max: Option<u32>,
    /// With `max`: the width of the range below `max` in which the score falls from 0 to −1.
    pub margin: u32,
    /// The unit of length: tokens (the default) or characters.
    pub unit: Unit,
}

/// The `length` reward; the header of `length.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Length {
    rule: Rule,
    unit: Unit,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Target(f64),
    Max { max: f64, margin: f64 },
}

impl Builtin for Length {
    const KIND: &'static str = "length";
    const MAIN_OPTION: Option<&'static str> = Some("target");
    type Options = LengthOptions;

    fn main_value(text: &str) -> Value {
        text.trim().parse::<u64>().map_or_else(|_| text.into(), Value::from)
    }

    fn build(options: LengthOptions) -> Result<Self> {
        let rule = match (options.target, options.max) {
            (Some(target), None) if target > 0 && options.margin == 0 => Rule::Target(target.into()),
            (None, Some(max)) if options.margin <= max => Rule::Max { max: max.into(), margin: options.margin.into() },
            (Some(_), Some(_)) | (None, None) => {
                return Err(Error::options("length", "exactly one of `target` and `max` must be set"));
            }
            (Some(_), None) => {
                return Err(Error::options(
                    "length",
                    "`target` must be at least 1, and cannot be combined with `margin`",
                ));
            }
            (None, Some(_)) => return Err(Error::options("length", "`margin` must be at most `max`")),
        };
        Ok(Length { rule, unit: options.unit })
    }

    fn reads_ids(&self) -> bool {
        self.unit == Unit::Tokens
    }

    fn score(&mut self, _: &str, batch: &RewardBatch<'_>) -> Scores {
        let lengths: Vec<usize> = match self.unit {
            Unit::Tokens => batch.completion_ids.iter().map(Vec::len).collect(),
            Unit::Chars => batch.completions.iter().map(|completion| completion.text().chars().count()).collect(),
        };
        Scores::new(lengths.into_iter().map(|n| Some(self.rule.score(n))).collect())
    }
}

impl Rule {
    /// The score of a completion of length `n`.
    fn score(self, n: usize) -> f64 {
        let n = n as f64;
        match self {
            Rule::Target(target) => (1.0 - (n - target).abs() / target).max(0.0),
            Rule::Max { max, .. } if n > max => -1.0,
            Rule::Max { max, margin } if n > max - margin => (max - margin - n) / margin,
            Rule::Max { .. } => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Content};

    fn scores(options: LengthOptions) -> Vec<Option<f64>> {
        let completions: Vec<Content> = ["", "éé", "abcd", "abcdefgh"].iter().map(|&t| t.into()).collect();
        let ids = [vec![], vec![1; 10], vec![1; 8], vec![1; 7]];
        let batch = RewardBatch {
            prompts: &vec!["".into(); 4],
            completions: &completions,
            completion_ids: &ids,
            columns: &Columns::new(),
            rows: &[],
            step: model::Step(0),
        };
        Length::build(options).unwrap().score("r", &batch).values
    }

    #[test]
    fn lengths_are_scored_by_target_or_soft_maximum() {
        let target = LengthOptions { target: Some(4), unit: Unit::Chars, ..LengthOptions::default() };
        assert_eq!(scores(target), [Some(0.0), Some(0.5), Some(1.0), Some(0.0)]);
        let short = LengthOptions { target: Some(2), unit: Unit::Chars, ..LengthOptions::default() };
        assert_eq!(scores(short), [Some(0.0), Some(1.0), Some(0.0), Some(0.0)], "a score must not be below 0");
        let max = LengthOptions { max: Some(9), margin: 2, ..LengthOptions::default() };
        assert_eq!(scores(max), [Some(0.0), Some(-1.0), Some(-0.5), Some(0.0)]);
        let hard = LengthOptions { max: Some(8), ..LengthOptions::default() };
        assert_eq!(scores(hard), [Some(0.0), Some(-1.0), Some(0.0), Some(0.0)]);
    }

    #[test]
    fn contradictory_length_options_are_errors() {
        let bad = [
            LengthOptions::default(),
            LengthOptions { target: Some(1), max: Some(1), ..LengthOptions::default() },
            LengthOptions { target: Some(0), ..LengthOptions::default() },
            LengthOptions { max: Some(1), margin: 2, ..LengthOptions::default() },
        ];
        for options in bad {
            assert!(Length::build(options).is_err());
        }
    }

    /// Tests lengths below, at and above each limit of a rule.
    #[test]
    fn scores_change_at_the_limits_of_a_rule() {
        let target = Rule::Target(4.0);
        assert_eq!([0, 1, 3, 4, 5, 7, 8, 9].map(|n| target.score(n)), [0.0, 0.25, 0.75, 1.0, 0.75, 0.25, 0.0, 0.0]);
        let max = Rule::Max { max: 10.0, margin: 4.0 };
        assert_eq!([0, 5, 6, 7, 9, 10, 11].map(|n| max.score(n)), [0.0, 0.0, 0.0, -0.25, -0.75, -1.0, -1.0]);
        let hard = Rule::Max { max: 10.0, margin: 0.0 };
        assert_eq!([9, 10, 11].map(|n| hard.score(n)), [0.0, 0.0, -1.0]);
    }

    #[test]
    fn invalid_length_options_have_an_error_message() {
        let options = |target, max, margin| LengthOptions { target, max, margin, ..LengthOptions::default() };
        for (options, expected) in [
            (options(Some(1), None, 0), None),
            (options(None, Some(0), 0), None),
            (options(None, Some(4), 4), None),
            (options(None, None, 0), Some("exactly one of `target` and `max` must be set")),
            (options(Some(4), Some(4), 0), Some("exactly one of `target` and `max` must be set")),
            (options(Some(0), None, 0), Some("`target` must be at least 1, and cannot be combined with `margin`")),
            (options(Some(4), None, 1), Some("`target` must be at least 1, and cannot be combined with `margin`")),
            (options(None, Some(4), 5), Some("`margin` must be at most `max`")),
        ] {
            let refusal = Length::build(options).err().map(|error| error.to_string());
            assert_eq!(refusal, expected.map(|expected| format!("reward `length`: {expected}")));
        }
        assert_eq!((Length::main_value(" 20 "), Length::main_value("many")), (20.into(), "many".into()));
    }
}
