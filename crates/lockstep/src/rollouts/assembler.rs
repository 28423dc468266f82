//! Splits a collection (generating and scoring a list of prompts) into jobs for workers, one per group, and assembles
//! their answers. A worker is a process with an engine and reward functions; it answers in bytes.
//!
//! The collecting process calls the reward functions that workers do not call: those that compare completions of
//! several prompts, and the caller's closures. Scores are merged by the same code as in a single process, so the result
//! does not depend on which worker runs a job, or when.

use super::collector::{CollectRequest, Collected, Observer, finite_logps, watched};
use super::jobs::{GroupAnswer, GroupJob};
use super::scoring::{GivenColumns, RolloutScorer};
use crate::data::prompts::Prompt;
use crate::stop::StopSignal;
use anyhow::{Context as _, bail};
use model::tokenizer::Tokenizer;
use model::{GroupId, Updates};
use rewards::Reward;
use rollout::{RolloutGroup, SamplingParams};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Assembles workers' answers into a collection, and calls the reward functions that workers do not have.
pub struct Assembler {
    /// All reward functions, in the order of the configuration.
    pub rewards: Vec<Box<dyn Reward>>,
    /// The names of the reward functions that workers have, which score each group separately.
    pub worker_rewards: BTreeSet<String>,
    /// Decodes completions for the other reward functions.
    pub tokenizer: Arc<Tokenizer>,
    /// Cancels a collection.
    pub stop: StopSignal,
}

impl Assembler {
    /// The reward functions that workers call: their indices among all, and their names.
    pub fn asked_elsewhere(&self) -> (Vec<usize>, Vec<String>) {
        let by_workers = |reward: &dyn Reward| self.worker_rewards.contains(reward.name()) && reward.scores_by_group();
        let rewards = self.rewards.iter().enumerate().filter(|(_, reward)| by_workers(&***reward));
        rewards.map(|(place, reward)| (place, reward.name().to_owned())).unzip()
    }

    /// Splits a request into jobs, one for each group.
    pub fn jobs(&self, request: &CollectRequest<'_>, updates: Updates) -> Vec<GroupJob> {
        jobs(request, updates, &self.asked_elsewhere().1)
    }

    /// Assembles the collection for `request` from the answers to its `jobs`, in any order.
    pub fn assemble(
        &mut self,
        request: CollectRequest<'_>,
        jobs: &[GroupJob],
        answers: &[Vec<u8>],
        rollout_s: f64,
        Observer { stages, on_wait }: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        let (places, _) = self.asked_elsewhere();
        let (mut groups, mut given) = (BTreeMap::new(), BTreeMap::new());
        for bytes in answers {
            let GroupAnswer { mut group, mut scores, .. } = answer_to(bytes, jobs)?;
            for given in &mut scores {
                given.reward = places[given.reward];
            }
            // Groups with the same prompt object share the computation of that prompt.
            group.prompt = request.prompts[&group.group].tokens.clone();
            given.insert(group.group, scores);
            if groups.insert(group.group, group).is_some() {
                bail!("a job was answered twice");
            }
        }
        if groups.len() < jobs.len() {
            bail!("{} of {} jobs were answered", groups.len(), jobs.len());
        }
        let groups: Vec<RolloutGroup> = groups.into_values().collect();
        if request.refuse_non_finite {
            finite_logps(&groups)?;
        }
        let CollectRequest { prompts, reward_weights, step, .. } = request;
        let columns = GivenColumns::new();
        let scorer = RolloutScorer {
            rewards: &mut self.rewards,
            weights: reward_weights,
            tokenizer: &self.tokenizer,
            step,
            columns,
        };
        let (scored, reward_s) = std::thread::scope(|scope| -> anyhow::Result<_> {
            let mut job = scorer.start(scope, &prompts, &places)?;
            for group in &groups {
                job.group_ended(group);
            }
            let span = stages.span("rewards");
            let scored = watched(scope, job.asked(), *on_wait, || job.finish(groups, given))?;
            Ok((scored, span.end()))
        })?;
        self.stop.check()?;
        let next_group = prompts.last_key_value().map_or(GroupId(0), |(last, _)| last.after(1));
        Ok(Collected { scored, next_group, rollout_s, reward_s, overlapped_s: 0.0 })
    }
}

/// One job for each group of a request.
fn jobs(request: &CollectRequest<'_>, updates: Updates, rewards: &[String]) -> Vec<GroupJob> {
    // A row that lacks a column of another row gets it, with the value null.
    let columns: BTreeSet<&String> = request.prompts.values().flat_map(|prompt| prompt.columns.keys()).collect();
    let job = |(&group, prompt): (&GroupId, &Arc<Prompt>)| {
        let mut prompt = Prompt::clone(prompt);
        for &name in &columns {
            prompt.columns.entry(name.clone()).or_insert(Value::Null);
        }
        GroupJob {
            group,
            prompt,
            num_generations: request.num_generations,
            sampling: SamplingParams::clone(request.sampling.of(group)),
            updates,
            step: request.step,
            rewards: rewards.to_vec(),
            so_far: Vec::new(),
            until: None,
        }
    };
    request.prompts.iter().map(job).collect()
}

/// Decodes the answer in `bytes` to one of `jobs`, which are sorted by group.
fn answer_to(bytes: &[u8], jobs: &[GroupJob]) -> anyhow::Result<GroupAnswer> {
    let group = GroupAnswer::group_of(bytes).context("a worker's answer")?;
    let job = jobs.binary_search_by_key(&group, |job| job.group).ok().map(|at| &jobs[at]);
    let job = job.with_context(|| format!("a worker answered an unknown job, of group {group}"))?;
    GroupAnswer::from_bytes(bytes, job).with_context(|| format!("the answer to the job of group {group}"))
}

#[cfg(test)]
mod tests;
