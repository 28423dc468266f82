//! Workers that are not trusted any more.

use super::{Action, Coordinator, HowEnded, Phase};
use crate::job::{JobName, WorkerName};

impl Coordinator {
    /// The workers that were expelled.
    pub fn expelled(&self) -> impl Iterator<Item = &WorkerName> {
        self.expelled.iter()
    }

    /// Results of a batch that is trained on may be taken back as long as the optimizer does not write.
    pub fn may_expel(&self) -> bool {
        !matches!(self.phase, Phase::Training(Some(_)))
    }

    /// The worker is out, and `jobs` are open again. What was sampled by weights that learned from them is, too: only
    /// after a restart is there such a thing.
    pub(super) fn expel(&mut self, worker: WorkerName, jobs: &[JobName], out: &mut Vec<Action>) {
        self.ended(&worker, HowEnded::Asked, out);
        out.push(Action::Kill(worker.clone()));
        self.expelled.insert(worker);
        if !self.may_expel() {
            return;
        }
        let first = self.plan.numbers(self.step).start;
        let of_rollout = |job: &JobName| match job {
            JobName::Rollout { number, chunk } if *number >= first => Some((*number, *chunk)),
            _ => None,
        };
        let Some(batch) = jobs.iter().filter_map(of_rollout).map(|(number, _)| self.plan.batch_of(number)).min() else {
            return;
        };
        for (number, chunk) in jobs.iter().filter_map(of_rollout) {
            // Later chunks go on from this one.
            for chunk in chunk..=self.plan.last_chunk() {
                self.jobs.remove(&JobName::Rollout { number, chunk });
            }
        }
        let later: Vec<JobName> = self.jobs.keys().copied().filter(|job| self.plan.version_of(*job) > batch).collect();
        for job in later {
            // Whoever has it waits for weights that will never be.
            let state = self.jobs.remove(&job).unwrap_or_default();
            out.extend((state.pending || !state.claims.is_empty()).then_some(Action::Withdraw(job)));
        }
        self.synced.retain(|synced| *synced < batch);
        self.lineages.retain(|version, _| *version <= batch);
        if batch == self.step && self.phase == Phase::Training(None) {
            self.phase = Phase::Collecting;
        }
    }
}
