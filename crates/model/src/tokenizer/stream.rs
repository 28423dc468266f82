//! Text of a growing sequence, piece by piece.

use super::Tokenizer;
use crate::Result;

/// Turns ids into text as they come. A character whose bytes are spread over several tokens comes out when it is whole.
///
/// The text of a token depends on its neighbours (leading spaces, byte fallback), so the last tokens that gave text are
/// decoded again with the new ones, and what is new in the result is the piece.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    ids: Vec<u32>,
    /// Ids before this one gave their text already.
    given: usize,
    skip_special: bool,
}

impl TextStream {
    /// An empty text; special tokens give no text if `skip_special`.
    pub fn new(skip_special: bool) -> TextStream {
        TextStream { skip_special, ..TextStream::default() }
    }

    /// Takes the next id and returns the text that it completes, maybe none.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = tokenizer.decode(&self.ids, self.skip_special)?;
        // An unfinished character ends in the replacement character, until its last byte comes.
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.give(tokenizer, text)
    }

    /// The text that is still held back: bytes of a character that never became whole.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = tokenizer.decode(&self.ids, self.skip_special)?;
        self.give(tokenizer, text)
    }

    fn give(&mut self, tokenizer: &Tokenizer, text: String) -> Result<String> {
        let before = tokenizer.decode(&self.ids[..self.given], self.skip_special)?;
        let piece = text.strip_prefix(&before).unwrap_or_default().to_owned();
        if !piece.is_empty() {
            // What gave text last stays, as the neighbour of what comes next.
            self.ids.drain(..self.given);
            self.given = self.ids.len();
        }
        Ok(piece)
    }
}
