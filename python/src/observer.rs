//! The Python object whose callbacks a run calls, and what they request.

use crate::errors::exception;
use lockstep::{Flow, LogRecord, Policy, RunEvent, RunOptions, Snapshot};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ops::ControlFlow;
use std::path::PathBuf;
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

/// The model of a run while a callback is called, for as long as that takes.
#[pyclass(frozen)]
#[derive(Clone, Default)]
pub struct LiveModel(Arc<Mutex<Option<(u64, Snapshot)>>>);

#[pymethods]
impl LiveModel {
    /// The version of the weights; none where no callback is called.
    fn version(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(version, _)| *version)
    }

    /// Writes a model directory; of an adapter only that, as PEFT does.
    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        let saved = py.detach(|| {
            let now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            now.as_ref().map(|(_, snapshot)| snapshot.export(&dir))
        });
        match saved {
            Some(saved) => saved.map_err(|error| exception(&error)),
            None => Err(PyRuntimeError::new_err("the weights are read while a callback is called, and not after it")),
        }
    }
}

impl LiveModel {
    fn set(&self, policy: Option<&Policy>) {
        let now = policy.map(|policy| (policy.weights.version(), policy.snapshot()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

/// Calls the methods of a Python object; each gives the sum of its wishes, or none.
#[derive(Clone)]
pub struct Observer {
    object: Arc<Py<PyAny>>,
    wishes: Arc<AtomicU8>,
    failure: Failure,
    stop: lockstep::StopSignal,
    live: LiveModel,
}

impl Observer {
    /// The object's attribute `live` is the model from now on.
    pub fn new(object: &Bound<'_, PyAny>, failure: Failure, stop: lockstep::StopSignal) -> PyResult<Observer> {
        let live = LiveModel::default();
        object.setattr("live", live.clone())?;
        Ok(Observer { object: Arc::new(object.clone().unbind()), wishes: Arc::default(), failure, stop, live })
    }

    /// Calls `method`; after an exception, which ends the run, nothing more is called.
    pub fn call(
        &self,
        method: &str,
        policy: &Policy,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyDict>>,
    ) -> Flow {
        if self.failure.is_set() {
            return ControlFlow::Break(());
        }
        self.live.set(Some(policy));
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
        self.live.set(None);
        self.wishes.fetch_or(wishes, Ordering::Relaxed);
        if wishes & STOP == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// What was wished since it was asked last.
    pub fn take_wishes(&self) -> u8 {
        self.wishes.swap(0, Ordering::Relaxed)
    }

    /// A run's options that tell this object of steps, logs and checkpoints.
    pub fn told_by(&self, options: RunOptions) -> RunOptions {
        let observer = self.clone();
        options.on_event(move |event, policy| match event {
            RunEvent::Step(step) => observer.call("step_end", policy, |py| {
                let arguments = PyDict::new(py);
                arguments.set_item("step", step)?;
                Ok(arguments)
            }),
            RunEvent::Log(LogRecord { step, metrics: logged }) => observer.call("log", policy, |py| {
                let (arguments, metrics) = (PyDict::new(py), PyDict::new(py));
                logged.iter().try_for_each(|(name, value)| metrics.set_item(name, value))?;
                arguments.set_item("step", step)?;
                arguments.set_item("metrics", metrics)?;
                Ok(arguments)
            }),
            RunEvent::Checkpoint(step, path) => observer.call("save", policy, |py| {
                let arguments = PyDict::new(py);
                arguments.set_item("step", step)?;
                arguments.set_item("path", path)?;
                Ok(arguments)
            }),
        })
    }
}
