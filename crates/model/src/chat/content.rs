//! What a prompt or a completion says: text, or messages. Knows no template.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// A prompt or a completion: text, or a conversation.
///
/// A conversation's messages are kept as JSON objects (`role`, `content`, and whatever else the dataset carries), so
/// that nothing is lost on the way to a reward program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Chat messages in order, each an object with `role` and `content`.
    Messages(Vec<Value>),
}

impl Content {
    /// One assistant message: how a completion of a conversational prompt is shown to rewards, as TRL does.
    pub fn assistant(text: impl Into<String>) -> Self {
        Content::Messages(vec![serde_json::json!({"role": "assistant", "content": text.into()})])
    }

    /// The text to judge: the text itself, or the text of all messages joined by line feeds.
    ///
    /// A message's `content` may be a string or a list of parts, of which those with a `text` count.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Content::Text(text) => Cow::Borrowed(text),
            Content::Messages(messages) => Cow::Owned(messages.iter().map(message_text).collect::<Vec<_>>().join("\n")),
        }
    }
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
