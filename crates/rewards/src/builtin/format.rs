//! `format`: a reward of 1 if the completion matches a regular expression, else 0.
//!
//! The syntax is that of the `regex` crate, which matches in linear time and so has no look-around and no
//! back-references. `(?s)` lets `.` match line feeds, `(?i)` ignores case.

use regex::Regex;
use serde::Deserialize;

use super::Builtin;
use crate::{Error, Result, Reward, RewardBatch, Scores};

/// The options of [`Format`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FormatOptions {
    /// The regular expression.
    pub pattern: String,
    /// Whether the pattern must match the whole completion; otherwise a match anywhere is enough.
    #[serde(default)]
    pub full: bool,
}

/// The `format` reward; the header of `format.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    name: String,
    regex: Regex,
}

impl Builtin for Format {
    const KIND: &'static str = "format";
    const MAIN_OPTION: Option<&'static str> = Some("pattern");
    type Options = FormatOptions;

    fn build(name: String, options: FormatOptions) -> Result<Self> {
        let compile = |pattern: &str| {
            Regex::new(pattern).map_err(|e| {
                Error::options("format", format!("the pattern is not a regular expression (no look-around here): {e}"))
            })
        };
        // The pattern alone first, so that an unbalanced one is not completed by the wrapping.
        let mut regex = compile(&options.pattern)?;
        if options.full {
            regex = compile(&format!(r"\A(?:{}{})\z", options.pattern, line_feed_if_comments(&options.pattern)))?;
        }
        Ok(Format { name, regex })
    }
}

/// A line feed if the pattern may be in `(?x)` mode, where a trailing comment would swallow the closing parenthesis
/// added after it.
fn line_feed_if_comments(pattern: &str) -> &'static str {
    if pattern.contains("(?") && pattern.contains('#') { "\n" } else { "" }
}

impl Reward for Format {
    fn name(&self) -> &str {
        &self.name
    }

    fn scores_by_group(&self) -> bool {
        true
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let matches = |text: &str| f64::from(u8::from(self.regex.is_match(text)));
        Scores::new(batch.completions.iter().map(|completion| Some(matches(&completion.text()))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Content};

    fn score(pattern: &str, full: bool, completion: &str) -> f64 {
        let mut reward = Format::build("tags".into(), FormatOptions { pattern: pattern.into(), full }).unwrap();
        let completions = [Content::from(completion)];
        let batch = RewardBatch {
            prompts: &["".into()],
            completions: &completions,
            completion_ids: &[vec![]],
            columns: &Columns::new(),
            rows: &[],
            step: 0,
        };
        reward.score(&batch).values[0].unwrap()
    }

    #[test]
    fn searches_or_matches_in_full() {
        assert_eq!(score("<b>.*</b>", false, "x <b>1</b> y"), 1.0);
        assert_eq!(score("<b>.*</b>", true, "x <b>1</b> y"), 0.0);
        assert_eq!(score("<b>.*</b>", true, "<b>1</b>"), 1.0);
        assert_eq!(score("a|b", true, "ab"), 0.0, "the alternatives are anchored together");
        assert_eq!(score("<t>.*</t>", true, "<t>\n</t>"), 0.0);
        assert_eq!(score("(?s)<t>.*</t>", true, "<t>\n</t>"), 1.0);
        assert_eq!(score("a", true, "a\n"), 0.0, "a trailing line feed counts");
        assert_eq!(score("(?x) a # the letter", true, "a"), 1.0);
    }

    #[test]
    fn a_bad_pattern_is_an_error() {
        for pattern in ["(", "a(?=b)", "a)|(b"] {
            let error = Format::build("f".into(), FormatOptions { pattern: pattern.into(), full: true })
                .unwrap_err()
                .to_string();
            assert!(error.contains("pattern"), "{error}");
        }
    }
}
