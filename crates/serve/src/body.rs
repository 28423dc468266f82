//! The values of a request's JSON object, with errors that name the field and the expected value.

use crate::error::{ApiError, shortened};
use crate::fields::{self, Of};
use axum::http::StatusCode;
use serde_json::{Map, Value};

/// A JSON object whose fields were checked against the table.
#[derive(Clone, Debug)]
pub struct Object(Map<String, Value>);

impl Object {
    /// Parses the body of a request.
    pub fn parse(of: Of, bytes: &[u8]) -> Result<Object, ApiError> {
        let bad = |message: String| ApiError::bad(StatusCode::BAD_REQUEST, message);
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| bad(format!("the body is not valid JSON: {error}")))?;
        match value {
            Value::Object(map) => Object::of(of, map),
            _ => Err(bad("the body must be a JSON object".to_owned())),
        }
    }

    fn of(of: Of, mut map: Map<String, Value>) -> Result<Object, ApiError> {
        fields::check(of, &mut map)?;
        Ok(Object(map))
    }

    /// The object in a field, checked against its own table.
    pub fn object(&mut self, name: &str, of: Of) -> Result<Object, ApiError> {
        match self.0.remove(name) {
            None => Ok(Object(Map::new())),
            Some(Value::Object(map)) => Object::of(of, map),
            Some(other) => Err(wrong(name, &other, "an object")),
        }
    }

    /// Removes and returns a field.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn read<T>(&self, name: &str, expected: &str, of: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        of(value).map(Some).ok_or_else(|| wrong(name, value, expected))
    }

    pub fn number(&self, name: &str) -> Result<Option<f64>, ApiError> {
        self.read(name, "a number", Value::as_f64)
    }

    pub fn count(&self, name: &str) -> Result<Option<usize>, ApiError> {
        self.read(name, "an integer of 0 or more", |value| usize::try_from(value.as_u64()?).ok())
    }

    /// A 64-bit integer, with or without a sign; its bits are the seed.
    pub fn seed(&self, name: &str) -> Result<Option<u64>, ApiError> {
        self.read(name, "a 64-bit integer", |value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)))
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub fn text(&self, name: &str) -> Result<Option<String>, ApiError> {
        self.read(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A string, or a list of strings.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, ApiError> {
        let of = |value: &Value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(list) => list.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        Ok(self.read(name, "a string or a list of strings", of)?.unwrap_or_default())
    }

    pub fn ids(&self, name: &str) -> Result<Vec<u32>, ApiError> {
        Ok(self.read(name, "a list of token ids", ids)?.unwrap_or_default())
    }
}

/// A list of token ids.
pub fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

/// The error for a field whose value has another type.
pub fn wrong(name: &str, value: &Value, expected: &str) -> ApiError {
    ApiError::field(name, format!("`{name}` is {}: expected {expected}", shortened(&value.to_string())))
}
