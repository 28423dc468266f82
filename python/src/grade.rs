//! A built-in reward as a Python callable.

use crate::errors::exception;
use ::rewards::{Content, Reward, RewardBatch, RewardSpec};
use lockstep::error::{BadInput, OrBadInput};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// A built-in reward.
#[pyclass(frozen)]
pub struct Grader {
    name: String,
    reward: Mutex<Box<dyn Reward>>,
}

/// One score per completion, and the reasons for missing scores.
type Judged = (Vec<Option<f64>>, Vec<String>);

#[pymethods]
impl Grader {
    /// Creates the reward from `spec`, its entry in `reward_funcs` as JSON.
    #[new]
    fn new(spec: &str) -> PyResult<Grader> {
        let made = || -> anyhow::Result<Grader> {
            let spec: RewardSpec = serde_json::from_str(spec).or_bad_input()?;
            let name = ::rewards::names(std::slice::from_ref(&spec)).or_bad_input()?.remove(0);
            let reward = Mutex::new(::rewards::build(&spec, name.clone()).or_bad_input()?);
            Ok(Grader { name, reward })
        };
        made().map_err(|error| exception(&error))
    }

    /// The name under which the scores are logged.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The dataset columns that the reward reads.
    fn required_columns(&self) -> Vec<String> {
        self.reward.lock().unwrap_or_else(PoisonError::into_inner).required_columns()
    }

    /// Scores completions. Prompts and completions are JSON lists of strings or conversations; columns are a JSON
    /// object of lists.
    fn score(
        &self,
        py: Python<'_>,
        prompts: &str,
        completions: &str,
        completion_ids: Vec<Vec<u32>>,
        columns: &str,
    ) -> PyResult<Judged> {
        py.detach(|| self.judge(prompts, completions, &completion_ids, columns)).map_err(|error| exception(&error))
    }
}

impl Grader {
    fn judge(
        &self,
        prompts: &str,
        completions: &str,
        completion_ids: &[Vec<u32>],
        columns: &str,
    ) -> anyhow::Result<Judged> {
        let contents = |text: &str, what: &str| -> anyhow::Result<Vec<Content>> {
            let values: Vec<serde_json::Value> = serde_json::from_str(text).or_bad_input_in(what)?;
            let read = |value| Content::read(value).map_err(|e| BadInput::new(format!("{what}: {e}")));
            values.iter().map(read).collect()
        };
        let (prompts, completions) = (contents(prompts, "prompts")?, contents(completions, "completions")?);
        let columns = serde_json::from_str(columns).or_bad_input_in("columns")?;
        let rows: Vec<usize> = (0..completions.len()).collect();
        let mut reward = self.reward.lock().unwrap_or_else(PoisonError::into_inner);
        let scores = reward.score(&RewardBatch {
            prompts: &prompts,
            completions: &completions,
            completion_ids,
            columns: &columns,
            rows: &rows,
            step: model::Step(0),
        });
        Ok((scores.values, scores.problems.into_iter().map(|problem| problem.message).collect()))
    }
}
