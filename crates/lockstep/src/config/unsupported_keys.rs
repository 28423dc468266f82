//! Keys of TRL and of transformers' TrainingArguments that are not in the table. Those without meaning here are
//! accepted, with one line saying so; those that ask for something that this build does not do are errors, unless they
//! ask for nothing. `unsupported_keys.toml` lists them. Together with the table every field of TRL's configurations has
//! its answer (a test proves it).

use serde::Deserialize;
use std::sync::LazyLock;
use toml::Value;

/// What becomes of a key of TRL's that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedKey {
    /// Accepted; the line says why it changes nothing.
    Ignored(&'static str),
    /// Asks for what cannot be done; the text says what to do instead.
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
    /// The values besides false and none that ask for nothing.
    #[serde(default)]
    neutral: Vec<String>,
    instead: String,
}

static LISTS: LazyLock<Lists> =
    LazyLock::new(|| toml::from_str(include_str!("unsupported_keys.toml")).expect("the file is whole: tests read it"));

/// What becomes of key `name` with `value`; `None` if TRL has no such key either.
pub fn unsupported_key(name: &str, value: &Value) -> Option<UnsupportedKey> {
    let (_, answer) = unsupported_keys().find(|(names, _)| names.iter().any(|n| n == name))?;
    let refused = LISTS.refused.iter().find(|refused| refused.keys.iter().any(|n| n == name));
    Some(match refused {
        Some(refused) if asks_for_nothing(value, &refused.neutral) => {
            UnsupportedKey::Ignored("it asks for what is done anyway")
        }
        _ => answer,
    })
}

/// All of them: names that share what becomes of them.
pub fn unsupported_keys() -> impl Iterator<Item = (&'static [String], UnsupportedKey)> {
    let ignored = LISTS.ignored.iter().map(|list| (list.keys.as_slice(), UnsupportedKey::Ignored(&list.why)));
    ignored.chain(LISTS.refused.iter().map(|list| (list.keys.as_slice(), UnsupportedKey::Refused(&list.instead))))
}

/// All names known here, for the nearest one.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    unsupported_keys().flat_map(|(names, _)| names).map(String::as_str)
}

/// Whether `value` is a neutral one, or false (where true is not neutral), or empty, or a word for nothing.
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
