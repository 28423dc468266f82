//! Typed reading of the fields of a JSON object. Errors name the field and its value.

use crate::{Error, Result, nearest};
use serde_json::{Map, Value};

/// The largest size that a field may have. Larger sizes are mistakes, and the product of two such sizes would overflow.
const MAX_SIZE: u64 = 1 << 31;

/// The fields of one JSON object, and a prefix for their names in error messages.
pub(crate) struct Fields<'a> {
    pub map: &'a Map<String, Value>,
    pub prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }
    pub fn error(&self, key: &str, message: impl Into<String>) -> Error {
        // The value may be large, so it is shortened.
        let value = self.map.get(key).map(|v| shorten(&v.to_string()));
        Error::Config { field: format!("{}{key}", self.prefix), value, message: message.into() }
    }
    fn missing(&self, key: &str) -> Error {
        let near = nearest(key, self.map.keys().map(String::as_str)).filter(|near| *near != key);
        let near = near.map_or_else(String::new, |near| format!("; did you misspell it as `{near}`?"));
        self.error(key, format!("missing{near}"))
    }
    /// Reads a positive integer; returns `default` if the field is absent or null.
    pub fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.missing(key)),
            (Some(v), _) => match v.as_u64() {
                Some(n) if n > MAX_SIZE => Err(self.error(key, format!("expected at most {MAX_SIZE}"))),
                Some(n) if n > 0 => Ok(n as usize),
                _ => Err(self.error(key, "expected a positive integer")),
            },
        }
    }
    pub fn bool(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| self.error(key, "expected true or false")),
        }
    }
    /// Reads a positive finite number; `None` if the field is absent or null.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(x) if x > 0.0 && x.is_finite() => Ok(Some(x)),
                _ => Err(self.error(key, "expected a positive number")),
            },
        }
    }
    pub fn required(&self, key: &str) -> Result<f64> {
        self.number(key)?.ok_or_else(|| self.missing(key))
    }
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v.as_str().map(Some).ok_or_else(|| self.error(key, "expected a string")),
        }
    }
    /// Reads one token id or several; returns `default` if the field is absent. An explicit null means no ids. Old
    /// configurations write -1 for "none".
    pub fn ids(&self, key: &str, default: &[u32]) -> Result<Vec<u32>> {
        let one = |v: &Value| match (v.as_u64(), v.as_i64()) {
            (Some(id), _) if id <= u64::from(u32::MAX) => Ok(Some(id as u32)),
            // Some libraries write -1 for none.
            (None, Some(-1)) => Ok(None),
            _ => Err(self.error(key, format!("expected a token id, got {v}"))),
        };
        match self.map.get(key) {
            None => Ok(default.to_vec()),
            Some(Value::Null) => Ok(vec![]),
            Some(Value::Array(ids)) => ids.iter().filter_map(|v| one(v).transpose()).collect(),
            Some(v) => Ok(one(v)?.into_iter().collect()),
        }
    }
}

/// Reads from `layer_types` whether each layer uses a sliding window; `None` if the field is absent.
pub(crate) fn slides(f: &Fields<'_>, num_layers: usize) -> Result<Option<Vec<bool>>> {
    let types = match f.get("layer_types") {
        None => return Ok(None),
        Some(Value::Array(types)) if types.len() == num_layers => types,
        Some(_) => return Err(f.error("layer_types", format!("expected a list of {num_layers}, one for each layer"))),
    };
    let slides = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(f.error("layer_types", "not supported; supported: full_attention, sliding_attention")),
    };
    types.iter().map(slides).collect::<Result<_>>().map(Some)
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
