//! Divides the completions of a group into chunks of tokens, each of which is a job of its own, and reads the results
//! of these jobs.

use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use anyhow::{Context as _, bail};
use fleet::{Answer, JobName, JobResult, Plan};
use rollout::Completion;
use std::collections::BTreeMap;

/// The rule that divides a run's groups into jobs.
#[derive(Clone, Debug)]
pub struct Chunks {
    plan: Plan,
    /// Tokens in a chunk; `None` if a whole group is one job.
    tokens: Option<usize>,
    /// For each version that this learner has published, the number of updates that its weights have had.
    updates: BTreeMap<u64, u64>,
}

impl Chunks {
    /// The rule for a run that has not published any weights yet.
    pub fn new(plan: &Plan, tokens: Option<usize>) -> Chunks {
        Chunks { plan: plan.clone(), tokens, updates: BTreeMap::new() }
    }

    /// Records how many updates the weights of a published version have had. Versions older than any job may need are
    /// removed.
    pub fn published(&mut self, version: u64, updates: u64) {
        self.updates.insert(version, updates);
        let oldest = self.plan.version(version.saturating_sub(1), 0);
        self.updates.retain(|version, _| *version >= oldest);
    }

    /// Whether groups are generated in chunks.
    pub fn are_on(&self) -> bool {
        self.plan.chunks
    }

    /// The token count at which a chunk ends; `None` for the last chunk.
    fn until(&self, chunk: u32) -> Option<usize> {
        let tokens = self.tokens.filter(|_| chunk < self.plan.last_chunk())?;
        Some((chunk as usize + 1).saturating_mul(tokens))
    }

    /// The content of the job `job`, which is a chunk of the group that `whole` describes. `None` if the weights for
    /// this chunk were published before this learner started.
    pub fn job(&self, job: JobName, whole: &GroupJob, so_far: Vec<Completion>) -> Option<GroupJob> {
        let JobName::Rollout { chunk, .. } = job else { return None };
        if !self.are_on() {
            return Some(whole.clone());
        }
        let version = *self.updates.get(&self.plan.version_of(job))?;
        Some(GroupJob { version, so_far, until: self.until(chunk), ..whole.clone() })
    }

    /// The jobs of a group with their answers, from its `results` in the order of the chunks. Results that come from a
    /// checkpoint or an earlier learner have only the last answer; it is accepted without a check.
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

    /// The answers of a group's jobs, reconstructed from its completions: for each one its tokens, its
    /// log-probabilities and whether it is unfinished. Only chunks that are complete have an answer.
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

/// One job in the chain of a group's chunks, with its answer.
pub struct Link {
    /// The job that the worker was given.
    pub job: GroupJob,
    /// The answer that the worker gave.
    pub answer: GroupAnswer,
}

fn chunk(job: JobName) -> u32 {
    match job {
        JobName::Rollout { chunk, .. } => chunk,
        JobName::Evaluation { index, .. } => index,
    }
}

/// The results by group, each group's in the order of its chunks.
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

#[cfg(test)]
mod tests;
