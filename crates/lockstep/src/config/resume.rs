//! Compares the configuration of a resumed run with its first configuration.

use super::keys::{Config, KEYS, Key};
use super::row::OnResume;
use crate::error::BadInput;
use std::convert::Infallible;
use std::path::Path;

/// A line for every changed key, with the old and the new value.
pub(crate) fn changes(began: &Config, now: &Config) -> Vec<String> {
    KEYS.iter().filter(|key| key.value(began) != key.value(now)).map(|key| line(key, began, now)).collect()
}

fn line(key: &Key, began: &Config, now: &Config) -> String {
    format!("{} was {}, now {}", key.name, key.value_text(began), key.value_text(now))
}

/// Restores old values in `config` from these lines of [`changes`], the last line first. Only keys that affect the
/// weights' bits are restored. Returns an error for a line that cannot be parsed.
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
            return Err(format!("cannot parse the old value of `{name}` in \"{change}\""));
        }
    }
    Ok(())
}

/// Lists the keys that a resumed run has changed, as lines for a warning; an error if any of them may not change.
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

/// The settings on which the weights' bits depend, one line for each key that differs from its default. Data and reward
/// files are identified by their contents, which are hashed elsewhere; threads, micro-batches, logs, evaluations and
/// checkpoints are excluded.
pub(crate) fn settings_of_weights(config: &Config) -> String {
    let (mut config, default) = (config.clone(), Config::default());
    for spec in &mut config.reward_funcs {
        let name = |path: &str| Ok::<_, Infallible>(file_name(path));
        spec.map_paths(name).unwrap_or_else(|never| match never {});
    }
    // Runs from before these keys existed pass no columns to the template, and their reward models read the end token.
    // The lineage of these runs must not change.
    config.template_columns.clone_from(&default.template_columns);
    config.reward_model_end_token = default.reward_model_end_token;
    let decides = |key: &&Key| key.decides_bits() && key.value(&config) != key.value(&default);
    KEYS.iter().filter(decides).map(|key| format!("{} = {}\n", key.name, key.value_text(&config))).collect()
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}
