//! Datasets: reads files into prompts, and decides the order in which training draws them.
//!
//! [`load`] reads JSONL and Parquet into [`Example`]s; [`prompts`] and [`prompt_dataset`] encode prompts as token ids;
//! [`pairs`] does so for preference pairs; [`sampler`] draws prompts in a seeded order, which resumes from a
//! checkpoint.
//! This module knows neither rewards nor how prompts are used.

mod files;
pub mod load;
mod media;
pub mod notices;
pub mod pairs;
#[cfg(feature = "parquet")]
mod parquet;
mod preference;
pub mod prompt_dataset;
pub mod prompts;
pub mod rows;
pub mod sampler;
mod solutions;
pub mod supervised;

pub use load::DatasetSpec;
pub use pairs::{Pair, Pairs};
pub use prompts::encode_all;
pub use rows::Rows;
pub use sampler::{Sampler, SamplerState};
pub use supervised::{Learned, LearnedRow};

use rewards::Content;
use serde_json::{Map, Value};

/// A row of a data file: column name → JSON value.
pub type Row = Map<String, Value>;

/// One row of a dataset, split into prompt, completion and other columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The index of the row in the dataset as read, from 0.
    pub row: usize,
    /// The prompt, with the system prompt before it if there is one.
    pub prompt: Content,
    /// The completion that supervised fine-tuning learns, if the row has one.
    pub completion: Option<Content>,
    /// The other columns, under the names by which rewards read them.
    pub columns: Map<String, Value>,
}

impl Example {
    /// Bytes of the prompt's and the completion's text.
    pub(crate) fn bytes(&self) -> usize {
        [Some(&self.prompt), self.completion.as_ref()].into_iter().flatten().map(|content| content.text().len()).sum()
    }
}

/// The examples of a dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The file, directory or Hub id that the dataset was read from.
    pub name: String,
    /// The examples, in file order.
    pub examples: Vec<Example>,
    /// The names of the other columns, sorted. A column is listed if any row has it.
    pub columns: Vec<String>,
    /// The columns of a prompt's row that are passed to the chat template.
    pub template_columns: Vec<String>,
    /// SHA-256 of the files read, in hexadecimal. A run records it as the dataset's identity.
    pub hash: String,
}

#[cfg(test)]
mod tests;
