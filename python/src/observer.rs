//! The Python object whose callbacks a run calls, and what they request.

use lockstep::{Flow, LogRecord, RunOptions};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// End the run after this step.
pub const STOP: u8 = 1;
/// Write a checkpoint of this step.
pub const SAVE: u8 = 2;
/// Evaluate after this step.
pub const EVALUATE: u8 = 4;

/// The exception of a reward or a callback that ends the run; the first one stays.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// Keeps `error`, if it is the first, and asks `stop` where it is the wish to stop.
    pub fn set(&self, py: Python<'_>, error: PyErr, stop: &lockstep::StopSignal) {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            stop.request();
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Takes what was kept.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Calls the methods of a Python object; each gives the sum of its wishes, or none.
#[derive(Clone)]
pub struct Observer {
    object: Arc<Py<PyAny>>,
    wishes: Arc<AtomicU8>,
    failure: Failure,
    stop: lockstep::StopSignal,
}

impl Observer {
    pub fn new(object: Py<PyAny>, failure: Failure, stop: lockstep::StopSignal) -> Observer {
        Observer { object: Arc::new(object), wishes: Arc::default(), failure, stop }
    }

    /// Calls `method`; after an exception, which ends the run, nothing more is called.
    pub fn call(
        &self,
        method: &str,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyDict>>,
    ) -> Flow {
        if self.failure.is_set() {
            return ControlFlow::Break(());
        }
        let wishes = Python::attach(|py| {
            let called = || -> PyResult<u8> {
                let wishes = self.object.bind(py).call_method(method, (), Some(&arguments(py)?))?;
                Ok(wishes.extract::<Option<u8>>()?.unwrap_or(0))
            };
            called().unwrap_or_else(|error| {
                self.failure.set(py, error, &self.stop);
                STOP
            })
        });
        self.wishes.fetch_or(wishes, Ordering::Relaxed);
        if wishes & STOP == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// What was wished since it was asked last.
    pub fn take_wishes(&self) -> u8 {
        self.wishes.swap(0, Ordering::Relaxed)
    }

    /// A run's options that tell this object of steps, logs and checkpoints.
    pub fn told_by(&self, options: RunOptions) -> RunOptions {
        let (on_step, on_log, on_checkpoint) = (self.clone(), self.clone(), self.clone());
        options
            .on_step(move |step| {
                on_step.call("step_end", |py| {
                    let arguments = PyDict::new(py);
                    arguments.set_item("step", step)?;
                    Ok(arguments)
                })
            })
            .on_log(move |log: &LogRecord<'_>| {
                on_log.call("log", |py| {
                    let (arguments, metrics) = (PyDict::new(py), PyDict::new(py));
                    log.metrics.iter().try_for_each(|(name, value)| metrics.set_item(name, value))?;
                    arguments.set_item("step", log.step)?;
                    arguments.set_item("metrics", metrics)?;
                    Ok(arguments)
                })
            })
            .on_checkpoint(move |step, path: &Path| {
                on_checkpoint.call("save", |py| {
                    let arguments = PyDict::new(py);
                    arguments.set_item("step", step)?;
                    arguments.set_item("path", path)?;
                    Ok(arguments)
                })
            })
    }
}
