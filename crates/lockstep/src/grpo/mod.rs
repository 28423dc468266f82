//! A GRPO run: everything that it holds. The loop over its stages is [`crate::grpo_loop`].

mod build;
mod resume;
mod stages;

pub use build::{batch_sizes, engine_config, loss_config, sampling};

use crate::checkpoint::state::Best;
use crate::config::Config;
use crate::data::{Prompt, Sampler};
use crate::evaluate::Evaluation;
use crate::policy::Policy;
use crate::reporter::Reporter;
use crate::run_dir::RunDir;
use crate::signals::StopRequest;
use kernels::Context;
use model::Weights;
use rewards::Reward;
use rollout::{Engine, SamplingParams};
use std::sync::Arc;
use std::time::Instant;
use telemetry::{Progress, Stages};
use train::{Sample, Schedule, Scorer, Trainer};

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All steps are done.
    Done,
    /// Evaluation stopped improving.
    Early,
    /// Somebody asked; a checkpoint was written.
    Asked,
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
    /// How often a generation batch is used.
    pub iterations: usize,
}

impl BatchSizes {
    /// Optimizer steps that a generation batch gives.
    pub fn steps(&self) -> u64 {
        (self.iterations * self.generation / self.optimizer) as u64
    }
    /// Prompts of a generation batch.
    pub fn prompts(&self) -> usize {
        self.generation / self.group
    }
}

/// The generation batch in use.
struct GenerationBatch {
    samples: Vec<Sample>,
    /// Optimizer steps taken on it.
    used: u64,
}

/// A GRPO run between two steps.
pub struct Grpo {
    config: Config,
    run: RunDir,
    ctx: Context,
    policy: Policy,
    /// The frozen model that the policy is held near; none if `beta` is 0.
    reference: Option<(Weights, Scorer)>,
    engine: Engine,
    trainer: Trainer,
    rewards: Vec<Box<dyn Reward>>,
    reward_weights: Vec<f64>,
    sampling: Arc<SamplingParams>,
    sizes: BatchSizes,
    schedule: Schedule,
    steps_per_epoch: f64,
    prompts: Vec<Arc<Prompt>>,
    sampler: Sampler,
    evaluation: Option<Evaluation>,

    step: u64,
    rollout_number: u64,
    num_tokens: u64,
    batch: GenerationBatch,
    best: Option<Best>,
    evaluations_without_improvement: u32,
    data_hash: String,

    reporter: Reporter,
    stages: Stages,
    progress: Progress,
    stop: StopRequest,
    step_started: Instant,
    last_saved: Option<u64>,
}

impl Grpo {
    /// Optimizer steps done.
    pub fn steps_done(&self) -> u64 {
        self.step
    }
    /// Optimizer steps of the run.
    pub fn total_steps(&self) -> u64 {
        self.schedule.total_steps
    }
    /// Whether the next step needs new completions.
    pub fn batch_is_used_up(&self) -> bool {
        self.batch.samples.is_empty() || self.batch.used >= self.sizes.steps()
    }
    /// The policy as it stands.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
    /// Stage times so far.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }
    /// The directory of the run.
    pub fn run_dir(&self) -> &RunDir {
        &self.run
    }
    /// The best evaluation so far.
    pub fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }
}
