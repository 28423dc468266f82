//! Errors of the library as Python's exceptions: what the caller can mend is a `ValueError`, a missing file a
//! `FileNotFoundError`, anything else a `RuntimeError`.

use lockstep::error::{is_bad_input, paragraph};
use lockstep::is_stopped;
use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use std::any::Any;

/// The exception for `error`.
pub fn exception(error: &anyhow::Error) -> PyErr {
    let text = paragraph(error);
    if is_stopped(error) {
        return PyKeyboardInterrupt::new_err(text);
    }
    match is_bad_input(error) {
        true if text.to_ascii_lowercase().contains("no such file or directory") => PyFileNotFoundError::new_err(text),
        true => PyValueError::new_err(text),
        false => PyRuntimeError::new_err(text),
    }
}

/// A panic is a defect of this package: it is said as one, and the interpreter goes on.
pub fn of_panic(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    PyRuntimeError::new_err(format!("a defect of lockstep_rl, please report it: {}", text.unwrap_or("a panic")))
}
