//! What GRPO and PPO share: prompts to completions to rewards to samples, the reference model, evaluation.
//!
//! Its state is part of its task's: a run that was killed continues to the same bits.

mod after;
mod ahead;
mod audit;
mod build;
mod chunks;
mod drafts;
mod parts;
mod reference;
mod spread;
mod stages;
mod waiting;
mod workers;

pub use build::Prepared;
pub use parts::{LargestWork, PartInputs, Parts};

use crate::bad_input;
use crate::config::SamplingPlan;
use crate::data::prompts::Prompt;
use crate::models::WriteFiles;
use crate::rollouts::collector::Collect;
use crate::rollouts::evaluate::Evaluation;
use crate::rollouts::function::SharedScorer;
use crate::rollouts::health::RewardHealth;
use crate::rollouts::jobs::BegunBatch;
use crate::rollouts::lineage::Lineage;
use crate::rollouts::older::SavedBatch;
use crate::rollouts::replay::Replay;
use crate::rollouts::wire::Group;
use crate::run::prepared::PreparedStep;
use ahead::Ahead;
use anyhow::Context as _;
use model::Scorer;
use reference::Reference;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use telemetry::CompletionRows;
use train::Sample;
use workers::Workers;

/// Where groups come from.
enum Source {
    /// The policy completes prompts, rewards score the completions.
    Prompts(Vec<Arc<Prompt>>),
    /// A file has both.
    File(Replay, Box<Scorer>),
}

/// How many completions a stage takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Of a generation batch.
    pub generation: usize,
    /// Of an optimizer step.
    pub optimizer: usize,
    /// Completions of a prompt.
    pub group: usize,
    /// How often a generation batch is used (μ).
    pub iterations: usize,
}

impl BatchSizes {
    /// Optimizer steps of one pass over a generation batch.
    pub fn parts(&self) -> u64 {
        (self.generation / self.optimizer) as u64
    }
    /// Optimizer steps that a generation batch gives.
    pub fn steps(&self) -> u64 {
        self.iterations as u64 * self.parts()
    }
}

/// A generation batch; empty once it is used up.
#[derive(Clone, Default)]
pub(crate) struct GenerationBatch {
    pub(crate) samples: Arc<[Sample]>,
    /// Optimizer steps taken on it.
    pub(crate) used: u64,
}

/// What changes of a pipeline from step to step.
#[derive(Clone, Default)]
pub(crate) struct RolloutState {
    /// The next rollout number: half of every sample's random stream.
    pub(crate) rollout_number: u64,
    pub(crate) health: RewardHealth,
    /// The generation batch in use.
    pub(crate) batch: GenerationBatch,
    /// Of the weights; of those that learn from a batch from the first step on it on. None before the run begins.
    pub(crate) lineage: Option<Lineage>,
    /// The batches after it that were generated ahead, the next one first.
    ahead: VecDeque<Arc<Ahead>>,
    /// The same of batches that are made in chunks, as far as they are made; with `partial_rollout_tokens`.
    begun: VecDeque<Arc<BegunBatch>>,
    /// The version of the weights that each of the last batches began with, the newest last; with `max_staleness`.
    published: VecDeque<u64>,
}

/// What an optimizer step learns from, and all that making it changes.
pub struct OnlineBatch {
    /// Of the run.
    pub run: PreparedStep,
    /// Of the pipeline: its state after this.
    pub(crate) state: RolloutState,
    /// Of a new generation: the lineage of the weights that sampled it; none for those of a file.
    sampled_by: Option<Lineage>,
    /// Of a new generation.
    report: Option<Report>,
}

/// What is logged of a generation.
struct Report {
    /// Recorded groups.
    recorded: Vec<Group>,
    /// And how many a console shows.
    completions: Option<(CompletionRows, usize)>,
    /// How rewards, lengths, advantages and log-probabilities are distributed.
    distributions: Vec<(String, Vec<f64>)>,
}

/// What the rounds of a generation took together.
#[derive(Default)]
struct StageTimes {
    rollout_time_s: f64,
    rollout_tokens: usize,
    /// Scoring that the run waited for.
    reward_time_s: f64,
    /// Scoring that overlapped with generation; the metric keeps its older name.
    reward_hidden_time_s: f64,
    /// Seconds that each reward took.
    of_rewards: BTreeMap<String, f64>,
}

/// From prompts, or a file, to the samples of an optimizer step.
pub struct RolloutPipeline {
    /// The model that the policy is held near; none if `beta` is 0.
    reference: Option<Reference>,
    /// None if nothing is generated, or elsewhere.
    collector: Option<Box<dyn Collect>>,
    /// Of a distributed run.
    workers: Option<Workers>,
    /// Whether a function of the caller makes the completions.
    has_function: bool,
    /// Of the rewards of training: those of a replayed file may be others than those that evaluation asks.
    reward_weights: Vec<f64>,
    /// Of the rewards that are asked.
    eval_weights: Vec<f64>,
    sampling: SamplingPlan,
    /// The digest of what a step depends on beside its batch and the weights.
    settings: Lineage,
    pub(crate) sizes: BatchSizes,
    source: Source,
    evaluation: Option<Evaluation>,
    /// Scores completions of the caller's function, which shares it, and held-out ones where their loss needs more than
    /// the engine's record: entropies, another temperature.
    scorer: Option<SharedScorer>,
    /// Where what a step did to tokens is recorded.
    after: Option<after::AfterStep>,
    /// After the last step.
    pub(crate) state: RolloutState,
}

/// What a checkpoint keeps of a pipeline.
#[derive(Serialize, Deserialize)]
pub struct PipelineState {
    /// The next rollout number.
    rollout_number: u64,
    /// How far the generation batch in use is, which lies beside in a file.
    #[serde(default)]
    batch: Option<BatchPlace>,
    /// The batch itself, in checkpoints of format 2.
    #[serde(default, skip_serializing)]
    buffer: Option<SavedBatch>,
    /// A function of the caller makes the completions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_program: bool,
    /// Of the weights; checkpoints of older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lineage: Option<Lineage>,
    /// The batches that were generated ahead, by weights that are gone: of which lineage. They lie beside in a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ahead: Vec<Option<Lineage>>,
    /// How many batches were begun, by weights that are gone. They lie beside in a file.
    #[serde(default, skip_serializing_if = "is_zero")]
    begun: usize,
    /// The version of the weights that each of the last batches began with.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    published: VecDeque<u64>,
}

/// The place in a generation batch.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct BatchPlace {
    /// Optimizer steps taken on it.
    used: u64,
    /// Samples in the file.
    samples: usize,
}

/// The file of a checkpoint that has the generation batch in use: records of groups.
pub const BATCH_FILE: &str = "generation_batch.bin";

impl RolloutPipeline {
    /// Whether the next step needs new completions.
    pub fn batch_is_used_up(&self) -> bool {
        self.state.batch.samples.is_empty()
    }

    /// What a checkpoint keeps of it; the batch in use, and the reference model if it moves, are files of their own.
    pub fn state(&self) -> PipelineState {
        let RolloutState {
            rollout_number,
            batch: GenerationBatch { used, samples },
            lineage,
            ahead,
            begun,
            published,
            ..
        } = &self.state;
        let batch = (!self.batch_is_used_up()).then_some(BatchPlace { used: *used, samples: samples.len() });
        PipelineState {
            rollout_number: *rollout_number,
            batch,
            buffer: None,
            has_program: self.has_function,
            lineage: *lineage,
            ahead: ahead.iter().map(|batch| batch.lineage).collect(),
            begun: begun.len(),
            published: published.clone(),
        }
    }

    /// Writes the batch in use into a checkpoint.
    fn write_batch(&self) -> Option<WriteFiles> {
        if self.batch_is_used_up() {
            return None;
        }
        let mut bytes = Vec::new();
        Group::of_samples(&self.state.batch.samples).iter().for_each(|group| group.write(&mut bytes));
        Some(Box::new(move |dir| Ok(std::fs::write(dir.join(BATCH_FILE), bytes)?)))
    }

    /// Takes up what [`state`](Self::state) gave, and the files beside it in `checkpoint`.
    pub fn restore(&mut self, state: PipelineState, checkpoint: &Path) -> anyhow::Result<()> {
        if state.has_program && !self.has_function {
            bad_input!(
                "the completions of this run come from a program's own function (rollout_func): resume it from that \
                 program, with the function"
            );
        }
        (self.state.rollout_number, self.state.lineage) = (state.rollout_number, state.lineage);
        if let Some(buffer) = state.buffer {
            let (used, samples) = (buffer.used, buffer.samples());
            let samples = samples.context("the checkpoint's generation batch names a prompt that it lacks")?;
            self.state.batch = GenerationBatch { used, samples: samples.into() };
        }
        if let Some(BatchPlace { used, samples: expected }) = state.batch {
            let file = checkpoint.join(BATCH_FILE);
            let groups = Group::read_all(&std::fs::read(&file).with_context(|| file.display().to_string())?);
            let samples = Group::into_samples(groups.with_context(|| file.display().to_string())?);
            if samples.len() != expected {
                bad_input!("{} has {} samples, and the run left off with {expected}", file.display(), samples.len());
            }
            self.state.batch = GenerationBatch { used, samples: samples.into() };
        }
        self.state.published = state.published;
        self.restore_workers(checkpoint)?;
        self.restore_begun(state.begun, checkpoint)?;
        self.restore_ahead(&state.ahead, checkpoint)
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}
