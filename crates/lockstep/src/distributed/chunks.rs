//! Jobs of groups that are made in chunks: what a chunk asks for, and what the results of a group's chunks are.

use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use anyhow::{Context as _, bail};
use fleet::{Answer, JobName, JobResult, Plan};
use rollout::Completion;
use std::collections::BTreeMap;

/// How a run's groups are cut into jobs.
#[derive(Clone, Debug)]
pub struct Chunks {
    plan: Plan,
    /// Tokens of a chunk; none if a group is one job.
    tokens: Option<usize>,
    /// How many updates the weights of each version have had, of those that this learner has published.
    updates: BTreeMap<u64, u64>,
}

impl Chunks {
    /// Of a run whose weights are published from now on.
    pub fn new(plan: &Plan, tokens: Option<usize>) -> Chunks {
        Chunks { plan: plan.clone(), tokens, updates: BTreeMap::new() }
    }

    /// The weights of this version have had so many updates. What is older than any job is not kept.
    pub fn published(&mut self, version: u64, updates: u64) {
        self.updates.insert(version, updates);
        let oldest = self.plan.version(version.saturating_sub(1), 0);
        self.updates.retain(|version, _| *version >= oldest);
    }

    /// Whether groups are made in chunks.
    pub fn are_on(&self) -> bool {
        self.plan.chunks
    }

    /// Tokens after which a chunk ends; none of the last one.
    fn until(&self, chunk: u32) -> Option<usize> {
        let tokens = self.tokens.filter(|_| chunk < self.plan.last_chunk())?;
        Some((chunk as usize + 1).saturating_mul(tokens))
    }

    /// What a worker is asked for by the name `job`, of the group that `whole` asks for. None if its weights are older
    /// than this learner.
    pub fn job(&self, job: JobName, whole: &GroupJob, so_far: Vec<Completion>) -> Option<GroupJob> {
        let JobName::Rollout { chunk, .. } = job else { return None };
        if !self.are_on() {
            return Some(whole.clone());
        }
        let version = *self.updates.get(&self.plan.version_of(job))?;
        Some(GroupJob { version, so_far, until: self.until(chunk), ..whole.clone() })
    }

    /// The jobs of a group and their answers, by its `results` in the order of their chunks. Of jobs that a checkpoint
    /// or an earlier learner has the last one alone is there; it is believed.
    pub fn chain(&self, whole: &GroupJob, results: &[&JobResult]) -> anyhow::Result<Vec<Link>> {
        let mut chain: Vec<Link> = Vec::new();
        for result in results.iter().filter(|result| !result.bytes.is_empty()) {
            let so_far = || chain.last().map_or_else(Vec::new, |link| link.answer.group.completions.clone());
            let what = || format!("the answer to the job {}", result.job);
            let (job, answer) = match self.job(result.job, whole, so_far()) {
                Some(job) => {
                    let answer = GroupAnswer::from_bytes(&result.bytes, &job).with_context(what)?;
                    (job, answer)
                }
                None => {
                    let answer = GroupAnswer::believed(&result.bytes, whole).with_context(what)?;
                    let so_far = answer.group.completions.clone();
                    (GroupJob { so_far, until: self.until(chunk(result.job)), ..whole.clone() }, answer)
                }
            };
            if answer.group.is_unfinished() != result.answer.more {
                bail!("{}: whether it is to be continued is said in two ways", what());
            }
            chain.push(Link { job, answer });
        }
        Ok(chain)
    }

    /// What the jobs of a group gave whose completions have these tokens, log-probabilities and whether they are
    /// unfinished; those that gave all of it.
    pub fn answers(&self, completions: &[(&[u32], &[f32], bool)]) -> Vec<Answer> {
        let mut answers = Vec::new();
        for chunk in 0..=self.plan.last_chunk() {
            let until = self.until(chunk).unwrap_or(usize::MAX);
            let cut = completions.iter().map(|(ids, logps, _)| {
                let tokens = ids.len().min(until);
                (&ids[..tokens], &logps[..tokens.min(logps.len())])
            });
            let fingerprint = GroupAnswer::fingerprint_of(cut);
            let is_longer = completions.iter().any(|(ids, ..)| ids.len() > until);
            let more = is_longer || completions.iter().any(|(.., unfinished)| *unfinished);
            answers.push(Answer { fingerprint, more });
            if !is_longer {
                break;
            }
        }
        answers
    }
}

/// A job of a chain, and its answer.
pub struct Link {
    /// What was asked for.
    pub job: GroupJob,
    /// What came.
    pub answer: GroupAnswer,
}

fn chunk(job: JobName) -> u32 {
    match job {
        JobName::Rollout { chunk, .. } => chunk,
        JobName::Evaluation { index, .. } => index,
    }
}

/// The results of each group, in the order of their chunks.
pub fn by_group(results: &[JobResult]) -> BTreeMap<u64, Vec<&JobResult>> {
    let mut groups: BTreeMap<u64, Vec<&JobResult>> = BTreeMap::new();
    for result in results {
        if let JobName::Rollout { number, .. } = result.job {
            groups.entry(number).or_default().push(result);
        }
    }
    groups.values_mut().for_each(|results| results.sort_by_key(|result| result.job));
    groups
}
