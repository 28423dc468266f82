//! The content of the jobs that a learner offers, and the check of results before they are accepted.

use super::chunks::Chunks;
use super::ids::group_of;
use crate::config::SamplingPlan;
use crate::rollouts::jobs::GroupJob;
use fleet::learner::Feed;
use fleet::{JobName, JobResult};
use model::GroupId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sampling profile of all jobs in a run without profiles.
const PROFILE: &str = "any";

/// The content of the offered jobs, read by the thread that offers them.
#[derive(Clone)]
pub(super) struct Payloads(Arc<Mutex<Offered>>);

/// The offered jobs.
pub(super) struct Offered {
    /// For each group, the job for the whole group.
    pub jobs: BTreeMap<GroupId, GroupJob>,
    pub chunks: Chunks,
    /// Selects each group's sampling profile.
    pub sampling: SamplingPlan,
}

impl Payloads {
    pub fn new(chunks: Chunks, sampling: SamplingPlan) -> Payloads {
        Payloads(Arc::new(Mutex::new(Offered { jobs: BTreeMap::new(), chunks, sampling })))
    }

    /// Adds jobs for whole groups.
    pub fn offer<'a>(&self, jobs: impl Iterator<Item = &'a GroupJob>) {
        self.lock().jobs.extend(jobs.map(|job| (job.group, job.clone())));
    }

    pub fn lock(&self) -> MutexGuard<'_, Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed for Payloads {
    fn job(&mut self, job: JobName, before: &[JobResult]) -> fleet::Result<(String, Vec<u8>)> {
        let failed = |what: &str| fleet::Error::Failed(format!("job {job} {what}"));
        let group = group_of(job);
        let offered = self.lock();
        let whole = offered.jobs.get(&group).ok_or_else(|| failed("was not prepared"))?;
        let before: Vec<&JobResult> = before.iter().collect();
        // Answers that an earlier learner accepted are checked when the batch is complete; until then an invalid chain
        // restarts.
        let chain = offered.chunks.chain(whole, &before).unwrap_or_default();
        let so_far = chain.last().map_or_else(Vec::new, |link| link.answer.group.completions.clone());
        let asked =
            offered.chunks.job(job, whole, so_far).ok_or_else(|| failed("needs weights that no longer exist"))?;
        Ok((offered.sampling.profile(group).unwrap_or(PROFILE).to_owned(), asked.to_bytes()))
    }

    fn check(&mut self, result: &JobResult, before: &[JobResult]) -> Result<(), String> {
        let (group, chunk) = (group_of(result.job), result.job.chunk);
        let offered = self.lock();
        // The result was accepted by an earlier learner, and its batch is not offered yet or its preceding chunk has
        // not arrived. It is checked when the batch is complete.
        let Some(whole) = offered.jobs.get(&group).filter(|_| before.len() == chunk as usize) else { return Ok(()) };
        let all: Vec<&JobResult> = before.iter().chain([result]).collect();
        match offered.chunks.chain(whole, &all) {
            Err(unusable) if unusable.job == result.job => Err(unusable.why),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
