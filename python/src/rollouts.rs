//! A Python function that makes completions, and the engine that it may ask while it runs.

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

/// Calls a Python object with a dict (`prompts`, `num_generations`) and a [`RolloutEngine`]. An exception is kept for
/// whoever started the run.
pub struct PythonRollouts {
    pub call: Py<PyAny>,
    pub failure: Failure,
    pub stop: lockstep::StopSignal,
}

/// What Python gives of a completion: ids of the prompt and of itself, log-probabilities, whether each token was
/// sampled, columns as JSON.
type GivenByPython = (Vec<u32>, Vec<u32>, Option<Vec<f32>>, Option<Vec<bool>>, String);

/// What the engine is asked for, and where the answer goes.
struct Asked {
    prompts: Vec<RolloutPrompt>,
    num_generations: usize,
    sampling: SamplingParams,
    answer: Sender<anyhow::Result<Vec<RolloutGroup>>>,
}

/// The engine of a run, while its rollout function is called: another thread has it, as an object of Python's may
/// outlive the call.
#[pyclass(frozen)]
pub struct RolloutEngine {
    asks: Mutex<Option<Sender<Asked>>>,
    sampling: SamplingParams,
}

/// A completion: its prompt's ids, its own, the log-probability of each, and why it ended.
type Written = (Vec<u32>, Vec<u32>, Vec<f32>, &'static str);

#[pymethods]
impl RolloutEngine {
    /// `num_generations` completions of each prompt (a JSON text, list of messages or list of ids); what is not given
    /// is drawn as the run draws.
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
            let text = "the engine generates for rollout_func while that is called, and not after it";
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
    /// The run's sampling, but for the values that are given.
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

/// Generates what is asked for, until nobody can ask any more.
fn serve(asked: Receiver<Asked>, generate: &mut Generate<'_>) {
    while let Ok(Asked { prompts, num_generations, sampling, answer }) = asked.recv() {
        // Whoever asked may be gone.
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
        // The thread that generates ends.
        engine.get().asks.lock().unwrap_or_else(PoisonError::into_inner).take();
        given
    }
}
