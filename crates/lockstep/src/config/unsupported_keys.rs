//! Keys of TRL and of transformers' TrainingArguments that this program does not have, listed in
//! `unsupported_keys.toml`. Keys that have no effect here are accepted, with a note. Keys of a missing feature are
//! errors, unless their value switches the feature off. A test proves that every field of TRL's configuration classes
//! (GRPO, RLOO, SFT, DPO, Reward, Model, Script) is either one of this program's configuration keys or in this list.

use serde::Deserialize;
use std::sync::LazyLock;
use toml::Value;

/// The effect of one of TRL's keys that this program does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedKey {
    /// The key is accepted, with the reason why it has no effect.
    Ignored(&'static str),
    /// The key is an error, with the fix.
    Refused(&'static str),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lists {
    ignored: Vec<Ignored>,
    refused: Vec<Refused>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ignored {
    keys: Vec<String>,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    keys: Vec<String>,
    /// Values besides false and none that leave the feature off.
    #[serde(default)]
    neutral: Vec<String>,
    instead: String,
}

static LISTS: LazyLock<Lists> =
    LazyLock::new(|| toml::from_str(include_str!("unsupported_keys.toml")).expect("unsupported_keys.toml is tested"));

/// The effect of setting `name` to `value`; `None` if TRL does not have the key either.
pub fn unsupported_key(name: &str, value: &Value) -> Option<UnsupportedKey> {
    let (_, answer) = unsupported_keys().find(|(names, _)| names.iter().any(|n| n == name))?;
    let refused = LISTS.refused.iter().find(|refused| refused.keys.iter().any(|n| n == name));
    Some(match refused {
        Some(refused) if asks_for_nothing(value, &refused.neutral) => {
            UnsupportedKey::Ignored("this value is the default behaviour")
        }
        _ => answer,
    })
}

/// The full list: names, and the effect of setting one of them.
pub fn unsupported_keys() -> impl Iterator<Item = (&'static [String], UnsupportedKey)> {
    let ignored = LISTS.ignored.iter().map(|list| (list.keys.as_slice(), UnsupportedKey::Ignored(&list.why)));
    ignored.chain(LISTS.refused.iter().map(|list| (list.keys.as_slice(), UnsupportedKey::Refused(&list.instead))))
}

/// All names of the list, to suggest the most similar one for a typo.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    unsupported_keys().flat_map(|(names, _)| names).map(String::as_str)
}

/// Whether `value` leaves the missing feature off: a neutral value, false (true, if `true` is neutral), an empty value,
/// or a word for none.
fn asks_for_nothing(value: &Value, neutral: &[String]) -> bool {
    let is_neutral = |text: &str| neutral.iter().any(|n| n == text);
    match value {
        Value::Boolean(b) => *b == is_neutral("true"),
        Value::String(s) => matches!(s.as_str(), "" | "no" | "none" | "None" | "null") || is_neutral(s),
        Value::Integer(n) => is_neutral(&n.to_string()),
        Value::Float(x) => neutral.iter().any(|n| n.parse() == Ok(*x)),
        Value::Array(a) => a.is_empty(),
        Value::Table(t) => t.is_empty(),
        Value::Datetime(_) => false,
    }
}
