//! Reads a data set.

use super::Dataset;
use crate::Config;

/// What to read and how.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetSpec {
    /// File, directory or Hub id.
    pub name: String,
    /// A configuration of it.
    pub config: Option<String>,
    /// The split.
    pub split: String,
    /// The column that holds the prompt.
    pub prompt_column: String,
    /// The column that holds the completion.
    pub completion_column: String,
    /// Whether every row must have a completion.
    pub needs_completion: bool,
    /// New name → old name.
    pub columns: Vec<(String, String)>,
    /// Put before every prompt.
    pub system_prompt: Option<String>,
    /// The first rows only.
    pub max_samples: Option<usize>,
}

impl DatasetSpec {
    /// The training data that `config` names, if any.
    pub fn train(config: &Config) -> Option<DatasetSpec> {
        let name = config.dataset_name.clone()?;
        Some(Self::of(config, name, config.dataset_split.clone(), config.max_samples))
    }

    /// The evaluation data that `config` names, if any.
    pub fn eval(config: &Config) -> Option<DatasetSpec> {
        let name = config.eval_dataset_name.clone()?;
        let split = config.eval_dataset_split.clone().unwrap_or_else(|| "test".to_owned());
        Some(Self::of(config, name, split, config.eval_max_samples))
    }

    fn of(config: &Config, name: String, split: String, max_samples: Option<usize>) -> DatasetSpec {
        let text = |v: &serde_json::Value| v.as_str().map(str::to_owned);
        DatasetSpec {
            name,
            config: config.dataset_config.clone(),
            split,
            prompt_column: config.prompt_column.clone(),
            completion_column: config.completion_column.clone(),
            needs_completion: false,
            columns: config.columns.iter().filter_map(|(new, old)| Some((new.clone(), text(old)?))).collect(),
            system_prompt: config.system_prompt.clone(),
            max_samples,
        }
    }

    /// Reads it. Whatever is wrong with the data is a [`crate::BadInput`].
    pub fn load(&self) -> anyhow::Result<Dataset> {
        anyhow::bail!("reading data sets is not built yet")
    }
}
