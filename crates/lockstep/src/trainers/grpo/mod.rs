//! A GRPO run: the course of a run plus prompts, rollout, rewards. The loop over its stages is [`run_loop`].

mod build;
mod reference;
mod run_loop;
mod stages;

pub use build::{Inputs, build, build_beside};
pub use run_loop::{rollouts, run};

use crate::data::prompts::Prompt;
use crate::rollouts::evaluate::Evaluation;
use crate::rollouts::replay::Replay;
use crate::run::course::Course;
use model::Scorer;
use reference::Reference;
use rewards::Reward;
use rollout::{Engine, SamplingParams};
use std::sync::Arc;
use train::Sample;

/// Where groups come from.
enum Source {
    /// The policy answers prompts, rewards judge the answers.
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

/// The generation batch in use.
#[derive(Default)]
pub(crate) struct GenerationBatch {
    pub(crate) samples: Vec<Sample>,
    /// Optimizer steps taken on it.
    pub(crate) used: u64,
}

/// What the rounds of a generation took together.
#[derive(Default)]
struct Spent {
    rollout_time_s: f64,
    rollout_tokens: usize,
    /// Judging that the run waited for.
    reward_time_s: f64,
    /// Judging beside generation.
    reward_hidden_time_s: f64,
}

/// A GRPO run between two steps.
pub struct Grpo {
    /// What it shares with every run.
    pub course: Course,
    /// The model that the policy is held near; none if `beta` is 0.
    reference: Option<Reference>,
    /// None if nothing is generated.
    engine: Option<Engine>,
    rewards: Vec<Box<dyn Reward>>,
    /// Of the rewards of training: those of a replayed file may be others than those that evaluation asks.
    reward_weights: Vec<f64>,
    /// Of `rewards`.
    eval_weights: Vec<f64>,
    sampling: Arc<SamplingParams>,
    pub(crate) sizes: BatchSizes,
    source: Source,
    evaluation: Option<Evaluation>,
    pub(crate) rollout_number: u64,
    spent: Spent,
    pub(crate) batch: GenerationBatch,
}

impl Grpo {
    /// Whether the last step is done.
    pub fn is_done(&self) -> bool {
        self.course.is_done()
    }
    /// Whether completions come from a file.
    pub fn replays(&self) -> bool {
        matches!(self.source, Source::File(..))
    }
    /// Whether the next step needs new completions.
    pub fn batch_is_used_up(&self) -> bool {
        self.batch.samples.is_empty() || self.batch.used >= self.sizes.steps()
    }
}
