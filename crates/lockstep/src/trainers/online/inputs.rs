//! The inputs of the parts of an online run.

use crate::config::WorkloadBounds;
use crate::models::{Builder, ModelSource, Work};
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

impl PartInputs<'_> {
    /// The number of ranks that divide generation. A function of the calling program uses the engine of this process.
    pub fn generating_ranks(&self, builder: &Builder<'_>) -> usize {
        if self.bounds.given { 1 } else { builder.world_size() }
    }
}

/// The largest work that the parts receive at once.
#[derive(Clone, Copy, Debug)]
pub struct LargestWork {
    /// The work of one optimizer step.
    pub step: Work,
    /// The work of one generation batch.
    pub generation: Work,
}
