//! The coordinator's bookkeeping of jobs: which are open, which worker does them, and which results arrived.

use super::{Action, Coordinator, Dropped, HowEnded, Phase};
use crate::ids::{BatchId, GroupId, Version};
use crate::job::{Answer, JobName, Lineage, WorkerName};
use std::collections::BTreeSet;

/// After this many workers have ended while doing a job together with other jobs, the job is done alone.
pub(super) const SUSPECT: u32 = 2;

impl Coordinator {
    /// The next chunk of a group that must be done; `None` when the group is complete.
    pub(super) fn current(&self, group: GroupId) -> Option<JobName> {
        for chunk in 0..=self.plan.last_chunk() {
            let job = JobName { group, chunk };
            match self.jobs.get(&job).and_then(|state| state.answer) {
                None => return Some(job),
                Some(answer) if !answer.more => return None,
                Some(_) => {}
            }
        }
        None
    }

    /// The chunks of a group that are done.
    pub(crate) fn chain(&self, group: GroupId) -> Vec<JobName> {
        let jobs = (0..=self.plan.last_chunk()).map(|chunk| JobName { group, chunk });
        jobs.take_while(|job| self.jobs.get(job).is_some_and(|state| state.answer.is_some())).collect()
    }

    /// The batches whose jobs may be offered: the current batch and the k batches after it.
    fn window(&self) -> impl Iterator<Item = BatchId> + use<> {
        let beyond = u64::from(!self.rules.published);
        let end = self.batch.0.saturating_add(self.plan.max_staleness).saturating_add(1 + beyond);
        self.batch.up_to(BatchId(end).min(self.plan.end()))
    }

    /// Jobs that should be done now, the most urgent first.
    fn open_jobs(&self) -> Vec<JobName> {
        let groups = self.window().flat_map(|batch| self.plan.groups_of(batch));
        let jobs = groups.filter_map(|group| self.current(group));
        jobs.filter(|job| self.plan.version_of(*job) <= self.version() || !self.rules.published).collect()
    }

    /// A needed group that cannot be completed, with the version of the weights that its next job needs. That version
    /// was published but is gone, and no worker is still doing the job with its own copy.
    pub(super) fn first_impossible(&self) -> Option<(JobName, Version)> {
        let in_work = |job: &JobName| self.jobs.get(job).is_some_and(|state| !state.claims.is_empty());
        let mut jobs = self.open_jobs().into_iter().map(|job| (job, self.plan.version_of(job)));
        jobs.find(|(job, version)| *version <= self.version() && !self.is_kept(*version) && !in_work(job))
    }

    /// Whether the weights of a published version still exist: this learner published them, and jobs of the current or
    /// a later batch may need them.
    pub(super) fn is_kept(&self, version: Version) -> bool {
        let oldest = if self.rules.needed { self.plan.version(self.batch, 0) } else { self.version() };
        version >= self.first.max(oldest) && version <= self.version()
    }

    pub(super) fn offer(&mut self, out: &mut Vec<Action>) {
        let workers = (self.workers.len() as u64).max(1);
        let in_flight = |state: &super::JobState| state.answer.is_none() && (state.pending || !state.claims.is_empty());
        let mut open = self.jobs.values().filter(|state| in_flight(state)).count() as u64;
        // If many results are waiting, only jobs of later batches are held back, so that the current batch can
        // complete.
        let later = self.plan.first_group(self.batch.next());
        let waits = |job: &JobName| job.group >= later;
        // A group in chunks counts once, by its first chunk.
        let is_first = |job: &JobName| job.chunk == 0;
        let answered = self.jobs.iter().filter(|(job, state)| waits(job) && state.answer.is_some());
        let waiting = answered.filter(|(job, _)| is_first(job)).count() as u64;
        for job in self.open_jobs() {
            let state = self.jobs.entry(job).or_default();
            if in_flight(state) {
                continue;
            }
            if open >= self.plan.max_inflight_tasks.saturating_mul(workers) {
                break;
            }
            if waits(&job) && open + waiting >= self.plan.queue_maxsize.saturating_mul(workers) {
                break;
            }
            state.pending = true;
            state.age_ms = 0;
            open += 1;
            self.push_offer(job, out);
        }
    }

    fn push_offer(&self, job: JobName, out: &mut Vec<Action>) {
        let version = self.plan.version_of(job);
        // An unpublished version has no lineage. Its jobs are offered only in tests that switch `published` off.
        let lineage = self.lineages.get(&version).copied().unwrap_or(Lineage([0; 16]));
        let alone = self.jobs.get(&job).is_some_and(|state| state.shared_deaths >= SUSPECT);
        out.push(Action::Offer { job, version, lineage, continues: self.answer_before(job), alone });
    }

    /// The fingerprint of the answer that a later chunk continues, if that answer has arrived.
    fn answer_before(&self, job: JobName) -> Option<u64> {
        let before = JobName { group: job.group, chunk: job.chunk.checked_sub(1)? };
        self.jobs.get(&before)?.answer.map(|answer| answer.fingerprint)
    }

    pub(super) fn claimed(&mut self, worker: WorkerName, job: JobName, out: &mut Vec<Action>) {
        if self.rules.reclaim && !self.workers.contains_key(&worker) {
            // The worker ended before this event arrived, or was expelled and has not noticed it.
            if self.expelled.contains(&worker) {
                out.push(Action::Kill(worker.clone()));
            }
            out.push(Action::Release(worker, job));
            if let Some(state) = self.jobs.get_mut(&job) {
                state.pending = false;
            }
            return;
        }
        // An earlier learner offered the job, but this learner has not published the job's weights yet. The new weights
        // may differ from the earlier learner's. The worker would then wait for the earlier weights while a checkpoint
        // waits for the worker.
        let is_early = self.rules.published && self.plan.version_of(job) > self.version();
        if !self.is_open(job) || is_early {
            out.push(Action::Withdraw(job));
            return;
        }
        let state = self.jobs.entry(job).or_default();
        if state.answer.is_some() {
            out.push(Action::Withdraw(job));
            return;
        }
        state.pending = false;
        state.claims.insert(worker);
        state.age_ms = 0;
    }

    pub(super) fn returned(&mut self, worker: &WorkerName, job: JobName, faulty: bool, out: &mut Vec<Action>) {
        if self.released(worker, job) && faulty {
            self.died_of(job, HowEnded::Failed, out);
        }
    }

    /// Records that a worker no longer has a job. Returns whether the job must still be done.
    fn released(&mut self, worker: &WorkerName, job: JobName) -> bool {
        let Some(state) = self.jobs.get_mut(&job) else { return false };
        state.claims.remove(worker);
        state.answer.is_none()
    }

    pub(super) fn ended(&mut self, worker: &WorkerName, how: HowEnded, out: &mut Vec<Action>) {
        self.workers.remove(worker);
        if !self.rules.reclaim {
            return;
        }
        let claimed = |state: &super::JobState| state.claims.contains(worker);
        let jobs: Vec<JobName> = self.jobs.iter().filter(|(_, state)| claimed(state)).map(|(job, _)| *job).collect();
        let is_alone = jobs.len() == 1;
        for job in jobs {
            out.push(Action::Release(worker.clone(), job));
            match self.released(worker, job) && how != HowEnded::Asked {
                true if is_alone => self.died_of(job, how, out),
                true => self.suspect(job),
                false => {}
            }
        }
    }

    /// Records that a worker ended while doing this job and others. After [`SUSPECT`] of these ends, the job is offered
    /// to run alone, so that it is not blamed when another job fails.
    fn suspect(&mut self, job: JobName) {
        if let Some(state) = self.jobs.get_mut(&job) {
            state.shared_deaths = (state.shared_deaths + 1).min(SUSPECT);
        }
    }

    /// Records that a worker ended while doing only this job. If the worker gave no reason, something else may have
    /// killed it, so the limit for such ends is higher.
    fn died_of(&mut self, job: JobName, how: HowEnded, out: &mut Vec<Action>) {
        let Some(state) = self.jobs.get_mut(&job) else { return };
        let (count, most) = match how {
            HowEnded::Vanished => (&mut state.vanished, self.plan.kills_per_job),
            HowEnded::Failed | HowEnded::Asked => (&mut state.failures, self.plan.failures_per_job),
        };
        *count += 1;
        if *count >= most && self.phase != Phase::Ended {
            self.phase = Phase::Ended;
            out.push(Action::Fail(job, *count, how));
        }
    }

    pub(super) fn result(
        &mut self,
        from: WorkerName,
        job: JobName,
        of: Lineage,
        answer: Answer,
        out: &mut Vec<Action>,
    ) {
        let why = self.why_dropped(&from, job, of, answer);
        if let Some(state) = self.jobs.get_mut(&job) {
            state.claims.remove(&from);
            // An expelled worker had taken the job, so the job is not pending any more and is offered again.
            state.pending &= why != Some(Dropped::Expelled);
        }
        match why {
            Some(why) => out.push(Action::Drop(from, job, why)),
            None => {
                let state = self.jobs.entry(job).or_default();
                state.answer = Some(answer);
                state.of = Some(of);
                out.push(Action::Accept(from, job));
                if state.pending || !state.claims.is_empty() {
                    // If a second worker is doing the job, that worker learns that the job is not needed, and releases
                    // its weights.
                    out.push(Action::Withdraw(job));
                }
                state.pending = false;
                state.claims.clear();
                self.drop_what_continues_another(job);
            }
        }
    }

    /// The reason for dropping a result; `None` if it is accepted.
    fn why_dropped(&self, from: &WorkerName, job: JobName, of: Lineage, answer: Answer) -> Option<Dropped> {
        let known = self.lineages.get(&self.plan.version_of(job));
        let is_ours = known.is_some_and(|known| self.may_be_of(job, of, *known)) || !self.rules.lineage;
        let first = self.plan.first_group(self.batch.before());
        let is_asked = job.group >= first && self.jobs.contains_key(&job) || self.is_open(job);
        match self.jobs.get(&job).and_then(|state| state.answer) {
            _ if self.expelled.contains(from) => Some(Dropped::Expelled),
            _ if !is_asked => Some(Dropped::NotAsked),
            _ if !is_ours => Some(Dropped::Lineage),
            Some(there) if there != answer => Some(Dropped::Differs),
            Some(_) => Some(Dropped::Twice),
            None => None,
        }
    }

    /// Whether an [`Event::Result`](super::Event::Result) with these values would be accepted. Callers check the
    /// content of the result first, because an accepted result may be written to a batch file at once.
    pub fn accepts(&self, from: &WorkerName, job: JobName, of: Lineage, answer: Answer) -> bool {
        self.phase != Phase::Ended && self.why_dropped(from, job, of, answer).is_none()
    }

    /// Whether a result of lineage `of` can belong to a job with weights of lineage `known`. If a chunk arrives before
    /// the previous chunk, this is unknown: true is returned, and the chunk is checked later.
    fn may_be_of(&self, job: JobName, of: Lineage, known: Lineage) -> bool {
        match (job.chunk, self.answer_before(job)) {
            (1.., _) if !self.rules.continues => true,
            (1.., None) => true,
            (_, before) => known.for_result(before) == of,
        }
    }

    /// Drops later chunks of a job's group that arrived before the job's answer and continue a different answer.
    fn drop_what_continues_another(&mut self, job: JobName) {
        let JobName { group, chunk } = job;
        let next = JobName { group, chunk: chunk + 1 };
        let known = self.lineages.get(&self.plan.version_of(next));
        let of = self.jobs.get(&next).and_then(|state| state.of);
        if of.is_some_and(|of| known.is_none_or(|known| !self.may_be_of(next, of, *known))) {
            for chunk in chunk + 1..=self.plan.last_chunk() {
                self.jobs.remove(&JobName { group, chunk });
            }
        }
    }

    /// Whether the run needs this job now, or needed it before it was restarted from an older checkpoint.
    fn is_open(&self, job: JobName) -> bool {
        let batch = self.plan.batch_of(job.group);
        (self.batch..self.plan.end()).contains(&batch) && job.chunk <= self.plan.last_chunk()
    }

    pub(super) fn tick(&mut self, ms: u64, out: &mut Vec<Action>) {
        // If the learner itself was paused, workers that were silent during the pause are not treated as stalled.
        let ms = ms.min((self.plan.stale_after_ms / 4).max(1));
        let limit = self.plan.stale_after_ms;
        for (name, worker) in &mut self.workers {
            worker.still_ms = (worker.still_ms + ms).min(limit);
            if worker.still_ms >= limit && self.rules.kill {
                worker.still_ms = 0;
                out.push(Action::Kill(name.clone()));
            }
        }
        self.offer_again(ms, out);
    }

    /// Offers to other workers the jobs that only this worker is doing, because it makes no progress and cannot be
    /// killed. If it resumes later, the first result of a job is used.
    pub(super) fn offer_those_of(&mut self, worker: &WorkerName, out: &mut Vec<Action>) {
        let open: BTreeSet<JobName> = self.open_jobs().into_iter().collect();
        let mut again = Vec::new();
        for (job, state) in self.jobs.iter_mut().filter(|(job, _)| open.contains(job)) {
            let is_its_alone = state.claims.len() == 1 && state.claims.contains(worker);
            if is_its_alone && !state.pending && state.answer.is_none() {
                state.pending = true;
                again.push(*job);
            }
        }
        for job in again {
            self.push_offer(job, out);
        }
    }

    /// Re-offers overdue jobs, since a worker may be slow or a message lost. The first result is used; all results have
    /// the same bits.
    fn offer_again(&mut self, ms: u64, out: &mut Vec<Action>) {
        let Some(after) = self.plan.straggler_after_ms else { return };
        let busy: BTreeSet<&WorkerName> = self.jobs.values().flat_map(|state| &state.claims).collect();
        let is_idle = self.workers.keys().any(|worker| !busy.contains(worker));
        // If all workers seem busy, the limit is four times as long. There is still a limit, since a result may be
        // lost.
        let limit = if is_idle { after } else { after.saturating_mul(4) };
        let mut again = Vec::new();
        // A later chunk from an earlier learner waits, since its payload needs the results of the previous chunks.
        let open: BTreeSet<JobName> = self.open_jobs().into_iter().collect();
        for (job, state) in self.jobs.iter_mut().filter(|(job, _)| open.contains(job)) {
            if state.answer.is_none() && (state.pending || !state.claims.is_empty()) {
                state.age_ms = (state.age_ms + ms).min(after.saturating_mul(4));
                if state.age_ms >= limit {
                    state.age_ms = 0;
                    state.pending = true;
                    again.push(*job);
                }
            }
        }
        for job in again {
            self.push_offer(job, out);
        }
    }
}
