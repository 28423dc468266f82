//! `/v1/completions`: completions of a text or of token ids.

use super::choice::{Choice, Piece};
use super::{Endpoint, Wanted};
use crate::body::{Object, ids, wrong};
use crate::error::ApiError;
use crate::fields::Of;
use lockstep::service::Service;
use serde_json::{Value, json};

/// OpenAI's default for `max_tokens`.
const MAX_TOKENS: usize = 16;

pub fn read(service: &Service, bytes: &[u8]) -> Result<Wanted, ApiError> {
    let mut o = Object::parse(Of::Completion, bytes)?;
    let wanted = Wanted::sampled(Endpoint::Completions, service, o.text("model")?, &o)?;
    let mut wanted = wanted.with_logprobs(o.count("logprobs")?).with_stream(&mut o)?;
    wanted.generate.max_tokens.get_or_insert(MAX_TOKENS);
    wanted.echo = o.flag("echo")?.unwrap_or(false);
    if wanted.echo && wanted.stream {
        return Err(ApiError::field("echo", "`echo` with \"stream\": true is not supported: request one of them"));
    }
    wanted.generate.prompt_logprobs = wanted.echo && wanted.logprobs.is_some();
    let Some(prompt) = o.take("prompt") else { return Err(ApiError::field("prompt", "`prompt` is missing")) };
    wanted.generate.prompts = prompts(service, &prompt)?;
    Ok(wanted)
}

/// The prompts: a text, a list of texts, a list of token ids, or a list of such lists.
fn prompts(service: &Service, prompt: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
    let expected = "a string, a list of strings, a list of token ids, or a list of such lists";
    let refused = || wrong("prompt", prompt, expected);
    match prompt {
        Value::String(text) => Ok(vec![service.encode(text)?]),
        Value::Array(list) if list.first().is_some_and(Value::is_u64) => Ok(vec![ids(prompt).ok_or_else(refused)?]),
        Value::Array(list) => {
            let one = |item: &Value| match item {
                Value::String(text) => Ok(service.encode(text)?),
                Value::Array(_) => ids(item).ok_or_else(refused),
                _ => Err(refused()),
            };
            list.iter().map(one).collect()
        }
        _ => Err(refused()),
    }
}

/// OpenAI's `logprobs` of these tokens, whose text begins at the character `offset`. The prompt's first token has no
/// log-probability.
fn logprobs(pieces: &[Piece], mut offset: usize) -> Value {
    let (mut tokens, mut logps, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        tokens.push(json!(piece.name));
        logps.push(json!(piece.logp));
        let own = piece.logp.map(|logp| (piece.name.clone(), logp));
        let all = own.iter().chain(&piece.top).map(|(name, logp)| (name.clone(), json!(logp)));
        tops.push(if own.is_some() { Value::Object(all.collect()) } else { Value::Null });
        offsets.push(json!(offset));
        offset += piece.text.chars().count();
    }
    json!({"tokens": tokens, "token_logprobs": logps, "top_logprobs": tops, "text_offset": offsets})
}

/// An element of `choices`, in a response or in a chunk of a stream. `text` and `pieces` are the new ones, and
/// `is_first` is set for the first chunk of a choice and for a whole response.
pub fn choice(wanted: &Wanted, choice: &Choice, text: &str, pieces: &[Piece], is_first: bool) -> Value {
    let mut json = json!({
        "index": choice.index, "text": text, "logprobs": null,
        "finish_reason": choice.finish_reason.map(lockstep::service::FinishReason::name),
    });
    if wanted.logprobs.is_some() {
        let offset = if is_first { 0 } else { choice.offset };
        json["logprobs"] = logprobs(pieces, offset);
    }
    if wanted.return_token_ids {
        json["token_ids"] = pieces.iter().filter(|piece| !piece.is_prompt).map(|piece| piece.id).collect();
        if is_first {
            json["prompt_token_ids"] = json!(wanted.generate.prompts[choice.prompt]);
        }
    }
    json
}
