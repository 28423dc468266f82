//! What keys mean: `lockstep config explain`, and the JSON Schema of a configuration file.

use super::Config;
use super::key::{Key, OnResume};
use super::nearest::nearest;
use super::table::KEYS;
use super::unsupported_keys::{self, UnsupportedKey};
use crate::bad_input;
use serde_json::{Map, Value as Json, json};

/// What a key means, its type and range, its default and TRL's, what reads it, and whether it may change on resume.
pub fn explain(name: &str) -> anyhow::Result<String> {
    let Some(key) = Config::key(name) else {
        if let Some(answer) = answer(name) {
            return Ok(format!("{name}: {answer}"));
        }
        let near = nearest(name, KEYS.iter().map(|key| key.name)).or_else(|| nearest(name, unsupported_keys::names()));
        let hint = near.map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
        bad_input!("unknown key `{name}`{hint} (`lockstep config show` lists all keys)")
    };
    let on_resume = match key.row.on_resume {
        OnResume::Free => "yes, and no bit of the result changes",
        OnResume::Warn => "yes; from there on the run differs from one that was never stopped",
        OnResume::Fixed => "no",
    };
    let mut lines = vec![("type", key.type_text()), ("default", key.defaults_text()), ("TRL", key.trl_text())];
    lines.push(("read by", key.row.read_by.to_string()));
    if let Some((other, value)) = key.row.needs {
        lines.push(("acts with", format!("{other} = {value}")));
    }
    lines.push(("change on resume", on_resume.to_owned()));
    let variable = name.to_uppercase();
    lines.push(("set it with", format!("{name} = … in the file, LOCKSTEP_{variable}=…, or --set {name}=…")));
    let lines: String = lines.iter().map(|(what, text)| format!("  {what:<18} {text}\n")).collect();
    Ok(format!("{name} ({})\n  {}\n\n{lines}", key.section, key.meaning()))
}

/// What is answered to a key of TRL's that is not in the table.
fn answer(name: &str) -> Option<String> {
    Some(match unsupported_keys::entry(name)? {
        (UnsupportedKey::Ignored(why), _) => format!("TRL's key, accepted and without meaning here: {why}."),
        (UnsupportedKey::Refused(what), _) => format!("TRL's key, not supported here: {what}."),
    })
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
        properties.insert(name.to_owned(), json!({"description": answer(name), "deprecated": true}));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lockstep configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}
