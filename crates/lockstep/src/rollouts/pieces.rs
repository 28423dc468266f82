//! The text of each token of a completion, for displays that show tokens one by one.

use crate::error::OrBadInput;
use model::tokenizer::Tokenizer;
use std::path::Path;

/// A tokenizer that gives the text of each token.
pub struct TokenTexts(Tokenizer);

impl TokenTexts {
    /// Loads the tokenizer of a model directory.
    pub fn open(dir: &Path) -> anyhow::Result<TokenTexts> {
        Ok(TokenTexts(Tokenizer::load(dir).or_bad_input_in(dir.display())?))
    }

    /// The text of all tokens. Special tokens are shown by their names.
    pub fn text(&self, ids: &[u32]) -> anyhow::Result<String> {
        self.0.decode(ids, false).or_bad_input()
    }

    /// One string per token, whose concatenation is the text of all tokens. The last token of a character that spans
    /// several tokens has the whole character, and the strings of the other tokens are empty. Special tokens are shown
    /// by their names.
    pub fn pieces(&self, ids: &[u32]) -> anyhow::Result<Vec<String>> {
        let text = |range: &[u32]| self.text(range);
        // A token's text may depend on the token before it, so it is the difference between two decoded texts.
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
pub(in crate::rollouts) mod tests {
    use super::*;
    use model::tokenizer::SpecialTokens;

    #[test]
    fn joined_token_texts_equal_the_whole_text() {
        let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
        let texts = TokenTexts(Tokenizer::characters("ab c".chars(), &special).unwrap());
        let ids = texts.0.encode("a cab").unwrap();
        let pieces = texts.pieces(&ids).unwrap();
        assert_eq!((pieces.len(), pieces.concat()), (ids.len(), texts.0.decode(&ids, false).unwrap()));
        assert!(texts.pieces(&[]).unwrap().is_empty());
    }

    /// A tokenizer whose tokens are `a`, the two bytes of `é`, and a space with the letter `b`.
    pub(in crate::rollouts) fn byte_texts() -> TokenTexts {
        let decoder = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}"#;
        let json = format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {decoder}, "post_processor": null, "decoder": {decoder}, "model": {{"type": "BPE",
            "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {{"a": 0, "\u00c3": 1, "\u00a9": 2, "\u0120b": 3}}, "merges": []}}}}"#
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
        TokenTexts::open(dir.path()).unwrap()
    }

    impl TokenTexts {
        pub(in crate::rollouts) fn tokenizer(self) -> Tokenizer {
            self.0
        }
    }

    #[test]
    fn a_character_of_several_tokens_belongs_to_the_last_token() {
        let texts = byte_texts();
        let pieces = |ids: &[u32]| texts.pieces(ids).unwrap();
        assert_eq!(pieces(&[0, 1, 2, 3, 0]), ["a", "", "é", " b", "a"]);
        assert_eq!(pieces(&[1, 2, 1, 2]), ["", "é", "", "é"]);
        // An unfinished character has an empty text; at the end it is U+FFFD.
        assert_eq!(pieces(&[0, 1, 0]), ["a", "", "\u{fffd}a"]);
        assert_eq!(pieces(&[0, 1]), ["a", "\u{fffd}"]);
        assert_eq!(pieces(&[1]), ["\u{fffd}"]);
        for ids in [&[0, 1, 2, 3, 0][..], &[0, 1, 0], &[3, 1, 2, 2, 0, 1]] {
            assert_eq!(pieces(ids).concat(), texts.text(ids).unwrap());
        }
        assert!(TokenTexts::open(Path::new("/nowhere")).is_err());
    }
}
