//! `keyword`: a reward for words in a completion: 1 if any of the words occurs, or 1 if all occur (`match = "all"`), or
//! the share of words that occur (`match = "share"`). With `whole_words` (the default), "art" does not occur in
//! "start".

use serde::Deserialize;

use super::Builtin;
use crate::{Error, Result, RewardBatch, Scores};

/// The words to search for: one string or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Words {
    One(String),
    Several(Vec<String>),
}

/// The scoring rule for the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Match {
    #[default]
    Any,
    All,
    Share,
}

/// The options of [`Keyword`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeywordOptions {
    /// The words to search for: a string, or a list of strings.
    pub words: Words,
    /// The scoring rule: any word must occur, all must occur, or the score is the share of words that occur.
    #[serde(default, rename = "match")]
    pub which: Match,
    /// Whether case is ignored.
    #[serde(default)]
    pub ignore_case: bool,
    /// Whether a word must not be next to other letters or digits.
    #[serde(default = "yes")]
    pub whole_words: bool,
}

fn yes() -> bool {
    true
}

/// The `keyword` reward; the header of `keyword.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Keyword {
    words: Vec<String>,
    options: KeywordOptions,
}

impl Builtin for Keyword {
    const KIND: &'static str = "keyword";
    const MAIN_OPTION: Option<&'static str> = Some("words");
    type Options = KeywordOptions;

    fn build(options: KeywordOptions) -> Result<Self> {
        let mut words = match &options.words {
            Words::One(word) => vec![word.clone()],
            Words::Several(words) => words.clone(),
        };
        if words.is_empty() || words.iter().any(|word| word.trim().is_empty()) {
            return Err(Error::options(
                "keyword",
                "`words` must have at least one word, and none may be empty, as in \"keyword:happy\"",
            ));
        }
        if options.ignore_case {
            for word in &mut words {
                *word = word.to_lowercase();
            }
        }
        Ok(Keyword { words, options })
    }

    fn score(&mut self, _: &str, batch: &RewardBatch<'_>) -> Scores {
        Scores::new(batch.completions.iter().map(|completion| Some(self.score_of(&completion.text()))).collect())
    }
}

impl Keyword {
    fn score_of(&self, text: &str) -> f64 {
        let lower;
        let text = if self.options.ignore_case {
            lower = text.to_lowercase();
            &lower
        } else {
            text
        };
        let found = self.words.iter().filter(|word| self.occurs(word, text)).count();
        let share = found as f64 / self.words.len() as f64;
        match self.options.which {
            Match::Any => f64::from(u8::from(found > 0)),
            Match::All => share.floor(),
            Match::Share => share,
        }
    }

    fn occurs(&self, word: &str, text: &str) -> bool {
        let inner = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        // Any character may follow a word that ends with a sign ("C++").
        let bound = |end: Option<char>, beside: Option<char>| !(inner(end) && inner(beside));
        text.match_indices(word).any(|(at, _)| {
            let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
            !self.options.whole_words || bound(word.chars().next(), before) && bound(word.chars().next_back(), after)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn score(options: Value, text: &str) -> f64 {
        Keyword::build(serde_json::from_value(options).unwrap()).unwrap().score_of(text)
    }

    #[test]
    fn words_are_found_as_whole_words_or_anywhere() {
        let art = || json!({"words": "art"});
        for (text, expected) in
            [("art", 1.0), ("of art.", 1.0), ("start", 0.0), ("arts", 0.0), ("start art", 1.0), ("Art", 0.0)]
        {
            assert_eq!(score(art(), text), expected, "{text}");
        }
        assert_eq!(score(json!({"words": "art", "whole_words": false}), "start"), 1.0);
        assert_eq!(score(json!({"words": "ART", "ignore_case": true}), "Art"), 1.0);
        assert_eq!(score(json!({"words": "C++"}), "in C++11"), 1.0);
        assert_eq!(score(json!({"words": "é"}), "café"), 0.0);
    }

    #[test]
    fn match_selects_any_all_or_the_share_of_words() {
        let words = |which| json!({"words": ["red", "green", "blue", "dog"], "match": which});
        for (which, expected) in [("any", 1.0), ("all", 0.0), ("share", 0.5)] {
            assert_eq!(score(words(which), "a red dog"), expected, "{which}");
        }
        assert_eq!(score(words("all"), "red green blue dog"), 1.0);
        assert_eq!(score(words("any"), "a cat"), 0.0);
        for bad in [json!([]), json!(""), json!(["a", " "])] {
            let options = serde_json::from_value(json!({"words": bad})).unwrap();
            assert!(Keyword::build(options).is_err());
        }
    }

    #[test]
    fn a_whole_word_has_no_letter_on_either_side() {
        for (word, text, expected) in [
            ("art", "art", 1.0),
            ("art", "(art)", 1.0),
            ("art", "xart", 0.0),
            ("art", "artx", 0.0),
            ("art", "1art art1", 0.0),
            ("+art", "x+art", 1.0),
            ("art+", "art+x", 1.0),
            ("art+", "xart+", 0.0),
            ("+art", "+artx", 0.0),
        ] {
            assert_eq!(score(json!({"words": word}), text), expected, "{word}: {text}");
            assert_eq!(score(json!({"words": word, "whole_words": false}), text), 1.0, "{word}: {text}");
        }
        for (which, expected) in [("any", 1.0), ("all", 0.0), ("share", 0.75)] {
            let words = json!({"words": ["a", "b", "c", "d"], "match": which});
            assert_eq!(score(words, "d c b"), expected, "{which}");
        }
        assert_eq!(score(json!({"words": "art"}), "ART"), 0.0);
        let empty = serde_json::from_value(json!({"words": ["a", " "]})).unwrap();
        let refusal = Keyword::build(empty).unwrap_err().to_string();
        let expected = "`words` must have at least one word, and none may be empty, as in \"keyword:happy\"";
        assert_eq!(refusal, format!("reward `keyword`: {expected}"));
    }
}
