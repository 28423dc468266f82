//! The configuration for people and for files: resolved TOML, explanations, a JSON Schema, and what changed on resume.

use super::key::{Key, OnResume};
use super::nearest::nearest;
use super::table::KEYS;
use super::unsupported_keys::{self, UnsupportedKey, unsupported_key};
use super::{Config, Resolved};
use crate::bad_input;
use crate::error::BadInput;
use serde_json::{Map, Value as Json, json};
use std::fmt::Write;

impl Resolved {
    /// All keys as TOML that [`super::Layers`] reads back to the same values, each with where it came from.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for key in KEYS {
            if key.section != section {
                section = key.section;
                let gap = if text.is_empty() { "" } else { "\n" };
                let _ = writeln!(text, "{gap}# {section}");
            }
            let origin = self.origin(key.name);
            let _ = match key.value(&self.config) {
                Some(value) => writeln!(text, "{} = {}  # {origin}", key.name, inline(&value)),
                // An unset key is a comment, unless it was unset on purpose where the default is a value.
                None if *origin != super::Origin::Default => writeln!(text, "{} = \"none\"  # {origin}", key.name),
                None => writeln!(text, "# {} =  # not set", key.name),
            };
        }
        text
    }

    /// As JSON: key → value, null where not set.
    pub fn to_json(&self) -> Json {
        let value = |key: &Key| key.value(&self.config).and_then(|v| serde_json::to_value(v).ok());
        Json::Object(KEYS.iter().map(|key| (key.name.to_owned(), value(key).unwrap_or(Json::Null))).collect())
    }
}

/// A TOML value on one line.
pub(super) fn inline(value: &toml::Value) -> String {
    match value {
        // A table's Display may spread it over sections; inside an array it is inline.
        toml::Value::Table(table) => {
            let pairs: Vec<String> = table.iter().map(|(k, v)| format!("{} = {}", quoted_key(k), inline(v))).collect();
            if pairs.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
        toml::Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        // One line even where the text has several.
        toml::Value::String(text) => json_string(text),
        other => other.to_string(),
    }
}

/// JSON's escapes are TOML's too, but for the delete character.
fn json_string(text: &str) -> String {
    Json::String(text.to_owned()).to_string().replace('\u{7f}', "\\u007f")
}

fn quoted_key(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { json_string(key) }
}

/// What a key means, its type, its default and TRL's, and whether it may change on resume.
pub fn explain(name: &str) -> anyhow::Result<String> {
    let Some(key) = Config::key(name) else {
        if let Some(verdict) = unsupported_key(name, &toml::Value::Boolean(true)) {
            return Ok(match verdict {
                UnsupportedKey::Ignored(why) => {
                    format!("{name}: TRL's key, accepted and without meaning here: {why}.")
                }
                UnsupportedKey::Refused(what) => format!("{name}: TRL's key, not supported here: {what}."),
            });
        }
        let near = nearest(name, KEYS.iter().map(|key| key.name)).or_else(|| nearest(name, unsupported_keys::names()));
        let hint = near.map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
        bad_input!("unknown key `{name}`{hint} (`lockstep config show` lists all keys)")
    };
    let resume = match key.row.on_resume {
        OnResume::Free => "yes, and no bit of the result changes",
        OnResume::Warn => "yes; from there on the run differs from one that was never stopped",
        OnResume::Fixed => "no",
    };
    Ok(format!(
        "{name} ({})\n  {}\n\n  type               {}\n  default            {}\n  TRL                {}\n  read by            {}\n  change on resume   {resume}\n  set it with        {name} = … in the file, LOCKSTEP_{}=…, or --set {name}=…\n",
        key.section,
        key.meaning(),
        key.type_text(),
        key.defaults_text(),
        key.trl_text(),
        key.row.read_by,
        name.to_uppercase(),
    ))
}

/// The JSON Schema of a configuration file.
pub fn schema() -> Json {
    let default = Config::default();
    let property = |key: &Key| {
        let mut schema = key.schema();
        if let Json::Object(map) = &mut schema {
            map.insert("description".to_owned(), Json::String(key.meaning()));
            if let Some(value) = key.value(&default).and_then(|v| serde_json::to_value(v).ok()) {
                map.insert("default".to_owned(), value);
            }
        }
        (key.name.to_owned(), schema)
    };
    let mut properties: Map<String, Json> = KEYS.iter().map(property).collect();
    for name in unsupported_keys::names() {
        properties
            .insert(name.to_owned(), json!({"description": "TRL's key, without meaning here", "deprecated": true}));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lockstep configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

/// What a resumed run changed against the configuration that it began with: lines to say, or an error naming every key
/// that may not change.
pub fn changes_on_resume(began: &Config, now: &Config) -> anyhow::Result<Vec<String>> {
    let changed = |key: &&Key| key.value(began) != key.value(now);
    let line = |key: &Key| format!("{} was {}, now {}", key.name, key.value_text(began), key.value_text(now));
    let refused: Vec<String> =
        KEYS.iter().filter(changed).filter(|key| key.row.on_resume == OnResume::Fixed).map(line).collect();
    if !refused.is_empty() {
        return Err(BadInput::new(format!(
            "a resumed run cannot change these keys: {}. Give them their old values, or start a new run in another directory",
            refused.join("; ")
        )));
    }
    Ok(KEYS.iter().filter(changed).filter(|key| key.row.on_resume == OnResume::Warn).map(line).collect())
}
