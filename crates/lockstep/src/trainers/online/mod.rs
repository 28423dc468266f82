//! The rollout pipeline that GRPO and PPO share: from prompts to completions, rewards and samples, with reference model
//! and evaluation.
//!
//! The pipeline's state is part of the task's state, so that a killed run continues with the same bits.

mod activations;
mod after;
mod build;
mod drafts;
mod inputs;
mod parts;
mod reference;
mod spread;
mod stages;
mod waiting;

pub use build::Prepared;
pub use inputs::{LargestWork, PartInputs};
pub use parts::Parts;

use crate::bad_input;
use crate::config::{Config, SamplingPlan};
use crate::error::BadInput;
use crate::models::WriteFiles;
use crate::rollouts::evaluate::Evaluation;
use crate::rollouts::function::SharedScorer;
use crate::rollouts::lineage::Lineage;
use crate::rollouts::older::SavedBatch;
use crate::rollouts::wire::{Group, records};
use crate::run::prepared::PreparedStep;
use crate::sources::{BatchSizes, BatchSource, SavedState, SourceState};
use anyhow::Context as _;
use model::{GroupId, Updates};
use reference::Reference;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use telemetry::CompletionRows;
use train::Sample;

/// A generation batch with its samples; empty once all steps on the batch are done.
#[derive(Clone, Default)]
pub(crate) struct GenerationBatch {
    pub(crate) samples: Arc<[Sample]>,
    /// Optimizer steps taken on this batch.
    pub(crate) used: u64,
}

/// The part of a pipeline's state that changes from step to step.
#[derive(Clone, Default)]
pub(crate) struct RolloutState {
    /// The state of the source of batches.
    pub(crate) source: SourceState,
    /// The current generation batch.
    pub(crate) batch: GenerationBatch,
    /// The lineage of the weights. From the first step on a batch it includes that batch. `None` before the run begins.
    pub(crate) lineage: Option<Lineage>,
}

/// The data of one optimizer step, and the changes to the run's state from preparing it.
pub struct OnlineBatch {
    /// Changes of the run.
    pub run: PreparedStep,
    /// The state of the pipeline after this step's batch is made.
    pub(crate) state: RolloutState,
    /// For a new generation, the lineage of the weights that sampled it; `None` if it is from a file.
    sampled_by: Option<Lineage>,
    /// For a new generation, its logged metrics.
    report: Option<Report>,
}

/// The logged values of a generation.
struct Report {
    /// The groups as bytes, if they are recorded, and the seconds spent converting them.
    recorded: Option<(Vec<u8>, f64)>,
    /// Rows of the completions table, and how many of them the console shows.
    completions: Option<(CompletionRows, usize)>,
    /// Values for histograms: rewards, lengths, advantages, log-probabilities, entropies.
    distributions: Vec<(String, Vec<f64>)>,
}

/// Times of a generation, summed over all collections of dynamic sampling.
#[derive(Default)]
struct StageTimes {
    rollout_time_s: f64,
    rollout_tokens: usize,
    /// Seconds in which the run waited for scoring.
    reward_time_s: f64,
    /// Seconds of scoring that overlapped with generation. The metric keeps this older name.
    reward_hidden_time_s: f64,
    /// Seconds per reward, by name.
    reward_seconds: BTreeMap<String, f64>,
}

/// The pipeline from prompts, or from a file of rollouts, to the samples of an optimizer step.
pub struct RolloutPipeline {
    /// The reference model or teacher; `None` if the loss needs none.
    reference: Option<Reference>,
    /// The source of generation batches.
    source: Box<dyn BatchSource>,
    /// Whether user code (a rollout function) makes the completions.
    has_function: bool,
    /// Weights of the rewards in evaluations.
    eval_weights: Vec<f64>,
    sampling: SamplingPlan,
    /// The digest of the settings that affect a step, besides its batch and the weights.
    settings: Lineage,
    pub(crate) sizes: BatchSizes,
    evaluation: Option<Evaluation>,
    /// Computes log-probabilities with the policy: of completions from the user's rollout function, of completions by
    /// older weights, of recorded updates, and of held-out completions whose loss needs more than the engine recorded.
    scorer: Option<SharedScorer>,
    /// Computes log π_old of completions sampled with other weights; `None` if there are none.
    stale_scorer: Option<SharedScorer>,
    /// Records the effect of steps on tokens, if configured.
    after: Option<after::AfterStep>,
    /// The state after the last step.
    pub(crate) state: RolloutState,
}

/// The state of a pipeline in a checkpoint.
#[derive(Serialize, Deserialize)]
pub struct PipelineState {
    /// The next group.
    #[serde(rename = "rollout_number")]
    next_group: GroupId,
    /// The position in the current generation batch, which is in a separate file of the checkpoint.
    #[serde(default)]
    batch: Option<BatchPlace>,
    /// The generation batch itself, in checkpoints of format 2.
    #[serde(default, skip_serializing)]
    buffer: Option<SavedBatch>,
    /// True if user code (a rollout function) makes the completions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_program: bool,
    /// The lineage of the weights; `None` in checkpoints of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lineage: Option<Lineage>,
    /// For each batch generated ahead, the lineage of the weights that sampled it. The batches are in a separate file
    /// of the checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ahead: Vec<Option<Lineage>>,
    /// The number of unfinished later batches, which are in a separate file of the checkpoint.
    #[serde(default, skip_serializing_if = "is_zero")]
    begun: usize,
    /// The version of the weights at the start of each of the last batches.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    published: VecDeque<Updates>,
}

/// A position in a generation batch.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct BatchPlace {
    /// Optimizer steps taken on the batch.
    used: u64,
    /// The number of samples in the file.
    samples: usize,
}

/// The checkpoint file with the current generation batch, as records of groups.
pub const BATCH_FILE: &str = "generation_batch.bin";

impl RolloutPipeline {
    /// Whether the next step needs new completions.
    pub fn batch_is_used_up(&self) -> bool {
        self.state.batch.samples.is_empty()
    }

    /// The state for a checkpoint. The current generation batch, and a reference model that is updated, are separate
    /// files.
    pub fn state(&self) -> PipelineState {
        let RolloutState { source, batch: GenerationBatch { used, samples }, lineage } = &self.state;
        let batch = (!self.batch_is_used_up()).then_some(BatchPlace { used: *used, samples: samples.len() });
        PipelineState {
            next_group: source.next_group,
            batch,
            buffer: None,
            has_program: self.has_function,
            lineage: *lineage,
            ahead: source.ahead.iter().map(|batch| batch.lineage).collect(),
            begun: source.begun.len(),
            published: source.published.clone(),
        }
    }

    /// Whether other processes generate the batches.
    pub fn has_workers(&self) -> bool {
        self.source.is_distributed()
    }

    /// Called when the run takes no further steps and its last checkpoint is complete.
    pub fn checkpoint_written(&mut self) -> anyhow::Result<()> {
        self.source.checkpoint_written()
    }

    /// Ends the run, which takes no further step.
    pub fn end(&self) -> anyhow::Result<()> {
        self.source.end()
    }

    /// Returns an error if an epoch cannot end early, because its next batches are already being generated, or because
    /// recorded rollouts would not show the early end.
    pub fn check_ends_epochs(&self, config: &Config) -> anyhow::Result<()> {
        let why = if self.has_workers() || config.max_staleness > 0 {
            "its next batches are already being generated (workers, max_staleness)"
        } else if config.record_rollouts {
            "`lockstep verify` draws the recorded prompts again, and would draw different ones (record_rollouts)"
        } else {
            return Ok(());
        };
        Err(BadInput::new(format!(
            "the epoch cannot end before its last step (should_epoch_stop): {why}. End training with \
             should_training_stop, or change this setting"
        )))
    }

    /// A function that writes the current generation batch to a checkpoint; `None` if the batch is used up.
    fn write_batch(&self) -> Option<WriteFiles> {
        if self.batch_is_used_up() {
            return None;
        }
        let bytes = records(Group::from_samples(&self.state.batch.samples));
        Some(Box::new(move |dir| Ok(disk::write(dir.join(BATCH_FILE), bytes)?)))
    }

    /// Restores the state that [`state`](Self::state) returned, with the files in `checkpoint`.
    pub fn restore(&mut self, state: PipelineState, checkpoint: &Path) -> anyhow::Result<()> {
        if state.has_program && !self.has_function {
            bad_input!(
                "the completions of this run come from a program's own function (rollout_func): resume it from that \
                 program, with the function"
            );
        }
        self.state.lineage = state.lineage;
        if let Some(buffer) = state.buffer {
            let (used, samples) = (buffer.used, buffer.samples());
            let samples = samples.context("the checkpoint's generation batch refers to a missing prompt")?;
            self.state.batch = GenerationBatch { used, samples: samples.into() };
        }
        if let Some(BatchPlace { used, samples: expected }) = state.batch {
            let file = checkpoint.join(BATCH_FILE);
            let groups =
                Group::read_all(&disk::read(&file, disk::most::GROUPS).with_context(|| file.display().to_string())?);
            let samples = Group::into_samples(groups.with_context(|| file.display().to_string())?);
            if samples.len() != expected {
                bad_input!("{} has {} samples, but run_state.json records {expected}", file.display(), samples.len());
            }
            self.state.batch = GenerationBatch { used, samples: samples.into() };
        }
        let PipelineState { next_group, ahead, begun, published, .. } = state;
        let saved = SavedState { next_group, ahead: &ahead, begun, published };
        self.state.source = self.source.restore(saved, checkpoint)?;
        Ok(())
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests;
