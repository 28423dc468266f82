//! What a resumed run may change.

use super::keys::{Config, KEYS, Key};
use super::row::OnResume;
use crate::error::BadInput;
use std::convert::Infallible;
use std::path::Path;

/// Every key whose value is no longer what it was, with both values.
pub(crate) fn changes(began: &Config, now: &Config) -> Vec<String> {
    KEYS.iter().filter(|key| key.value(began) != key.value(now)).map(|key| line(key, began, now)).collect()
}

fn line(key: &Key, began: &Config, now: &Config) -> String {
    format!("{} was {}, now {}", key.name, key.value_text(began), key.value_text(now))
}

/// Gives `config` back the values that decide bits and that these [`changes`] took from it, the last one first. An
/// error says which line is not understood.
pub(crate) fn undo(config: &mut Config, changes: &[&str]) -> Result<(), String> {
    for change in changes.iter().rev() {
        let Some((name, values)) = change.split_once(" was ") else { continue };
        let Some(key) = KEYS.iter().find(|key| key.name == name && key.decides_bits()) else { continue };
        let old = values.split_once(", now ").map_or(values, |(old, _)| old);
        let value = toml::from_str::<toml::Table>(&format!("value = {old}"));
        let _ = match value.ok().and_then(|mut table| table.remove("value")) {
            Some(value) => (key.read)(config, &value),
            None => (key.read_text)(config, old).or_else(|_| (key.read)(config, &toml::Value::Array(Vec::new()))),
        };
        if key.value_text(config) != old {
            return Err(format!("what `{name}` was is not told from \"{change}\""));
        }
    }
    Ok(())
}

/// What a resumed run changed against the configuration that it began with: lines to report, or an error that names
/// every key that may not change.
pub fn changes_on_resume(began: &Config, now: &Config) -> anyhow::Result<Vec<String>> {
    let changed = |how: OnResume| {
        let keys = KEYS.iter().filter(move |key| key.row.on_resume == how && key.value(began) != key.value(now));
        keys.map(|key| line(key, began, now)).collect::<Vec<String>>()
    };
    let refused = changed(OnResume::Fixed);
    if !refused.is_empty() {
        return Err(BadInput::new(format!(
            "a resumed run cannot change these keys: {}. Give them their old values, or start a new run in another \
             directory",
            refused.join("; ")
        )));
    }
    Ok(changed(OnResume::Warn))
}

/// What of a configuration the bits of weights depend on: a line for each key that has not its default. Files count by
/// their contents, which others hash, and neither threads nor micro-batches, logs, evaluations or checkpoints count.
pub(crate) fn settings_of_weights(config: &Config) -> String {
    let (mut config, default) = (config.clone(), Config::default());
    for spec in &mut config.reward_funcs {
        let name = |path: &str| Ok::<_, Infallible>(file_name(path));
        spec.map_paths(name).unwrap_or_else(|never| match never {});
    }
    let decides = |key: &&Key| key.decides_bits() && key.value(&config) != key.value(&default);
    KEYS.iter().filter(decides).map(|key| format!("{} = {}\n", key.name, key.value_text(&config))).collect()
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}
