//! `multiple_choice`: 1 if the completion chooses the answer's letter, else 0.
//!
//! The answer column holds a letter (`B`, `(b)`, `B. Paris`) or, as a number, the place of the choice from 0. The
//! completion's choice is the letter in its last `\boxed{}`; else what follows its last "answer is" or "answer:"; else
//! (unless `strict`) the completion itself if it begins or ends with a letter that stands alone, as `B`, `B)` or `(B)`.
//! In running text only capitals count, and "A" and "I" only with a mark, since they are words. Knows no text of the
//! choices.

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::Builtin;
use super::boxed::last_boxed;
use crate::batch::Verdict;
use crate::{Error, Result, Reward, RewardBatch, Scores};

/// Options of [`MultipleChoice`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Options {
    /// The dataset column with the answer.
    pub column: String,
    /// How many choices there are: letters from A on.
    pub choices: usize,
    /// Accept only a choice in `\boxed{}` or after "answer is" or "answer:".
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { column: "answer".into(), choices: 4, strict: false }
    }
}

/// The reward; see the module.
#[derive(Clone, Debug)]
pub(crate) struct MultipleChoice {
    name: String,
    options: Options,
    /// A text that is a choice, with what may stand around and behind it.
    alone: Regex,
    said: Regex,
    /// At the beginning, at the end.
    edges: [Regex; 2],
}

impl Builtin for MultipleChoice {
    const KIND: &'static str = "multiple_choice";
    const MAIN_OPTION: Option<&'static str> = Some("column");
    type Options = Options;

    fn build(name: String, options: Options) -> Result<Self> {
        if !(2..=26).contains(&options.choices) {
            return Err(Error::options(
                "multiple_choice",
                format!("`choices` must be 2 to 26, not {}", options.choices),
            ));
        }
        let last = char::from(b'A' + (options.choices - 1) as u8);
        let (upper, any) = (format!("[A-{last}]"), format!("[A-{last}a-{}]", last.to_ascii_lowercase()));
        let regex = |pattern: String| Regex::new(&pattern).expect("a pattern of letters");
        let alone = regex(format!(r"^[\s$*(\[{{]*(?:\\text(?:bf)?\{{)?[(\[]*({any})(?:[\s)\]}}.:,;$*]|$)"));
        let words = r"(?i:answer\s+is|answer\s*:|choice\s+is|option\s+is|answer\s*\*+\s*:?)[\s:*$]*(?i:option|choice)?";
        let said = regex(format!(r"{words}\s*(?:[(\[]({any})[)\]]|({upper})(?:[^\w']|$))"));
        let first = regex(format!(r"^\s*(?:[(\[]({any})[)\]]|({upper})(?:[).:]|\s*$))"));
        let end = regex(format!(r"(?:^|\s)[*]*(?:[(\[]({any})[)\]]|({upper})\)|([B-HJ-Z]))[.*]*\s*$"));
        Ok(MultipleChoice { name, options, alone, said, edges: [end, first] })
    }
}

impl MultipleChoice {
    /// The letter's place.
    fn place(&self, letter: &str) -> Option<usize> {
        let letter = letter.bytes().next()?.to_ascii_uppercase();
        Some(usize::from(letter.checked_sub(b'A')?)).filter(|place| *place < self.options.choices)
    }

    fn gold(&self, answer: &Value) -> Option<usize> {
        match answer {
            Value::Number(number) => {
                number.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|place| *place < self.options.choices)
            }
            Value::String(text) => self.place(self.alone.captures(text)?.get(1)?.as_str()),
            _ => None,
        }
    }

    fn choice(&self, text: &str) -> Option<usize> {
        if let Some(boxed) = last_boxed(text) {
            return self.place(self.alone.captures(boxed)?.get(1)?.as_str());
        }
        let letter = |found: regex::Captures<'_>| {
            found.iter().skip(1).flatten().next().and_then(|letter| self.place(letter.as_str()))
        };
        if let Some(said) = self.said.captures_iter(text).last() {
            return letter(said);
        }
        if self.options.strict {
            return None;
        }
        self.edges.iter().find_map(|edge| edge.captures(text)).and_then(letter)
    }
}

impl Reward for MultipleChoice {
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
        let Options { column, choices, .. } = &self.options;
        let unread =
            |answer: &Value| (format!("no choice of {choices} in column `{column}`"), Some(format!("in {answer}")));
        batch.score_by_answer(&self.name, column, unread, |answer, text| {
            let gold = self.gold(answer)?;
            Some(Verdict::of(self.choice(text), |choice| choice == gold))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Content};

    fn reward(choices: usize, strict: bool) -> MultipleChoice {
        MultipleChoice::build("m".into(), Options { choices, strict, ..Options::default() }).unwrap()
    }

    #[test]
    fn the_choice_is_found() {
        let reward = reward(5, false);
        for (text, expected) in [
            ("\\boxed{B}", Some(1)),
            ("\\boxed{\\text{(C)}} ", Some(2)),
            ("\\boxed{A}. No: \\boxed{\\textbf{D}}", Some(3)),
            ("\\boxed{Paris}", None),
            ("\\boxed{Berlin} is wrong, so the answer is B", None),
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
        let strict = self::reward(5, true);
        assert_eq!((strict.choice("B"), strict.choice("the answer is B")), (None, Some(1)));
    }

    #[test]
    fn answers_are_letters_or_places() {
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
    fn scores_and_says_what_it_cannot_judge() {
        let completions: Vec<Content> = ["B", "C", "B"].iter().map(|&c| c.into()).collect();
        let columns = Columns::from([("answer".to_owned(), vec!["B".into(), 1.into(), "Paris".into()])]);
        let batch = RewardBatch {
            prompts: &vec!["q".into(); 3],
            completions: &completions,
            completion_ids: &vec![vec![]; 3],
            columns: &columns,
            rows: &[],
            step: 0,
        };
        let scores = reward(4, false).score(&batch);
        assert_eq!(scores.values, [Some(1.0), Some(0.0), None]);
        assert!(scores.problems[0].to_string().contains("\"Paris\""), "{}", scores.problems[0]);
        let one = MultipleChoice::build("m".into(), Options { choices: 1, ..Options::default() });
        assert!(one.unwrap_err().to_string().contains("2 to 26"));
    }
}
