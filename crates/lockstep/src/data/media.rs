//! Refuses rows with images, video or audio. The models read only text, so training would ignore such content.

use super::Row;
use crate::bad_input;
use model::chat::{is_media_column, is_nothing, media_in};
use rewards::Content;
use serde_json::{Map, Value};

/// The fields with which Hugging Face's datasets store an image or audio.
const STORED: [&[&str]; 3] = [&["bytes", "path"], &["array", "path", "sampling_rate"], &["array", "sampling_rate"]];

/// Refuses a row with a column of images, video or audio, unless its value is missing. A column that `columns` renames
/// is allowed: reward functions read it under its new name.
pub(super) fn refuse_columns(
    columns: &[(String, String)],
    row: &Row,
    place: &dyn Fn() -> String,
) -> anyhow::Result<()> {
    let is_renamed = |name: &str| columns.iter().any(|(_, old)| old == name);
    let is_media = |name: &str, value: &Value| is_media_column(name) || is_stored_media(value);
    let found = row.iter().find(|(name, value)| is_media(name, value) && !is_nothing(value) && !is_renamed(name));
    let Some((name, value)) = found else { return Ok(()) };
    bad_input!(
        "{}: `{name}` = {}, but Lockstep's models read only text: remove the row or the column. If only reward \
         functions need it, rename it, as in columns = {{ my_{name} = \"{name}\" }}",
        place(),
        shortened(value)
    );
}

/// Refuses a prompt or an answer with an image, a video, audio or a file in its messages. The error names the message,
/// not the row.
pub(super) fn refuse_parts(content: Content) -> Result<Content, String> {
    if let Content::Messages(messages) = &content
        && let Some((i, kind)) = media_in(messages)
    {
        return Err(format!(
            "message {} has a part of type `{kind}`, but Lockstep's models read only text: remove the part or the row",
            i + 1
        ));
    }
    Ok(content)
}

fn is_stored_media(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().any(is_stored_media),
        Value::Object(fields) => STORED.iter().any(|names| has_exactly(fields, names)),
        _ => false,
    }
}

fn has_exactly(fields: &Map<String, Value>, names: &[&str]) -> bool {
    fields.len() == names.len() && names.iter().all(|name| fields.contains_key(*name))
}

/// The first characters of a value's JSON.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(60).chain("…".chars()).collect() }
}

#[cfg(test)]
mod tests;
