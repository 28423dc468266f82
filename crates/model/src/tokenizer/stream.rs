//! Incremental decoding: the text of a growing sequence of tokens, piece by piece.

use super::Tokenizer;
use crate::Result;

/// Decodes token ids as they arrive. A character whose bytes are spread over several tokens is returned once it is
/// complete.
///
/// The text of a token depends on its neighbours (leading spaces, byte fallback). So the last tokens whose text was
/// returned are decoded again with the new ones, and only the difference is returned.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    ids: Vec<u32>,
    /// Number of leading ids whose text has already been returned.
    given: usize,
    skip_special: bool,
}

impl TextStream {
    /// Starts with an empty text. With `skip_special`, special tokens produce no text.
    pub fn new(skip_special: bool) -> TextStream {
        TextStream { skip_special, ..TextStream::default() }
    }

    /// Adds the next id, and returns the text that it completes. The text may be empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = tokenizer.decode(&self.ids, self.skip_special)?;
        // The text ends in the replacement character until the last byte of a character arrives.
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.give(tokenizer, text)
    }

    /// Returns the remaining text: the bytes of a character that was never completed.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = tokenizer.decode(&self.ids, self.skip_special)?;
        self.give(tokenizer, text)
    }

    fn give(&mut self, tokenizer: &Tokenizer, text: String) -> Result<String> {
        let before = tokenizer.decode(&self.ids[..self.given], self.skip_special)?;
        let piece = text.strip_prefix(&before).unwrap_or_default().to_owned();
        if !piece.is_empty() {
            // The tokens of the last piece are kept as left neighbours of the next ones.
            self.ids.drain(..self.given);
            self.given = self.ids.len();
        }
        Ok(piece)
    }
}
