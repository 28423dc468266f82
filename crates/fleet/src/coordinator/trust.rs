//! Expels workers, and takes back results.

use super::{Action, Coordinator, HowEnded, JobState, Phase};
use crate::ids::BatchId;
use crate::job::{Answer, JobName, WorkerName};
use std::collections::BTreeMap;

impl Coordinator {
    /// The workers that were expelled.
    pub fn expelled(&self) -> impl Iterator<Item = &WorkerName> {
        self.expelled.iter()
    }

    /// Whether a result can be taken back and recomputed: the weights of its job and of all jobs that continue it still
    /// exist, and no learner has trained on it. (A result that was trained on stays accepted: later results may have
    /// been sampled with weights that learned from this result.)
    pub fn can_remake(&self, job: JobName) -> bool {
        let batch = self.plan.batch_of(job.group);
        let mut versions = (job.chunk..=self.plan.last_chunk()).map(|chunk| self.plan.version(batch, chunk));
        batch >= self.replayed.max(self.open_batch())
            && versions.all(|version| version > self.version() || self.is_kept(version))
    }

    /// Expels a worker, and reopens the jobs among `jobs` that can be done again.
    pub(super) fn expel(&mut self, worker: WorkerName, jobs: &[JobName], out: &mut Vec<Action>) {
        self.ended(&worker, HowEnded::Asked, out);
        out.push(Action::Kill(worker.clone()));
        self.expelled.insert(worker);
        let open: Vec<JobName> = jobs.iter().copied().filter(|job| self.can_remake(*job)).collect();
        let Some(batch) = open.iter().map(|job| self.plan.batch_of(job.group)).min() else { return };
        // Later chunks continue the removed ones, so they are removed, too.
        self.jobs.retain(|job, _| !open.iter().any(|taken| job.is_or_continues(*taken)));
        self.forget_what_follows(batch);
    }

    /// Marks this batch and later ones as incomplete.
    fn forget_what_follows(&mut self, batch: BatchId) {
        self.synced.retain(|synced| *synced < batch);
        if batch == self.batch && self.phase == Phase::Training(false) {
            self.phase = Phase::Collecting;
        }
    }

    /// Reopens these jobs of a batch that was loaded from a file, and all jobs sampled with weights trained on that
    /// batch.
    pub(super) fn take_back(&mut self, batch: BatchId, jobs: &[JobName], saved: BTreeMap<JobName, Answer>) {
        if batch < self.open_batch() {
            return;
        }
        let plan = self.plan.clone();
        self.jobs.retain(|job, _| {
            let is_taken = jobs.iter().any(|taken| job.is_or_continues(*taken));
            !is_taken && plan.version_of(*job) <= batch.version()
        });
        for (job, answer) in saved {
            self.jobs.entry(job).or_insert(JobState { answer: Some(answer), ..JobState::default() });
        }
        self.replayed = self.replayed.min(batch);
        self.forget_what_follows(batch);
    }
}
