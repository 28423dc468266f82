//! The learner's loop around the coordinator: it passes events in and carries actions out. Actions that need the
//! weights (train, write a slot, write a checkpoint) are returned to the caller as a [`Step`].
//!
//! [`Learner`] is the loop itself, for callers that poll it. [`LearnerHandle`] runs it on a thread, so that workers are
//! served while the caller trains.

use crate::batches::{Batch, BatchFiles};
use crate::coordinator::{Action, Coordinator, Dropped, Event, HowEnded, Saved, SyncedBatch};
use crate::error::{Error, Result};
use crate::exchange::{CheckpointStates, Counts, Exchange, LearnerState, SlotState, Waiter};
use crate::ids::{BatchId, GroupId, Version};
use crate::job::{Answer, Job, JobName, JobResult, Lineage, WorkerName};
use crate::plan::Plan;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

mod handle;
mod refused;

pub use handle::LearnerHandle;
pub use refused::Refused;

/// The longest time that the loop sleeps. It must look regularly, because a worker that dies causes no wake-up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Supplies the content of jobs, and reads the content of results.
pub trait Feed: Send {
    /// The sampling profile and the payload of a job. `before` has the results of the earlier chunks of its group. For
    /// a job that is offered again it is called again, and must return the same content.
    fn job(&mut self, job: JobName, before: &[JobResult]) -> Result<(String, Vec<u8>)>;

    /// Checks whether a result is an answer to its job, before it is accepted; an error is the reason why it is not.
    /// `before` has the results of the earlier chunks of its group.
    fn check(&mut self, _result: &JobResult, _before: &[JobResult]) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// An action that the caller of the learner must carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Train on this batch, whose file is on the disk. Then lock one of the slots in [`Learner::writable`], call
    /// [`Learner::writing`], run the optimizer, and call [`Learner::trained`]. The results are in the order of their
    /// names.
    Train(BatchId, Batch),
    /// The evaluation of this version is complete.
    Evaluated(Version, Batch),
    /// This checkpoint may be renamed to its final name. This value must be written into it first.
    CommitCheckpoint(SavedFrontier),
    /// A message for the user: an unreadable file, results that differ, a worker that was killed.
    Warning(String),
    /// A result was none to its job, which is done again.
    Refused(Refused),
    /// The run has ended.
    End,
}

/// The fleet's part of a checkpoint: results that only older weights could sample, and the lineages of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFrontier {
    /// The version of the weights in the checkpoint.
    pub version: Version,
    /// The lineages of this version and of older ones.
    pub lineages: BTreeMap<Version, Lineage>,
    /// The results, in the order of their names; [`crate::batch_to_bytes`] writes them.
    pub frontier: Batch,
    /// Workers whose results are no longer accepted.
    pub expelled: Vec<WorkerName>,
}

/// The learner's loop around the coordinator.
pub struct Learner<E> {
    coordinator: Coordinator,
    exchange: E,
    files: BatchFiles,
    feed: Box<dyn Feed>,
    /// Results that have not been trained on yet, or that a checkpoint waits for.
    kept: BTreeMap<JobName, JobResult>,
    /// Results that were looked at and will be accepted.
    looked_at: Option<JobResult>,
    /// The results in the checkpoint, whose weights are gone.
    frontier: BTreeMap<JobName, JobResult>,
    /// How many results of each worker were refused.
    refusals: BTreeMap<WorkerName, u32>,
    steps: VecDeque<Step>,
    counts: Counts,
    last_checkpoint: Option<Version>,
    /// True if the caller has ended the run before its last batch.
    ended: bool,
    shared: serde_json::Value,
    last_tick: Instant,
}

impl<E: Exchange> Learner<E> {
    /// A learner at the start of a run (`saved` then has version 0, the first lineage and no frontier) or from a
    /// checkpoint, with the batch files on the disk. `shared` is passed on to the workers.
    pub fn open(
        plan: Plan,
        saved: SavedFrontier,
        exchange: E,
        files: BatchFiles,
        feed: Box<dyn Feed>,
        shared: serde_json::Value,
    ) -> Result<Learner<E>> {
        // What the checkpoint has: left there by a learner that was killed after it, or by an older version.
        files.remove_before(saved.version.batch())?;
        let (mut batches, mut problems) = files.load(saved.version.batch())?;
        if let Some((batch, why)) = batches.iter().find_map(|(batch, all)| Some((*batch, misfit(&plan, *batch, all)?)))
        {
            problems.push(format!("{}: {why}; it is made again", files.path(batch).display()));
            files.remove_from(batch)?;
            batches.retain(|other, _| *other < batch);
        }
        let synced = batches.iter().map(|(batch, results)| (*batch, SyncedBatch::of(results))).collect();
        let frontier = saved.frontier.iter().map(|result| (result.job, result.answer)).collect();
        let state = Saved { version: saved.version, lineages: saved.lineages, frontier };
        let mut coordinator = Coordinator::resume(plan, state, synced).map_err(Error::Refused)?;
        for worker in saved.expelled {
            // What it has left is refused, and it ends when it reads that.
            coordinator.handle(Event::Expelled(worker, Vec::new()));
        }
        let frontier: BTreeMap<JobName, JobResult> =
            saved.frontier.into_iter().map(|result| (result.job, result)).collect();
        let all = frontier.values().cloned().chain(batches.into_values().flatten());
        let last_checkpoint = (saved.version > Version(0)).then_some(saved.version);
        let mut learner = Learner {
            coordinator,
            exchange,
            files,
            feed,
            kept: all.map(|result| (result.job, result)).collect(),
            looked_at: None,
            frontier,
            refusals: BTreeMap::new(),
            steps: VecDeque::new(),
            counts: Counts { corrupt: problems.len() as u64, ..Counts::default() },
            last_checkpoint,
            ended: false,
            shared,
            last_tick: Instant::now(),
        };
        learner.steps.extend(problems.into_iter().map(Step::Warning));
        learner.look()?;
        learner.tell(Event::Begin)?;
        learner.announce()?;
        Ok(learner)
    }

    /// Handles everything that happened since the last call. It never waits.
    pub fn poll(&mut self) -> Result<()> {
        let now = Instant::now();
        let passed = now.duration_since(self.last_tick).as_millis();
        if passed > 0 {
            self.last_tick = now;
            self.tell(Event::Tick(u64::try_from(passed).unwrap_or(u64::MAX)))?;
        }
        self.look()
    }

    /// The next action for the caller, if there is one.
    pub fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// A function that sleeps until something may have happened.
    pub fn waiter(&self) -> Result<Waiter> {
        self.exchange.waiter()
    }

    /// The state machine, for reading.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Counts of events since the learner started.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The slots that may be overwritten now, unless a reader pins them.
    pub fn writable(&self) -> Vec<usize> {
        self.coordinator.writable()
    }

    /// Tells the learner that a slot is locked and will be overwritten.
    pub fn writing(&mut self, slot: usize) -> Result<()> {
        if !self.writable().contains(&slot) {
            return Err(Error::Failed(format!("slot {slot} may not be written: {:?} may", self.writable())));
        }
        self.tell(Event::Writing(slot))?;
        self.announce()
    }

    /// Tells the learner that the batch's last optimizer step is done. `written` is false if the step was skipped.
    pub fn trained(&mut self, written: bool) -> Result<()> {
        self.tell(Event::Trained { written })
    }

    /// Tells the learner that a checkpoint of the current weights is being written. [`Step::CommitCheckpoint`] says
    /// when it may be renamed to its final name.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.tell(Event::Checkpoint)?;
        self.announce()
    }

    /// The results of a batch that versions before `version` make, in the order of their job names; `None` until all
    /// are there. They are for the frontier of a checkpoint.
    pub fn made_before(&self, version: Version, batch: BatchId) -> Option<Batch> {
        let plan = self.coordinator.plan();
        let mut results = Vec::new();
        for group in plan.groups_of(batch) {
            for chunk in (0..=plan.last_chunk()).take_while(|chunk| plan.version(batch, *chunk) < version) {
                let result = self.kept.get(&JobName::Rollout { group, chunk })?;
                results.push(result.clone());
                if !result.answer.more {
                    break;
                }
            }
        }
        Some(results)
    }

    /// Deletes all results from `batch` on, because their scores are wrong; a learner that resumes the run has them
    /// made again. After this call the run must end.
    pub fn forget_from(&mut self, batch: BatchId) -> Result<()> {
        self.files.remove_from(batch)?;
        let first = JobName::Rollout { group: self.coordinator.plan().first_group(batch), chunk: 0 };
        let jobs: Vec<JobName> = self.kept.range(first..).map(|(job, _)| *job).collect();
        self.exchange.acknowledge(&jobs)
    }

    /// Expels a worker that gave a wrong result. It gets no further jobs. Its results for the batches from `from` on
    /// that have not been trained on are made again. If such a batch was already returned as [`Step::Train`], it will
    /// be returned once more.
    pub fn expel(&mut self, worker: &WorkerName, from: BatchId) -> Result<()> {
        if !self.coordinator.may_expel() {
            return Err(Error::Failed(format!("worker {worker} cannot be expelled while weights are written")));
        }
        let from = from.max(self.coordinator.batch());
        let first = JobName::Rollout { group: self.coordinator.plan().first_group(from), chunk: 0 };
        let of_worker = self.kept.range(first..).filter(|(_, result)| result.worker == *worker);
        let jobs = of_worker.map(|(job, _)| *job).filter(|job| self.coordinator.can_remake(*job));
        let jobs: Vec<JobName> = jobs.collect();
        // Later chunks continue from what is taken back, whoever made them: left in the exchange, such a result would
        // keep its job from being done again.
        let is_taken = |job: &JobName| jobs.iter().any(|taken| job.is_or_continues(*taken));
        let taken: Vec<(WorkerName, JobName)> = self
            .kept
            .iter()
            .filter(|(job, _)| is_taken(job))
            .map(|(job, result)| (result.worker.clone(), *job))
            .collect();
        if let Some(JobName::Rollout { group, .. }) = jobs.first() {
            let batch = self.coordinator.plan().batch_of(*group);
            self.files.remove_from(batch)?;
            self.steps.retain(|step| !matches!(step, Step::Train(other, _) if *other >= batch));
            self.kept.retain(|job, _| !is_taken(job));
        }
        self.counts.remade += taken.len() as u64;
        self.counts.expelled += 1;
        taken.iter().try_for_each(|(worker, job)| self.exchange.discard(worker, *job))?;
        self.tell(Event::Expelled(worker.clone(), jobs))?;
        self.announce()
    }

    /// Tells the learner that the checkpoint of this version is complete. Deletes the batch files before it.
    pub fn committed(&mut self, version: Version) -> Result<()> {
        self.last_checkpoint = self.last_checkpoint.max(Some(version));
        self.files.remove_before(version.batch())?;
        self.announce()
    }

    /// Evaluates the current weights with `jobs` jobs.
    pub fn evaluate(&mut self, jobs: u32) -> Result<()> {
        self.tell(Event::Evaluate(jobs))
    }

    /// Makes a checkpoint of the current weights and then ends the run.
    pub fn stop(&mut self) -> Result<()> {
        self.tell(Event::Stop)?;
        self.announce()
    }

    /// Tells the workers that the run has ended, although it has not trained on all batches.
    pub fn end(&mut self) -> Result<()> {
        self.ended = true;
        self.announce()
    }

    /// Changes the information that is passed on to workers, such as where slots are mapped.
    pub fn share(&mut self, shared: serde_json::Value) -> Result<()> {
        self.shared = shared;
        self.announce()
    }

    fn look(&mut self) -> Result<()> {
        let events = self.exchange.poll()?;
        for problem in self.exchange.take_problems() {
            self.counts.corrupt += 1;
            self.steps.push_back(Step::Warning(problem));
        }
        for event in events {
            match &event {
                Event::Ended { worker, how: HowEnded::Failed } => {
                    self.counts.died += 1;
                    self.steps.push_back(Step::Warning(format!("worker {worker} failed: its log says why")));
                }
                Event::Ended { worker, how: HowEnded::Vanished } => {
                    self.counts.died += 1;
                    self.steps.push_back(Step::Warning(format!("worker {worker} ended without being asked to")));
                }
                Event::Lost(_) => self.counts.remade += 1,
                Event::Result { worker, job, lineage, answer }
                    if self.coordinator.accepts(worker, *job, *lineage, *answer) && self.refuses(worker, *job)? =>
                {
                    continue;
                }
                _ => {}
            }
            self.tell(event)?;
        }
        Ok(())
    }

    fn tell(&mut self, event: Event) -> Result<()> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.coordinator.handle(event) {
                events.extend(self.carry_out(action)?);
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action) -> Result<Option<Event>> {
        match action {
            Action::Offer { job, version, lineage, continues, alone } => {
                let (profile, payload) = self.feed.job(job, &self.chunks_before(job))?;
                self.exchange.offer(&Job { name: job, version, lineage, continues, alone, profile, payload })?;
            }
            Action::Release(worker, job) => {
                self.counts.remade += 1;
                self.exchange.release(&worker, job)?;
            }
            Action::Withdraw(job) => self.exchange.withdraw(job)?,
            Action::Accept(worker, job) => {
                let looked_at = self.looked_at.take().filter(|it| (&it.worker, it.job) == (&worker, job));
                match looked_at.or_else(|| self.exchange.take(&worker, job)) {
                    Some(result) => drop(self.kept.insert(job, result)),
                    None => return Err(Error::Failed(format!("the result {job} of {worker} is gone"))),
                }
            }
            Action::Drop(worker, job, why) => {
                self.count_dropped(&worker, job, why);
                self.exchange.discard(&worker, job)?;
            }
            Action::Kill(worker) => {
                if !self.exchange.kill(&worker)? {
                    return Ok(Some(Event::Unreachable(worker)));
                }
                // An expelled worker does not stand still.
                if self.coordinator.expelled().all(|expelled| *expelled != worker) {
                    self.counts.killed += 1;
                    let limit = self.coordinator.plan().stale_after_ms / 1000;
                    self.steps.push_back(Step::Warning(format!("worker {worker} stands still for {limit} s: killed")));
                }
            }
            Action::SyncBatch(batch, jobs) => {
                let results = self.results(&jobs)?;
                return Ok(Some(Event::Synced(batch, self.files.save(batch, &results)?)));
            }
            Action::Acknowledge(jobs) => self.exchange.acknowledge(&jobs)?,
            Action::Train(batch) => {
                let groups = self.coordinator.plan().groups_of(batch);
                let jobs: Vec<JobName> = groups.flat_map(|group| self.coordinator.chain(group)).collect();
                let results = self.results(&jobs)?;
                self.steps.push_back(Step::Train(batch, results));
            }
            Action::Publish { .. } => {
                self.forget();
                self.announce()?;
            }
            Action::CommitCheckpoint(saved) => {
                let jobs: Vec<JobName> = saved.frontier.into_keys().collect();
                let frontier = self.results(&jobs)?;
                let expelled = self.coordinator.expelled().cloned().collect();
                let saved = SavedFrontier { version: saved.version, lineages: saved.lineages, frontier, expelled };
                self.steps.push_back(Step::CommitCheckpoint(saved));
                self.forget();
            }
            Action::Evaluated(version, jobs) => {
                let results = self.results(&jobs)?;
                self.steps.push_back(Step::Evaluated(version, results));
            }
            Action::Gone(job, version) => {
                return Err(Error::Failed(format!(
                    "job {job} needs version {version} of the weights, which is gone, and no file has what it gave: no \
                     worker can do it. Resume the run from an earlier checkpoint, or without workers"
                )));
            }
            Action::Fail(job, count, how) => {
                let what = match how {
                    HowEnded::Vanished => format!(
                        "{count} workers ended without a word (killed, or out of memory) while they did job {job} and \
                         nothing else: the run ends. If it was somebody else who killed them, raise max_kills_per_job"
                    ),
                    _ => format!(
                        "{count} workers, one after another, could not do job {job}: the run ends. Their logs say \
                         why; max_failures_per_job is how often it is tried"
                    ),
                };
                return Err(Error::Failed(format!("{what}. --resume continues from the last checkpoint")));
            }
            Action::End => {
                self.announce()?;
                self.steps.push_back(Step::End);
            }
        }
        Ok(None)
    }

    fn count_dropped(&mut self, worker: &crate::WorkerName, job: JobName, why: Dropped) {
        match why {
            Dropped::Twice => self.counts.twice += 1,
            Dropped::Lineage | Dropped::NotAsked | Dropped::Expelled => self.counts.refused += 1,
            Dropped::Differs => {
                self.counts.differing += 1;
                let first = self.kept.get(&job).map_or("another".to_owned(), |result| result.worker.to_string());
                let what = format!("job {job}: worker {worker} and {first} computed other bits from the same weights");
                let why = "one of the machines is faulty, or runs another program";
                self.steps.push_back(Step::Warning(format!("{what}: {why}")));
            }
        }
    }

    fn results(&self, jobs: &[JobName]) -> Result<Batch> {
        let one = |job: &JobName| {
            let result = self.kept.get(job).cloned();
            result.ok_or_else(|| Error::Failed(format!("the result of job {job} is gone")))
        };
        jobs.iter().map(one).collect()
    }

    fn chunks_before(&self, job: JobName) -> Batch {
        let JobName::Rollout { group, .. } = job else { return Vec::new() };
        self.kept.range(JobName::Rollout { group, chunk: 0 }..job).map(|(_, result)| result.clone()).collect()
    }

    /// Removes results that nothing needs any more.
    fn forget(&mut self) {
        let coordinator = &self.coordinator;
        let version = coordinator.version();
        let waiting = coordinator.waiting_checkpoints().first().map_or(version, |(waiting, ..)| *waiting);
        let first = coordinator.plan().first_group(waiting.min(version).batch());
        let is_needed = |job: &JobName| match job {
            JobName::Rollout { group, .. } => *group >= first,
            JobName::Evaluation { version, .. } => coordinator.needs_evaluation(*version),
        };
        self.kept.retain(|job, _| is_needed(job));
        self.frontier.retain(|job, _| is_needed(job));
    }

    fn announce(&mut self) -> Result<()> {
        let coordinator = &self.coordinator;
        let plan = coordinator.plan();
        let state = LearnerState {
            pid: std::process::id(),
            batch: coordinator.batch(),
            batches: plan.batches,
            groups: plan.groups,
            max_staleness: plan.max_staleness,
            continued: plan.continued,
            incarnation: 0,
            lineage: coordinator.lineage(),
            slots: coordinator.slots().iter().map(|versions| SlotState { versions: *versions }).collect(),
            ended: coordinator.has_ended() || self.ended,
            checkpoints: CheckpointStates { last: self.last_checkpoint, waiting: coordinator.waiting_checkpoints() },
            workers: coordinator.workers().count() as u64,
            expelled: coordinator.expelled().cloned().collect(),
            counts: self.counts,
            shared: self.shared.clone(),
        };
        self.exchange.announce(&state)
    }
}

/// Why the results in the file of a batch are not those of this batch; `None` if they are.
fn misfit(plan: &Plan, batch: BatchId, results: &[JobResult]) -> Option<String> {
    let is_of = |job: JobName| match job {
        JobName::Rollout { group, chunk } => plan.batch_of(group) == batch && chunk <= plan.last_chunk(),
        JobName::Evaluation { .. } => false,
    };
    if let Some(other) = results.iter().find(|result| !is_of(result.job)) {
        return Some(format!("it has the result of job {}, which is not of this batch", other.job));
    }
    let answers: BTreeMap<JobName, Answer> = results.iter().map(|result| (result.job, result.answer)).collect();
    let missing = |group: GroupId| {
        let jobs = (0..=plan.last_chunk()).map(|chunk| JobName::Rollout { group, chunk });
        // Up to the last chunk, or the first one that no other follows.
        jobs.map(|job| (job, answers.get(&job))).find_map(|(job, answer)| match answer {
            None => Some(Some(job)),
            Some(answer) if !answer.more => Some(None),
            Some(_) => None,
        })
    };
    let missing = plan.groups_of(batch).find_map(|group| missing(group).flatten())?;
    Some(format!("it lacks the result of job {missing}"))
}

#[cfg(test)]
mod tests;
