//! Generation for custom training loops: token ids in, token ids and log-probabilities out.

use crate::errors::exception;
use crate::language_model::{Column, Ids, LanguageModel, slice};
use crate::process::use_engine;
use model::{GroupId, Prompt};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rollout::{Engine, EngineConfig, Request, SamplingParams};
use std::sync::{Arc, Mutex, PoisonError};

/// Generates completions with the current weights of a model.
#[pyclass(frozen)]
pub struct Generator {
    model: LanguageModel,
    engine: Mutex<(Engine, u64)>,
}

/// A completion: token ids, the log-probability of each, the finish reason, and the version of the weights.
type Generated<'py> = (Bound<'py, PyArray1<u32>>, Column<'py>, &'static str, u64);

#[pymethods]
impl Generator {
    #[new]
    fn new(model: &Bound<'_, LanguageModel>, max_num_seqs: usize, max_model_len: usize) -> PyResult<Generator> {
        use_engine()?;
        let model = model.get().clone();
        let max_model_len = max_model_len.min(model.max_position_embeddings);
        let made = {
            let policy = model.policy();
            let config = EngineConfig::new(max_num_seqs, max_model_len);
            Engine::new(&model.ctx, policy.config(), config).map(|mut engine| {
                engine.set_detokenizer(policy.tokenizer.clone());
                engine
            })
        };
        let engine = made.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Generator { model, engine: Mutex::new((engine, 0)) })
    }

    /// Returns `num_generations` completions per prompt. The random numbers depend on `seed` and on the prompt's number
    /// since the engine was created: the same calls give the same tokens, and no two prompts use the same random
    /// numbers.
    #[pyo3(signature = (
        prompts, num_generations, *, temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, stop_ids,
        stop_strings, seed
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn generate<'py>(
        &self,
        py: Python<'py>,
        prompts: Vec<Ids<'py>>,
        num_generations: usize,
        temperature: f64,
        top_k: usize,
        top_p: f64,
        min_p: f64,
        repetition_penalty: f64,
        max_new_tokens: usize,
        stop_ids: Option<Vec<u32>>,
        stop_strings: Vec<String>,
        seed: u64,
    ) -> PyResult<Vec<Vec<Generated<'py>>>> {
        use_engine()?;
        let stop_ids = stop_ids.unwrap_or_else(|| self.model.eos_ids.clone());
        let sampling = Arc::new(SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            max_new_tokens,
            stop_ids,
            stop_strings,
            seed,
            ..SamplingParams::default()
        });
        let mut given = Vec::with_capacity(prompts.len());
        for (i, prompt) in prompts.iter().enumerate() {
            let ids = slice(prompt)?;
            self.model.check(ids, i)?;
            given.push(Prompt::new(ids.to_vec()));
        }
        let generated = py.detach(|| {
            let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            let (engine, next) = &mut *engine;
            let request = |(group, prompt)| Request::new(group, prompt, num_generations, sampling.clone());
            let requests: Vec<_> = (*next..).map(GroupId).zip(given).map(request).collect();
            *next += requests.len() as u64;
            engine.generate(&self.model.policy().weights, requests)
        });
        let groups = generated.map_err(|error| match error {
            rollout::Error::Stopped => exception(&error.into()),
            error => PyValueError::new_err(error.to_string()),
        })?;
        let completion = |mut completion: rollout::Completion| {
            let logps = std::mem::take(&mut completion.columns);
            let logps = logps.sampler_logps().map(<[f32]>::to_vec).unwrap_or_default();
            let version = completion.versions.first().copied().unwrap_or_default().0;
            let reason = completion.finish_reason.name();
            (completion.ids.into_pyarray(py), logps.into_pyarray(py), reason, version)
        };
        Ok(groups.into_iter().map(|group| group.completions.into_iter().map(completion).collect()).collect())
    }
}
