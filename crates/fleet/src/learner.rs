//! The learner's loop around the coordinator: it passes events in and carries actions out. Its caller has the weights,
//! trains on each batch of a [`Notice`], and asks for the frontier of a checkpoint.
//!
//! [`Learner`] is the loop itself, for callers that poll it. [`LearnerHandle`] runs it on a thread, so that workers are
//! served while the caller trains.

use crate::batches::{Batch, BatchFiles, answers};
use crate::coordinator::{Action, Coordinator, Dropped, Event, HowEnded, Saved};
use crate::error::{Error, Result};
use crate::exchange::{CheckpointStates, Counts, Exchange, LearnerState, Waiter};
use crate::ids::{BatchId, GroupId, Version};
use crate::job::{Answer, Job, JobName, JobResult, Lineage, WorkerName};
use crate::plan::Plan;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

mod handle;
mod refused;

pub use handle::LearnerHandle;
pub use refused::Refused;

/// The maximum time that the loop sleeps. It must poll regularly, because the death of a worker does not wake it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Supplies the content of jobs, and reads the content of results.
pub trait Feed: Send {
    /// The sampling profile and the payload of a job. `before` has the results of the earlier chunks of its group. If a
    /// job is offered again, this method is called again, and must return the same content.
    fn job(&mut self, job: JobName, before: &[JobResult]) -> Result<(String, Vec<u8>)>;

    /// Checks, before a result is accepted, whether it answers its job. An error is the reason for refusing it.
    /// `before` has the results of the earlier chunks of its group.
    fn check(&mut self, _result: &JobResult, _before: &[JobResult]) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// An action that the caller of the learner must carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Train on this batch, whose file is on disk. Call [`Learner::training_began`], take the optimizer steps, and call
    /// [`Learner::trained`]. The results are in the order of their names.
    Train(BatchId, Batch),
    /// A warning for the user, for example about an unreadable file, differing results, or a worker that was killed.
    Warning(String),
    /// A result did not answer its job, and was refused. The job is done again.
    Refused(Refused),
}

/// The fleet's part of a checkpoint: results that only older weights could sample, and the lineages of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFrontier {
    /// The version of the weights in the checkpoint. In the middle of a batch: the version at the start of the batch.
    pub version: Version,
    /// Whether the checkpoint was taken in the middle of a batch. The frontier then contains the results of that batch.
    pub in_batch: bool,
    /// The lineages of this version and of older versions.
    pub lineages: BTreeMap<Version, Lineage>,
    /// The results, in the order of their names.
    pub frontier: Batch,
    /// Expelled workers. Their results are refused.
    pub expelled: Vec<WorkerName>,
}

/// The learner's loop around the coordinator.
pub struct Learner<E> {
    coordinator: Coordinator,
    exchange: E,
    files: BatchFiles,
    feed: Box<dyn Feed>,
    /// Results that have not been trained on yet.
    kept: BTreeMap<JobName, JobResult>,
    /// A result that was checked and will be accepted.
    looked_at: Option<JobResult>,
    /// The results in the checkpoint; the weights that sampled these results are gone.
    frontier: BTreeMap<JobName, JobResult>,
    /// The number of refused results of each worker.
    refusals: BTreeMap<WorkerName, u32>,
    notices: VecDeque<Notice>,
    counts: Counts,
    last_checkpoint: Option<Version>,
    /// The version of the checkpoint that waits for its frontier, if any.
    waits_for: Option<Version>,
    /// True if the caller has ended the run before its last batch.
    ended: bool,
    shared: serde_json::Value,
    last_tick: Instant,
}

impl<E: Exchange> Learner<E> {
    /// A learner at the start of a run (`saved` then has version 0, the initial lineage and no frontier) or from a
    /// checkpoint and the batch files on disk. `shared` is passed on to the workers.
    pub fn open(
        plan: Plan,
        saved: SavedFrontier,
        exchange: E,
        files: BatchFiles,
        feed: Box<dyn Feed>,
        shared: serde_json::Value,
    ) -> Result<Learner<E>> {
        // A killed learner or an older version may have left files of batches that the checkpoint covers.
        files.remove_before(saved.version.batch())?;
        let (mut batches, mut problems) = files.load(saved.version.batch())?;
        if let Some((batch, why)) = batches.iter().find_map(|(batch, all)| Some((*batch, misfit(&plan, *batch, all)?)))
        {
            problems.push(format!("{}: {why}; the batch is generated again", files.path(batch).display()));
            files.remove_from(batch)?;
            batches.retain(|other, _| *other < batch);
        }
        let synced = batches.iter().map(|(batch, results)| (*batch, answers(results))).collect();
        let frontier = saved.frontier.iter().map(|result| (result.job, result.answer)).collect();
        let (version, in_batch) = (saved.version, saved.in_batch);
        let state = Saved { version, in_batch, lineages: saved.lineages, frontier };
        let mut coordinator = Coordinator::resume(plan, state, synced).map_err(Error::Refused)?;
        for worker in saved.expelled {
            // The worker's remaining results are refused, and it ends when it learns that it is expelled.
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
            notices: VecDeque::new(),
            counts: Counts { corrupt: problems.len() as u64, ..Counts::default() },
            last_checkpoint,
            waits_for: None,
            ended: false,
            shared,
            last_tick: Instant::now(),
        };
        learner.notices.extend(problems.into_iter().map(Notice::Warning));
        learner.look()?;
        learner.tell(Event::Recovered)?;
        learner.announce()?;
        Ok(learner)
    }

    /// Handles all events since the last call. Never waits.
    pub fn poll(&mut self) -> Result<()> {
        let now = Instant::now();
        let passed = now.duration_since(self.last_tick).as_millis();
        if passed > 0 {
            self.last_tick = now;
            self.tell(Event::Tick(u64::try_from(passed).unwrap_or(u64::MAX)))?;
        }
        self.look()
    }

    /// The next action for the caller, if any.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// A function that sleeps until something may have happened.
    pub fn waiter(&self) -> Result<Waiter> {
        self.exchange.waiter()
    }

    /// The state machine, read-only.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Counts of events since the learner started.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Tells the learner that the caller begins to train on the batch of [`Notice::Train`]. The batch's results can
    /// no longer be taken back.
    pub fn training_began(&mut self) -> Result<()> {
        self.tell(Event::TrainingBegan)
    }

    /// Tells the learner that the last optimizer step on the batch is done, and that weights of this lineage are
    /// published.
    pub fn trained(&mut self, lineage: Lineage) -> Result<()> {
        self.tell(Event::Trained(lineage))
    }

    /// The results that a checkpoint must contain because only weights older than `version` can produce them, in the
    /// order of their names. `None` until all have arrived; until then the weights must not change.
    pub fn frontier(&mut self, version: Version) -> Result<Option<Batch>> {
        let (there, missing) = self.coordinator.frontier(version);
        let waits_for = (!missing.is_empty()).then_some(version);
        if std::mem::replace(&mut self.waits_for, waits_for) != waits_for {
            self.announce()?;
        }
        if waits_for.is_some() {
            return Ok(None);
        }
        self.results(&there.into_keys().collect::<Vec<_>>()).map(Some)
    }

    /// Deletes all results from `batch` on, because their scores are wrong. A learner that resumes the run will have
    /// them recomputed. After this call the run must end.
    pub fn forget_from(&mut self, batch: BatchId) -> Result<()> {
        self.files.remove_from(batch)?;
        let first = JobName::first(self.coordinator.plan().first_group(batch));
        let jobs: Vec<JobName> = self.kept.range(first..).map(|(job, _)| *job).collect();
        self.exchange.acknowledge(&jobs)
    }

    /// Expels a worker that returned a wrong result. It gets no further jobs. Its results for batches from `from` on
    /// are recomputed, except in batches that were trained on. Returns the first affected batch. If this batch and
    /// later ones were already returned as [`Notice::Train`], they are returned again.
    pub fn expel(&mut self, worker: &WorkerName, from: BatchId) -> Result<Option<BatchId>> {
        let from = from.max(self.coordinator.open_batch());
        let first = JobName::first(self.coordinator.plan().first_group(from));
        let worker_results = self.kept.range(first..).filter(|(_, result)| result.worker == *worker);
        let jobs = worker_results.map(|(job, _)| *job).filter(|job| self.coordinator.can_remake(*job));
        let jobs: Vec<JobName> = jobs.collect();
        // Later chunks of any worker continue the results that are taken back. If one of their results stayed in the
        // exchange, its job would not be done again.
        let is_taken = |job: &JobName| jobs.iter().any(|taken| job.is_or_continues(*taken));
        let taken: Vec<(WorkerName, JobName)> = self
            .kept
            .iter()
            .filter(|(job, _)| is_taken(job))
            .map(|(job, result)| (result.worker.clone(), *job))
            .collect();
        let reopened = jobs.first().map(|job| self.coordinator.plan().batch_of(job.group));
        if let Some(batch) = reopened {
            self.files.remove_from(batch)?;
            self.notices.retain(|notice| !matches!(notice, Notice::Train(other, _) if *other >= batch));
            self.kept.retain(|job, _| !is_taken(job));
        }
        self.counts.remade += taken.len() as u64;
        self.counts.expelled += 1;
        taken.iter().try_for_each(|(worker, job)| self.exchange.discard(worker, *job))?;
        self.tell(Event::Expelled(worker.clone(), jobs))?;
        self.announce()?;
        Ok(reopened)
    }

    /// Tells the learner that the checkpoint of this version is complete. Deletes the files of earlier batches.
    pub fn committed(&mut self, version: Version) -> Result<()> {
        self.last_checkpoint = self.last_checkpoint.max(Some(version));
        self.files.remove_before(version.batch())?;
        self.announce()
    }

    /// Tells the workers that the run ends before its last batch.
    pub fn end(&mut self) -> Result<()> {
        self.ended = true;
        self.announce()
    }

    /// Changes the information that is passed on to workers, such as the paths of weight slots.
    pub fn share(&mut self, shared: serde_json::Value) -> Result<()> {
        self.shared = shared;
        self.announce()
    }

    fn look(&mut self) -> Result<()> {
        let events = self.exchange.poll()?;
        for problem in self.exchange.take_problems() {
            self.counts.corrupt += 1;
            self.notices.push_back(Notice::Warning(problem));
        }
        for event in events {
            match &event {
                Event::Ended { worker, how: HowEnded::Failed } => {
                    self.counts.died += 1;
                    self.notices.push_back(Notice::Warning(format!("worker {worker} failed: see its log")));
                }
                Event::Ended { worker, how: HowEnded::Vanished } => {
                    self.counts.died += 1;
                    self.notices.push_back(Notice::Warning(format!("worker {worker} ended unexpectedly")));
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
                    None => {
                        return Err(Error::Failed(format!("the result of job {job} by worker {worker} is missing")));
                    }
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
                // An expelled worker is killed, too, but is not stalled.
                if self.coordinator.expelled().all(|expelled| *expelled != worker) {
                    self.counts.killed += 1;
                    let limit = self.coordinator.plan().stale_after_ms / 1000;
                    let what = format!("worker {worker} was killed: it made no progress for {limit} s");
                    self.notices.push_back(Notice::Warning(what));
                }
            }
            Action::SyncBatch(batch, jobs) => {
                let results = self.results(&jobs)?;
                self.files.save(batch, &results)?;
                return Ok(Some(Event::Synced(batch)));
            }
            Action::Acknowledge(jobs) => self.exchange.acknowledge(&jobs)?,
            Action::Train(batch) => {
                let groups = self.coordinator.plan().groups_of(batch);
                let jobs: Vec<JobName> = groups.flat_map(|group| self.coordinator.chain(group)).collect();
                let results = self.results(&jobs)?;
                self.notices.push_back(Notice::Train(batch, results));
            }
            Action::Publish(_) => {
                self.forget();
                self.announce()?;
            }
            Action::Gone(job, version) => {
                return Err(Error::Failed(format!(
                    "job {job} needs version {version} of the weights, which no longer exists, and its result was not \
                     saved, so no worker can do it. Resume the run from an earlier checkpoint, or without workers"
                )));
            }
            Action::Fail(job, count, how) => {
                let what = match how {
                    HowEnded::Vanished => format!(
                        "{count} workers vanished (killed, or out of memory) with job {job} as their only job, so the \
                         run stops. If something else killed them, raise max_kills_per_job"
                    ),
                    _ => format!(
                        "{count} workers in a row failed at job {job}, so the run stops. See their logs. The limit is \
                         max_failures_per_job"
                    ),
                };
                return Err(Error::Failed(format!("{what}. --resume continues from the last checkpoint")));
            }
            Action::End => self.announce()?,
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
                let what =
                    format!("job {job}: worker {worker} and {first} computed different bits from the same weights");
                let why = "one of the machines is faulty or runs a different build";
                self.notices.push_back(Notice::Warning(format!("{what}: {why}")));
            }
        }
    }

    fn results(&self, jobs: &[JobName]) -> Result<Batch> {
        let one = |job: &JobName| {
            let result = self.kept.get(job).cloned();
            result.ok_or_else(|| Error::Failed(format!("the result of job {job} is missing")))
        };
        jobs.iter().map(one).collect()
    }

    fn chunks_before(&self, job: JobName) -> Batch {
        self.kept.range(JobName::first(job.group)..job).map(|(_, result)| result.clone()).collect()
    }

    /// Removes results of batches that were trained on.
    fn forget(&mut self) {
        let first = self.coordinator.plan().first_group(self.coordinator.batch());
        self.kept.retain(|job, _| job.group >= first);
        self.frontier.retain(|job, _| job.group >= first);
    }

    fn announce(&mut self) -> Result<()> {
        let coordinator = &self.coordinator;
        let plan = coordinator.plan();
        let waiting = |version: Version| {
            let (there, missing) = coordinator.frontier(version);
            (version, there.len(), there.len() + missing.len())
        };
        let state = LearnerState {
            pid: std::process::id(),
            batch: coordinator.batch(),
            batches: plan.batches,
            groups: plan.groups,
            max_staleness: plan.max_staleness,
            continued: plan.continued,
            incarnation: 0,
            lineage: coordinator.lineage(),
            ended: coordinator.has_ended() || self.ended,
            checkpoints: CheckpointStates {
                last: self.last_checkpoint,
                waiting: self.waits_for.map(waiting).into_iter().collect(),
            },
            workers: coordinator.workers().count() as u64,
            expelled: coordinator.expelled().cloned().collect(),
            counts: self.counts,
            shared: self.shared.clone(),
        };
        self.exchange.announce(&state)
    }
}

/// The reason why a file's results do not belong to the batch; `None` if they do.
fn misfit(plan: &Plan, batch: BatchId, results: &[JobResult]) -> Option<String> {
    let is_of = |job: JobName| plan.batch_of(job.group) == batch && job.chunk <= plan.last_chunk();
    if let Some(other) = results.iter().find(|result| !is_of(result.job)) {
        return Some(format!("the file contains the result of job {}, which belongs to another batch", other.job));
    }
    let answers: BTreeMap<JobName, Answer> = results.iter().map(|result| (result.job, result.answer)).collect();
    let missing = |group: GroupId| {
        let jobs = (0..=plan.last_chunk()).map(|chunk| JobName { group, chunk });
        // Chunks are expected up to the plan's last one, or up to an answer without `more`.
        jobs.map(|job| (job, answers.get(&job))).find_map(|(job, answer)| match answer {
            None => Some(Some(job)),
            Some(answer) if !answer.more => Some(None),
            Some(_) => None,
        })
    };
    let missing = plan.groups_of(batch).find_map(|group| missing(group).flatten())?;
    Some(format!("the result of job {missing} is missing"))
}

#[cfg(test)]
mod tests;
