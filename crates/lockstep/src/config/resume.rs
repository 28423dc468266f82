//! What a resumed run may change.

use super::Config;
use super::key::{Key, OnResume};
use super::table::KEYS;
use crate::error::BadInput;

/// What a resumed run changed against the configuration that it began with: lines to report, or an error that names
/// every key that may not change.
pub fn changes_on_resume(began: &Config, now: &Config) -> anyhow::Result<Vec<String>> {
    let changed = |key: &&Key| key.value(began) != key.value(now);
    let line = |key: &Key| format!("{} was {}, now {}", key.name, key.value_text(began), key.value_text(now));
    let refused: Vec<String> =
        KEYS.iter().filter(changed).filter(|key| key.row.on_resume == OnResume::Fixed).map(line).collect();
    if !refused.is_empty() {
        return Err(BadInput::new(format!(
            "a resumed run cannot change these keys: {}. Give them their old values, or start a new run in another \
             directory",
            refused.join("; ")
        )));
    }
    Ok(KEYS.iter().filter(changed).filter(|key| key.row.on_resume == OnResume::Warn).map(line).collect())
}
