//! `think_answer`: a reward for the format `<think>…</think>` followed by `<answer>…</answer>`, which the prompt of
//! DeepSeek-R1 requests.
//!
//! The score is 1 for exactly that format: each tag once and in order, text inside both pairs, and only white space
//! outside. Otherwise the score is 0, or with `partial` (the default) 1/8 for each of the four tags that occurs exactly
//! once, so at most 1/2. An empty answer or a repeated tag never scores 1. The content of the answer is not checked.
//!
//! Source: DeepSeek-AI 2025, "DeepSeek-R1", <https://arxiv.org/abs/2501.12948>, section 2.2.2.

use serde::Deserialize;

use super::Builtin;
use crate::{Error, Result, RewardBatch, Scores};

/// The options of [`ThinkAnswer`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ThinkAnswerOptions {
    /// The name of the first tag.
    pub think: String,
    /// The name of the second tag.
    pub answer: String,
    /// Whether each tag earns a partial score.
    pub partial: bool,
    /// Whether the prompt ends with the first opening tag, so that the completion does not have it.
    pub think_in_prompt: bool,
}

impl Default for ThinkAnswerOptions {
    fn default() -> Self {
        ThinkAnswerOptions { think: "think".into(), answer: "answer".into(), partial: true, think_in_prompt: false }
    }
}

/// The `think_answer` reward; the header of `think_answer.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct ThinkAnswer {
    /// The four tags: `<think>`, `</think>`, `<answer>`, `</answer>`, with the configured names.
    tags: [String; 4],
    options: ThinkAnswerOptions,
}

/// The tags that a completion must have.
pub(crate) fn tags(options: ThinkAnswerOptions) -> Vec<String> {
    let in_prompt = usize::from(options.think_in_prompt);
    four_tags(&options).into_iter().skip(in_prompt).collect()
}

fn four_tags(ThinkAnswerOptions { think, answer, .. }: &ThinkAnswerOptions) -> [String; 4] {
    [format!("<{think}>"), format!("</{think}>"), format!("<{answer}>"), format!("</{answer}>")]
}

impl Builtin for ThinkAnswer {
    const KIND: &'static str = "think_answer";
    type Options = ThinkAnswerOptions;

    fn build(options: ThinkAnswerOptions) -> Result<Self> {
        let ThinkAnswerOptions { think, answer, .. } = &options;
        let usable = |tag: &str| !tag.is_empty() && tag.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        if !usable(think) || !usable(answer) || think == answer {
            let message = format!("`think` and `answer` must be two different tag names, got {think:?} and {answer:?}");
            return Err(Error::options("think_answer", message));
        }
        let tags = four_tags(&options).map(|tag| tag.to_ascii_lowercase());
        Ok(ThinkAnswer { tags, options })
    }

    fn score(&mut self, _: &str, batch: &RewardBatch<'_>) -> Scores {
        Scores::new(batch.completions.iter().map(|completion| Some(self.score_of(&completion.text()))).collect())
    }
}

impl ThinkAnswer {
    fn score_of(&self, text: &str) -> f64 {
        let opened;
        let text = if self.options.think_in_prompt {
            opened = format!("{}{text}", self.tags[0]);
            &opened
        } else {
            text
        };
        // The case of tags is ignored.
        let lower = text.to_ascii_lowercase();
        let text = &*lower;
        let once = self.tags.iter().filter(|tag| text.matches(tag.as_str()).count() == 1).count();
        if once == 4 && self.parts(text).is_some() {
            return 1.0;
        }
        if self.options.partial { once as f64 / 8.0 } else { 0.0 }
    }

    /// The texts inside both pairs of tags, if only white space is outside.
    fn parts<'t>(&self, text: &'t str) -> Option<[&'t str; 2]> {
        let [open, close, open_answer, close_answer] = &self.tags;
        let (thought, rest) = text.trim().strip_prefix(open)?.split_once(close)?;
        let answer = rest.trim_start().strip_prefix(open_answer)?.strip_suffix(close_answer)?;
        (!thought.trim().is_empty() && !answer.trim().is_empty()).then_some([thought, answer])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(text: &str, options: ThinkAnswerOptions) -> f64 {
        ThinkAnswer::build(options).unwrap().score_of(text)
    }

    #[test]
    fn the_complete_format_scores_1_and_each_tag_an_eighth() {
        for (text, expected) in [
            ("<think>a</think><answer>b</answer>", 1.0),
            ("\n<think>\na\n</think>\n\n<answer> b </answer>\n", 1.0),
            ("<think></think><answer>b</answer>", 0.5),
            ("<think>a</think><answer> </answer>", 0.5),
            ("<think>a</think> so <answer>b</answer>", 0.5),
            ("<think>a</think><answer>b</answer> and more", 0.5),
            ("<answer>b</answer><think>a</think>", 0.5),
            ("<think><answer>b</answer></think>", 0.5),
            ("<think>a</think><answer>b", 0.375),
            ("<think>a</think><answer>b</answer><answer>c</answer>", 0.25),
            ("</think>", 0.125),
            ("<Think>", 0.125),
            ("<THINK>a</Think> <Answer>b</answer>", 1.0),
            ("", 0.0),
        ] {
            assert_eq!(score(text, ThinkAnswerOptions::default()), expected, "{text}");
        }
        let whole = ThinkAnswerOptions { partial: false, ..ThinkAnswerOptions::default() };
        assert_eq!(score("<think>a</think><answer>b", whole), 0.0);
    }

    #[test]
    fn tag_names_are_configurable_and_the_prompt_may_open_the_first() {
        let own = ThinkAnswerOptions { think: "reasoning".into(), ..ThinkAnswerOptions::default() };
        assert_eq!(score("<reasoning>a</reasoning><answer>b</answer>", own), 1.0);
        let open = || ThinkAnswerOptions { think_in_prompt: true, ..ThinkAnswerOptions::default() };
        assert_eq!(score("a</think><answer>b</answer>", open()), 1.0);
        assert_eq!(score("<think>a</think><answer>b</answer>", open()), 0.375);
        for bad in ["", "a>", "answer"] {
            let options = ThinkAnswerOptions { think: bad.into(), ..ThinkAnswerOptions::default() };
            assert!(ThinkAnswer::build(options).unwrap_err().to_string().contains("different tag names"), "{bad}");
        }
    }

    #[test]
    fn tag_names_must_differ_and_have_only_letters_digits_and_dashes() {
        let built = |think: &str, answer: &str| {
            let options = ThinkAnswerOptions { think: think.into(), answer: answer.into(), ..Default::default() };
            ThinkAnswer::build(options).map_err(|error| error.to_string())
        };
        for (think, answer) in [("", "b"), ("a", ""), ("a b", "b"), ("a", "b/"), ("a", "a")] {
            let expected =
                format!("`think` and `answer` must be two different tag names, got {think:?} and {answer:?}");
            assert_eq!(built(think, answer).unwrap_err(), format!("reward `think_answer`: {expected}"));
        }
        let own = built("a_1", "b-2").unwrap();
        assert_eq!(own.tags, ["<a_1>", "</a_1>", "<b-2>", "</b-2>"]);
        assert_eq!(own.parts(" <a_1>x</a_1> <b-2>y</b-2>\n"), Some(["x", "y"]));
        for text in ["<a_1> </a_1><b-2>y</b-2>", "<a_1>x</a_1><b-2>\n</b-2>", "<b-2>y</b-2><a_1>x</a_1>", "x"] {
            assert_eq!(own.parts(text), None, "{text}");
        }
    }
}
