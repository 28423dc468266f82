//! Message contents that are lists of parts: `[{"type": "text", "text": …}]`. The models here read text only, so a part
//! that is an image, a video, audio or a file is an error, and so is a text that the chat template leaves out.

use super::python;
use crate::{Error, Result};
use serde_json::{Map, Value};

/// Names of fields and columns that hold images, video or audio, in TRL, transformers and OpenAI's API.
const MEDIA: [&str; 22] = [
    "image",
    "images",
    "image_url",
    "image_urls",
    "input_image",
    "pixel_values",
    "pixel_values_videos",
    "image_grid_thw",
    "video",
    "videos",
    "video_url",
    "video_urls",
    "input_video",
    "video_grid_thw",
    "audio",
    "audios",
    "audio_url",
    "audio_urls",
    "input_audio",
    "input_features",
    "file",
    "input_file",
];
/// Names that mean a file as the type of a part, but can mean anything as the name of a column.
const FILES: [&str; 2] = ["file", "input_file"];

/// Whether a column of this name holds images, video or audio.
pub fn is_media_column(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    MEDIA.contains(&name.as_str()) && !FILES.contains(&name.as_str())
}

/// Whether a value is empty: null, false, an empty string, or a list or an object of such values.
pub fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.iter().all(is_nothing),
        Value::Object(fields) => fields.values().all(is_nothing),
    }
}

/// The first image, video, audio or file in the messages: the message's index, and the type of the part or the name of
/// the field.
pub fn media_in(messages: &[Value]) -> Option<(usize, &str)> {
    messages.iter().enumerate().find_map(|(i, message)| Some((i, media_of(message)?)))
}

fn media_of(message: &Value) -> Option<&str> {
    let fields = message.as_object()?;
    let own = fields.iter().find(|(name, value)| *name != "content" && is_media_column(name) && !is_nothing(value));
    own.map(|(name, _)| name.as_str()).or_else(|| parts(fields).iter().find_map(media_of_part))
}

/// The parts of a message's content; none if the content is a string.
fn parts(message: &Map<String, Value>) -> &[Value] {
    match message.get("content") {
        Some(Value::Array(parts)) => parts,
        Some(part @ Value::Object(_)) => std::slice::from_ref(part),
        _ => &[],
    }
}

/// The type of a part that is an image, a video, audio or a file.
fn media_of_part(part: &Value) -> Option<&str> {
    let part = part.as_object()?;
    let kind = part.get("type").and_then(Value::as_str);
    let media_kind = kind.filter(|kind| MEDIA.contains(&kind.to_ascii_lowercase().as_str()));
    // Arrow gives every part the fields of all parts of its column; fields of other types of parts are null.
    let field = || part.iter().find(|(name, value)| is_media_column(name) && !is_nothing(value));
    media_kind.or_else(|| field().map(|(name, _)| name.as_str()))
}

/// Rejects messages with an image, a video, audio or a file.
pub(super) fn refuse_media(messages: &[Value]) -> Result<()> {
    match media_in(messages) {
        None => Ok(()),
        Some((i, kind)) => {
            let message = format!("message {} has a part of type `{kind}`, but the model reads text only", i + 1);
            Err(Error::Value(message))
        }
    }
}

/// Rejects contents that are lists of parts if `text`, the rendered conversation, lacks the text of a part or contains
/// the list in Python's notation.
pub(super) fn check_rendered(messages: &[Value], text: &str) -> Result<()> {
    for (i, message) in messages.iter().enumerate() {
        let Some(fields) = message.as_object() else { continue };
        // Templates print tool results as JSON on purpose.
        let is_of_tool = matches!(fields.get("role").and_then(Value::as_str), Some("tool" | "function" | "ipython"));
        for part in parts(fields) {
            let fault = match lost(part, text) {
                Some(lost) => format!("drops the text {:?}", shortened(lost)),
                None if !is_of_tool && is_printed(part, text) => "prints the list itself".to_owned(),
                None => continue,
            };
            let role = fields.get("role").and_then(Value::as_str).unwrap_or("no role");
            let message = format!(
                "message {} ({role}) has a list of parts as its content, but the chat template {fault}: write the \
                 content as one string",
                i + 1
            );
            return Err(Error::Value(message));
        }
    }
    Ok(())
}

/// The first text of a part that is missing from the rendered conversation.
fn lost<'a>(part: &'a Value, rendered: &str) -> Option<&'a str> {
    let is_lost = |text: &&str| !shows(rendered, text);
    match (part, part.get("text").and_then(Value::as_str), part.get("type").and_then(Value::as_str)) {
        (_, Some(text), _) => Some(text).filter(is_lost),
        // Templates drop the reasoning of earlier turns on purpose.
        (_, None, Some("thinking" | "reasoning")) => None,
        (Value::String(text), ..) => Some(text.as_str()).filter(is_lost),
        (Value::Object(fields), ..) => {
            fields.iter().filter(|(name, _)| *name != "type").find_map(|(_, value)| lost(value, rendered))
        }
        (Value::Array(list), ..) => list.iter().find_map(|value| lost(value, rendered)),
        _ => None,
    }
}

/// Whether the rendered conversation contains a part in Python's notation for a dict.
fn is_printed(part: &Value, rendered: &str) -> bool {
    part.is_object() && python::print(&python::value(part)).is_ok_and(|printed| rendered.contains(&printed))
}

/// Whether the rendered conversation contains a text, as it is or as JSON escapes it. White space around it and within
/// it may differ, since templates trim messages.
fn shows(rendered: &str, text: &str) -> bool {
    let text = text.trim();
    if text.is_empty() || rendered.contains(text) {
        return true;
    }
    let escaped = Value::from(text).to_string();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    rendered.contains(&escaped[1..escaped.len() - 1]) || words(rendered).contains(&words(text))
}

/// The index of the first message whose text is not in `rendered`. A think block at the beginning of a message is
/// ignored, because templates drop those of earlier turns on purpose.
pub fn message_left_out(messages: &[Value], rendered: &str) -> Option<usize> {
    messages.iter().position(|message| match message.get("content") {
        Some(Value::String(text)) => {
            let answer = text.rfind("</think>").map_or(&text[..], |at| &text[at + "</think>".len()..]);
            !shows(rendered, answer)
        }
        _ => false,
    })
}

/// The first characters of a text.
fn shortened(text: &str) -> String {
    if text.chars().count() <= 40 { text.to_owned() } else { text.chars().take(40).chain("…".chars()).collect() }
}
