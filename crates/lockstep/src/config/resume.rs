//! What a resumed run may change.

use super::Config;
use super::key::{Key, OnResume};
use super::table::KEYS;
use crate::error::BadInput;

/// Every key whose value is no longer what it was, with both values.
pub(crate) fn changes(began: &Config, now: &Config) -> Vec<String> {
    KEYS.iter().filter(|key| key.value(began) != key.value(now)).map(|key| line(key, began, now)).collect()
}

fn line(key: &Key, began: &Config, now: &Config) -> String {
    format!("{} was {}, now {}", key.name, key.value_text(began), key.value_text(now))
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
