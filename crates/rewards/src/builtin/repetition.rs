//! `repetition`: a penalty for repeated text: −`weight` · (1 − distinct n-grams / n-grams), over words or tokens; 0 for
//! a completion shorter than one n-gram. In scripts without spaces between words, each character counts as a word.
//!
//! As in Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning in LLMs", <https://arxiv.org/abs/2502.03373>,
//! appendix, and Open-R1's `repetition_penalty`.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::Builtin;
use crate::{Error, Result, RewardBatch, Scores};

/// The elements of an n-gram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// Words: text between white space, in lower case. In Chinese, Japanese, Thai and other scripts without spaces,
    /// characters.
    #[default]
    Words,
    /// Token ids.
    Tokens,
}

/// The options of [`Repetition`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RepetitionOptions {
    /// The n of the n-grams: the number of consecutive words or tokens in each.
    pub ngram: usize,
    /// The size of the penalty for a completion whose n-grams are all equal.
    pub weight: f64,
    /// The unit of the n-grams: words (the default) or tokens.
    pub unit: Unit,
}

impl Default for RepetitionOptions {
    fn default() -> Self {
        RepetitionOptions { ngram: 3, weight: 1.0, unit: Unit::default() }
    }
}

/// The `repetition` reward; the header of `repetition.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Repetition {
    options: RepetitionOptions,
}

impl Builtin for Repetition {
    const KIND: &'static str = "repetition";
    const MAIN_OPTION: Option<&'static str> = Some("ngram");
    type Options = RepetitionOptions;

    fn main_value(text: &str) -> Value {
        text.trim().parse::<u64>().map_or_else(|_| text.into(), Value::from)
    }

    fn build(options: RepetitionOptions) -> Result<Self> {
        if options.ngram == 0 {
            return Err(Error::options("repetition", "`ngram` must be at least 1"));
        }
        if !(options.weight.is_finite() && options.weight >= 0.0) {
            return Err(Error::options("repetition", "`weight` must be 0 or more"));
        }
        Ok(Repetition { options })
    }

    fn reads_ids(&self) -> bool {
        self.options.unit == Unit::Tokens
    }

    fn score(&mut self, _: &str, batch: &RewardBatch<'_>) -> Scores {
        let words = |text: &str| {
            let lower = text.to_lowercase();
            self.score_of(&lower.split_whitespace().flat_map(words_of).collect::<Vec<_>>())
        };
        Scores::new(match self.options.unit {
            Unit::Tokens => batch.completion_ids.iter().map(|ids| Some(self.score_of(ids))).collect(),
            Unit::Words => batch.completions.iter().map(|completion| Some(words(&completion.text()))).collect(),
        })
    }
}

impl Repetition {
    fn score_of<T: std::hash::Hash + Eq>(&self, items: &[T]) -> f64 {
        let all = items.windows(self.options.ngram);
        let (count, distinct) = (all.len(), all.collect::<HashSet<_>>().len());
        if count == 0 { 0.0 } else { -self.options.weight * (count - distinct) as f64 / count as f64 }
    }
}

/// The words of a text without white space. Each character of a script without spaces is a word, and so is any text
/// between such characters.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let spaceless = |c: char| {
        matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
            | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}'
            | '\u{20000}'..='\u{323af}')
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = if spaceless(first) { first.len_utf8() } else { rest.find(spaceless).unwrap_or(rest.len()) };
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Content};

    fn score(options: RepetitionOptions, text: &str, ids: &[u32]) -> f64 {
        let batch = RewardBatch {
            prompts: &["".into()],
            completions: &[Content::from(text)],
            completion_ids: &[ids.to_vec()],
            columns: &Columns::new(),
            rows: &[],
            step: model::Step(0),
        };
        Repetition::build(options).unwrap().score("r", &batch).values[0].unwrap()
    }

    #[test]
    fn repeated_ngrams_are_penalised_by_their_share() {
        let pairs = || RepetitionOptions { ngram: 2, ..RepetitionOptions::default() };
        assert_eq!(score(pairs(), "a b c d", &[]), 0.0);
        // The 2-grams are ab ba ab ba, and two of the four are distinct.
        assert_eq!(score(pairs(), "a b A\nb a", &[]), -0.5);
        assert_eq!(score(RepetitionOptions { weight: 2.0, ..pairs() }, "a b a b a", &[]), -1.0);
        // Three of the four n-grams repeat the first one.
        let tokens = RepetitionOptions { unit: Unit::Tokens, ..pairs() };
        assert_eq!(score(tokens, "nothing", &[7, 7, 7, 7, 7]), -0.75);
        // The default n is 3. One of abc bca cab abc is a repetition.
        assert_eq!(score(RepetitionOptions::default(), "a b c a b c", &[]), -0.25);
        assert_eq!(score(RepetitionOptions::default(), "no no", &[]), 0.0);
        assert_eq!(score(RepetitionOptions::default(), "", &[]), 0.0);
    }

    #[test]
    fn characters_of_scripts_without_spaces_count_as_words() {
        let single = || RepetitionOptions { ngram: 1, ..RepetitionOptions::default() };
        for (text, expected) in [
            ("好好好好", -0.75),
            ("你好世界", 0.0),
            ("你好你好", -0.5),
            ("はいはい", -0.5),
            ("ハイハイ", -0.5),
            ("答案是 42 答案是 42", -0.5),
            ("答案42答案42", -0.5),
            ("กากา", -0.5),
            ("no 好no", -1.0 / 3.0),
            ("안녕 안녕", -0.5),
            ("안녕안녕", 0.0),
            ("haha", 0.0),
        ] {
            assert_eq!(score(single(), text, &[]), expected, "{text}");
        }
        // One of 我喜欢 喜欢我 欢我喜 我喜欢 is a repetition.
        assert_eq!(score(RepetitionOptions::default(), "我喜欢我喜欢", &[]), -0.25);
    }

    #[test]
    fn invalid_repetition_options_are_errors() {
        for options in [
            RepetitionOptions { ngram: 0, ..RepetitionOptions::default() },
            RepetitionOptions { weight: -1.0, ..RepetitionOptions::default() },
            RepetitionOptions { weight: f64::NAN, ..RepetitionOptions::default() },
        ] {
            assert!(Repetition::build(options).is_err());
        }
    }

    #[test]
    fn distinct_ngrams_of_any_length_are_counted() {
        let ngram = |ngram| RepetitionOptions { ngram, weight: 12.0, ..RepetitionOptions::default() };
        // The cases have 6, 5, 4, 3, 1 and 0 n-grams, and 2, 2, 2, 2, 1 and 0 distinct n-grams.
        for (n, expected) in [(1, -8.0), (2, -7.2), (3, -6.0), (4, -4.0), (6, 0.0), (7, 0.0)] {
            assert_eq!(score(ngram(n), "a b a b a b", &[]), expected, "{n}");
        }
        for (options, expected) in [
            (RepetitionOptions { ngram: 0, ..ngram(1) }, Some("`ngram` must be at least 1")),
            (RepetitionOptions { weight: -0.5, ..ngram(1) }, Some("`weight` must be 0 or more")),
            (RepetitionOptions { weight: 0.0, ..ngram(1) }, None),
        ] {
            let refusal = Repetition::build(options).err().map(|error| error.to_string());
            assert_eq!(refusal, expected.map(|expected| format!("reward `repetition`: {expected}")));
        }
        assert_eq!((Repetition::main_value(" 4 "), Repetition::main_value("x")), (4.into(), "x".into()));
    }
}
