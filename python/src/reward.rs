//! A Python function as a reward.

use crate::json;
use crate::observer::Failure;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rewards::{Content, Problem, Reward, RewardBatch, Scores};
use std::time::Instant;

/// Calls a Python object with a batch (a dict). The object returns an answer as JSON text ([`Scores::read`]). An
/// exception is stored for the caller of the run, and the batch has no score.
pub struct PythonReward {
    pub name: String,
    pub call: Py<PyAny>,
    /// Whether the reward may score one group while other groups are being generated.
    pub by_group: bool,
    pub failure: Failure,
    pub stop: lockstep::StopSignal,
    /// If set, an exception gives no score, and the run continues (`reward_errors = "continue"`).
    pub forgives: bool,
}

impl Reward for PythonReward {
    fn name(&self) -> &str {
        &self.name
    }

    fn scores_by_group(&self) -> bool {
        self.by_group
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let asked = Instant::now();
        let (scores, waited_s) = Python::attach(|py| {
            let waited_s = asked.elapsed().as_secs_f64();
            (self.ask(py, batch).map_err(|error| self.failed(py, error, batch.len())), waited_s)
        });
        let mut scores = scores.unwrap_or_else(|failed| failed);
        scores.metrics.push(("gil_wait_s".to_owned(), waited_s));
        scores.metrics.push(("gil_held_s".to_owned(), asked.elapsed().as_secs_f64() - waited_s));
        scores
    }
}

impl PythonReward {
    fn ask(&self, py: Python<'_>, batch: &RewardBatch<'_>) -> PyResult<Scores> {
        let given = PyDict::new(py);
        given.set_item("prompts", contents(py, batch.prompts)?)?;
        given.set_item("completions", contents(py, batch.completions)?)?;
        given.set_item("completion_ids", batch.completion_ids.to_vec())?;
        given.set_item("rows", batch.rows.to_vec())?;
        given.set_item("step", batch.step.0)?;
        let columns = PyDict::new(py);
        for (name, values) in batch.columns {
            let values = values.iter().map(|value| json::to_python(py, value)).collect::<PyResult<Vec<_>>>()?;
            columns.set_item(name, values)?;
        }
        given.set_item("columns", columns)?;
        let answer: String = self.call.bind(py).call1((given,))?.extract()?;
        Scores::read(&self.name, &answer, batch)
            .map_err(|e| pyo3::exceptions::PyValueError::new_err(format!("reward `{}`: {e}", self.name)))
    }

    fn failed(&self, py: Python<'_>, error: PyErr, rows: usize) -> Scores {
        let message = error.to_string();
        if self.forgives && error.is_instance_of::<pyo3::exceptions::PyException>(py) {
            return Scores::failed(rows, Problem::new(&self.name, rows, message));
        }
        self.failure.set(py, error, &self.stop);
        Scores::failed(rows, Problem { fatal: true, ..Problem::new(&self.name, rows, message) })
    }
}

/// Converts texts and lists of chat messages to a Python list.
pub fn contents<'py, 'a>(
    py: Python<'py>,
    contents: impl IntoIterator<Item = &'a Content>,
) -> PyResult<Bound<'py, PyList>> {
    let content = |content: &Content| match content {
        Content::Text(text) => Ok(text.into_pyobject(py)?.into_any()),
        Content::Messages(messages) => {
            let messages = messages.iter().map(|message| json::to_python(py, message)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, messages)?.into_any())
        }
    };
    PyList::new(py, contents.into_iter().map(content).collect::<PyResult<Vec<_>>>()?)
}
