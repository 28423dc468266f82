//! `/v1/chat/completions`: the assistant's next message, rendered by the model's chat template.

use super::choice::{Choice, Piece};
use super::{Endpoint, Wanted, tools};
use crate::body::{Object, wrong};
use crate::error::ApiError;
use crate::fields::Of;
use lockstep::service::{Chat, Service};
use serde_json::{Value, json};

pub fn read(service: &Service, bytes: &[u8]) -> Result<Wanted, ApiError> {
    let mut o = Object::parse(Of::Chat, bytes)?;
    let wanted = Wanted::sampled(Endpoint::Chat, service, o.text("model")?, &o)?;
    let logprobs = logprobs(&o)?;
    let mut wanted = wanted.with_logprobs(logprobs).with_stream(&mut o)?;
    if let Some(tokens) = o.count("max_completion_tokens")? {
        if tokens == 0 {
            return Err(ApiError::field("max_completion_tokens", "`max_completion_tokens` is 0: expected 1 or more"));
        }
        wanted.generate.max_tokens = Some(tokens);
    }
    let messages = match o.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(other) => return Err(wrong("messages", &other, "a list of messages")),
        None => return Err(ApiError::field("messages", "`messages` is missing")),
    };
    let messages = messages.into_iter().enumerate().map(|(place, message)| plain(place, message));
    let messages = messages.collect::<Result<Vec<Value>, ApiError>>()?;
    let kwargs = match o.take("chat_template_kwargs") {
        None => None,
        Some(Value::Object(kwargs)) => Some(kwargs),
        Some(other) => return Err(wrong("chat_template_kwargs", &other, "an object")),
    };
    let continue_final_message = o.flag("continue_final_message")?.unwrap_or(false);
    let tools = tools::read(service, &mut o)?;
    wanted.calls = tools.calls;
    let chat = Chat {
        messages: &messages,
        tools: tools.schemas.as_deref(),
        add_generation_prompt: o.flag("add_generation_prompt")?.unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs: kwargs.as_ref(),
    };
    let ids = service.encode_chat(&chat).map_err(|refused| wanted.own_name(refused.into()))?;
    wanted.generate.prompts = vec![ids];
    Ok(wanted)
}

/// The number of alternatives: `top_logprobs`, if `logprobs` is true.
fn logprobs(o: &Object) -> Result<Option<usize>, ApiError> {
    let top = o.count("top_logprobs")?;
    if o.flag("logprobs")?.unwrap_or(false) {
        return Ok(Some(top.unwrap_or(0)));
    }
    if top.is_some_and(|top| top > 0) {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs \"logprobs\": true"));
    }
    Ok(None)
}

/// A message as templates read it: content in parts becomes one text, as in vLLM.
fn plain(place: usize, mut message: Value) -> Result<Value, ApiError> {
    let name = |field: &str| format!("messages[{place}]{field}");
    let Some(fields) = message.as_object_mut() else {
        return Err(wrong(&name(""), &message, "an object with `role` and `content`"));
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        let role = fields.get("role").cloned().unwrap_or_default();
        return Err(wrong(&name(".role"), &role, "system, user, assistant or another role of the template"));
    }
    let calls = tools::plain_calls(&name(".tool_calls"), fields)?;
    if calls && fields.get("content").is_none_or(Value::is_null) {
        // Templates test whether there is a content.
        fields.remove("content");
        return Ok(message);
    }
    let Some(content) = fields.get_mut("content") else {
        let message = format!("`{}` is missing", name(".content"));
        return Err(ApiError::field(name(".content"), message));
    };
    if let Value::Array(parts) = content {
        let mut texts = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let text = part.get("text").and_then(Value::as_str).filter(|_| part["type"] == "text");
            let own = name(&format!(".content[{at}]"));
            texts.push(text.ok_or_else(|| wrong(&own, part, "a part of type `text`: the models are text models"))?);
        }
        *content = texts.join("\n").into();
    }
    if !content.is_string() {
        let content = content.clone();
        return Err(wrong(&name(".content"), &content, "a string or a list of text parts"));
    }
    Ok(message)
}

/// OpenAI's `logprobs` of these tokens.
fn logged(pieces: &[Piece]) -> Value {
    let entry = |name: &str, logp: Option<f32>| json!({"token": name, "logprob": logp, "bytes": name.as_bytes()});
    let of = |piece: &Piece| {
        let mut own = entry(&piece.name, piece.logp);
        own["bytes"] = json!(piece.text.as_bytes());
        own["top_logprobs"] = piece.top.iter().map(|(name, logp)| entry(name, Some(*logp))).collect();
        own
    };
    json!({"content": pieces.iter().map(of).collect::<Vec<_>>(), "refusal": null})
}

/// An element of `choices` in a response.
pub fn choice(wanted: &Wanted, choice: &Choice, text: &str, pieces: &[Piece]) -> Value {
    let mut json = chunk(wanted, choice, pieces, json!({}));
    json["message"] = json!({"role": "assistant", "content": text, "refusal": null});
    if !choice.calls.is_empty() {
        json["message"]["tool_calls"] = json!(choice.calls);
        if text.is_empty() {
            json["message"]["content"] = Value::Null;
        }
    }
    json["finish_reason"] = json!(choice.finish_name());
    if let Some(fields) = json.as_object_mut() {
        fields.remove("delta");
    }
    json
}

/// An element of `choices` in a chunk of a stream.
pub fn chunk(wanted: &Wanted, choice: &Choice, pieces: &[Piece], delta: Value) -> Value {
    let mut json = json!({"index": choice.index, "delta": delta, "logprobs": null, "finish_reason": null});
    if wanted.logprobs.is_some() && !pieces.is_empty() {
        json["logprobs"] = logged(pieces);
    }
    if wanted.return_token_ids && !pieces.is_empty() {
        json["token_ids"] = pieces.iter().map(|piece| piece.id).collect();
    }
    json
}
