//! Datasets: from files to prompts, and the order in which training draws them.
//!
//! [`load`] reads JSONL and Parquet into [`Example`]s; [`prompts`] turns their prompts into token ids,
//! [`prompt_dataset`] all of a set, [`pairs`] answers that are compared; [`sampler`] draws prompts in a seeded order
//! that a checkpoint can continue. Knows no reward, and nothing of what is done with a prompt.

mod files;
pub mod load;
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
pub use prompts::{encode_all, encode_completion};
pub use rows::Rows;
pub use sampler::{Sampler, SamplerState};
pub use supervised::Learned;

use rewards::Content;
use serde_json::{Map, Value};

/// A row of a file, as read.
pub type Row = Map<String, Value>;

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The row's number in the dataset as read, from 0.
    pub row: usize,
    /// The prompt, with the system prompt if there is one.
    pub prompt: Content,
    /// What supervised fine-tuning learns, where the data has it.
    pub completion: Option<Content>,
    /// The other columns, under the names that rewards know.
    pub columns: Map<String, Value>,
}

impl Example {
    /// Bytes of its texts.
    pub(crate) fn bytes(&self) -> usize {
        [Some(&self.prompt), self.completion.as_ref()].into_iter().flatten().map(|content| content.text().len()).sum()
    }
}

/// Rows that all have the same columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// Where it came from.
    pub name: String,
    /// The rows, in the files' order.
    pub examples: Vec<Example>,
    /// Names of the other columns that any row has, sorted.
    pub columns: Vec<String>,
    /// SHA-256 of the files read, in hexadecimal: the identity that a run records.
    pub hash: String,
}

#[cfg(test)]
mod tests;
