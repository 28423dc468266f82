//! Optimizer steps for custom training loops: groups with advantages in, new weights out.

use crate::errors::exception;
use crate::fields::method;
use crate::json;
use crate::language_model::{Ids, LanguageModel, slice};
use crate::process::use_engine;
use lockstep::config::{Layers, trainer_config};
use model::columns::{REF_LOGPS, SAMPLER_LOGPS};
use model::{Columns, FinishReason, GroupId, Prompt, Updates};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, PoisonError};
use train::{Advantage, Sample, Trainer};

/// Updates a model's weights in place.
#[pyclass(frozen)]
pub struct Stepper {
    model: LanguageModel,
    trainer: Mutex<Trainer>,
    /// The default learning rate of a step.
    #[pyo3(get)]
    learning_rate: f64,
}

type Numbers<'py> = PyReadonlyArray1<'py, f32>;

/// A completion: token ids, advantages (one, or one per token), log-probabilities of the old policy, the version of the
/// weights if they are the sampler's, log-probabilities of the reference, the loss mask, and whether it was truncated.
type GivenCompletion<'py> = (
    Ids<'py>,
    Numbers<'py>,
    Numbers<'py>,
    Option<u64>,
    Option<Numbers<'py>>,
    Option<PyReadonlyArray1<'py, bool>>,
    bool,
);

#[pymethods]
impl Stepper {
    /// `values` are those of a configuration of `method`: the loss, the optimizer, the temperature.
    #[new]
    fn new(model: &Bound<'_, LanguageModel>, name: &str, values: &str) -> PyResult<Stepper> {
        use_engine()?;
        let (purpose, _) = method(name)?;
        let model = model.get().clone();
        let made = || -> anyhow::Result<Stepper> {
            let values = json::values(values)?;
            let config = Layers { purpose, values, ..Layers::default() }.resolve()?.config;
            let settings = trainer_config(&config, config.objective());
            let trainer = Trainer::new(model.ctx.memory(), model.policy().config(), settings)?;
            Ok(Stepper { learning_rate: config.learning_rate, trainer: Mutex::new(trainer), model: model.clone() })
        };
        made().map_err(|error| exception(&error))
    }

    /// Takes one optimizer step on all groups (prompts with their completions), and returns its metrics.
    fn step<'py>(
        &self,
        py: Python<'py>,
        groups: Vec<(Ids<'py>, Vec<GivenCompletion<'py>>)>,
        learning_rate: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        use_engine()?;
        let mut samples = Vec::new();
        for (number, (prompt, completions)) in groups.iter().enumerate() {
            let ids = slice(prompt)?;
            self.model.check(ids, number)?;
            let prompt = Prompt::new(ids.to_vec());
            for completion in completions {
                samples.push(self.sample(number, &prompt, completion)?);
            }
        }
        let metrics = py.detach(|| {
            let mut trainer = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
            let mut policy = self.model.policy();
            trainer.update(&self.model.ctx, &mut policy.weights, &samples[..], learning_rate)
        });
        let metrics = metrics.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let out = PyDict::new(py);
        metrics.entries().into_iter().try_for_each(|(name, value)| out.set_item(name, value))?;
        Ok(out)
    }
}

impl Stepper {
    fn sample(&self, group: usize, prompt: &Arc<Prompt>, given: &GivenCompletion<'_>) -> PyResult<Sample> {
        let (ids, advantages, logps, version, reference, mask, truncated) = given;
        let ids = slice(ids)?;
        self.model.check(ids, group)?;
        let sized = |name: &str, numbers: &Numbers<'_>| -> PyResult<Vec<f32>> {
            let numbers = slice(numbers)?;
            match numbers.len() == ids.len() {
                true => Ok(numbers.to_vec()),
                false => Err(PyValueError::new_err(format!(
                    "group {group}: {name} has {} numbers for {} tokens",
                    numbers.len(),
                    ids.len()
                ))),
            }
        };
        let advantage = match slice(advantages)? {
            [one] => Advantage::Sequence(*one),
            _ => Advantage::Tokens(sized("advantages", advantages)?),
        };
        let mut columns = Columns::of([(SAMPLER_LOGPS, sized("logprobs", logps)?)]);
        if let Some(reference) = reference {
            columns.set(REF_LOGPS, sized("ref_logprobs", reference)?);
        }
        let mask = match mask {
            Some(mask) if slice(mask)?.len() != ids.len() => {
                return Err(PyValueError::new_err(format!("group {group}: mask must be as long as the completion")));
            }
            Some(mask) => slice(mask)?.to_vec(),
            None => vec![true; ids.len()],
        };
        // No weights have version u64::MAX, so log-probabilities of unknown origin are not compared.
        let version = Updates(version.unwrap_or(u64::MAX));
        Ok(Sample {
            group: GroupId(group as u64),
            prompt: prompt.clone(),
            completion: ids.to_vec(),
            loss_mask: mask,
            versions: vec![version; ids.len()],
            finish_reason: FinishReason::from_truncated(*truncated),
            advantage,
            columns,
        })
    }
}
