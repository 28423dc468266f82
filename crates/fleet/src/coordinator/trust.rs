//! Workers that the run has expelled, and results that are taken back.

use super::{Action, Coordinator, HowEnded, JobState, Phase};
use crate::ids::{BatchId, GroupId};
use crate::job::{Answer, JobName, WorkerName};
use std::collections::BTreeMap;

impl Coordinator {
    /// The workers that were expelled.
    pub fn expelled(&self) -> impl Iterator<Item = &WorkerName> {
        self.expelled.iter()
    }

    /// Whether a worker may be expelled now. Results of a batch in training can be made again only until the optimizer
    /// writes.
    pub fn may_expel(&self) -> bool {
        !matches!(self.phase, Phase::Training(Some(_)))
    }

    /// Whether a result can be taken back and made again: the weights of its job and of all jobs that continue it are
    /// still in slots, and no earlier learner has learned from it. (Otherwise others may have sampled with the weights
    /// that it made. What an earlier learner believed stays believed.)
    pub fn can_remake(&self, job: JobName) -> bool {
        let versions = match job {
            JobName::Rollout { group, .. } if self.plan.batch_of(group) < self.replayed => return false,
            JobName::Rollout { group, chunk } => {
                let batch = self.plan.batch_of(group);
                (chunk..=self.plan.last_chunk()).map(|chunk| self.plan.version(batch, chunk)).collect()
            }
            JobName::Evaluation { version, .. } => vec![version],
        };
        versions.iter().filter(|version| **version <= self.version()).all(|version| self.in_slot(*version))
    }

    /// Expels a worker, and reopens those of its `jobs` that can be done again.
    pub(super) fn expel(&mut self, worker: WorkerName, jobs: &[JobName], out: &mut Vec<Action>) {
        self.ended(&worker, HowEnded::Asked, out);
        out.push(Action::Kill(worker.clone()));
        self.expelled.insert(worker);
        if !self.may_expel() {
            return;
        }
        let first = self.plan.first_group(self.batch);
        let of_rollout = |job: &JobName| match job {
            JobName::Rollout { group, chunk } if *group >= first && self.can_remake(*job) => Some((*group, *chunk)),
            _ => None,
        };
        let Some(batch) = jobs.iter().filter_map(of_rollout).map(|(group, _)| self.plan.batch_of(group)).min() else {
            return;
        };
        let open: Vec<(GroupId, u32)> = jobs.iter().filter_map(of_rollout).collect();
        for (group, chunk) in open {
            // Later chunks continue from this one.
            for chunk in chunk..=self.plan.last_chunk() {
                self.jobs.remove(&JobName::Rollout { group, chunk });
            }
        }
        self.forget_what_follows(batch);
    }

    /// Forgets that this batch and later ones were complete, and the weights that they would have made.
    fn forget_what_follows(&mut self, batch: BatchId) {
        self.synced.retain(|synced| *synced < batch);
        self.lineages.retain(|version, _| *version <= batch.version());
        if batch == self.batch && self.phase == Phase::Training(None) {
            self.phase = Phase::Collecting;
        }
    }

    /// Reopens these jobs of a batch whose file an earlier learner wrote, and those that were sampled with weights that
    /// the batch made then.
    pub(super) fn take_back(&mut self, batch: BatchId, jobs: &[JobName], saved: BTreeMap<JobName, Answer>) {
        if !self.may_expel() || batch < self.batch {
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
