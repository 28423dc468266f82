//! The learner's side of the protocol as a pure state machine: events in, actions out. It does no input or output,
//! reads no clock, and holds no payloads, so a search can visit all of its states.
//!
//! One rule supports all others: *V(b, c) decides which weights sample a job*. So a job may be lost, repeated, or done
//! by any worker, and its result is the same. Only results that could come out differently must not be lost: the synced
//! batch files, and the *frontier* of each checkpoint, the results for which no weights exist any more.

mod event;
mod jobs;
mod restart;
mod trust;

pub use event::{Action, Dropped, Event, HowEnded, Saved, SyncedBatch};

use crate::ids::{BatchId, GroupId, Version};
use crate::job::{Answer, JobName, Lineage, WorkerName};
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// The state of the protocol at the learner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    plan: Plan,
    rules: Rules,
    /// The batch that is trained on now or next. All batches before it have been trained on.
    batch: BatchId,
    phase: Phase,
    /// Lineages of the versions from which results may come.
    lineages: BTreeMap<Version, Lineage>,
    /// Batches from `batch` on whose files are on the disk.
    synced: BTreeSet<BatchId>,
    /// The first batch that no earlier learner had written to disk.
    replayed: BatchId,
    /// The first and the last version in each slot. They differ if steps were skipped, since the weights are then
    /// equal.
    slots: Vec<Option<(Version, Version)>>,
    jobs: BTreeMap<JobName, JobState>,
    /// Incomplete evaluations: version, and number of jobs.
    evaluations: BTreeMap<Version, u32>,
    workers: BTreeMap<WorkerName, WorkerState>,
    /// Workers that gave a wrong result.
    expelled: BTreeSet<WorkerName>,
    /// Checkpoints whose frontier is not complete, the oldest first.
    checkpoints: Vec<Checkpoint>,
    stopping: bool,
}

/// Rules of the protocol that a test can switch off, to check that the search then finds a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    /// A checkpoint waits for the results that only older weights can make.
    pub frontier: bool,
    /// A slot that an unfinished job needs is not overwritten.
    pub needed: bool,
    /// A worker that makes no progress is killed.
    pub kill: bool,
    /// A result that other weights sampled is refused.
    pub lineage: bool,
    /// A result that continues an answer other than the accepted one is refused.
    pub continues: bool,
    /// A job is offered only after its weights have been published.
    pub published: bool,
    /// The jobs of a dead worker are offered again.
    pub reclaim: bool,
    /// After a restart, a synced batch file is trained on again.
    pub replay: bool,
}

impl Rules {
    pub(crate) const ALL: Rules = Rules {
        frontier: true,
        needed: true,
        kill: true,
        lineage: true,
        continues: true,
        published: true,
        reclaim: true,
        replay: true,
    };
}

/// The phase of the learner's work on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The coordinator is being told what survived an earlier learner.
    Starting,
    /// The learner waits for results.
    Collecting,
    /// The learner writes the batch file.
    Syncing,
    /// The learner trains on the batch; the number is the slot that it writes into.
    Training(Option<usize>),
    /// The run has ended.
    Ended,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct JobState {
    answer: Option<Answer>,
    /// The lineage of the accepted result; `None` if the result came from a checkpoint and is not checked.
    of: Option<Lineage>,
    /// True if the job is where workers can take it.
    pending: bool,
    claims: BTreeSet<WorkerName>,
    /// Workers that failed while they did it alone; below it, those that vanished.
    failures: u32,
    vanished: u32,
    /// Workers that ended while they did it together with others, up to [`SUSPECT`](jobs::SUSPECT).
    shared_deaths: u32,
    /// Milliseconds since it was last offered.
    age_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct WorkerState {
    /// Milliseconds since its progress counter changed.
    still_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Checkpoint {
    version: Version,
    lineages: BTreeMap<Version, Lineage>,
    /// Evaluations of older weights that were not complete when the checkpoint was begun.
    evaluations: BTreeMap<Version, u32>,
}

impl Coordinator {
    /// The batch that is trained on now or next. All batches before it have been trained on.
    pub fn batch(&self) -> BatchId {
        self.batch
    }

    /// The published version of the weights.
    pub fn version(&self) -> Version {
        self.batch.version()
    }

    /// The sizes and limits of the run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The lineage of the published version.
    pub fn lineage(&self) -> Lineage {
        self.lineages[&self.version()]
    }

    /// The lineage of a version that is still needed, or of the version that results from the batch in training.
    pub fn lineage_of(&self, version: Version) -> Option<Lineage> {
        self.lineages.get(&version).copied()
    }

    /// The lineages of all these versions.
    pub fn lineages(&self) -> &BTreeMap<Version, Lineage> {
        &self.lineages
    }

    /// Whether the coordinator has requested the end of the run.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Checkpoints that wait for their frontier: for each the version of its weights, the number of results that have
    /// arrived, and the number that it needs at least.
    pub fn waiting_checkpoints(&self) -> Vec<(Version, usize, usize)> {
        let one = |checkpoint: &Checkpoint| {
            let (there, missing) = self.frontier(checkpoint);
            (checkpoint.version, there.len(), there.len() + missing.len())
        };
        self.checkpoints.iter().map(one).collect()
    }

    /// How many groups of a batch are complete.
    pub fn complete_groups(&self, batch: BatchId) -> u64 {
        self.plan.groups - self.open_groups(batch).count() as u64
    }

    /// The groups of a batch that are not complete.
    pub fn open_groups(&self, batch: BatchId) -> impl Iterator<Item = GroupId> {
        self.plan.groups_of(batch).filter(|group| self.current(*group).is_some())
    }

    /// The workers that have joined and not ended.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerName> {
        self.workers.keys()
    }

    /// Whether results of an evaluation of this version are needed, by the evaluation itself or by a waiting
    /// checkpoint.
    pub fn needs_evaluation(&self, version: Version) -> bool {
        let held = |checkpoint: &Checkpoint| checkpoint.evaluations.contains_key(&version);
        self.evaluations.contains_key(&version) || self.checkpoints.iter().any(held)
    }

    /// The first and the last version in each slot; `None` for a slot without weights.
    pub fn slots(&self) -> &[Option<(Version, Version)>] {
        &self.slots
    }

    /// The slots that the optimizer may overwrite, best first; the caller takes the first one that no reader pins.
    /// Empty unless the learner is training. The slot of the current weights is included only if there is no other.
    pub fn writable(&self) -> Vec<usize> {
        if self.phase != Phase::Training(None) {
            return Vec::new();
        }
        let needed = self.needed_versions();
        let free = |slot: &Option<(Version, Version)>| match slot {
            None => true,
            Some((first, last)) => {
                let is_needed = self.rules.needed && needed.range(first..=last).next().is_some();
                let is_current = *last == self.version() && self.slots.len() > 1;
                !is_needed && !is_current
            }
        };
        let mut writable: Vec<usize> = (0..self.slots.len()).filter(|i| free(&self.slots[*i])).collect();
        writable.sort_by_key(|i| self.slots[*i]);
        writable
    }

    /// Handles an event. Returns the actions to carry out, in this order.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        if self.phase == Phase::Ended {
            // A late result needs no answer: nothing is deleted that another learner could use.
            return out;
        }
        match event {
            Event::Begin => {
                if self.phase == Phase::Starting {
                    self.phase = Phase::Collecting;
                }
            }
            Event::Joined(worker) | Event::Progress(worker) => {
                if !self.expelled.contains(&worker) {
                    self.workers.entry(worker).or_default().still_ms = 0;
                }
            }
            Event::Ended { worker, how } => self.ended(&worker, how, &mut out),
            Event::Unreachable(worker) => self.offer_those_of(&worker, &mut out),
            Event::Expelled(worker, jobs) => self.expel(worker, &jobs, &mut out),
            Event::Tick(ms) => self.tick(ms, &mut out),
            Event::Claimed(worker, job) => self.claimed(worker, job, &mut out),
            Event::Returned { worker, job, faulty } => self.returned(&worker, job, faulty, &mut out),
            Event::Lost(job) => {
                if let Some(state) = self.jobs.get_mut(&job) {
                    state.pending = false;
                }
            }
            Event::Result { worker, job, lineage, answer } => self.result(worker, job, lineage, answer, &mut out),
            Event::Refused(worker, job) => {
                if let Some(state) = self.jobs.get_mut(&job) {
                    // The worker had taken the job, which may not be known.
                    state.claims.remove(&worker);
                    state.pending = false;
                }
            }
            Event::TakenBack { batch, jobs, saved } => self.take_back(batch, &jobs, saved),
            Event::Synced(batch, digest) => {
                if self.phase == Phase::Syncing && batch == self.batch {
                    self.synced.insert(batch);
                    let lineage = self.lineages[&batch.version()].after(&digest);
                    self.lineages.insert(batch.next().version(), lineage);
                    let done = self.plan.groups_of(batch).flat_map(|group| self.chain(group)).collect();
                    out.push(Action::Acknowledge(done));
                    self.phase = Phase::Collecting;
                }
            }
            Event::Writing(slot) => {
                if self.phase == Phase::Training(None) && slot < self.slots.len() {
                    self.phase = Phase::Training(Some(slot));
                    if self.slots[slot].is_none_or(|(_, last)| last != self.version()) {
                        self.slots[slot] = None;
                    }
                }
            }
            Event::Trained { written } => self.trained(written, &mut out),
            Event::Checkpoint => self.begin_checkpoint(),
            Event::Evaluate(jobs) => {
                if jobs > 0 {
                    self.evaluations.insert(self.version(), jobs);
                }
            }
            Event::Stop => {
                if !self.stopping {
                    self.stopping = true;
                    self.begin_checkpoint();
                }
            }
        }
        self.advance(&mut out);
        out
    }

    fn trained(&mut self, written: bool, out: &mut Vec<Action>) {
        let Phase::Training(slot) = self.phase else { return };
        let (trained, batch) = (self.batch, self.batch.next());
        let version = batch.version();
        let current = self.slots.iter().position(|slot| slot.is_some_and(|(_, last)| last == self.version()));
        let slot = match (written, slot, current) {
            (true, Some(slot), _) => {
                self.slots[slot] = Some((version, version));
                slot
            }
            // A skipped step: the weights of now are those of the next version, too.
            (_, _, Some(current)) => {
                let first = self.slots[current].map_or(version, |(first, _)| first);
                self.slots[current] = Some((first, version));
                current
            }
            _ => return,
        };
        self.batch = batch;
        self.phase = Phase::Collecting;
        self.synced.remove(&trained);
        self.prune();
        out.push(Action::Publish { version, slot, lineage: self.lineages[&version] });
    }

    fn begin_checkpoint(&mut self) {
        let version = self.version();
        if self.checkpoints.iter().any(|checkpoint| checkpoint.version == version) {
            return;
        }
        let oldest = self.oldest_version();
        let lineages = self.lineages.range(oldest..=version).map(|(version, lineage)| (*version, *lineage)).collect();
        let evaluations = self.evaluations.range(..version).map(|(version, jobs)| (*version, *jobs)).collect();
        self.checkpoints.push(Checkpoint { version, lineages, evaluations });
    }

    /// Takes all further steps that have become possible.
    fn advance(&mut self, out: &mut Vec<Action>) {
        if self.phase == Phase::Starting {
            return;
        }
        self.finish_evaluations(out);
        self.commit_checkpoints(out);
        if self.phase == Phase::Collecting {
            let is_last = self.stopping || self.batch >= self.plan.end();
            let replays = self.synced.contains(&self.batch);
            if is_last {
                if self.checkpoints.is_empty() && (self.stopping || self.evaluations.is_empty()) {
                    self.phase = Phase::Ended;
                    out.push(Action::End);
                    return;
                }
            } else if replays {
                self.phase = Phase::Training(None);
                out.push(Action::Train(self.batch));
            } else if self.complete_groups(self.batch) == self.plan.groups {
                self.phase = Phase::Syncing;
                let jobs = self.plan.groups_of(self.batch).flat_map(|group| self.chain(group)).collect();
                out.push(Action::SyncBatch(self.batch, jobs));
            }
        }
        if let Some((job, version)) = self.first_impossible() {
            self.phase = Phase::Ended;
            out.push(Action::Gone(job, version));
            return;
        }
        self.offer(out);
    }

    fn finish_evaluations(&mut self, out: &mut Vec<Action>) {
        let parts = |version: Version, jobs: u32| (0..jobs).map(move |index| JobName::Evaluation { version, index });
        let done = |job: JobName| self.jobs.get(&job).is_some_and(|state| state.answer.is_some());
        let complete: Vec<(Version, u32)> =
            self.evaluations.iter().map(|(v, n)| (*v, *n)).filter(|(v, n)| parts(*v, *n).all(done)).collect();
        for (version, jobs) in complete {
            self.evaluations.remove(&version);
            let jobs: Vec<JobName> = parts(version, jobs).collect();
            out.push(Action::Evaluated(version, jobs.clone()));
            out.push(Action::Acknowledge(jobs));
        }
    }

    fn commit_checkpoints(&mut self, out: &mut Vec<Action>) {
        while let Some(checkpoint) = self.checkpoints.first() {
            let (frontier, missing) = self.frontier(checkpoint);
            if self.rules.frontier && !missing.is_empty() {
                return;
            }
            let checkpoint = self.checkpoints.remove(0);
            out.push(Action::CommitCheckpoint(Saved {
                version: checkpoint.version,
                lineages: checkpoint.lineages,
                frontier,
            }));
            self.prune();
        }
    }

    /// The results that a checkpoint needs from older versions, and the jobs among them that are still open.
    fn frontier(&self, checkpoint: &Checkpoint) -> (BTreeMap<JobName, Answer>, Vec<JobName>) {
        let version = checkpoint.version;
        let mut there = BTreeMap::new();
        let mut missing = Vec::new();
        let mut look = |job: JobName| match self.jobs.get(&job).and_then(|state| state.answer) {
            Some(answer) => {
                there.insert(job, answer);
                answer.more
            }
            None => {
                missing.push(job);
                false
            }
        };
        let next = version.batch();
        let end = BatchId(next.0.saturating_add(self.plan.max_staleness)).min(self.plan.end());
        for group in next.up_to(end).flat_map(|batch| self.plan.groups_of(batch)) {
            for chunk in 0..=self.plan.last_chunk() {
                let job = JobName::Rollout { group, chunk };
                if self.plan.version_of(job) >= version || !look(job) {
                    break;
                }
            }
        }
        for (version, jobs) in &checkpoint.evaluations {
            for index in 0..*jobs {
                look(JobName::Evaluation { version: *version, index });
            }
        }
        (there, missing)
    }

    /// The oldest version that a job of the current batch can need.
    fn oldest_version(&self) -> Version {
        self.plan.version(self.batch, 0)
    }

    /// Removes what nothing needs any more. One batch more is kept, to compare late second results with.
    fn prune(&mut self) {
        let waiting = self.checkpoints.first().map_or(self.version(), |checkpoint| checkpoint.version);
        let needed = waiting.min(self.version()).batch();
        let oldest = self.plan.version(self.batch.before(), 0);
        let first = self.plan.first_group(needed.before());
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.retain(|job, _| match job {
            JobName::Rollout { group, .. } => *group >= first,
            JobName::Evaluation { version, .. } => self.needs_evaluation(*version),
        });
        self.jobs = jobs;
        let evaluations = &self.evaluations;
        self.lineages.retain(|version, _| *version >= oldest || evaluations.contains_key(version));
    }
}

#[cfg(test)]
mod tests;
