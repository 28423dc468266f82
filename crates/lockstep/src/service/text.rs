//! The text of a completion, token by token, as OpenAI's API returns it.

use model::tokenizer::{TextStream, Tokenizer};
use model::{FinishReason, Result};
use std::sync::Arc;

/// How many tokens of the prompt are decoded before a completion: the text of a token can depend on those before it.
const CONTEXT: usize = 16;

/// How tokens become text.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// Strings that end the completion. The text ends before the string.
    pub stop: Vec<String>,
    /// Ids that end the completion. The text does not contain the token.
    pub stop_ids: Vec<u32>,
    /// Whether special tokens are part of the text.
    pub show_special: bool,
}

/// Decodes the tokens of one completion as they arrive. Text that may be the beginning of a stop string is withheld
/// until the next token decides.
pub struct CompletionText {
    tokenizer: Arc<Tokenizer>,
    options: TextOptions,
    stream: TextStream,
    /// Decodes single tokens, including special ones.
    pieces: TextStream,
    last: u32,
    /// Text that has not been returned.
    withheld: String,
    /// The number of bytes at the beginning of `withheld` that belong to the prompt.
    prompt_bytes: usize,
}

impl CompletionText {
    pub(super) fn new(tokenizer: &Arc<Tokenizer>, prompt: &[u32], options: &TextOptions) -> CompletionText {
        let (mut stream, mut pieces) = (TextStream::new(!options.show_special), TextStream::new(false));
        let mut before = String::new();
        for &id in &prompt[prompt.len().saturating_sub(CONTEXT)..] {
            // Ids of the vocabulary can be decoded.
            before += &stream.push(tokenizer, id).unwrap_or_default();
            let _ = pieces.push(tokenizer, id);
        }
        // As in transformers, a stop string may begin in the prompt.
        let withheld = before[before.len() - undecided(&before, &options.stop)..].to_owned();
        let (tokenizer, options, prompt_bytes) = (tokenizer.clone(), options.clone(), withheld.len());
        let last = prompt.last().copied().unwrap_or(0);
        CompletionText { tokenizer, options, stream, pieces, last, withheld, prompt_bytes }
    }

    /// Adds a token. Returns the text that it completes, and all remaining text if the completion ends.
    pub fn push(&mut self, id: u32, finish_reason: Option<FinishReason>) -> Result<String> {
        let is_stop_id = finish_reason == Some(FinishReason::Stop) && self.options.stop_ids.contains(&id);
        if !is_stop_id {
            self.withheld += &self.stream.push(&self.tokenizer, id)?;
        }
        let length = match finish_reason {
            None => self.withheld.len() - undecided(&self.withheld, &self.options.stop),
            Some(reason) => {
                self.withheld += &self.stream.finish(&self.tokenizer)?;
                let stop = self.options.stop.iter().filter_map(|stop| self.withheld.find(stop)).min();
                stop.filter(|_| reason == FinishReason::Stop && !is_stop_id).unwrap_or(self.withheld.len())
            }
        };
        let text = self.withheld[self.prompt_bytes.min(length)..length].to_owned();
        self.prompt_bytes -= self.prompt_bytes.min(length);
        self.withheld.drain(..length);
        Ok(text)
    }

    /// The text of the next token alone, and the texts of the tokens `others` in its place. Special tokens have their
    /// names; a token that does not complete a character has no text. Call it once for each token.
    pub fn piece(&mut self, id: u32, others: impl Iterator<Item = u32>) -> Result<(String, Vec<String>)> {
        // A token's text may depend on the token before it, so it is the difference between two decoded texts.
        let before = self.tokenizer.decode(&[self.last], false)?;
        let of = |other: u32| {
            let with = self.tokenizer.decode(&[self.last, other], false)?;
            Ok(with.strip_prefix(&before).map(str::to_owned).unwrap_or_default())
        };
        let others = others.map(of).collect::<Result<_>>()?;
        self.last = id;
        Ok((self.pieces.push(&self.tokenizer, id)?, others))
    }
}

/// The number of bytes at the end of `text` that may be the beginning of a stop string.
fn undecided(text: &str, stop: &[String]) -> usize {
    let of = |stop: &String| {
        let mut lengths = (1..stop.len()).rev().filter(|&length| stop.is_char_boundary(length));
        lengths.find(|&length| text.ends_with(&stop[..length])).unwrap_or(0)
    };
    stop.iter().map(of).max().unwrap_or(0)
}
