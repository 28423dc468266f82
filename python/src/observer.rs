//! The Python object whose callbacks a run calls, and the requests that they return.

use crate::errors::exception;
use lockstep::weights::Snapshot;
use lockstep::{Flow, Follow, LogRecord, Policy, RunEvent, RunOptions, Step};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The request to end the run after this step.
const STOP: u8 = 1;

/// The exception of a reward or a callback that ends the run; only the first one is stored.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// Stores `error` if it is the first exception, and requests a stop if `error` is a `KeyboardInterrupt`.
    pub fn set(&self, py: Python<'_>, error: PyErr, stop: &lockstep::StopSignal) {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            stop.request();
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Takes the stored exception.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether an exception is stored.
    pub fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// The model of a run, accessible only while a callback is called.
#[pyclass(frozen)]
#[derive(Clone, Default)]
pub struct LiveModel(Arc<Mutex<Option<(u64, Snapshot)>>>);

#[pymethods]
impl LiveModel {
    /// The version of the weights; none outside of callbacks.
    fn version(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(version, _)| *version)
    }

    /// Writes a model directory; for an adapter only the adapter, as in PEFT.
    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        let saved = py.detach(|| {
            let now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            now.as_ref().map(|(_, snapshot)| snapshot.export(&dir))
        });
        match saved {
            Some(saved) => saved.map_err(|error| exception(&error)),
            None => Err(PyRuntimeError::new_err("the weights can be read only inside a callback")),
        }
    }
}

impl LiveModel {
    fn set(&self, policy: Option<&Policy>) {
        let now = policy.map(|policy| (policy.weights.version().0, policy.snapshot()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

/// Calls the methods of a Python object. Each returns a sum of request flags, or None.
#[derive(Clone)]
pub struct Observer {
    object: Arc<Py<PyAny>>,
    failure: Failure,
    stop: lockstep::StopSignal,
    live: LiveModel,
}

impl Observer {
    /// Creates the observer; sets the attribute `live` of the object to the model.
    pub fn new(object: &Bound<'_, PyAny>, failure: Failure, stop: lockstep::StopSignal) -> PyResult<Observer> {
        let live = LiveModel::default();
        object.setattr("live", live.clone())?;
        Ok(Observer { object: Arc::new(object.clone().unbind()), failure, stop, live })
    }

    /// Calls `method`. After an exception, which ends the run, no method is called any longer.
    pub fn call(
        &self,
        method: &str,
        policy: &Policy,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyDict>>,
    ) -> Flow {
        if self.failure.is_set() {
            return ControlFlow::Break(());
        }
        let wishes = self.with(policy, method, arguments);
        if wishes & STOP == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Calls the object's `leave`: the run ends after `step` without a result, possibly because of an exception.
    pub fn leave(&self, step: Step, policy: &Policy) {
        self.with(policy, "leave", |py| {
            let arguments = PyDict::new(py);
            arguments.set_item("step", step.0)?;
            Ok(arguments)
        });
    }

    /// Passes on a warning of the engine.
    pub fn warn(&self, text: &str) {
        let _ = Python::attach(|py| self.object.bind(py).call_method1("warn", (text,)).map(drop));
    }

    fn with(
        &self,
        policy: &Policy,
        method: &str,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyDict>>,
    ) -> u8 {
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
        wishes
    }

    /// Asks the object whether `what` happens now; after an exception, returns `is_due`.
    fn wants(&self, what: Follow, is_due: bool) -> bool {
        if self.failure.is_set() {
            return is_due;
        }
        let name = match what {
            Follow::Log => "log",
            Follow::Evaluate => "evaluate",
            Follow::Save => "save",
            Follow::Complete => "complete",
            Follow::EndEpoch => "end_epoch",
        };
        Python::attach(|py| {
            let asked = self.object.bind(py).call_method1("wants", (name, is_due)).and_then(|wants| wants.extract());
            asked.unwrap_or_else(|error| {
                self.failure.set(py, error, &self.stop);
                is_due
            })
        })
    }

    /// Adds callbacks to `options` that report steps, epochs, logs and checkpoints to this object, and ask it what to
    /// do next.
    pub fn told_by(&self, options: RunOptions) -> RunOptions {
        let asked = self.clone();
        let options = options.decide(move |what, is_due| asked.wants(what, is_due));
        let observer = self.clone();
        let told = |method: &'static str, step: &Step, policy: &Policy, observer: &Observer| {
            observer.call(method, policy, |py| {
                let arguments = PyDict::new(py);
                arguments.set_item("step", step.0)?;
                Ok(arguments)
            })
        };
        options.on_event(move |event, policy| match event {
            RunEvent::Begin(step) => told("step_begin", step, policy, &observer),
            RunEvent::Step(step) => told("step_end", step, policy, &observer),
            RunEvent::Epoch(step) => told("epoch_end", step, policy, &observer),
            RunEvent::Log(LogRecord { step, metrics: logged }) => observer.call("log", policy, |py| {
                let (arguments, metrics) = (PyDict::new(py), PyDict::new(py));
                logged.iter().try_for_each(|(name, value)| metrics.set_item(name, value))?;
                arguments.set_item("step", step.0)?;
                arguments.set_item("metrics", metrics)?;
                Ok(arguments)
            }),
            RunEvent::Checkpoint(step, path) => observer.call("save", policy, |py| {
                let arguments = PyDict::new(py);
                arguments.set_item("step", step.0)?;
                arguments.set_item("path", path)?;
                Ok(arguments)
            }),
        })
    }
}
