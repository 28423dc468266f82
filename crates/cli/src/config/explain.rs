//! Explains configuration keys: `lockstep config explain`, and the JSON Schema of a configuration file.

use lockstep::bad_input;
use lockstep::config::{self, Config, Key, OnResume, UnsupportedKey, unsupported_keys};
use serde_json::{Map, Value as Json, json};

/// Describes a configuration key: meaning, type, range, default, TRL's default, the commands or algorithms that read
/// it, and whether it may change on resume.
pub(super) fn explain(name: &str) -> anyhow::Result<String> {
    let Some(key) = Config::key(name) else {
        if let Some(answer) = answer(name) {
            return Ok(format!("{name}: {answer}"));
        }
        bad_input!("{} (`lockstep config show` lists all keys)", config::unknown_key(name))
    };
    let on_resume = match key.on_resume() {
        OnResume::Free => "yes; the results stay bit-identical",
        OnResume::Warn => "yes; later steps then differ from those of an uninterrupted run",
        OnResume::Fixed => "no",
    };
    let mut lines = vec![("type", key.type_text()), ("default", key.defaults_text()), ("TRL", key.trl_text())];
    lines.push(("read by", key.read_by()));
    if let Some((other, value)) = key.needs() {
        lines.push(("acts with", format!("{other} = {value}")));
    }
    lines.push(("change on resume", on_resume.to_owned()));
    let variable = name.to_uppercase();
    lines.push(("set it with", format!("{name} = … in the file, LOCKSTEP_{variable}=…, or --set {name}=…")));
    let lines: String = lines.iter().map(|(what, text)| format!("  {what:<18} {text}\n")).collect();
    Ok(format!("{name} ({})\n  {}\n\n{lines}", key.section, key.meaning()))
}

/// Describes a TRL key that Lockstep does not have.
fn answer(name: &str) -> Option<String> {
    let (_, answer) = unsupported_keys().find(|(names, _)| names.iter().any(|n| n == name))?;
    Some(match answer {
        UnsupportedKey::Ignored(why) => format!("a TRL key, accepted but without effect here: {why}."),
        UnsupportedKey::Refused(what) => format!("a TRL key that is not supported here: {what}."),
    })
}

/// The JSON Schema of a configuration file.
pub(super) fn schema() -> Json {
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
    let mut properties: Map<String, Json> = config::keys().iter().map(property).collect();
    for name in unsupported_keys().flat_map(|(names, _)| names) {
        properties.insert(name.clone(), json!({"description": answer(name), "deprecated": true}));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lockstep configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep::error::is_bad_input;

    #[test]
    fn every_key_has_an_explanation_and_a_schema_entry() {
        let schema = schema();
        for key in config::keys() {
            let text = explain(key.name).unwrap();
            assert!(text.contains(key.name) && text.contains("change on resume"), "{text}");
            assert!(!schema["properties"][key.name]["description"].as_str().unwrap().is_empty());
        }
        assert_eq!(schema["properties"]["num_generations"]["default"], 8);
        assert!(explain("num_generations").unwrap().contains("type               integer"));
        let (dropout, threads) = (&schema["properties"]["lora_dropout"], &schema["properties"]["threads"]["anyOf"][0]);
        assert!(dropout["minimum"] == 0.0 && dropout["exclusiveMaximum"] == 1.0, "{dropout}");
        assert!(threads["minimum"] == 1 && threads["maximum"] == 4096, "{threads}");
        let text = explain("lora_r").unwrap();
        let lines = ["integer, at least 1", "the same default", "every command", "use_peft = true", "on resume   no"];
        for line in lines {
            assert!(text.contains(line), "`{line}` is not in {text}");
        }
        let text = explain("learning_rate").unwrap();
        assert!(text.contains("1e-6 (ppo: 3e-6, sft: 2e-5, reward: 1e-4)"), "{text}");
        assert!(explain("use_vllm").unwrap().contains("without effect"));
        assert_eq!(schema["properties"]["use_vllm"]["deprecated"], true);
        let error = explain("num_generatons").unwrap_err();
        assert!(is_bad_input(&error) && error.to_string().contains("`num_generations`"));
    }
}
