//! Prints a merged configuration as TOML, which can be read back to the same values, or as JSON.

use super::keys::{Config, KEYS, Key};
use super::resolved::{Origin, Resolved};
use super::values::toml_on_one_line;
use serde_json::Value as Json;
use std::fmt::Write;

impl Resolved {
    /// All keys as TOML, each with the origin of its value in a comment. [`super::Layers`] reads it back to the same
    /// values.
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
                Some(value) => writeln!(text, "{} = {}  # {origin}", key.name, toml_on_one_line(&value)),
                // An unset key is written as a comment, unless it has a default and was unset on purpose.
                None if *origin != Origin::Default => writeln!(text, "{} = \"none\"  # {origin}", key.name),
                None => writeln!(text, "# {} =  # not set", key.name),
            };
        }
        text
    }

    /// A JSON object: key → value, null if the key is not set.
    pub fn to_json(&self) -> Json {
        let value = |key: &Key| key.value(&self.config).and_then(|v| serde_json::to_value(v).ok());
        Json::Object(KEYS.iter().map(|key| (key.name.to_owned(), value(key).unwrap_or(Json::Null))).collect())
    }
}

/// Keys for files and hardware, which do not affect training.
const PLACES: [&str; 5] = ["output_dir", "run_name", "device", "threads", "tensorboard"];

/// The keys with a single value (a number, text or boolean), by which runs are compared; tables and lists are left out.
pub fn hyperparameters(config: &Config) -> Vec<(&'static str, toml::Value)> {
    let of = |key: &Key| Some((key.name, key.value(config)?));
    let single = |value: &toml::Value| !matches!(value, toml::Value::Table(_) | toml::Value::Array(_));
    KEYS.iter().filter_map(of).filter(|(name, value)| single(value) && !PLACES.contains(name)).collect()
}
