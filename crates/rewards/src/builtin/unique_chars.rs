//! `unique_chars`: the number of different characters in a completion. It is easy to increase, which makes it useful
//! for first training runs. With `fraction` the count is divided by the completion's length in characters (0 for an
//! empty completion).

use std::collections::HashSet;

use serde::Deserialize;

use super::Builtin;
use crate::{Result, RewardBatch, Scores};

/// The options of [`UniqueChars`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UniqueCharsOptions {
    /// Whether the count is divided by the number of characters.
    pub fraction: bool,
}

/// The `unique_chars` reward; the header of `unique_chars.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct UniqueChars {
    options: UniqueCharsOptions,
}

impl Builtin for UniqueChars {
    const KIND: &'static str = "unique_chars";
    type Options = UniqueCharsOptions;

    fn build(options: UniqueCharsOptions) -> Result<Self> {
        Ok(UniqueChars { options })
    }

    fn score(&mut self, _: &str, batch: &RewardBatch<'_>) -> Scores {
        let score = |text: &str| {
            let unique = text.chars().collect::<HashSet<_>>().len() as f64;
            let length = if self.options.fraction { text.chars().count().max(1) as f64 } else { 1.0 };
            Some(unique / length)
        };
        Scores::new(batch.completions.iter().map(|completion| score(&completion.text())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Columns, Content};

    #[test]
    fn unique_characters_are_counted_not_bytes() {
        let completions: Vec<Content> = ["", "aaab", "éèé "].iter().map(|&t| t.into()).collect();
        let batch = RewardBatch {
            prompts: &vec!["".into(); 3],
            completions: &completions,
            completion_ids: &vec![vec![]; 3],
            columns: &Columns::new(),
            rows: &[],
            step: model::Step(0),
        };
        let mut counts = UniqueChars::build(UniqueCharsOptions::default()).unwrap();
        assert_eq!(counts.score("r", &batch).values, [Some(0.0), Some(2.0), Some(3.0)]);
        let mut fractions = UniqueChars::build(UniqueCharsOptions { fraction: true }).unwrap();
        assert_eq!(fractions.score("r", &batch).values, [Some(0.0), Some(0.5), Some(0.75)]);
    }
}
