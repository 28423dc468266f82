//! A language model in memory for custom training loops: the engine samples from it, and the trainer updates it.

use crate::errors::exception;
use crate::process::use_engine;
use kernels::{Context, Device};
use lockstep::Policy;
use lockstep::config::ComputeDType;
use lockstep::error::OrBadInput;
use lockstep::weights::{HubKind, locate};
use model::{PromptCompletion, Scorer};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyUserWarning, PyValueError};
use pyo3::prelude::*;
use std::ffi::{CString, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of tokens per forward pass.
const MAX_TOKENS: usize = 4096;

/// Token ids as a NumPy array of u32, without a copy.
pub type Ids<'py> = PyReadonlyArray1<'py, u32>;
/// One value per token of a completion.
pub type Column<'py> = Bound<'py, PyArray1<f32>>;

/// A model from a directory or the Hub, with its tokenizer. Only one thread at a time computes with it.
#[pyclass(frozen)]
#[derive(Clone)]
pub struct LanguageModel {
    pub ctx: Context,
    policy: Arc<Mutex<Policy>>,
    /// Size of the vocabulary.
    #[pyo3(get)]
    pub vocab_size: usize,
    /// Maximum number of tokens of a sequence.
    #[pyo3(get)]
    pub max_position_embeddings: usize,
    /// Token ids that end a completion.
    #[pyo3(get)]
    pub eos_ids: Vec<u32>,
}

/// The directory of a model given as a directory or a Hub id; a Hub model is downloaded if needed.
#[pyfunction]
#[pyo3(name = "locate")]
pub fn directory_of(py: Python<'_>, name: &str) -> PyResult<OsString> {
    use_engine()?;
    py.detach(|| locate(name, HubKind::Model)).map(PathBuf::into_os_string).map_err(|error| exception(&error))
}

#[pymethods]
impl LanguageModel {
    #[new]
    #[pyo3(signature = (name, *, adapter=None, dtype="f32", device=None, threads=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        adapter: Option<PathBuf>,
        dtype: &str,
        device: Option<&str>,
        threads: Option<usize>,
    ) -> PyResult<LanguageModel> {
        use_engine()?;
        let mut warning = None;
        let load = || -> anyhow::Result<LanguageModel> {
            let device = device.map(|name| Device::from_name(name).or_bad_input_in(format!("`device` = {name:?}")));
            let ctx = lockstep::context(device.transpose()?, threads, ComputeDType::from(dtype))?;
            let dir = locate(name, HubKind::Model)?;
            let warn = |what: &str| warning = CString::new(what).ok();
            let policy = Policy::load_with(&ctx, &dir, adapter.as_deref(), ComputeDType::from(dtype), warn)?;
            let (vocab_size, eos_ids) = (policy.config().vocab_size, policy.eos_ids.clone());
            let max_position_embeddings = policy.config().max_position_embeddings;
            let policy = Arc::new(Mutex::new(policy));
            Ok(LanguageModel { ctx, policy, vocab_size, max_position_embeddings, eos_ids })
        };
        let model = py.detach(load).map_err(|error| exception(&error))?;
        warning.map_or(Ok(()), |what| PyErr::warn(py, &py.get_type::<PyUserWarning>(), &what, 1))?;
        Ok(model)
    }

    /// Number of optimizer steps since the weights were loaded.
    #[getter]
    fn version(&self) -> u64 {
        self.policy().weights.version().0
    }

    /// Encodes text as token ids.
    fn encode<'py>(&self, py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let ids = self.policy().tokenizer.encode(text).or_bad_input().map_err(|error| exception(&error))?;
        Ok(ids.into_pyarray(py))
    }

    /// Decodes token ids to text.
    fn decode(&self, ids: Ids<'_>, skip_special: bool) -> PyResult<String> {
        let ids = slice(&ids)?;
        self.policy().tokenizer.decode(ids, skip_special).or_bad_input().map_err(|error| exception(&error))
    }

    /// The log-probability and the entropy at every completion token, at a temperature.
    fn score<'py>(
        &self,
        py: Python<'py>,
        prompts: Vec<Ids<'py>>,
        completions: Vec<Ids<'py>>,
        temperature: f64,
    ) -> PyResult<Vec<(Column<'py>, Column<'py>)>> {
        use_engine()?;
        let prompts = prompts.iter().map(slice).collect::<PyResult<Vec<_>>>()?;
        let completions = completions.iter().map(slice).collect::<PyResult<Vec<_>>>()?;
        for (i, ids) in prompts.iter().chain(&completions).enumerate() {
            self.check(ids, i % prompts.len())?;
        }
        let scored = py.detach(|| {
            let pairs = prompts.iter().zip(&completions);
            let pairs: Vec<_> = pairs.map(|(prompt, completion)| PromptCompletion { prompt, completion }).collect();
            let mut scorer = Scorer::new(self.ctx.memory(), MAX_TOKENS, true);
            scorer.score(&self.ctx, &self.policy().weights, &pairs, temperature)
        });
        let scored = scored.map_err(|error| exception(&error.into()))?;
        Ok(scored.into_iter().map(|s| (s.logps.into_pyarray(py), s.entropies.into_pyarray(py))).collect())
    }

    /// Writes a model directory that this package and transformers can load.
    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        py.detach(|| self.policy().export(Path::new(&dir))).map_err(|error| exception(&error))
    }
}

impl LanguageModel {
    pub fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the token ids of sequence `row` against the vocabulary size.
    pub fn check(&self, ids: &[u32], row: usize) -> PyResult<()> {
        match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(id) => Err(PyValueError::new_err(format!(
                "sequence {row}: token {id} must be below the vocabulary size {}",
                self.vocab_size
            ))),
            None => Ok(()),
        }
    }
}

/// The elements of an array, which must be contiguous.
pub fn slice<'a, T: numpy::Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|error| PyValueError::new_err(error.to_string()))
}
