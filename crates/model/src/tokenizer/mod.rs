//! Tokenizers convert text to token ids and back. They are read from `tokenizer.json` and the settings that
//! transformers reads with it.
//!
//! Token ids equal those of transformers. The `tokenizers` crate does the work; this module adds what transformers adds
//! to it (special tokens by name, `add_bos_token`, several end tokens). Chat templates are in another module.

mod characters;
mod load;
mod stream;
#[cfg(test)]
mod tests;

pub use stream::TextStream;

use crate::io::{ModelFiles, TOKENIZER, TOKENIZER_CONFIG};
use crate::{Error, ModelConfig, Result};
use std::path::Path;

/// The named special tokens, as chat templates see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Token that starts a text.
    pub bos: Option<String>,
    /// Token that ends a text.
    pub eos: Option<String>,
    /// Padding token.
    pub pad: Option<String>,
    /// Token for text that is not in the vocabulary.
    pub unk: Option<String>,
}

impl SpecialTokens {
    /// The special tokens that are present, each with its name in `tokenizer_config.json`.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("bos_token", &self.bos), ("eos_token", &self.eos), ("pad_token", &self.pad), ("unk_token", &self.unk)]
            .into_iter()
            .filter_map(|(name, token)| Some((name, token.as_deref()?)))
    }
}

/// The fields of `generation_config.json` that affect sampling, with their values.
pub fn generation_settings(files: &ModelFiles) -> Result<Vec<(&'static str, serde_json::Value)>> {
    load::generation_settings(files)
}

/// Texts of up to this many bytes are always encoded to count their tokens.
const ALWAYS_ENCODED: usize = 1 << 20;

/// A tokenizer with its special tokens and settings.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: SpecialTokens,
    /// The content of `tokenizer_config.json`, for saving.
    config: serde_json::Map<String, serde_json::Value>,
    /// Length of the longest token in bytes, computed when first needed.
    longest: std::sync::OnceLock<usize>,
    /// The special tokens that are omitted from the text of a completion; `None` omits all of them.
    hidden: Option<Vec<u32>>,
}

impl Tokenizer {
    /// Reads the tokenizer of a directory.
    pub fn load(dir: &Path) -> Result<Tokenizer> {
        Tokenizer::of(&ModelFiles::read(dir)?)
    }

    /// The tokenizer of a model's files: `tokenizer.json` and its settings.
    pub fn of(files: &ModelFiles) -> Result<Tokenizer> {
        load::load(files)
    }

    /// A tokenizer whose tokens are single characters: first the special tokens that are present (pad, bos, eos, unk),
    /// then `chars` without repetitions. Encoding a character outside the vocabulary is an error, unless there is an
    /// unk token.
    pub fn characters(chars: impl IntoIterator<Item = char>, special: &SpecialTokens) -> Result<Tokenizer> {
        characters::characters(chars, special)
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` to `dir`.
    pub fn save(&self, dir: &Path) -> Result<()> {
        disk::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
        let json = self.inner.to_string(true).map_err(failed)?;
        let config = serde_json::to_string_pretty(&self.config).expect("a JSON map can be serialised") + "\n";
        for (name, text) in [(TOKENIZER, json), (TOKENIZER_CONFIG, config)] {
            let path = dir.join(name);
            crate::io::write_atomically(&path, |out| out.write_all(text.as_bytes()).map_err(|e| Error::io(&path, e)))?;
        }
        Ok(())
    }

    /// Token ids of a text, with the special tokens that the tokenizer adds around it: transformers' `tokenizer(text)`.
    ///
    /// A text that begins with the start token does not get a second one, unlike in
    /// [`encode_row`](Self::encode_row).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.ids(text, true)?;
        if let Some(bos) = self.bos_id()
            && ids.starts_with(&[bos, bos])
            && self.special.bos.as_deref().is_some_and(|b| text.starts_with(b))
        {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// Token ids of a text in training data, exactly as transformers' `tokenizer(text)` gives them. If the tokenizer
    /// adds a start token, a text that begins with the start token gets a second one.
    pub fn encode_row(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, true)
    }

    /// Token ids of a text that already contains its special tokens, such as a rendered chat. No start or end token is
    /// added.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, false)
    }

    /// Token ids of a text that already contains its special tokens, and the byte range of the text that each id
    /// represents.
    pub fn encode_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<std::ops::Range<usize>>)> {
        let encoding = self.inner.encode(text, false).map_err(failed)?;
        let offsets = encoding.get_offsets().iter().map(|&(begin, end)| begin..end).collect();
        Ok((encoding.get_ids().to_vec(), offsets))
    }

    /// Like [`encode_offsets`](Self::encode_offsets), with ranges of characters instead of bytes.
    pub(crate) fn encode_characters(&self, text: &str) -> Result<(Vec<u32>, Vec<std::ops::Range<usize>>)> {
        let encoding = self.inner.encode_char_offsets(text, false).map_err(failed)?;
        let offsets = encoding.get_offsets().iter().map(|&(begin, end)| begin..end).collect();
        Ok((encoding.get_ids().to_vec(), offsets))
    }

    fn ids(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| {
            let lacks = text.chars().find(|c| self.characters_lack(*c));
            match lacks {
                Some(c) => Error::Tokenizer(format!("the vocabulary has no character {c:?}")),
                None => failed(e),
            }
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Whether the vocabulary consists of characters and does not contain `c`.
    fn characters_lack(&self, c: char) -> bool {
        matches!(self.inner.get_model(), tokenizers::ModelWrapper::WordLevel(_))
            && self.inner.token_to_id(c.encode_utf8(&mut [0; 4])).is_none()
    }

    /// Decodes token ids to text. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary are skipped.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner.decode(ids, skip_special).map_err(failed)
    }

    /// A tokenizer whose [`completion`](Self::completion) shows all special tokens except `hidden`.
    pub fn showing_special(self, hidden: Vec<u32>) -> Tokenizer {
        Tokenizer { hidden: Some(hidden), ..self }
    }

    /// The text of a completion as reward functions read it: without special tokens, or with those that
    /// [`showing_special`](Self::showing_special) does not hide.
    pub fn completion(&self, ids: &[u32]) -> Result<String> {
        match &self.hidden {
            None => self.decode(ids, true),
            Some(hidden) => {
                let shown: Vec<u32> = ids.iter().copied().filter(|id| !hidden.contains(id)).collect();
                self.decode(&shown, false)
            }
        }
    }

    /// The id of the token with this text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
    /// The text of the token with this id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }
    /// The special tokens that have a name.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }
    /// Id of the start token.
    pub fn bos_id(&self) -> Option<u32> {
        self.token_id(self.special.bos.as_deref()?)
    }
    /// Id of the end token.
    pub fn eos_id(&self) -> Option<u32> {
        self.token_id(self.special.eos.as_deref()?)
    }
    /// Id of the padding token.
    pub fn pad_id(&self) -> Option<u32> {
        self.token_id(self.special.pad.as_deref()?)
    }
    /// Ids of all special tokens, in ascending order. They occur in a rendered chat, but not in text meant for a
    /// reader.
    pub fn special_ids(&self) -> Vec<u32> {
        let added = self.inner.get_added_tokens_decoder();
        let mut ids: Vec<u32> = added.into_iter().filter(|(_, t)| t.special).map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }
    /// Describes the first token, by id, whose id in `other` belongs to a different token or to none; `None` if `other`
    /// agrees on all tokens of this tokenizer. `other` may have more tokens.
    pub fn differs_in(&self, other: &Tokenizer) -> Option<String> {
        let mut own: Vec<(String, u32)> = self.inner.get_vocab(true).into_iter().collect();
        own.sort_unstable_by_key(|(_, id)| *id);
        let theirs = other.inner.get_vocab(true);
        let (token, id) = own.into_iter().find(|(token, id)| theirs.get(token) != Some(id))?;
        Some(match other.token(id) {
            Some(found) => format!("id {id} is {token:?} in one tokenizer and {found:?} in the other"),
            None => format!("id {id} is {token:?} in one tokenizer, but the other has no such id"),
        })
    }

    /// Length of the longest token in bytes.
    pub fn longest_token(&self) -> usize {
        let bytes = || self.inner.get_vocab(true).keys().map(String::len).max().unwrap_or(0).max(1);
        *self.longest.get_or_init(bytes)
    }

    /// Whether a text of `bytes` bytes certainly has more than `tokens` tokens. This avoids encoding it, which takes
    /// sixty times the text's memory. Up to one mebibyte the result is always false, because such texts are encoded.
    pub fn is_beyond(&self, bytes: usize, tokens: usize) -> bool {
        bytes > ALWAYS_ENCODED && bytes / self.longest_token() > tokens
    }

    /// Size of the vocabulary: the highest id plus 1.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// Fails if the tokenizer has ids for which the model's embedding has no row.
    pub fn check_fits(&self, config: &ModelConfig) -> Result<()> {
        let (ours, rows) = (self.vocab_size(), config.vocab_size);
        if ours > rows {
            let token = self.token(ours as u32 - 1).unwrap_or_default();
            let message = format!(
                "the vocabulary has ids up to {} ({token:?}), but the embedding has {rows} rows \
                 (`vocab_size` in config.json)",
                ours - 1
            );
            return Err(Error::Tokenizer(message));
        }
        Ok(())
    }

    /// Ids of the tokens that end a completion: those in `generation_config.json`, or else in `config`, and the
    /// tokenizer's own end token. The ids are ascending, without repetitions.
    pub fn eos_ids(&self, files: &ModelFiles, config: &ModelConfig) -> Result<Vec<u32>> {
        let mut ids = match load::generation_eos(files)? {
            Some(ids) => ids,
            None => config.eos_token_ids.clone(),
        };
        ids.extend(self.eos_id());
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} ids, {:?})", self.vocab_size(), self.special)
    }
}

fn failed(error: tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}
