//! The inputs of the parts of an online run.

use crate::config::WorkloadBounds;
use crate::models::{ModelSource, Work};
use model::ModelAssets;

/// The inputs of the parts.
#[derive(Clone, Copy)]
pub struct PartInputs<'a> {
    /// The directory of the policy's model.
    pub source: &'a ModelSource,
    /// The policy's files other than the weights: configuration, tokenizer, chat template.
    pub assets: &'a ModelAssets,
    /// The longest prompt and the number of sequences in the data.
    pub bounds: WorkloadBounds,
    /// Whether the run takes no step.
    pub only_evaluates: bool,
    /// The number of rows (tokens) whose activations are kept for the update.
    pub kept_rows: usize,
}

/// The largest work that the parts receive at once.
#[derive(Clone, Copy, Debug)]
pub struct LargestWork {
    /// The work of one optimizer step.
    pub step: Work,
    /// The work of one generation batch.
    pub generation: Work,
}
