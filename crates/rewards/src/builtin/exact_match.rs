//! `exact_match`: 1 if the completion, or the text that it marks as its answer, equals the dataset's answer after the
//! chosen normalisations, else 0. The marked text is also compared without markup, quotes, and punctuation at its end.
//!
//! The answer column holds a string, a number or bool (compared as JSON writes it), or a list of accepted answers. For
//! `null` or an empty list, the score is `None` with a problem.

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Mark, announced, first_line, marked, thought_before};
use super::grader::Grader;
use super::markup::{bare, bare_sentence, first_sentence, undecorated, unstyled, without_copula};
use crate::batch::Verdict;
use crate::{Error, Result};

/// The options of [`ExactMatch`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExactMatchOptions {
    /// The dataset column with the answer.
    pub column: String,
    /// Whether white space at both ends is removed (after extraction).
    pub strip: bool,
    /// Whether case is ignored.
    pub ignore_case: bool,
    /// Whether ASCII punctuation is ignored.
    pub ignore_punctuation: bool,
    /// Whether consecutive white-space characters count as one space.
    pub collapse_whitespace: bool,
    /// A regular expression for the part of the completion that is compared: its first capture group (or the whole
    /// match) at the last match. Without a match the score is 0.
    pub extract: Option<String>,
    /// If `extract` is not set: whether the marked answer of a completion (`<answer>`, `\boxed{}`, `####`, "Answer:")
    /// is also compared alone.
    pub marked: bool,
}

impl Default for ExactMatchOptions {
    fn default() -> Self {
        ExactMatchOptions {
            column: "answer".into(),
            strip: true,
            ignore_case: false,
            ignore_punctuation: false,
            collapse_whitespace: false,
            extract: None,
            marked: true,
        }
    }
}

/// The `exact_match` reward; the header of `exact_match.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct ExactMatch {
    options: ExactMatchOptions,
    extract: Option<Regex>,
}

impl Grader<1> for ExactMatch {
    const KIND: &'static str = "exact_match";
    const SKIPS_THOUGHTS: bool = false;
    type Options = ExactMatchOptions;

    fn build(options: ExactMatchOptions) -> Result<Self> {
        let extract = options.extract.as_deref().map(Regex::new).transpose();
        let extract = extract
            .map_err(|e| Error::options("exact_match", format!("`extract` must be a regular expression: {e}")))?;
        Ok(ExactMatch { options, extract })
    }

    fn columns(&self) -> [&str; 1] {
        [&self.options.column]
    }

    fn grade(&self, [answer]: [&Value; 1], completion: &str) -> Option<Verdict> {
        let accepted = accepted(answer);
        if accepted.is_empty() {
            return None;
        }
        // Compares the whole completion, or only the text after its thoughts.
        let thinks = self.extract.is_none() && self.options.marked;
        let text = thought_before(completion).filter(|_| thinks).unwrap_or(completion);
        let whole = thinks.then_some(completion);
        let parts = self.parts(text).into_iter().chain(whole);
        let mut given: Vec<String> = parts.map(|part| self.normalise(part)).collect();
        given.extend(self.without_markup(text).iter().map(|part| self.normalise(part)));
        let given = (!given.is_empty()).then_some(given);
        Some(Verdict::of(given, |given| accepted.iter().any(|answer| given.contains(&self.normalise(answer)))))
    }

    fn unread(&self, _: [&Value; 1]) -> (String, Option<String>) {
        (format!("column `{}` has no answer in these rows", self.options.column), None)
    }
}

impl ExactMatch {
    fn normalise(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if self.options.ignore_punctuation {
            text.retain(|c| !c.is_ascii_punctuation());
        }
        if self.options.ignore_case {
            text = text.to_lowercase();
        }
        if self.options.collapse_whitespace {
            // White space at the ends is collapsed to one space too, unless `strip` removes it.
            let ends = |edge: bool| if edge && !self.options.strip { " " } else { "" };
            let head = ends(text.starts_with(char::is_whitespace));
            let tail = ends(text.ends_with(char::is_whitespace));
            text = format!("{head}{}{tail}", text.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        if self.options.strip { text.trim().to_owned() } else { text }
    }

    /// The parts of a completion that are compared. One of these must equal the answer.
    fn parts<'t>(&self, completion: &'t str) -> Vec<&'t str> {
        let Some(extract) = &self.extract else {
            let marked = marked(completion).filter(|_| self.options.marked);
            let part = marked.map(|marked| match marked.mark {
                Mark::Closed => marked.text,
                Mark::Hashes | Mark::Announced => first_line(marked.text).trim_start_matches([':', '*', ' ']),
            });
            return [completion].into_iter().chain(part).collect();
        };
        let last = extract.captures_iter(completion).last();
        last.and_then(|last| last.get(1).or_else(|| last.get(0))).map(|found| found.as_str()).into_iter().collect()
    }

    /// The completion without markup, and its marked text without decoration. Empty with `extract`, which selects the
    /// text to compare.
    fn without_markup(&self, completion: &str) -> Vec<String> {
        if self.extract.is_some() || !self.options.marked || !self.options.strip {
            return Vec::new();
        }
        let text = undecorated(completion);
        let mut parts = vec![text.to_string()];
        if let Some(marked) = marked(&text) {
            match marked.mark {
                Mark::Closed => {
                    // For example "<answer>The answer is Paris.</answer>".
                    parts.extend(
                        announced(marked.text).map(|answer| unstyled(bare_sentence(first_line(answer))).to_owned()),
                    );
                    parts.extend([marked.text, bare(marked.text), unstyled(marked.text)].map(str::to_owned))
                }
                Mark::Hashes | Mark::Announced => {
                    let line = first_line(marked.text);
                    // For example "The answer is Paris. It is in France."
                    let sentence = first_sentence(line);
                    parts.extend([line, bare(line), bare_sentence(line), bare_sentence(sentence)].map(str::to_owned));
                    parts.extend([unstyled(line), unstyled(sentence)].map(str::to_owned));
                }
            }
        }
        let answers: Vec<String> =
            parts[1..].iter().filter_map(|part| without_copula(part)).map(str::to_owned).collect();
        parts.extend(answers);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

/// The accepted answers in a cell of the dataset.
fn accepted(answer: &Value) -> Vec<String> {
    match answer {
        Value::Null => Vec::new(),
        Value::String(text) => vec![text.clone()],
        Value::Array(list) => list.iter().flat_map(accepted).collect(),
        other => vec![other.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::super::grader::scores;
    use super::*;
    use crate::Scores;

    fn score(options: ExactMatchOptions, completion: &str, answer: Value) -> Scores {
        scores(&ExactMatch::build(options).unwrap(), &[completion], [("answer", vec![answer])])
    }

    #[test]
    fn normalisations_apply_only_if_enabled() {
        let value = |options, completion, answer: &str| score(options, completion, answer.into()).values[0].unwrap();
        let plain = ExactMatchOptions::default;
        assert_eq!(value(plain(), " Paris\n", "Paris"), 1.0);
        assert_eq!(value(ExactMatchOptions { strip: false, ..plain() }, " Paris", "Paris"), 0.0);
        assert_eq!(value(plain(), "paris", "Paris"), 0.0);
        assert_eq!(value(ExactMatchOptions { ignore_case: true, ..plain() }, "PARIS", "Paris"), 1.0);
        assert_eq!(value(plain(), "Paris.", "Paris"), 0.0);
        assert_eq!(value(ExactMatchOptions { ignore_punctuation: true, ..plain() }, "\"Paris.\"", "Paris"), 1.0);
        assert_eq!(value(plain(), "New  York", "New York"), 0.0);
        assert_eq!(value(ExactMatchOptions { collapse_whitespace: true, ..plain() }, "New\n York ", "New York"), 1.0);
        let spaces = ExactMatchOptions { collapse_whitespace: true, strip: false, ..plain() };
        assert_eq!(value(spaces, "\n New York", "New York"), 0.0);
        let extract = || ExactMatchOptions { extract: Some("<a>(.*?)</a>".into()), ..plain() };
        assert_eq!(value(extract(), "<a>1</a> no, <a> 2 </a>", "2"), 1.0);
        assert_eq!(value(extract(), "2", "2"), 0.0);
        assert!(ExactMatch::build(ExactMatchOptions { extract: Some("(".into()), ..plain() }).is_err());
        for text in [
            "<think>hm</think><answer>Paris</answer>",
            "so \\boxed{Paris}.",
            "#### Paris",
            "**Answer:** Paris",
            "The answer is Paris",
        ] {
            assert_eq!(value(plain(), text, "Paris"), 1.0, "{text}");
            assert_eq!(value(ExactMatchOptions { marked: false, ..plain() }, text, "Paris"), 0.0, "{text}");
            assert_eq!(value(plain(), text, text), 1.0, "{text}");
        }
        for text in
            ["<answer>not Paris</answer>", "<answer>Paris or Rome</answer>", "<answer></answer> Paris", "in Paris"]
        {
            assert_eq!(value(plain(), text, "Paris"), 0.0, "{text}");
        }
    }

    #[test]
    fn answers_may_be_lists_or_numbers_and_null_gives_no_score() {
        let list = serde_json::json!(["four", 4]);
        assert_eq!(score(ExactMatchOptions::default(), "4", list.clone()).values, [Some(1.0)]);
        assert_eq!(score(ExactMatchOptions::default(), "5", list).values, [Some(0.0)]);
        let empty = score(ExactMatchOptions::default(), "", Value::Null);
        assert_eq!(empty.values, [None]);
        assert_eq!(empty.problems.len(), 1);
    }

    #[test]
    fn normalisations_work_alone_and_combined() {
        let options = |strip, collapse_whitespace, ignore_case, ignore_punctuation| {
            let plain = ExactMatchOptions::default();
            ExactMatchOptions { strip, collapse_whitespace, ignore_case, ignore_punctuation, ..plain }
        };
        for (options, expected) in [
            (options(false, false, false, false), "\n A,  b. "),
            (options(true, false, false, false), "A,  b."),
            (options(false, true, false, false), " A, b. "),
            (options(true, true, false, false), "A, b."),
            (options(false, false, true, false), "\n a,  b. "),
            (options(false, false, false, true), "\n A  b "),
            (options(true, true, true, true), "a b"),
        ] {
            assert_eq!(ExactMatch::build(options).unwrap().normalise("\n A,  b. "), expected);
        }
        let collapsed = ExactMatch::build(options(false, true, false, false)).unwrap();
        assert_eq!(
            (collapsed.normalise("a\n b"), collapsed.normalise(" a"), collapsed.normalise("a ")),
            ("a b".into(), " a".into(), "a ".into())
        );
    }

    #[test]
    fn marked_parts_are_compared_with_all_accepted_answers() {
        let reward = |marked, extract: Option<&str>| {
            let extract = extract.map(str::to_owned);
            ExactMatch::build(ExactMatchOptions { marked, extract, ..ExactMatchOptions::default() }).unwrap()
        };
        let tagged = "<answer> 5\n6</answer>";
        assert_eq!(reward(true, None).parts(tagged), [tagged, " 5\n6"]);
        assert_eq!(reward(false, None).parts(tagged), [tagged]);
        assert_eq!(reward(true, None).parts("#### : **5\n6"), ["#### : **5\n6", "5"]);
        assert_eq!(reward(true, None).parts("5"), ["5"]);
        assert_eq!(reward(true, Some("a(.)")).parts("a1 a2 b3"), ["2"]);
        assert_eq!(reward(true, Some("a.")).parts("a1 a2 b3"), ["a2"]);
        assert_eq!(reward(true, Some("a(1)?.")).parts("a2"), ["a2"]);
        assert!(reward(true, Some("c")).parts(tagged).is_empty());
        let accepted = |cell: Value| accepted(&cell).join("|");
        let cells = serde_json::json!(["x", [true, null, 1.5], {"a": 1}]);
        assert_eq!(
            (accepted(cells), accepted(Value::Null), accepted(7.into())),
            ("x|true|1.5|{\"a\":1}".into(), String::new(), "7".into())
        );
        let problem = score(ExactMatchOptions::default(), "x", serde_json::json!([])).problems.remove(0);
        let expected =
            "reward `exact_match` gave no score for 1 completion: column `answer` has no answer in these rows";
        assert_eq!(problem.to_string(), expected);
    }
}
