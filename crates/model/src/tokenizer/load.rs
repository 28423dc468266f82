//! Reads the tokenizer files of a model directory, as transformers does.

use super::{SpecialTokens, Tokenizer, failed};
use crate::io::{GENERATION_CONFIG, ModelFiles, SPECIAL_TOKENS_MAP, TOKENIZER, TOKENIZER_CONFIG};
use crate::{Error, Result};
use serde_json::{Map, Value};
use tokenizers::AddedToken;
use tokenizers::processors::template::TemplateProcessing;

pub(super) fn load(files: &ModelFiles) -> Result<Tokenizer> {
    let path = files.path(TOKENIZER);
    let bytes = files.get(TOKENIZER).ok_or_else(|| {
        Error::file(&path, "no such file: copy it and tokenizer_config.json from the tokenizer's directory")
    })?;
    let mut inner = parse(bytes).map_err(|message| Error::file(&path, message))?;

    let config = files.object(TOKENIZER_CONFIG)?.unwrap_or_default();
    let map = files.object(SPECIAL_TOKENS_MAP)?.unwrap_or_default();
    let special = special_tokens(&config, &map);

    // Adds special tokens that the settings name and `tokenizer.json` lacks.
    let more = ["additional_special_tokens", "extra_special_tokens"].into_iter().filter_map(|key| config.get(key));
    let more = more.filter_map(Value::as_array).flatten().filter_map(token_text);
    let mut missing: Vec<String> = special.named().map(|(_, token)| token.to_owned()).chain(more).collect();
    let added = inner.get_added_tokens_decoder();
    missing.retain(|t| inner.token_to_id(t).is_none_or(|id| !added.contains_key(&id)));
    inner.add_special_tokens(missing.into_iter().map(|t| AddedToken::from(t, true))).map_err(failed)?;

    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    inner.set_encode_special_tokens(flag("split_special_tokens") == Some(true));
    let (bos, eos) = (flag("add_bos_token"), flag("add_eos_token"));
    if bos.is_some() || eos.is_some() {
        surround(&mut inner, &special, bos == Some(true), eos == Some(true))?;
    }
    Ok(Tokenizer { inner, special, config, longest: Default::default(), hidden: None })
}

/// Parses a `tokenizer.json`. The `tokenizers` crate panics on invalid JSON and on some invalid settings, while it
/// reads the file or encodes the first text (for example if a template names a missing token). So this function checks
/// the JSON, encodes a text, and catches panics.
fn parse(bytes: &[u8]) -> std::result::Result<tokenizers::Tokenizer, String> {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(|e| format!("not JSON: {e}"))?;
    let parse_and_try = || {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
        // Files may contain truncation and padding settings for the author's batches. This crate needs all ids of a
        // text and no padding, and padding a text to millions of tokens would take seconds.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        // An error is ignored here; encoding a real text will report it.
        let _ = tokenizer.encode("a b", true);
        Ok(tokenizer)
    };
    quietly(parse_and_try).unwrap_or_else(|panic| Err(format!("the tokenizers library cannot load it: {panic}")))
}

/// Returns the result of `f`, or its panic message, without printing the panic.
fn quietly<T>(f: impl FnOnce() -> T + std::panic::UnwindSafe) -> std::result::Result<T, String> {
    use std::cell::Cell;
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                print(panic)
            }
        }));
    });
    QUIET.set(true);
    let outcome = std::panic::catch_unwind(f);
    QUIET.set(false);
    outcome.map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        words.unwrap_or("it panics").to_owned()
    })
}

/// Makes encoding add the start token before every text, and the end token after it.
fn surround(inner: &mut tokenizers::Tokenizer, special: &SpecialTokens, bos: bool, eos: bool) -> Result<()> {
    let token = |on: bool, token: &Option<String>| token.clone().filter(|_| on);
    let (bos, eos) = (token(bos, &special.bos), token(eos, &special.eos));
    let mut template: Vec<String> = bos.iter().cloned().collect();
    template.push("$A".into());
    template.extend(eos.iter().cloned());
    let ids = bos.iter().chain(&eos).filter_map(|t| Some((t.clone(), inner.token_to_id(t)?))).collect::<Vec<_>>();
    let processor = TemplateProcessing::builder()
        .try_single(template)
        .map_err(Error::Tokenizer)?
        .special_tokens(ids)
        .build()
        .map_err(|e| Error::Tokenizer(e.to_string()))?;
    inner.with_post_processor(Some(processor));
    Ok(())
}

/// The named special tokens: from `tokenizer_config.json`, or else from `special_tokens_map.json`, or else the defaults
/// of the tokenizer class.
fn special_tokens(config: &Map<String, Value>, map: &Map<String, Value>) -> SpecialTokens {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("");
    let token = |name: &str, qwen_default: Option<&str>, llama_default: Option<&str>| {
        let value = config.get(name).or_else(|| map.get(name));
        match value {
            // An explicit null means no token; only an absent field has a default.
            Some(value) => token_text(value),
            None if class.starts_with("Qwen2Tokenizer") => qwen_default.map(str::to_owned),
            None if class.starts_with("LlamaTokenizer") => llama_default.map(str::to_owned),
            None => None,
        }
    };
    let end = Some("<|endoftext|>");
    SpecialTokens {
        bos: token("bos_token", None, Some("<s>")),
        eos: token("eos_token", end, Some("</s>")),
        pad: token("pad_token", end, None),
        unk: token("unk_token", end, Some("<unk>")),
    }
}

/// The text of a token in settings: a string, or an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// Ids of the end tokens in `generation_config.json`; `None` if the file is missing or has no `eos_token_id`.
pub(super) fn generation_eos(files: &ModelFiles) -> Result<Option<Vec<u32>>> {
    let bad = || Error::file(files.path(GENERATION_CONFIG), "`eos_token_id` must be a token id or a list of token ids");
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(bad);
    match files.object(GENERATION_CONFIG)?.as_ref().and_then(|g| g.get("eos_token_id")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(ids)) => ids.iter().map(id).collect::<Result<_>>().map(Some),
        Some(one) => Ok(Some(vec![id(one)?])),
    }
}

/// Fields of `generation_config.json` that affect sampling, each with the value that has no effect.
const OF_SAMPLING: [(&str, Option<f64>); 19] = [
    ("temperature", Some(1.0)),
    ("top_p", Some(1.0)),
    ("top_k", Some(0.0)),
    ("min_p", Some(0.0)),
    ("typical_p", Some(1.0)),
    ("epsilon_cutoff", Some(0.0)),
    ("eta_cutoff", Some(0.0)),
    ("repetition_penalty", Some(1.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("no_repeat_ngram_size", Some(0.0)),
    ("min_length", Some(0.0)),
    ("min_new_tokens", Some(0.0)),
    ("num_beams", Some(1.0)),
    ("guidance_scale", Some(1.0)),
    ("suppress_tokens", None),
    ("begin_suppress_tokens", None),
    ("bad_words_ids", None),
    ("forced_bos_token_id", None),
    ("stop_strings", None),
];

/// The fields of `generation_config.json` that affect sampling, with their values.
pub(super) fn generation_settings(files: &ModelFiles) -> Result<Vec<(&'static str, Value)>> {
    let Some(file) = files.object(GENERATION_CONFIG)? else { return Ok(Vec::new()) };
    let changes = |value: &Value, neutral: Option<f64>| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        value => neutral.is_none() || value.as_f64() != neutral,
    };
    let read = |(name, neutral): (&'static str, Option<f64>)| {
        file.get(name).filter(|value| changes(value, neutral)).map(|value| (name, value.clone()))
    };
    Ok(OF_SAMPLING.into_iter().filter_map(read).collect())
}
