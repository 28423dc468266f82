//! A Python function that generates completions (`rollout_func`), and the engine that this function may use.

use crate::errors::exception;
use crate::observer::Failure;
use crate::reward::contents;
use lockstep::error::{BadInput, OrBadInput};
use lockstep::functions::{Generate, GivenCompletion, RolloutFunction, RolloutPrompt, RolloutRequest};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rewards::Content;
use rollout::{RolloutGroup, SamplingParams};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

/// Calls a Python object with a dict (`prompts`, `num_generations`) and a [`RolloutEngine`]. An exception is stored for
/// the caller of the run.
pub struct PythonRollouts {
    pub call: Py<PyAny>,
    pub failure: Failure,
    pub stop: lockstep::StopSignal,
}

/// A completion from Python: token ids of prompt and completion, log-probabilities, whether each token was sampled, and
/// columns as JSON.
type GivenByPython = (Vec<u32>, Vec<u32>, Option<Vec<f32>>, Option<Vec<bool>>, String);

/// A request to generate, and the channel for the response.
struct Asked {
    prompts: Vec<RolloutPrompt>,
    num_generations: usize,
    sampling: SamplingParams,
    answer: Sender<anyhow::Result<Vec<RolloutGroup>>>,
}

/// The engine of a run, usable while its rollout function is called. It runs on another thread, because the Python
/// object may outlive the call.
#[pyclass(frozen)]
pub struct RolloutEngine {
    asks: Mutex<Option<Sender<Asked>>>,
    sampling: SamplingParams,
}

/// A completion: token ids of prompt and completion, the log-probability of each completion token, and the finish
/// reason.
type Written = (Vec<u32>, Vec<u32>, Vec<f32>, &'static str);

#[pymethods]
impl RolloutEngine {
    /// Returns `num_generations` completions per prompt (a JSON string, list of messages or list of ids). Missing
    /// sampling values default to those of the run.
    #[pyo3(signature = (prompts, num_generations, values))]
    fn generate(
        &self,
        py: Python<'_>,
        prompts: &str,
        num_generations: usize,
        values: &Bound<'_, PyDict>,
    ) -> PyResult<Vec<Written>> {
        let prompts = prompts_of(prompts).map_err(|error| exception(&error))?;
        let sampling = self.sampling_with(values)?;
        let (answer, answered) = channel();
        let asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = asks.is_some_and(|asks| asks.send(Asked { prompts, num_generations, sampling, answer }).is_ok());
        if !sent {
            let text = "the engine can generate only inside rollout_func";
            return Err(pyo3::exceptions::PyRuntimeError::new_err(text));
        }
        let groups = py.detach(move || answered.recv());
        let groups = groups.map_err(|_| pyo3::exceptions::PyRuntimeError::new_err("the run has ended"))?;
        let groups = groups.map_err(|error| exception(&error))?;
        let written = |group: &RolloutGroup| {
            let prompt = group.prompt.ids.clone();
            let of = |one: &rollout::Completion| {
                (prompt.clone(), one.ids.clone(), one.logps().to_vec(), one.finish_reason.name())
            };
            group.completions.iter().map(of).collect::<Vec<_>>()
        };
        Ok(groups.iter().flat_map(written).collect())
    }
}

impl RolloutEngine {
    /// The run's sampling settings, overridden by the given values.
    fn sampling_with(&self, values: &Bound<'_, PyDict>) -> PyResult<SamplingParams> {
        let mut sampling = self.sampling.clone();
        for (name, value) in values {
            match name.extract::<&str>()? {
                "temperature" => sampling.temperature = value.extract()?,
                "top_k" => sampling.top_k = value.extract()?,
                "top_p" => sampling.top_p = value.extract()?,
                "min_p" => sampling.min_p = value.extract()?,
                "repetition_penalty" => sampling.repetition_penalty = value.extract()?,
                "max_new_tokens" => sampling.max_new_tokens = value.extract()?,
                "stop" => sampling.stop_strings = value.extract()?,
                other => {
                    let text = format!("generate() has no argument `{other}`");
                    return Err(pyo3::exceptions::PyTypeError::new_err(text));
                }
            }
        }
        Ok(sampling)
    }
}

fn prompts_of(text: &str) -> anyhow::Result<Vec<RolloutPrompt>> {
    let prompts: Vec<serde_json::Value> = serde_json::from_str(text).or_bad_input()?;
    let prompt = |value: serde_json::Value| -> anyhow::Result<RolloutPrompt> {
        let is_ids = value.as_array().is_some_and(|items| items.iter().all(|item| item.is_number()));
        match is_ids {
            true => Ok(RolloutPrompt::Ids(serde_json::from_value(value).or_bad_input()?)),
            false => Ok(RolloutPrompt::Content(Content::read(&value).map_err(BadInput::new)?)),
        }
    };
    prompts.into_iter().map(prompt).collect()
}

impl RolloutFunction for PythonRollouts {
    fn complete(
        &mut self,
        request: &RolloutRequest<'_>,
        generate: &mut Generate<'_>,
    ) -> anyhow::Result<Vec<GivenCompletion>> {
        let (asks, asked) = channel();
        let given = std::thread::scope(|scope| {
            scope.spawn(|| serve(asked, generate));
            Python::attach(|py| {
                let given = self.ask(py, request, asks);
                given.map_err(|error| {
                    let text = error.to_string();
                    self.failure.set(py, error, &self.stop);
                    anyhow::anyhow!("rollout_func: {text}")
                })
            })
        })?;
        let completion = |(prompt_ids, ids, logps, sampled, columns): GivenByPython| -> anyhow::Result<_> {
            let columns = serde_json::from_str(&columns).or_bad_input()?;
            Ok(GivenCompletion { prompt_ids, ids, logps, sampled, columns })
        };
        given.into_iter().map(completion).collect()
    }
}

/// Serves requests to generate until the channel is closed.
fn serve(asked: Receiver<Asked>, generate: &mut Generate<'_>) {
    while let Ok(Asked { prompts, num_generations, sampling, answer }) = asked.recv() {
        // The requester may no longer be waiting.
        let _ = answer.send(generate(prompts, num_generations, sampling));
    }
}

impl PythonRollouts {
    fn ask(&self, py: Python<'_>, request: &RolloutRequest<'_>, asks: Sender<Asked>) -> PyResult<Vec<GivenByPython>> {
        let sampling = request.sampling.clone();
        let engine = Bound::new(py, RolloutEngine { asks: Mutex::new(Some(asks)), sampling })?;
        let batch = PyDict::new(py);
        batch.set_item("prompts", contents(py, request.prompts.iter().copied())?)?;
        batch.set_item("num_generations", request.num_generations)?;
        let given = self.call.bind(py).call1((batch, &engine)).and_then(|given| given.extract());
        // Ends the generating thread.
        engine.get().asks.lock().unwrap_or_else(PoisonError::into_inner).take();
        given
    }
}
