//! What each token adds to a text: for pages that show tokens one by one.

use crate::error::OrBadInput;
use model::tokenizer::Tokenizer;
use std::path::Path;

/// Texts of tokens, by a tokenizer alone.
pub struct TokenTexts(Tokenizer);

impl TokenTexts {
    /// That of a model's directory.
    pub fn open(dir: &Path) -> anyhow::Result<TokenTexts> {
        Ok(TokenTexts(Tokenizer::load(dir).or_bad_input_in(dir.display())?))
    }

    /// One text for each token; joined they are the text of all. A token that is a part of a character adds nothing,
    /// and the one that completes it adds the character. Special tokens are shown by their names.
    pub fn pieces(&self, ids: &[u32]) -> anyhow::Result<Vec<String>> {
        let text = |range: &[u32]| self.0.decode(range, false).or_bad_input();
        // A token's text may depend on the one before it, so that it is the difference of two texts.
        let (mut first, mut read) = (0, 0);
        let mut pieces = Vec::with_capacity(ids.len());
        for end in 1..=ids.len() {
            let (before, with) = (text(&ids[first..read])?, text(&ids[first..end])?);
            let is_whole = !with.ends_with(char::REPLACEMENT_CHARACTER) || end == ids.len();
            match with.strip_prefix(before.as_str()).filter(|_| is_whole) {
                Some(piece) => {
                    pieces.push(piece.to_owned());
                    (first, read) = (read, end);
                }
                None => pieces.push(String::new()),
            }
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::tokenizer::SpecialTokens;

    #[test]
    fn joined_pieces_are_the_text() {
        let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
        let texts = TokenTexts(Tokenizer::characters("ab c".chars(), &special).unwrap());
        let ids = texts.0.encode("a cab").unwrap();
        let pieces = texts.pieces(&ids).unwrap();
        assert_eq!((pieces.len(), pieces.concat()), (ids.len(), texts.0.decode(&ids, false).unwrap()));
        assert!(texts.pieces(&[]).unwrap().is_empty());
    }
}
