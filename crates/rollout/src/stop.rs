//! Checks whether a completion has reached a stop id or a stop string.

use crate::request::{Detokenize, SamplingParams};
use std::sync::Arc;

/// The number of tokens without text (a few special ones) that may occur inside a stop string.
const EMPTY_TOKENS: usize = 8;

/// Checks completions for stop ids and stop strings. Stop strings need a detokenizer.
#[derive(Default)]
pub(crate) struct StopCheck {
    pub(crate) detokenizer: Option<Arc<dyn Detokenize>>,
}

impl StopCheck {
    /// Whether the last of `tokens` (prompt and completion) is a stop id, or completes a stop string.
    pub(crate) fn stops(&self, sampling: &SamplingParams, tokens: &[u32]) -> bool {
        tokens.last().is_some_and(|last| sampling.stop_ids.contains(last)) || self.reached_stop_string(sampling, tokens)
    }

    /// Whether the last token completes a stop string. As in transformers, the decoded text starts in the prompt:
    /// decoding the completion alone would remove the space before its first word, and a stop string may start in the
    /// prompt.
    fn reached_stop_string(&self, sampling: &SamplingParams, tokens: &[u32]) -> bool {
        let Some(longest) = sampling.stop_strings.iter().map(String::len).max() else { return false };
        let Some(detokenizer) = &self.detokenizer else { return false };
        // A token has at least one byte, except for a few special ones. So the stop string lies within this many tokens
        // from the end, plus one token whose leading space is removed.
        let tail = &tokens[tokens.len().saturating_sub(longest + EMPTY_TOKENS + 1)..];
        let (before, text) = (detokenizer.decode(&tail[..tail.len() - 1]), detokenizer.decode(tail));
        // The last token must complete the string: an extended sequence may contain an earlier stop string.
        let common = before.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        sampling.stop_strings.iter().any(|stop| {
            let from = text.floor_char_boundary((common + 1).saturating_sub(stop.len()));
            text[from..].contains(stop.as_str())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test vocabulary with the text of each id. Decoding removes the space before the first word, as in
    /// SentencePiece.
    struct Words(&'static [&'static str]);

    impl Detokenize for Words {
        fn decode(&self, ids: &[u32]) -> String {
            let text: String = ids.iter().map(|&id| self.0[id as usize]).collect();
            text.strip_prefix(' ').map_or(text.clone(), str::to_owned)
        }
    }

    fn stops(stop: &str, tokens: &[u32]) -> bool {
        let words = Words(&[" Once", " upon", " a", " time", "", "s", "top", ",", "é"]);
        let check = StopCheck { detokenizer: Some(Arc::new(words)) };
        let sampling = SamplingParams { stop_strings: vec![stop.to_owned()], ..SamplingParams::default() };
        check.stops(&sampling, tokens)
    }

    #[test]
    fn a_stop_string_may_start_in_the_prompt() {
        // The prompt is "Once upon a", the completion begins with " time".
        assert!(stops(" time", &[0, 1, 2, 3]) && stops("time", &[0, 1, 2, 3]));
        assert!(stops("a time", &[0, 1, 2, 3]), "a stop string may begin in the prompt");
        assert!(
            !stops(" time", &[0, 1, 2]) && !stops(" upon", &[0, 1, 2]),
            "a stop string in the prompt must not stop"
        );
        assert!(!stops(" time", &[5, 6]));
    }

    #[test]
    fn an_earlier_stop_string_does_not_stop_again() {
        assert!(stops("stop", &[0, 5, 6]) && stops("top", &[0, 5, 6]));
        assert!(!stops("stop", &[0, 5, 6, 7]) && !stops("stop", &[0, 5, 6, 8]) && !stops("stop", &[0, 5, 6, 4]));
        assert!(stops("stop", &[0, 5, 6, 7, 5, 6]), "a second stop string must stop");
        assert!(stops("op,", &[0, 5, 6, 7]));
    }

    #[test]
    fn tokens_without_text_may_occur_inside_a_stop_string() {
        let within = |count: usize| [&[0, 5][..], &vec![4; count], &[6]].concat();
        for count in 0..=EMPTY_TOKENS {
            assert!(stops("stop", &within(count)), "{count}");
        }
        // The decoded window has as many tokens as the string has bytes, plus the margin.
        assert!(stops("stop", &within(EMPTY_TOKENS + 2)) && !stops("stop", &within(40)));
    }
}
