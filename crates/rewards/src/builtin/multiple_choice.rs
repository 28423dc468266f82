//! `multiple_choice`: 1 if the completion chooses the answer's letter, else 0.
//!
//! The answer column holds a letter (`B`, `(b)`, `B. Paris`) or the index of the choice as a number, from 0. The
//! completion's choice is the letter in its last `<answer>` or `\boxed{}`, or after `####`; else the letter after its
//! last "answer is", "answer:" or "I choose"; else (unless `strict`) a separate letter at the end or the beginning of
//! the completion, such as `B`, `B)` or `(B)`. In running text only capitals count. "A" and "I" are also words, so they
//! count only with a mark. A letter that is denied ("not B", "B is wrong") or is one of several ("B or C") is ignored.
//! The texts of the choices are not compared.

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{announced, bare_words, closed, first_line, hashed, regex, taken_back_before, taken_back_behind};
use super::grader::Grader;
use super::markup::{emphasized, undecorated};
use super::number::is_of_script_without_spaces;
use crate::batch::Verdict;
use crate::{Error, Result};

/// The options of [`MultipleChoice`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MultipleChoiceOptions {
    /// The dataset column with the answer.
    pub column: String,
    /// The number of choices, which are lettered from A.
    pub choices: usize,
    /// Whether only a choice in `<answer>` or `\boxed{}`, or after `####`, "answer is", "answer:" or "I choose" is
    /// accepted.
    pub strict: bool,
}

impl Default for MultipleChoiceOptions {
    fn default() -> Self {
        MultipleChoiceOptions { column: "answer".into(), choices: 4, strict: false }
    }
}

/// The `multiple_choice` reward; the header of `multiple_choice.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct MultipleChoice {
    options: MultipleChoiceOptions,
    /// Matches a dataset's answer that begins with a choice, with any text around the letter.
    alone: Regex,
    /// Matches a choice at the beginning of a text. Its groups show whether the letter is marked as a choice (`(B)`,
    /// `**B**`, `B)`).
    choice: Regex,
    /// Matches another choice after "or".
    another: Regex,
    /// Matches a choice at the end of a text.
    end: Regex,
    /// Matches letters at the beginnings of lines that label choices.
    listed: Regex,
}

/// A pattern for signs and LaTeX commands that may precede a letter.
const OPENING: &str = concat!(
    r#"[\s*_$"'`“”‘’«»‹„「『(\[{]*"#,
    r"(?:\\(?:\(|\[|(?:text|math)?(?:bf|rm|sf|it|tt|textbf|boxed|mbox)?\s*\{))*",
    r#"[\s*_$"'`“”‘’(\[{]*"#
);
/// A pattern for words between the announcement of an answer and its letter.
const WORDS: &str = concat!(
    r"(?i:(?:\s|[:=]|(?:is|be|was|the|my|correct|right|best|final|answer|option|choice|letter",
    r"|clearly|definitely|simply|thus|so|therefore|hence|it|it's",
    r"|(?:i|we)\s+(?:choose|pick|select|take|go\s+with))\b)*)"
);

impl Grader<1> for MultipleChoice {
    const KIND: &'static str = "multiple_choice";
    type Options = MultipleChoiceOptions;

    fn build(options: MultipleChoiceOptions) -> Result<Self> {
        if !(2..=26).contains(&options.choices) {
            return Err(Error::options(
                "multiple_choice",
                format!("`choices` must be from 2 to 26, got {}", options.choices),
            ));
        }
        let last = char::from(b'A' + (options.choices - 1) as u8);
        let (upper, any) = (format!("[A-{last}]"), format!("[A-{last}a-{}]", last.to_ascii_lowercase()));
        let alone = regex(&format!(r"^[\s$*(\[{{]*(?:\\text(?:bf)?\{{)?[(\[]*({any})(?:[\s)\]}}.:,;$*]|$)"));
        let choice = regex(&format!("^(?P<words>{WORDS})(?P<opening>{OPENING})(?P<letter>{any})(?P<rest>(?s:.*))$"));
        let another = regex(&format!(r#"^[\s*_$"'`“‘(\[{{}}]*(?i:option\s+|choice\s+)?{upper}(?:\W|$)"#));
        let closing = r#"[\s.*_$"'`”’)\]}\\!]*$"#;
        let end = regex(&format!(
            r#"(?x) (?P<before>^|\s|[:=]) [*_$"'`“‘]*
            (?: [(\[](?P<marked>{any})[)\]] | (?P<closed>{upper})\) | (?P<bare>{upper}) ) {closing}"#
        ));
        let listed = regex(&format!(r"(?m)^[\s*]*[(\[]?{upper}[)\].:]"));
        Ok(MultipleChoice { options, alone, choice, another, end, listed })
    }

    fn columns(&self) -> [&str; 1] {
        [&self.options.column]
    }

    fn grade(&self, [answer]: [&Value; 1], completion: &str) -> Option<Verdict> {
        let gold = self.gold(answer)?;
        let numbered = || {
            let text = answer.as_str().filter(|text| self.numbered(text).is_some())?;
            let marked = closed(completion).or_else(|| hashed(completion)).or_else(|| announced(completion));
            let given = self.numbered(first_line(marked.unwrap_or(completion)))?;
            self.numbered(text).map(|_| given)
        };
        Some(Verdict::of(self.choice(completion).or_else(numbered), |choice| choice == gold))
    }

    fn unread(&self, [answer]: [&Value; 1]) -> (String, Option<String>) {
        let MultipleChoiceOptions { column, choices, .. } = &self.options;
        (format!("no choice of {choices} in column `{column}`"), Some(format!("in {answer}")))
    }
}

impl MultipleChoice {
    /// The index of the choice with this letter.
    fn place(&self, letter: &str) -> Option<usize> {
        let letter = letter.bytes().next()?.to_ascii_uppercase();
        Some(usize::from(letter.checked_sub(b'A')?)).filter(|place| *place < self.options.choices)
    }

    fn gold(&self, answer: &Value) -> Option<usize> {
        match answer {
            Value::Number(number) => {
                number.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|place| *place < self.options.choices)
            }
            Value::String(text) => match self.alone.captures(text) {
                Some(found) => self.place(found.get(1)?.as_str()),
                None => self.numbered(text),
            },
            _ => None,
        }
    }

    /// The choice of a text that is a single digit: choices may be numbered from 1, as in some rows of ARC.
    fn numbered(&self, text: &str) -> Option<usize> {
        let digit: usize = text.trim().trim_matches(['(', ')', '.', '*']).parse().ok()?;
        digit.checked_sub(1).filter(|place| *place < self.options.choices)
    }

    /// The choice of a completion, with or without its markup.
    fn choice(&self, completion: &str) -> Option<usize> {
        self.choice_in(&emphasized(completion)).or_else(|| self.choice_in(&undecorated(completion)))
    }

    fn choice_in(&self, text: &str) -> Option<usize> {
        if let Some(inside) = closed(text) {
            return match announced(inside) {
                Some(answer) => self.begins(first_line(answer), true),
                None => self.begins(inside, false),
            };
        }
        if let Some(tail) = hashed(text) {
            return self.begins(first_line(tail), true);
        }
        static CHOOSES: LazyLock<Regex> = LazyLock::new(|| {
            regex(
                r"(?ix) \b(?:choice|option)\s+(?:is|would\s+be)\b
                | \b(?:I|we)(?:['’]ll|['’]d|\s+will|\s+would)?\s+
                    (?:choose|chose|pick|select|take|go\s+(?:with|for)|opt\s+for)\b",
            )
        });
        let chooses = CHOOSES.find_iter(text).last().map(|words| &text[words.end()..]);
        // The last announcement is used, which is the one with less text after it.
        let last = announced(text).into_iter().chain(chooses).min_by_key(|rest| rest.len());
        if let Some(rest) = last
            && let Some(choice) = self.begins(first_line(rest), true)
        {
            return Some(choice);
        }
        if self.options.strict {
            return None;
        }
        /// Matches "A is correct", including the letter.
        static CORRECT: LazyLock<Regex> = LazyLock::new(|| {
            regex(
                r"(?x) (?:^|[\s.,:;(*]) (?:(?i:option|choice|answer)\s+)? [(]?(?P<letter>[A-Z])[)*.]*
                \s+ (?:is|was|must\s+be|would\s+be|seems) \s+ (?:clearly\s+|definitely\s+)? (?:the\s+)?
                (?:correct|right|best|true) (?:\s+(?:answer|choice|option|one))? \s*[.!*]* \s* (?:\n|$)",
            )
        });
        // The whole text is a single letter, such as "b".
        let alone = text.trim().trim_end_matches(['.', '!']);
        if alone.len() == 1 && alone.starts_with(|c: char| c.is_ascii_lowercase()) {
            return self.place(alone);
        }
        let correct = || {
            let found = CORRECT.captures_iter(text).last()?;
            let letter = found.name("letter")?;
            let before = text[..letter.start()].trim_end_matches(['(', '*']);
            (!taken_back_before(before) && !ends_with_and(before)).then(|| self.place(letter.as_str()))?
        };
        self.at_end(text).or_else(|| self.at_beginning(text)).or_else(correct)
    }

    /// The choice at the beginning of a text, which may continue with an explanation. With `capital` the text is
    /// running text, in which a lower-case letter is not a choice.
    fn begins(&self, text: &str, capital: bool) -> Option<usize> {
        let found = self.choice.captures(text)?;
        let (opening, letter, rest) = (&found["opening"], &found["letter"], &found["rest"]);
        let marked = opening.contains(['(', '[', '*', '`', '"', '{', '“']);
        let lower = letter.starts_with(|c: char| c.is_ascii_lowercase());
        let goes_on = |c: char| c.is_alphanumeric() && !is_of_script_without_spaces(c);
        let stands = !rest.starts_with(|c: char| goes_on(c) || matches!(c, '_' | '\'' | '’' | '-'));
        // "a" and "I" followed by a word are words, not choices.
        let word = lower && rest.starts_with(' ') && rest.trim_start().starts_with(char::is_alphabetic);
        (stands && !word && (!lower || !capital || marked) && !self.takes_back(rest)).then(|| self.place(letter))?
    }

    /// Whether the text after a choice denies the choice or offers a second one: "is wrong", "or C", ", C".
    fn takes_back(&self, rest: &str) -> bool {
        static JOINS: LazyLock<Regex> = LazyLock::new(|| {
            regex(r#"^[\s*_$"'`”’)\]{}\\]*(?:(?:,\s*)?\b(?:and|or)\b(?:\s+(?:maybe|perhaps|possibly))?|[,;/&|+])"#)
        });
        static STANDS_ALONE: LazyLock<Regex> =
            LazyLock::new(|| regex(r"^\W*(?i:option\s+|choice\s+)?\w\W*(?:$|\b(?i:or|and)\b)"));
        let rest = &*bare_words(rest);
        let joined = JOINS.find(rest).is_some_and(|join| {
            let next = &rest[join.end()..];
            let word = join.as_str().ends_with(char::is_alphabetic);
            // "B, A is false" explains one choice, while "B, A" and "B or A" offer two.
            self.another.is_match(next)
                && (word || STANDS_ALONE.is_match(next) || join.as_str().contains(['/', '&', '|', '+']))
        });
        joined || taken_back_behind(rest, &self.another)
    }

    /// The choice at the end of a text, or alone on the last line of the text.
    fn at_end(&self, text: &str) -> Option<usize> {
        /// Matches text after which a bare letter is a choice, unlike in "vitamin C".
        static FOLLOWS: LazyLock<Regex> = LazyLock::new(|| {
            regex(
                r"(?ix) (?: ^ | \n | [:=→]  | [-=]> | [.!?;]
                | \b(?:is|be|was|it's|choose|chose|pick|select|take|with|for|option|choice|answer|letter|so|thus|hence
                    |therefore|say|guess|think|namely|means) ) \s* $",
            )
        });
        let found = self.end.captures(text)?;
        let start = found.name("before")?.end();
        let before = text[..start].trim_end_matches(['*', '_', '$', '"', '\'', '`']);
        if taken_back_before(before) || before.trim_end().ends_with([',', '/', '&', '|', '+']) || ends_with_and(before)
        {
            return None;
        }
        let letter = ["marked", "closed", "bare"].iter().find_map(|name| found.name(name))?.as_str();
        if found.name("bare").is_some() {
            // A letter alone on its line is a choice, even "A" or "I".
            let line = before.trim_end_matches([' ', '\t']);
            let alone = line.is_empty() || line.ends_with('\n');
            if !FOLLOWS.is_match(before) || matches!(letter, "A" | "I") && !alone {
                return None;
            }
        }
        self.place(letter)
    }

    /// The choice at the beginning of a text: `B`, `B) Paris`, `(B) Paris`, `**B**: Paris`, `Option B`.
    fn at_beginning(&self, text: &str) -> Option<usize> {
        let found = self.choice.captures(text)?;
        let (words, opening, letter, rest) = (
            found["words"].trim_matches(|c: char| !c.is_alphabetic()),
            &found["opening"],
            &found["letter"],
            &found["rest"],
        );
        let upper = letter.starts_with(|c: char| c.is_ascii_uppercase());
        let marked = opening.contains(['(', '[']) && rest.trim_start_matches('\\').starts_with([')', ']']);
        let emphasized = opening.contains(['*', '`', '"', '$', '{', '“']) && !rest.starts_with([' ', '\'']);
        let named = ["option", "choice", "letter"].iter().any(|name| words.to_lowercase().ends_with(name));
        let ends =
            rest.trim_start_matches(['*', '_', '$', '"', '`']).starts_with([')', '.', ':']) || rest.trim().is_empty();
        let named = named && !rest.starts_with(char::is_alphanumeric);
        let is_choice = marked || upper && (named || emphasized || ends && words.is_empty());
        // A list of all choices is not a choice.
        let others = self.listed.find_iter(text).count() + rest.matches(") ").count().saturating_sub(1);
        if !is_choice
            || others > 1 && !rest.trim().is_empty() && self.lists(text)
            || self.takes_back(rest.trim_start_matches([')', ']', '.', ':']))
        {
            return None;
        }
        self.place(letter)
    }

    /// Whether a text lists three or more choices.
    fn lists(&self, text: &str) -> bool {
        static MARK: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:^|\s)[(\[]?([A-Z])[)\].:](?:\s|$)"));
        let letters: std::collections::BTreeSet<&str> =
            MARK.captures_iter(text).filter_map(|found| found.get(1)).map(|letter| letter.as_str()).collect();
        letters.len() >= 3 || self.listed.find_iter(text).count() > 1
    }
}

/// Whether the text before a letter ends with another choice and "and": "A and".
fn ends_with_and(before: &str) -> bool {
    let words = before.trim_end_matches(|c: char| c.is_whitespace() || "([*_$\"'`".contains(c));
    words.to_lowercase().rsplit(|c: char| !c.is_alphabetic()).next() == Some("and")
}

#[cfg(test)]
mod tests {
    mod parts;

    use super::super::grader::scores;
    use super::*;

    fn reward(choices: usize, strict: bool) -> MultipleChoice {
        MultipleChoice::build(MultipleChoiceOptions { choices, strict, ..MultipleChoiceOptions::default() }).unwrap()
    }

    #[test]
    fn the_choice_of_a_completion_is_found() {
        let reward = reward(5, false);
        for (text, expected) in [
            ("\\boxed{B}", Some(1)),
            ("\\boxed{\\text{(C)}} ", Some(2)),
            ("\\boxed{A}. No: \\boxed{\\textbf{D}}", Some(3)),
            ("\\boxed{Paris}", None),
            ("\\boxed{Berlin} is wrong, so the answer is B", Some(1)),
            ("The answer is (B).", Some(1)),
            ("the answer is b", None),
            ("the answer is (b)", Some(1)),
            ("The answer is A: Paris", Some(0)),
            ("The answer is A dog", Some(0)),
            ("The answer is: **D**", Some(3)),
            ("**Answer:** E", Some(4)),
            ("Answer: option C", Some(2)),
            ("The answer is (A). No, the answer is (C)", Some(2)),
            ("the answer is Because", None),
            ("B", Some(1)),
            ("B.", Some(1)),
            ("(b)", Some(1)),
            ("D) the last", Some(3)),
            ("A: Paris", Some(0)),
            ("A", Some(0)),
            ("A dog", None),
            ("I think it is C", Some(2)),
            ("so I choose A)", Some(0)),
            ("in grade A", None),
            ("vitamin C is good", None),
            ("answer is F", None),
            ("F", None),
            ("", None),
        ] {
            assert_eq!(reward.choice(text), expected, "{text}");
        }
        let mut wrong = Vec::new();
        for text in [
            "<answer>B</answer>",
            "<think>A? No.</think>\n<answer>\nB\n</answer>",
            "<answer>(b)</answer>",
            "<answer>B. Paris</answer>",
            "<answer>Option B</answer>",
            "<answer>The answer is B</answer>",
            "<answer>\\boxed{B}</answer>",
            "<SOLUTION>B</SOLUTION>",
            "#### B",
            "`B`",
            "\"B\"",
            "'B'",
            "$B$",
            "\\(B\\)",
            "**B**",
            "**B.** Paris",
            "\\mathbf{B}",
            "\\text{B}",
            "\\boxed{\\text{B}}",
            "\\boxed{\\mathbf{B}}",
            "\\boxed{\\text{(B) Paris}}",
            "\\boxed{B: Paris}",
            "answer=B",
            "answer = (B)",
            "{\"answer\": \"B\"}",
            "Answer: $B$",
            "Answer: \\mathbf{B}",
            "Answer: **B**",
            "The answer is option B.",
            "The correct answer is \"B\".",
            "I choose B, since A is false",
            "I'd pick B.",
            "So I will go with (B), because C is wrong",
            "The answer is B, because A is wrong",
            "The answer is B; A is too small",
            "(B)",
            "B.",
            "B: Paris",
            "B) Paris",
            "Option B",
            "option B: Paris",
            "so it must be B",
            "A is wrong.\nB",
            "not A, so B",
            "The capital of France is Paris (B).",
        ] {
            wrong.extend((reward.choice(text) != Some(1)).then_some(text));
        }
        for text in [
            "The answer is not B",
            "The answer isn't B.",
            "The answer is not (B)",
            "The answer cannot be B",
            "Answer: B or C",
            "Answer: B, C",
            "Answer: B and C",
            "Answer: B/C",
            "Answer: B or maybe C",
            "Answer: either B or C",
            "<answer>B or C</answer>",
            "<answer>B, C</answer>",
            "<answer>not B</answer>",
            "<answer>neither B nor C</answer>",
            "<answer>B is wrong</answer>",
            "<answer></answer> B",
            "\\boxed{B \\text{ or } C}",
            "\\boxed{\\text{not } B}",
            "\\boxed{a dog}",
            "#### not B",
            "vitamin B",
            "either A or B",
            "A or B",
            "neither",
            "neither A nor B",
            "not (B)",
            "not B",
            "B is wrong",
            "(B) is wrong",
            "B) is not right",
            "B. is false",
            "**B** is incorrect",
            "it can't be B",
            "A, B",
            "A and B",
            "all but B",
            "A) 3\nB) 4\nC) 5",
            "A) 3 B) 4 C) 5 D) 6",
        ] {
            wrong.extend(reward.choice(text).map(|_| text));
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        // A choice at the end has priority over a choice at the beginning.
        assert_eq!(reward.choice("B) is wrong, so I take (C)"), Some(2));
        assert_eq!(reward.choice("B) looks good. But then: (C)"), Some(2));
        let strict = self::reward(5, true);
        assert_eq!((strict.choice("<answer>B</answer>"), strict.choice("(B)")), (Some(1), None));
        assert_eq!((strict.choice("B"), strict.choice("the answer is B")), (None, Some(1)));
    }

    #[test]
    fn dataset_answers_may_be_letters_or_indices() {
        let reward = reward(4, false);
        for (answer, expected) in [
            (Value::from("B"), Some(1)),
            ("(c)".into(), Some(2)),
            ("D. Paris".into(), Some(3)),
            (0.into(), Some(0)),
            (3.into(), Some(3)),
            (4.into(), None),
            ("E".into(), None),
            ("Paris".into(), None),
            (Value::Null, None),
        ] {
            assert_eq!(reward.gold(&answer), expected, "{answer}");
        }
    }

    #[test]
    fn invalid_dataset_answers_are_reported() {
        let answers = vec!["B".into(), 1.into(), "Paris".into()];
        let scores = scores(&reward(4, false), &["B", "C", "B"], [("answer", answers)]);
        assert_eq!(scores.values, [Some(1.0), Some(0.0), None]);
        assert!(scores.problems[0].to_string().contains("\"Paris\""), "{}", scores.problems[0]);
        let one = MultipleChoice::build(MultipleChoiceOptions { choices: 1, ..MultipleChoiceOptions::default() });
        assert!(one.unwrap_err().to_string().contains("2 to 26"));
    }
}
