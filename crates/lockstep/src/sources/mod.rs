//! The source of a run's generation batches, a [`BatchSource`]. The generated parts of later batches are in the
//! [`SourceState`], which the trainer keeps and copies for each step.
//!
//! | source | file | owns | may wait for |
//! |---|---|---|---|
//! | on-policy generation, also by a rollout function | `local.rs` | the collector (engine and rewards) | rewards |
//! | generation `max_staleness` batches ahead | `ahead.rs` | a local source | rewards |
//! | generation in chunks of `partial_rollout_tokens` | `chunks.rs` | a local source | rewards |
//! | a file of recorded rollouts | `replay.rs` | the file's groups, and a scorer for missing log-probabilities | nothing |
//! | workers in other processes | `workers/` | the jobs, slots of weights, the answers' files | workers, rewards |
//!
//! A batch is a value: until the optimizer step on it is committed, dropping the batch and the [`SourceState`] after it
//! changes nothing (decision 0030). A source receives the policy, the position in the data, step counts, the run's
//! directory, and callbacks for its waits ([`Watch`]). It does not import `run`.

pub mod ahead;
pub mod chunks;
pub mod local;
pub mod replay;
mod state;
pub mod workers;

pub use state::{Ahead, SavedState, SourceState};

use crate::config::{Config, SamplingPlan};
use crate::data::Sampler;
use crate::data::prompts::Prompt;
use crate::models::{Policy, WriteFiles};
use crate::rollouts::Rollouts;
use crate::rollouts::collector::{Collect, CollectRequest, Collected, Observer};
use crate::rollouts::lineage::Lineage;
use crate::rollouts::scoring::Prompts;
use crate::stop::StopSignal;
use kernels::Context;
use model::chat::PromptTime;
use model::{AdaptedWeights, GroupId};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use telemetry::{Stages, Step};
use train::Sample;

/// A source of generation batches.
pub trait BatchSource {
    /// Called once, after [`restore`](Self::restore) and before the first batch.
    fn begin(&mut self, _at: &mut SourceState, _start: Start<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Makes the next batch, and advances `next` (the source's state) and `data` (the position in the data) past it. On
    /// failure the caller drops both, and another call makes the same batch.
    fn next(&mut self, next: &mut SourceState, data: &mut Sampler, now: &Now<'_>) -> anyhow::Result<Batch>;

    /// Generates additional groups of the last batch for the dataset rows `rows`, for dynamic sampling.
    fn more(&mut self, _next: &mut SourceState, _rows: &[usize], _now: &Now<'_>) -> anyhow::Result<Collected> {
        anyhow::bail!("this source cannot generate additional groups for a batch")
    }

    /// Completes the parts of later batches that need the current or older weights, and adds them to the state: a
    /// checkpoint must contain them. Called before the weights change.
    fn complete_for_checkpoint(&mut self, _at: &mut SourceState, _now: &Now<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called after each optimizer step.
    fn advance(&mut self, _at: &SourceState, _step: StepDone<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    /// The engine and the rewards of this process, for evaluations; `None` if there are none.
    fn collector(&mut self) -> Option<&mut dyn Collect>;

    /// Reads the state from a checkpoint, and the files of [`write`](Self::write).
    fn restore(&mut self, saved: SavedState<'_>, checkpoint: &Path) -> anyhow::Result<SourceState>;

    /// Functions that write the files of the state `at` to a checkpoint.
    fn write(&self, at: &SourceState) -> Vec<WriteFiles> {
        at.write()
    }

    /// Called when a checkpoint is complete and no later step will notify the source of it.
    fn checkpoint_written(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called after the run has ended and takes no further step.
    fn end(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether other processes generate the batches. If so, a checkpoint may have to wait for these processes, and no
    /// checkpoint is written after a failed reward.
    fn is_distributed(&self) -> bool {
        false
    }
}

/// A generation batch.
pub enum Batch {
    /// Generated and scored completions.
    Generated {
        /// The groups with their times.
        collected: Collected,
        /// The lineage of the weights that sampled the batch (in chunks, of the weights that completed it).
        sampled_by: Option<Lineage>,
        /// Metrics of the source, in the order in which they are added.
        metrics: Vec<(String, f64)>,
    },
    /// Completions from a file, without times.
    Recorded(Rollouts),
}

/// The state of the run between two steps that a source may use.
pub struct Now<'a> {
    /// The model that generates.
    pub policy: &'a Policy,
    /// The device and threads.
    pub ctx: &'a Context,
    /// Optimizer steps so far.
    pub step: Step,
    /// Generation batches that the run still trains on, at least 1.
    pub batches_left: u64,
    /// The lineage of the policy's weights.
    pub lineage: Option<Lineage>,
    /// Callbacks for the source's waits.
    pub watch: &'a Watch<'a>,
}

/// Callbacks of a waiting source: stop checks, timers and messages.
pub struct Watch<'a> {
    /// Cancels the work.
    pub stop: &'a StopSignal,
    /// Timers of the run's stages.
    pub stages: &'a Stages,
    /// Called every ten seconds while waiting for rewards, with the name of the slowest reward and the time waited.
    pub on_wait: &'a (dyn Fn(&str, Duration) + Sync),
    /// Shows a warning.
    pub warn: &'a dyn Fn(&str),
}

impl Watch<'_> {
    /// The observer of a collection.
    pub fn observer(&self) -> Observer<'_> {
        Observer { stages: self.stages, on_wait: self.on_wait }
    }
}

/// The state of a starting run.
pub struct Start<'a> {
    /// The run's directory.
    pub dir: &'a Path,
    /// The model that generates.
    pub policy: &'a mut Policy,
    /// The device and threads.
    pub ctx: &'a Context,
    /// Optimizer steps so far.
    pub step: Step,
    /// Optimizer steps of the whole run.
    pub total_steps: u64,
    /// The position in the data.
    pub data: &'a Sampler,
    /// SHA-256 of the data.
    pub data_hash: &'a str,
    /// The samples of the current batch; empty if the next step begins a batch.
    pub in_use: &'a [Sample],
    /// The lineage of the policy's weights. In the middle of a batch it includes that batch.
    pub lineage: Option<Lineage>,
    /// A hash of the settings that affect a step, besides its batch and the weights.
    pub settings: Lineage,
    /// The time that chat templates use as the current time.
    pub prompt_time: PromptTime,
}

/// An optimizer step that was just taken.
pub struct StepDone<'a> {
    /// Whether the step was the last on its batch.
    pub ends_batch: bool,
    /// The weights after the step.
    pub weights: &'a mut AdaptedWeights,
    /// The position in the data.
    pub data: &'a Sampler,
    /// Optimizer steps so far.
    pub step: Step,
    /// The lineage of the weights.
    pub lineage: Option<Lineage>,
    /// Callbacks for the source's waits.
    pub watch: &'a Watch<'a>,
}

/// Sizes of batches, in completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Completions in a generation batch.
    pub generation: usize,
    /// Completions in an optimizer step.
    pub optimizer: usize,
    /// Completions per prompt.
    pub group: usize,
    /// How many times each generation batch is trained on (μ).
    pub iterations: usize,
}

impl BatchSizes {
    /// Optimizer steps in one pass over a generation batch.
    pub fn parts(&self) -> u64 {
        (self.generation / self.optimizer) as u64
    }

    /// Optimizer steps on a generation batch, over all passes.
    pub fn steps(&self) -> u64 {
        self.iterations as u64 * self.parts()
    }

    /// Groups in a generation batch.
    pub fn groups(&self) -> usize {
        self.generation / self.group
    }
}

/// The settings that all batches of a run share.
pub struct BatchSpec {
    /// The configuration of the run.
    pub config: Config,
    /// The dataset's rows; empty for recorded rollouts.
    pub prompts: Vec<Arc<Prompt>>,
    /// Sizes of batches.
    pub sizes: BatchSizes,
    /// The sampling parameters of each group.
    pub sampling: SamplingPlan,
    /// The weight of each reward in a completion's total reward.
    pub reward_weights: Vec<f64>,
}

impl BatchSpec {
    /// The prompts of these dataset rows.
    fn rows(&self, rows: &[usize]) -> Vec<Arc<Prompt>> {
        rows.iter().map(|&row| self.prompts[row].clone()).collect()
    }

    /// The request for completions of these prompts after `step` optimizer steps.
    fn request(&self, prompts: Prompts, step: Step) -> CollectRequest<'_> {
        CollectRequest {
            prompts,
            num_generations: self.sizes.group,
            sampling: &self.sampling,
            reward_weights: &self.reward_weights,
            step,
            refuse_non_finite: false,
            activations: None,
        }
    }

    /// The request without prompts, which all collections of the run share.
    fn like(&self) -> CollectRequest<'_> {
        self.request(Prompts::new(), Step::START)
    }

    /// How many batches must exist before the next step: the step's batch and `max_staleness` later ones, unless the
    /// run ends earlier.
    fn wanted(&self, now: &Now<'_>) -> usize {
        now.batches_left.min(self.config.max_staleness as u64 + 1) as usize
    }

    /// The groups of the batch that begins with `first`, with their prompts.
    fn numbered(&self, first: GroupId, rows: &[usize]) -> Prompts {
        first.and_after().zip(self.rows(rows)).collect()
    }
}

#[cfg(test)]
mod tests;
