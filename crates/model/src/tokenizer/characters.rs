//! Tokenizers whose tokens are single characters, built in memory.

use super::{SpecialTokens, Tokenizer, failed};
use crate::Result;
use serde_json::{Map, Value, json};

pub(super) fn characters(chars: impl IntoIterator<Item = char>, special: &SpecialTokens) -> Result<Tokenizer> {
    let mut vocab = Map::new();
    let order = [&special.pad, &special.bos, &special.eos, &special.unk];
    for token in order.into_iter().flatten().cloned().chain(chars.into_iter().map(String::from)) {
        let next = vocab.len();
        vocab.entry(token).or_insert_with(|| next.into());
    }
    let mut added: Vec<Value> = Vec::new();
    for token in order.into_iter().flatten() {
        let id = &vocab[token];
        if added.iter().all(|a| a["id"] != *id) {
            added.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}));
        }
    }
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        // Every character is a separate token, including line breaks.
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        // `unk_token` is a required field. Without an unk token, the field names a token that no text contains.
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": special.unk.as_deref().unwrap_or("")},
    });
    let inner = tokenizers::Tokenizer::from_bytes(json.to_string()).map_err(failed)?;
    let mut config = Map::new();
    config.extend(special.named().map(|(name, token)| (name.to_owned(), token.into())));
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    Ok(Tokenizer { inner, special: special.clone(), config, longest: Default::default(), hidden: None })
}
