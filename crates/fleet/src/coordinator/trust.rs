//! Workers that the run has expelled.

use super::{Action, Coordinator, HowEnded, Phase};
use crate::job::{JobName, WorkerName};

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

    /// Whether a result can be made again: its weights must still exist, and no earlier learner may have trained on it,
    /// since other workers may have sampled with the resulting weights. Such results stay accepted.
    pub fn can_remake(&self, job: JobName) -> bool {
        if matches!(job, JobName::Rollout { number, .. } if self.plan.batch_of(number) < self.replayed) {
            return false;
        }
        let version = self.plan.version_of(job);
        self.slots.iter().flatten().any(|(first, last)| (*first..=*last).contains(&version))
    }

    /// Expels a worker, and reopens those of its `jobs` that can be done again.
    pub(super) fn expel(&mut self, worker: WorkerName, jobs: &[JobName], out: &mut Vec<Action>) {
        self.ended(&worker, HowEnded::Asked, out);
        out.push(Action::Kill(worker.clone()));
        self.expelled.insert(worker);
        if !self.may_expel() {
            return;
        }
        let first = self.plan.numbers(self.step).start;
        let of_rollout = |job: &JobName| match job {
            JobName::Rollout { number, chunk } if *number >= first && self.can_remake(*job) => Some((*number, *chunk)),
            _ => None,
        };
        let Some(batch) = jobs.iter().filter_map(of_rollout).map(|(number, _)| self.plan.batch_of(number)).min() else {
            return;
        };
        let open: Vec<(u64, u32)> = jobs.iter().filter_map(of_rollout).collect();
        for (number, chunk) in open {
            // Later chunks continue from this one.
            for chunk in chunk..=self.plan.last_chunk() {
                self.jobs.remove(&JobName::Rollout { number, chunk });
            }
        }
        self.synced.retain(|synced| *synced < batch);
        self.lineages.retain(|version, _| *version <= batch);
        if batch == self.step && self.phase == Phase::Training(None) {
            self.phase = Phase::Collecting;
        }
    }
}
