//! JSON between Python and the library.

use lockstep::error::BadInput;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::Value;

/// The Python object that a JSON text of the same value gives.
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

/// Keys with their values, as TOML has them, from the text of a JSON object; what is null is text that unsets a key.
pub fn values(text: &str) -> anyhow::Result<Vec<(String, toml::Value)>> {
    let Value::Object(map) = serde_json::from_str(text)? else { anyhow::bail!("values are no JSON object") };
    let value = |(name, value): (String, Value)| match value {
        Value::Null => Ok((name, toml::Value::String("none".to_owned()))),
        value => match toml::Value::try_from(&value) {
            Ok(toml) => Ok((name, toml)),
            Err(error) => Err(BadInput::new(format!("`{name}`: {error}: {value}"))),
        },
    };
    map.into_iter().map(value).collect()
}
