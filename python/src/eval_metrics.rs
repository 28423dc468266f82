//! Metrics of held-out rows that Python computes (`compute_metrics`).

use crate::observer::Failure;
use lockstep::functions::{EvalBatch, EvalMetrics, SetSize};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;

/// Calls the methods `begin`, `batch` (once per batch) and `end` of a Python object, whose attributes configure the
/// calls. An exception is stored for the caller of the run.
pub struct PythonEvalMetrics {
    object: Py<PyAny>,
    batch_size: usize,
    keeps_outputs: bool,
    needs_loss: bool,
    failure: Failure,
    stop: lockstep::StopSignal,
}

impl PythonEvalMetrics {
    pub fn new(object: &Bound<'_, PyAny>, failure: Failure, stop: lockstep::StopSignal) -> PyResult<PythonEvalMetrics> {
        Ok(PythonEvalMetrics {
            batch_size: object.getattr("batch_size")?.extract()?,
            keeps_outputs: object.getattr("keeps_outputs")?.extract()?,
            needs_loss: object.getattr("needs_loss")?.extract()?,
            object: object.clone().unbind(),
            failure,
            stop,
        })
    }

    fn call<T>(
        &self,
        method: &str,
        arguments: impl for<'py> FnOnce(&Bound<'py, PyDict>) -> PyResult<()>,
        read: impl for<'py> FnOnce(Bound<'py, PyAny>) -> PyResult<T>,
    ) -> anyhow::Result<T> {
        Python::attach(|py| {
            let called = || {
                let given = PyDict::new(py);
                arguments(&given)?;
                read(self.object.bind(py).call_method(method, (), Some(&given))?)
            };
            called().map_err(|error| {
                let text = error.to_string();
                self.failure.set(py, error, &self.stop);
                anyhow::anyhow!("compute_metrics: {text}")
            })
        })
    }
}

impl EvalMetrics for PythonEvalMetrics {
    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn keeps_outputs(&self) -> bool {
        self.keeps_outputs
    }

    fn needs_loss(&self) -> bool {
        self.needs_loss
    }

    fn begin(&mut self, name: &str, size: SetSize) -> anyhow::Result<()> {
        let given = |given: &Bound<'_, PyDict>| {
            given.set_item("name", name)?;
            given.set_item("rows", size.rows)?;
            given.set_item("sequences", size.sequences)?;
            given.set_item("longest", size.longest)?;
            given.set_item("vocab", size.vocab)
        };
        self.call("begin", given, |_| Ok(()))
    }

    fn batch(&mut self, batch: EvalBatch) -> anyhow::Result<()> {
        let EvalBatch { ids, learned, outputs, vocab, pad, loss } = batch;
        let given = move |given: &Bound<'_, PyDict>| {
            let py = given.py();
            let ids: Vec<Bound<'_, PyArray1<u32>>> = ids.into_iter().map(|ids| ids.into_pyarray(py)).collect();
            given.set_item("ids", ids)?;
            let learned: Vec<Bound<'_, PyArray1<bool>>> = learned.into_iter().map(|row| row.into_pyarray(py)).collect();
            given.set_item("learned", learned)?;
            given.set_item("outputs", outputs.into_pyarray(py))?;
            given.set_item("vocab", vocab)?;
            given.set_item("pad", pad)?;
            given.set_item("loss", loss)
        };
        self.call("batch", given, |_| Ok(()))
    }

    fn end(&mut self) -> anyhow::Result<Vec<(String, f64)>> {
        let metrics = self.call("end", |_| Ok(()), |metrics| metrics.extract::<HashMap<String, f64>>())?;
        let mut metrics: Vec<(String, f64)> = metrics.into_iter().collect();
        metrics.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(metrics)
    }
}
