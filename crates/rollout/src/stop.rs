//! Whether a completion has come to its end.

use crate::request::{Detokenize, SamplingParams};
use std::sync::Arc;

/// How texts are seen, which stop strings need.
#[derive(Default)]
pub(crate) struct StopCheck {
    pub(crate) detokenizer: Option<Arc<dyn Detokenize>>,
}

impl StopCheck {
    /// Whether the last token of `completion` is a stop id or completes a stop string.
    pub(crate) fn stops(&self, sampling: &SamplingParams, completion: &[u32]) -> bool {
        completion.last().is_some_and(|last| sampling.stop_ids.contains(last))
            || self.reached_stop_string(sampling, completion)
    }

    fn reached_stop_string(&self, sampling: &SamplingParams, completion: &[u32]) -> bool {
        let Some(longest) = sampling.stop_strings.iter().map(String::len).max() else { return false };
        let Some(detokenizer) = &self.detokenizer else { return false };
        // A token is a byte at least, but for a few special ones: the string's end lies in this many last tokens.
        let tail = &completion[completion.len().saturating_sub(longest + 8)..];
        let (before, text) = (detokenizer.decode(&tail[..tail.len() - 1]), detokenizer.decode(tail));
        // Only a string that the last token completes: one that an extended sequence stopped at before is past.
        let common = before.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        sampling.stop_strings.iter().any(|stop| {
            let from = text.floor_char_boundary((common + 1).saturating_sub(stop.len()));
            text[from..].contains(stop.as_str())
        })
    }
}
