//! Results that do not answer their jobs. The caller detects them with [`Feed::check`](super::Feed::check) before a
//! result is accepted.

use super::{Learner, Notice};
use crate::coordinator::Event;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::ids::BatchId;
use crate::job::{JobName, JobResult, WorkerName};

/// A result that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The worker that returned it.
    pub worker: WorkerName,
    /// The job that it should have answered.
    pub job: JobName,
    /// The reason for the refusal.
    pub why: String,
    /// True if this refusal reached the limit and the worker was expelled.
    pub expels: bool,
}

impl<E: Exchange> Learner<E> {
    /// Checks a result that the coordinator would accept. Refuses it and returns true if it does not answer its job.
    pub(super) fn refuses(&mut self, worker: &WorkerName, job: JobName) -> Result<bool> {
        // A missing result is reported when it is accepted.
        let Some(result) = self.exchange.take(worker, job) else { return Ok(false) };
        let before = self.chunks_before(job);
        let Err(why) = self.feed.check(&result, &before) else {
            self.looked_at = Some(result);
            return Ok(false);
        };
        self.exchange.discard(worker, job)?;
        self.counts.corrupt += 1;
        let refusals = self.refusals.entry(worker.clone()).or_default();
        *refusals += 1;
        let expels = *refusals >= self.coordinator.plan().refusals_per_worker;
        self.notices.push_back(Notice::Refused(Refused { worker: worker.clone(), job, why, expels }));
        self.tell(Event::Refused(worker.clone(), job))?;
        if expels {
            self.counts.expelled += 1;
            self.tell(Event::Expelled(worker.clone(), Vec::new()))?;
            self.announce()?;
        }
        Ok(true)
    }

    /// Takes back results of a batch that do not answer their jobs, so that they are recomputed. (Results in an earlier
    /// learner's batch file could not be checked earlier.) If the batch was already returned as [`Notice::Train`], it
    /// is returned again. Empty `jobs` mean that results are missing.
    pub fn take_back(&mut self, batch: BatchId, jobs: &[JobName]) -> Result<()> {
        if batch < self.coordinator.open_batch() {
            return Err(Error::Failed(format!(
                "batch {batch} cannot be withdrawn: the learner has begun to train on it"
            )));
        }
        let plan = self.coordinator.plan().clone();
        let is_taken = |job: &JobName| {
            jobs.iter().any(|taken| job.is_or_continues(*taken)) || plan.version_of(*job) > batch.version()
        };
        let taken: Vec<JobResult> =
            self.kept.extract_if(.., |job, _| is_taken(job)).map(|(_, result)| result).collect();
        let saved: Vec<JobResult> = taken.iter().filter_map(|result| self.frontier.get(&result.job)).cloned().collect();
        self.kept.extend(saved.iter().map(|result| (result.job, result.clone())));
        self.files.remove_from(batch)?;
        self.notices.retain(|notice| !matches!(notice, Notice::Train(other, _) if *other >= batch));
        self.counts.remade += taken.len() as u64;
        taken.iter().try_for_each(|result| self.exchange.discard(&result.worker, result.job))?;
        let saved = saved.into_iter().map(|result| (result.job, result.answer)).collect();
        self.tell(Event::TakenBack { batch, jobs: jobs.to_vec(), saved })?;
        self.announce()
    }
}
