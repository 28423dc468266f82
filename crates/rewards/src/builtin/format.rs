//! `format`: 1 if the completion matches a regular expression, else 0.
//!
//! The syntax is that of Rust's `regex` crate, which matches in linear time, and therefore has neither look-around nor
//! back-references. With `(?s)`, `.` matches line feeds; `(?i)` ignores case. As in Python, `$` also matches before a
//! line feed at the end of the completion; `\z` does not. In a character class, `&&`, `--` and `~~` are set operations,
//! and must be escaped: `\&\&`.

use regex::Regex;
use serde::Deserialize;

use super::Builtin;
use crate::{Error, Result, RewardBatch, Scores};

/// The options of [`Format`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FormatOptions {
    /// The regular expression.
    pub pattern: String,
    /// Whether the pattern must match the whole completion; if false, a match anywhere is enough.
    #[serde(default)]
    pub full: bool,
}

/// The `format` reward; the header of `format.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    regex: Regex,
    /// Whether the pattern has a `$` that also matches before a final line feed.
    line_end: bool,
}

impl Builtin for Format {
    const KIND: &'static str = "format";
    const MAIN_OPTION: Option<&'static str> = Some("pattern");
    type Options = FormatOptions;

    fn build(options: FormatOptions) -> Result<Self> {
        let compile = |pattern: &str| {
            Regex::new(pattern).map_err(|e| {
                Error::options("format", format!("`pattern` must be a regular expression (without look-around): {e}"))
            })
        };
        // The bare pattern is compiled first, because the parentheses added below could balance unbalanced ones.
        let mut regex = compile(&options.pattern)?;
        if options.full {
            regex = compile(&format!(r"\A(?:{}{})\z", options.pattern, line_feed_if_comments(&options.pattern)))?;
        }
        let line_end = !options.full && has_dollar(&options.pattern);
        Ok(Format { regex, line_end })
    }

    fn score(&mut self, _: &str, batch: &RewardBatch<'_>) -> Scores {
        let found = |text: &str| {
            let before = text.strip_suffix('\n').filter(|_| self.line_end);
            self.regex.is_match(text) || before.is_some_and(|text| self.regex.is_match(text))
        };
        let matches = |text: &str| f64::from(u8::from(found(text)));
        Scores::new(batch.completions.iter().map(|completion| Some(matches(&completion.text()))).collect())
    }
}

/// A line feed if the pattern may be in `(?x)` mode, otherwise nothing. In that mode, a comment at the end of the
/// pattern would include the appended parenthesis.
fn line_feed_if_comments(pattern: &str) -> &'static str {
    if pattern.contains("(?") && pattern.contains('#') { "\n" } else { "" }
}

/// Whether a pattern has a `$` that is neither escaped nor in a character class, and has no `\z`.
fn has_dollar(pattern: &str) -> bool {
    let mut dollar = false;
    let mut class = false;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // A character after a backslash is literal.
            '\\' if chars.next() == Some('z') => return false,
            '[' if !class => {
                class = true;
                // A closing bracket at the beginning of a class is a literal character.
                chars.next_if_eq(&'^');
                chars.next_if_eq(&']');
            }
            ']' => class = false,
            '$' => dollar |= !class,
            _ => {}
        }
    }
    dollar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Content};

    fn score(pattern: &str, full: bool, completion: &str) -> f64 {
        let mut reward = Format::build(FormatOptions { pattern: pattern.into(), full }).unwrap();
        let completions = [Content::from(completion)];
        let batch = RewardBatch {
            prompts: &["".into()],
            completions: &completions,
            completion_ids: &[vec![]],
            columns: &Columns::new(),
            rows: &[],
            step: model::Step(0),
        };
        reward.score("r", &batch).values[0].unwrap()
    }

    #[test]
    fn the_pattern_is_searched_or_must_match_completely() {
        assert_eq!(score("<b>.*</b>", false, "x <b>1</b> y"), 1.0);
        assert_eq!(score("<b>.*</b>", true, "x <b>1</b> y"), 0.0);
        assert_eq!(score("<b>.*</b>", true, "<b>1</b>"), 1.0);
        assert_eq!(score("a|b", true, "ab"), 0.0, "all alternatives must be anchored");
        assert_eq!(score("<t>.*</t>", true, "<t>\n</t>"), 0.0);
        assert_eq!(score("(?s)<t>.*</t>", true, "<t>\n</t>"), 1.0);
        assert_eq!(score("a", true, "a\n"), 0.0, "a trailing line feed must be matched too");
        assert_eq!(score("(?x) a # the letter", true, "a"), 1.0);
    }

    /// The expected values are those of Python's `re.search` and `re.fullmatch`.
    #[test]
    fn a_dollar_sign_matches_before_a_final_line_feed() {
        for (pattern, full, text, expected) in [
            ("b$", false, "ab\n", 1.0),
            ("b$", false, "ab", 1.0),
            ("b$", false, "ab\n\n", 0.0),
            ("b$", false, "ab\nc", 0.0),
            ("b$", false, "ab \n", 0.0),
            ("^ab$", false, "ab\n", 1.0),
            ("(?s)^a.*b$", false, "a\nb\n", 1.0),
            ("b\\n$", false, "ab\n", 1.0),
            ("b\\z", false, "ab\n", 0.0),
            ("b\\$", false, "ab\n", 0.0),
            ("[$]", false, "ab\n", 0.0),
            ("[]$]b\\z", false, "]b\n", 0.0),
            ("b$", true, "b\n", 0.0),
            ("b$", true, "b", 1.0),
            ("(?m)b$", false, "ab\nc", 1.0),
            ("(?m)^c$", false, "ab\nc\n", 1.0),
            ("a|b$", false, "b\n", 1.0),
            ("</answer>$", false, "<answer>5</answer>\n", 1.0),
            ("</answer>$", false, "<answer>5</answer>\r\n", 0.0),
            ("$", false, "", 1.0),
        ] {
            assert_eq!(score(pattern, full, text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_an_error() {
        for pattern in ["(", "a(?=b)", "a)|(b"] {
            let error = Format::build(FormatOptions { pattern: pattern.into(), full: true }).unwrap_err().to_string();
            assert!(error.contains("pattern"), "{error}");
        }
    }
}
