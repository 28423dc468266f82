//! Divides a group's completions into chunks of tokens, with one job per chunk, and reads the jobs' results.

use super::ids::{group_of, job_name};
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use fleet::{Answer, JobName, JobResult, Plan, Version, WorkerName};
use model::columns::{TOP_IDS, Values};
use model::{GroupId, Updates};
use rollout::Completion;
use std::collections::BTreeMap;

/// How a run's groups are divided into jobs.
#[derive(Clone, Debug)]
pub struct Chunks {
    plan: Plan,
    /// Tokens in a chunk; `None` if a whole group is one job.
    tokens: Option<usize>,
    /// The size of the model's vocabulary; ids below it can be sampled.
    vocabulary: usize,
    /// For each version that this learner has published, the number of updates of its weights.
    updates: BTreeMap<Version, Updates>,
}

impl Chunks {
    /// The division for a run that has not published any weights yet, with `tokens` per chunk, and a model with a
    /// vocabulary of this size.
    pub fn new(plan: &Plan, tokens: Option<usize>, vocabulary: usize) -> Chunks {
        Chunks { plan: plan.clone(), tokens, vocabulary, updates: BTreeMap::new() }
    }

    /// Records the number of updates of a published version's weights. Versions too old for any job are removed.
    pub fn published(&mut self, version: Version, updates: Updates) {
        self.updates.insert(version, updates);
        let oldest = self.plan.version(version.batch().before(), 0);
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

    /// The content of the job `job`, a chunk of the group that `whole` describes. `None` if the weights of this chunk
    /// were published before this learner started.
    pub fn job(&self, job: JobName, whole: &GroupJob, so_far: Vec<Completion>) -> Option<GroupJob> {
        let chunk = job.chunk;
        if !self.are_on() {
            return Some(whole.clone());
        }
        let updates = *self.updates.get(&self.plan.version_of(job))?;
        Some(GroupJob { updates, so_far, until: self.until(chunk), ..whole.clone() })
    }

    /// The jobs of a group with their answers, from its `results` in chunk order; an error if a result does not answer
    /// its job. If a result's weights were published before this learner started, the expected version of its tokens is
    /// unknown.
    pub fn chain(&self, whole: &GroupJob, results: &[&JobResult]) -> Result<Vec<Link>, Unusable> {
        let mut chain: Vec<Link> = Vec::new();
        // A checkpoint keeps only the last answer, which contains the tokens of earlier ones.
        let is_kept = |result: &JobResult| !result.bytes.is_empty() || result.worker.as_str() != CHECKPOINT;
        for result in results.iter().filter(|result| is_kept(result)) {
            let so_far = chain.last().map_or_else(Vec::new, |link| link.answer.group.completions.clone());
            chain.push(self.link(whole, result, so_far).map_err(|why| Unusable::new(result, why))?);
        }
        Ok(chain)
    }

    /// The job of `result`, with the answer; an error tells why the result does not answer the job.
    fn link(&self, whole: &GroupJob, result: &JobResult, so_far: Vec<Completion>) -> Result<Link, String> {
        let (job, answer) = match self.job(result.job, whole, so_far) {
            Some(job) => {
                let answer = GroupAnswer::from_bytes(&result.bytes, &job).map_err(|error| error.to_string())?;
                (job, answer)
            }
            None => {
                let answer = GroupAnswer::believed(&result.bytes, whole).map_err(|error| error.to_string())?;
                if answer.group.completions.iter().any(|completion| !completion.is_whole(&whole.sampling)) {
                    return Err("it lacks a column that its sampling parameters require".to_owned());
                }
                if !answer.group.is_unfinished() && answer.scores.len() != whole.rewards.len() {
                    return Err(format!("it lacks the scores of {} rewards", whole.rewards.len()));
                }
                let so_far = answer.group.completions.clone();
                (GroupJob { so_far, until: self.until(result.job.chunk), ..whole.clone() }, answer)
            }
        };
        if answer.group.is_unfinished() != result.answer.more {
            return Err("it is inconsistent about whether it continues".to_owned());
        }
        if GroupAnswer::fingerprint(&answer.group) != result.answer.fingerprint {
            return Err("its fingerprint does not match its tokens".to_owned());
        }
        for (place, completion) in answer.group.completions.iter().enumerate() {
            let top = match completion.columns.get(TOP_IDS).map(|column| &column.values) {
                Some(Values::U32(ids)) => &ids[..],
                _ => &[],
            };
            if let Some(id) = completion.ids.iter().chain(top).find(|id| **id as usize >= self.vocabulary) {
                let vocabulary = self.vocabulary;
                return Err(format!("completion {place} has the token {id}, but the vocabulary has {vocabulary}"));
            }
        }
        Ok(Link { job, answer })
    }

    /// The first of a batch's `results` that does not answer its job. `jobs` are the jobs of the batch's groups. A
    /// `whole` batch must have the complete answers of every group.
    pub fn first_unusable(&self, jobs: &[GroupJob], results: &[JobResult], whole: bool) -> Option<Unusable> {
        let group_results = by_group(results);
        jobs.iter().find_map(|job| {
            let results = group_results.get(&job.group).map_or(&[][..], |results| results);
            let in_a_row = results.iter().zip(0..).take_while(|(result, place)| result.job.chunk == *place).count();
            let is_over = |last: &&JobResult| !last.answer.more || last.job.chunk == self.plan.last_chunk();
            if in_a_row < results.len() || whole && results.last().is_none_or(|last| !is_over(last)) {
                let missing = job_name(job.group, in_a_row as u32);
                return Some(Unusable { job: missing, worker: None, why: "its answer is missing".to_owned() });
            }
            self.chain(job, results).err()
        })
    }

    /// The answers to a group's jobs, reconstructed from its completions: the tokens and log-probabilities of each
    /// chunk, and whether it is unfinished. Only complete chunks have an answer.
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

/// The worker's name for results in a checkpoint. No worker may have it.
pub const CHECKPOINT: &str = "checkpoint";

/// A result that does not answer its job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}: {why}", self.what())]
pub struct Unusable {
    /// The job.
    pub job: JobName,
    /// The worker of the answer; `None` without an answer.
    pub worker: Option<WorkerName>,
    /// The reason why the result does not answer the job.
    pub why: String,
}

impl Unusable {
    fn new(result: &JobResult, why: String) -> Unusable {
        Unusable { job: result.job, worker: Some(result.worker.clone()), why }
    }

    fn what(&self) -> String {
        match &self.worker {
            Some(worker) => format!("worker {worker}'s answer to the job {}", self.job),
            None => format!("job {}", self.job),
        }
    }
}

/// One job in a group's chain of chunks, with its answer.
pub struct Link {
    /// The job as sent to the worker.
    pub job: GroupJob,
    /// The worker's answer.
    pub answer: GroupAnswer,
}

/// The results by group, in chunk order.
pub fn by_group(results: &[JobResult]) -> BTreeMap<GroupId, Vec<&JobResult>> {
    let mut groups: BTreeMap<GroupId, Vec<&JobResult>> = BTreeMap::new();
    for result in results {
        groups.entry(group_of(result.job)).or_default().push(result);
    }
    for results in groups.values_mut() {
        results.sort_by_key(|result| result.job);
    }
    groups
}

#[cfg(test)]
mod tests;
