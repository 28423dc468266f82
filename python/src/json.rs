//! Conversion between JSON values and Python objects.

use lockstep::error::BadInput;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::Value;

/// Converts a JSON value to the Python object that `json.loads` would return.
pub fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(b) => b.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => n.into_pyobject(py)?.into_any(),
            (None, Some(n)) => n.into_pyobject(py)?.into_any(),
            (None, None) => n.as_f64().into_pyobject(py)?,
        },
        Value::String(s) => s.into_pyobject(py)?.into_any(),
        Value::Array(items) => {
            let items = items.iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Object(map) => {
            let dict = PyDict::new(py);
            map.iter().try_for_each(|(key, value)| dict.set_item(key, to_python(py, value)?))?;
            dict.into_any()
        }
    })
}

/// Converts the text of a JSON object to keys with TOML values; null becomes the string that unsets a key.
pub fn values(text: &str) -> anyhow::Result<Vec<(String, toml::Value)>> {
    let Value::Object(map) = serde_json::from_str(text)? else { anyhow::bail!("values must be a JSON object") };
    let value = |(name, value): (String, Value)| match value {
        Value::Null => Ok((name, toml::Value::String("none".to_owned()))),
        value => match toml::Value::try_from(&value) {
            Ok(toml) => Ok((name, toml)),
            Err(error) => Err(BadInput::new(format!("`{name}`: {error}: {value}"))),
        },
    };
    map.into_iter().map(value).collect()
}
