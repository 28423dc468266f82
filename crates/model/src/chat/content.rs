//! The content of a prompt or a completion: a string, or chat messages. Chat templates are applied elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// A prompt or a completion: a string, or a conversation.
///
/// A conversation's messages are kept as JSON objects (`role`, `content`, and other fields of the dataset), so that
/// reward functions receive them complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Chat messages in order, each an object with `role` and `content`.
    Messages(Vec<Value>),
}

impl Content {
    /// A conversation of one assistant message. As in TRL, rewards get the completion of a conversational prompt in
    /// this form.
    pub fn assistant(text: impl Into<String>) -> Self {
        Content::Messages(vec![serde_json::json!({"role": "assistant", "content": text.into()})])
    }

    /// Reads a string, or a list of messages with a role and a content, from JSON. The error is a message for the user.
    pub fn read(value: &Value) -> Result<Content, String> {
        match value {
            Value::String(text) => Ok(Content::Text(text.clone())),
            Value::Array(messages) if !messages.is_empty() => {
                let messages: Vec<Value> = messages.iter().map(in_chatml).collect();
                for (i, message) in messages.iter().enumerate() {
                    let role = message.get("role").is_some_and(Value::is_string);
                    // A message that only calls tools has no content.
                    if !role || (message.get("content").is_none() && message.get("tool_calls").is_none()) {
                        return Err(format!(
                            "message {} of the conversation has no `role` or no `content`: {}",
                            i + 1,
                            beginning(message)
                        ));
                    }
                }
                Ok(Content::Messages(messages))
            }
            other => Err(format!(
                "expected a string or a list of messages {{\"role\": …, \"content\": …}}, got {}",
                beginning(other)
            )),
        }
    }

    /// Puts a system message or text before a prompt, unless the prompt already has a system message.
    pub fn after_system(self, system: &str) -> Content {
        let message = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
        match self {
            Content::Text(text) => Content::Messages(vec![message("system", system), message("user", &text)]),
            Content::Messages(messages) if messages[0]["role"] == "system" => Content::Messages(messages),
            Content::Messages(messages) => {
                Content::Messages(std::iter::once(message("system", system)).chain(messages).collect())
            }
        }
    }

    /// Splits two answers into their common prefix and their two remainders, as TRL does. The prefix consists of
    /// messages or, for strings, of characters, without a space at its end. Neither remainder is empty: if one answer
    /// is a prefix of the other, its remainder is its last message or character.
    pub fn split_common(chosen: Content, rejected: Content) -> Result<[Content; 3], String> {
        match (chosen, rejected) {
            (Content::Text(chosen), Content::Text(rejected)) => {
                let (c, r): (Vec<char>, Vec<char>) = (chosen.chars().collect(), rejected.chars().collect());
                let mut at = common(&c, &r);
                if at > 0 && c[at - 1] == ' ' && c[at] != r[at] {
                    at -= 1;
                }
                let text = |chars: &[char]| Content::Text(chars.iter().collect());
                Ok([text(&c[..at]), text(&c[at..]), text(&r[at..])])
            }
            (Content::Messages(c), Content::Messages(r)) => {
                let at = common(&c, &r);
                if at == 0 {
                    return Err(
                        "the row has no prompt, and `chosen` and `rejected` do not begin with the same message: add a \
                         `prompt` column"
                            .to_owned(),
                    );
                }
                let messages = |messages: &[Value]| Content::Messages(messages.to_vec());
                Ok([messages(&c[..at]), messages(&c[at..]), messages(&r[at..])])
            }
            _ => Err("`chosen` and `rejected` must both be strings or both be conversations".to_owned()),
        }
    }

    /// The text to score: the string itself, or the texts of all messages joined by newlines.
    ///
    /// A message's `content` may be a string or a list of parts; parts with a `text` are used.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Content::Text(text) => Cow::Borrowed(text),
            Content::Messages(messages) => Cow::Owned(messages.iter().map(message_text).collect::<Vec<_>>().join("\n")),
        }
    }
}

/// A message with `role` and `content`. A message in ShareGPT's form, with `from` and `value`, is converted.
fn in_chatml(message: &Value) -> Value {
    let mut message = message.clone();
    if let Value::Object(fields) = &mut message
        && !fields.contains_key("role")
    {
        for (old, new) in [("from", "role"), ("value", "content")] {
            if let Some(value) = fields.shift_remove(old) {
                fields.insert(new.to_owned(), value);
            }
        }
    }
    message
}

/// Length of the common prefix of two lists, always less than the length of either list.
fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    same.min(a.len().min(b.len()).saturating_sub(1))
}

/// The first characters of a value's JSON, for error messages.
fn beginning(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(60).chain("…".chars()).collect() }
}

/// The text of one message, empty if it has none.
fn message_text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect::<String>()
        }
        _ => String::new(),
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Content::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Content::Text(text)
    }
}
