//! Jobs for other processes, one per group, and their answers.
//!
//! A job contains the group number, the prompt, the sampling parameters and the version of the weights. These values
//! determine the completions, so every process computes the same tokens. A worker also calls those of its reward
//! functions that score each group separately.

use super::scoring::{Prompts, inputs_of_group};
use crate::data::prompts::Prompt;
use crate::step::model_step;
use crate::stop::StopSignal;
use anyhow::Context as _;
use model::tokenizer::Tokenizer;
use model::{GroupId, Updates};
use rewards::{GivenScores, Reward, score_group};
use rollout::{Completion, ModelVersion, Request, RolloutGroup, SamplingParams};
use std::hash::Hasher;
use std::sync::Arc;
use telemetry::Step;
use twox_hash::XxHash3_64;
use zerocopy::IntoBytes;

/// A job for a worker: generate the completions of one prompt, and score them with some of the reward functions.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupJob {
    /// The group.
    pub group: GroupId,
    /// The dataset row whose prompt is completed.
    pub prompt: Prompt,
    /// The number of completions to generate.
    pub num_generations: usize,
    /// The sampling parameters.
    pub sampling: SamplingParams,
    /// The weights to sample with.
    pub updates: Updates,
    /// Optimizer steps done so far; passed to reward functions.
    pub step: Step,
    /// The names of the reward functions that the worker calls.
    pub rewards: Vec<String>,
    /// The completions so far of a group that has already begun.
    pub so_far: Vec<Completion>,
    /// If set: the length in tokens at which the worker must return a completion unfinished.
    pub until: Option<usize>,
}

/// The current state of a batch that is generated in chunks of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct BegunBatch {
    /// The optimizer steps done when the batch began.
    pub step: Step,
    /// The dataset row of each group.
    pub prompts: Prompts,
    /// The completions of each group so far, with the workers' scores of ended groups.
    pub answers: Vec<GroupAnswer>,
    /// The names of the reward functions that workers call.
    pub rewards: Vec<String>,
}

/// A worker's answer to a job.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupAnswer {
    /// The group with its completions.
    pub group: RolloutGroup,
    /// The scores of each reward function named in the job; completions are indexed within the group.
    pub scores: Vec<GivenScores>,
    /// Seconds spent generating.
    pub rollout_s: f64,
}

impl GroupJob {
    /// The engine's request for this job.
    pub fn request(&self, model: Option<ModelVersion>) -> Request {
        let (prompt, sampling) = (self.prompt.tokens.clone(), Arc::new(self.sampling.clone()));
        let (so_far, until) = (self.so_far.clone(), self.until);
        Request { model, so_far, until, ..Request::new(self.group, prompt, self.num_generations, sampling) }
    }
}

/// Scores the completions of a job with the reward functions that the job names.
pub fn score(
    rewards: &mut [Box<dyn Reward>],
    tokenizer: &Tokenizer,
    stop: &StopSignal,
    group: &RolloutGroup,
    job: &GroupJob,
) -> anyhow::Result<Vec<GivenScores>> {
    let place = |name: &String| {
        let found = rewards.iter().position(|reward| reward.name() == name && reward.scores_by_group());
        found.with_context(|| format!("this worker has no reward `{name}` that scores each group separately"))
    };
    let asked = job.rewards.iter().map(place).collect::<anyhow::Result<Vec<_>>>()?;
    let prompts = Prompts::from([(job.group, Arc::new(job.prompt.clone()))]);
    let inputs = inputs_of_group(tokenizer, &prompts, group)?;
    let mut scores = score_group(rewards, &asked, &inputs, model_step(job.step));
    scores.iter_mut().enumerate().for_each(|(place, given)| given.reward = place);
    // After a stop request, reward functions may have returned early with invalid scores.
    stop.check()?;
    Ok(scores)
}

impl GroupAnswer {
    /// A hash of the tokens and log-probabilities of a group, which are the same on every worker. Scores are not
    /// included.
    pub fn fingerprint(group: &RolloutGroup) -> u64 {
        GroupAnswer::fingerprint_of(group.completions.iter().map(|c| (&c.ids[..], c.logps())))
    }

    /// The fingerprint of completions, each as its token ids and log-probabilities.
    pub fn fingerprint_of<'a>(completions: impl Iterator<Item = (&'a [u32], &'a [f32])>) -> u64 {
        let mut hash = XxHash3_64::new();
        for (ids, logps) in completions {
            hash.write(&(ids.len() as u64).to_le_bytes());
            hash.write(ids.as_bytes());
            hash.write(logps.as_bytes());
        }
        hash.finish()
    }
}
