//! The possible moves in a state of the simulated run.

use super::{Doing, Move, TORN, World, tokens};
use crate::coordinator::Event;
use crate::ids::BatchId;
use crate::job::{Answer, JobName, JobResult};

impl World {
    /// All possible moves, each with a flag that is true for a fault. The end of a run must be reachable without
    /// further faults.
    pub fn moves(&self) -> Vec<(Move, bool)> {
        let mut moves = Vec::new();
        let budget = &self.budget;
        match &self.learner {
            None => moves.push((Move::Restart, false)),
            Some(learner) => {
                if self.environment.lossy {
                    moves.extend((0..self.mail.len()).map(|i| (Move::Deliver(i, false), false)));
                } else {
                    moves.push((Move::Poll, false));
                }
                if self.workers.iter().any(|worker| worker.stopped) {
                    moves.push((Move::Tick(1), false));
                }
                if self.environment.liar && learner.trains.is_some_and(|batch| self.has_lie(batch)) && !learner.begun {
                    // The lie is detected before any other move.
                    return vec![(Move::Expel(0), false)];
                }
                if learner.written.is_some() {
                    moves.push((Move::Commit, false));
                } else if learner.saving {
                    let version = learner.coordinator.version();
                    let next = if learner.begun { version.batch().next().version() } else { version };
                    if learner.coordinator.frontier(next).1.is_empty() || !self.rules.frontier {
                        moves.push((Move::Save, false));
                    }
                } else if learner.trains.is_some() {
                    // A checkpoint must be on disk before the next optimizer step.
                    if self.environment.halves && !learner.begun {
                        moves.extend([(Move::Begin(false), false), (Move::Begin(true), false)]);
                    } else {
                        moves.extend([(Move::Update(false), false), (Move::Update(true), false)]);
                    }
                }
                if budget.lies > 0 && (learner.saving || learner.trains.is_some()) {
                    moves.extend((0..self.workers.len()).map(|i| (Move::Expel(i), true)));
                }
                if budget.crashes > 0 {
                    moves.push((Move::Crash, true));
                }
                if budget.power > 0 {
                    moves.push((Move::Power, true));
                }
                if budget.rots > 0 && !self.files.is_empty() {
                    moves.push((Move::Rot, true));
                }
            }
        }
        for (i, worker) in self.workers.iter().enumerate() {
            if worker.doing == Doing::Dead {
                moves.extend((!worker.expelled).then_some((Move::Revive(i), false)));
                continue;
            }
            if budget.kills > 0 {
                moves.push((Move::Kill(i), true));
            }
            if worker.stopped {
                moves.push((Move::Continue(i), true));
                continue;
            }
            if budget.stops > 0 && worker.doing != Doing::Nothing {
                moves.push((Move::Halt(i), true));
            }
            match &worker.doing {
                Doing::Nothing => moves.extend(self.queue.pending.keys().map(|job| (Move::Claim(i, *job), false))),
                Doing::Claimed(job) => {
                    if !self.queue.processing.contains_key(&(worker.name.clone(), job.name)) {
                        moves.push((Move::Leave(i), false));
                    } else if self.weights_for(job).is_some() {
                        moves.push((Move::Pin(i), false));
                    }
                }
                Doing::Sampling(..) => moves.push((Move::Sample(i), false)),
                Doing::Made(..) => moves.push((Move::Complete(i), false)),
                Doing::Dead => {}
            }
        }
        moves
    }

    pub(super) fn sample(&mut self, i: usize) {
        let Doing::Sampling(job, weights) = self.workers[i].doing.clone() else { return };
        // The memory of an ended learner survives while a process has it mapped.
        let is_torn = !self.environment.pins && self.learner.is_some() && self.weights_for(&job) != Some(weights);
        let (mut tokens, more) = tokens(job.name, if is_torn { TORN } else { weights }, &job.payload);
        // With a liar, every group continues after its first chunk.
        let more = more || self.environment.liar;
        tokens ^= u64::from(self.environment.liar && i == 0 && job.payload.is_empty());
        let mut bytes = tokens.to_le_bytes().to_vec();
        let first = self.plan.first_group(self.plan.continued.version.batch());
        if self.environment.judge && job.name == (JobName::first(first)) {
            bytes.push(u8::from(std::mem::replace(&mut self.scored, true)));
        }
        let worker = self.workers[i].name.clone();
        let answer = Answer { fingerprint: tokens, more };
        let lineage = job.lineage.for_result(job.continues);
        let result = JobResult { job: job.name, lineage, worker, answer, bytes };
        self.workers[i].doing = Doing::Made(result);
    }

    pub(super) fn payload(&self, job: JobName) -> Vec<u8> {
        let Some(learner) = &self.learner else { return Vec::new() };
        let before = learner.kept.range(JobName::first(job.group)..job);
        before.flat_map(|(_, result)| result.bytes[..8].to_vec()).collect()
    }

    /// Whether a result is wrong: its tokens differ from the job's correct tokens.
    pub(super) fn is_lie(&self, result: &JobResult) -> bool {
        let weights = self.published.get(&self.plan.version_of(result.job)).copied();
        let expected = weights.map(|weights| tokens(result.job, weights, &self.payload(result.job)).0);
        expected != Some(result.answer.fingerprint)
    }

    /// Whether the run uses a wrong answer to the first chunk of a group in this batch.
    fn has_lie(&self, batch: BatchId) -> bool {
        let Some(learner) = &self.learner else { return false };
        let jobs = self.plan.groups_of(batch).map(JobName::first);
        let mut results = jobs.filter_map(|job| learner.kept.get(&job));
        results.any(|result| self.is_lie(result))
    }

    /// Expels the lying worker. Its results in this batch and later ones are recomputed, and so are the chunks that
    /// continue them.
    fn expel_liar(&mut self) -> Result<(), String> {
        let Some(batch) = self.learner.as_ref().and_then(|learner| learner.trains) else { return Ok(()) };
        let all = batch.up_to(self.plan.end()).filter(|batch| self.has_lie(*batch));
        let groups = all.flat_map(|batch| self.plan.groups_of(batch));
        let jobs: Vec<JobName> = groups.map(JobName::first).collect();
        let Some(learner) = &mut self.learner else { return Ok(()) };
        learner.trains = None;
        let is_taken = |job: &JobName| jobs.iter().any(|taken| job.is_or_continues(*taken));
        let taken: Vec<JobResult> =
            learner.kept.extract_if(.., |job, _| is_taken(job)).map(|(_, result)| result).collect();
        self.files.retain(|file, _| *file < batch);
        self.workers[0].expelled = true;
        let name = self.workers[0].name.clone();
        let same =
            |result: &JobResult| taken.iter().any(|taken| taken.job == result.job && taken.answer == result.answer);
        for (worker, job) in self.queue.complete.iter().filter(|(_, result)| same(result)).map(|(key, _)| key) {
            learner.observer.discarded(worker, *job);
        }
        self.queue.complete.retain(|_, result| !same(result));
        self.tell(Event::Expelled(name, jobs))
    }

    /// Expels a worker. All results of the first batch that was not trained on are treated as its wrong results.
    pub(super) fn expel(&mut self, i: usize) -> Result<(), String> {
        if self.environment.liar {
            return self.expel_liar();
        }
        self.budget.lies -= 1;
        self.workers[i].expelled = true;
        let Some(learner) = &mut self.learner else { return Ok(()) };
        let batch = learner.coordinator.open_batch();
        let plan = &self.plan;
        let is_in_batch = |job: &JobName| plan.batch_of(job.group) == batch && learner.coordinator.can_remake(*job);
        let jobs: Vec<JobName> = learner.kept.keys().copied().filter(is_in_batch).collect();
        let name = self.workers[i].name.clone();
        if jobs.is_empty() {
            return self.tell(Event::Expelled(name, jobs));
        }
        learner.trains = learner.trains.filter(|trains| *trains < batch);
        learner.kept.retain(|job, _| !jobs.contains(job));
        self.files.retain(|file, _| *file < batch);
        // An earlier learner may have trained on the removed results.
        self.published.retain(|version, _| *version <= batch.version());
        // An exchange does not report a result that it no longer has.
        self.mail.retain(|event| !matches!(event, Event::Result { job, .. } if jobs.contains(job)));
        for job in &jobs {
            self.queue.complete.remove(&(name.clone(), *job));
        }
        self.tell(Event::Expelled(name, jobs))
    }

    /// Tells a new learner which workers are expelled. In a real run, the file `expelled.jsonl` lists them.
    pub(super) fn tell_of_expelled(&mut self) -> Result<(), String> {
        let expelled = self.workers.iter().filter(|worker| worker.expelled).map(|worker| worker.name.clone());
        let expelled: Vec<_> = expelled.collect();
        expelled.into_iter().try_for_each(|name| self.tell(Event::Expelled(name, Vec::new())))
    }
}
