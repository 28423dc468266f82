//! The table of configuration keys, for the configuration classes and their documentation.

use crate::errors::exception;
use crate::json;
use lockstep::config::{Algorithm, Config, Key, Layers, Purpose, UnsupportedKey, keys, unsupported_keys};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::Value;

/// The command and the algorithm for the name of a method.
pub fn method(name: &str) -> PyResult<(Purpose, Algorithm)> {
    Ok(match name {
        "grpo" => (Purpose::Grpo, Algorithm::Grpo),
        "rloo" => (Purpose::Grpo, Algorithm::Rloo),
        "ppo" => (Purpose::Grpo, Algorithm::Ppo),
        "sft" => (Purpose::Sft, Algorithm::Grpo),
        "dpo" => (Purpose::Dpo, Algorithm::Grpo),
        "reward" => (Purpose::Reward, Algorithm::Grpo),
        other => return Err(PyValueError::new_err(format!("unknown method {other:?}"))),
    })
}

/// The algorithms that a `GRPOConfig` can choose.
const OF_GRPO_CONFIG: &[Algorithm] =
    &[Algorithm::Grpo, Algorithm::ReinforcePlusPlus, Algorithm::ReinforcePlusPlusBaseline, Algorithm::Distillation];

/// Every key that runs of `name` read, and every TRL field that is not a key: name, status (`supported`, `ignored`,
/// `refused`), and for a key its type, default, JSON Schema and TRL name.
#[pyfunction]
pub fn fields<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
    let (purpose, algorithm) = method(name)?;
    let defaults = Config::defaults(purpose, algorithm);
    let chosen = match algorithm {
        // The field `algorithm` of GRPOConfig selects algorithms that have no class of their own.
        Algorithm::Grpo if purpose == Purpose::Grpo => OF_GRPO_CONFIG,
        ref own => std::slice::from_ref(own),
    };
    let all = PyList::empty(py);
    for key in keys().iter().filter(|key| chosen.iter().any(|&algorithm| key.is_read_by(purpose, algorithm))) {
        all.append(supported(py, key, &defaults)?)?;
    }
    for (names, answer) in unsupported_keys() {
        let (status, text) = match answer {
            UnsupportedKey::Ignored(why) => ("ignored", why),
            UnsupportedKey::Refused(instead) => ("refused", instead),
        };
        for name in names {
            let field = PyDict::new(py);
            field.set_item("name", name)?;
            field.set_item("status", status)?;
            field.set_item("doc", text)?;
            all.append(field)?;
        }
    }
    Ok(all)
}

fn supported<'py>(py: Python<'py>, key: &Key, defaults: &Config) -> PyResult<Bound<'py, PyDict>> {
    let default = key.value(defaults).and_then(|value| serde_json::to_value(value).ok()).unwrap_or(Value::Null);
    let field = PyDict::new(py);
    field.set_item("name", key.name)?;
    field.set_item("status", "supported")?;
    field.set_item("doc", key.meaning())?;
    field.set_item("type", key.type_text())?;
    field.set_item("default", json::to_python(py, &default)?)?;
    field.set_item("schema", json::to_python(py, &key.schema())?)?;
    field.set_item("trl_name", key.trl_name())?;
    field.set_item("trl", key.trl_text())?;
    Ok(field)
}

/// Checks the values of a configuration (a JSON object) as a run of `name` does, and returns the notes about it.
#[pyfunction]
pub fn check(name: &str, values: &str) -> PyResult<Vec<String>> {
    let (purpose, _) = method(name)?;
    let resolved = json::values(values)
        .and_then(|values| Layers { purpose, values, ..Layers::default() }.resolve())
        .map_err(|error| exception(&error))?;
    Ok(resolved.notes)
}
