//! The learner's side of the protocol as a pure state machine: events in, actions out. It does not do I/O, read a clock
//! or hold payloads, so a search can visit all of its states.
//!
//! One rule supports all others: *V(b, c) decides which weights sample a job*. So a job may be lost, repeated, or done
//! by any worker, and its result is the same. Only results that could come out differently must not be lost: the synced
//! batch files, and the *frontier* of each checkpoint, the results whose weights are gone.

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
    /// Batches from `batch` on with a file on the disk.
    synced: BTreeSet<BatchId>,
    /// The first batch that earlier learners had not written to disk.
    replayed: BatchId,
    /// The first version that this learner has published. Older weights are gone.
    first: Version,
    jobs: BTreeMap<JobName, JobState>,
    workers: BTreeMap<WorkerName, WorkerState>,
    /// Workers that gave a wrong result.
    expelled: BTreeSet<WorkerName>,
}

/// Rules of the protocol that a test can switch off, to check that the search then finds a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    /// A checkpoint waits for the results that only older weights can make.
    pub frontier: bool,
    /// Weights that an unfinished job needs are kept.
    pub needed: bool,
    /// A stalled worker is killed.
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
    /// The caller is reporting the state that survived an earlier learner.
    Starting,
    /// The learner waits for results.
    Collecting,
    /// The learner writes the batch file.
    Syncing,
    /// The learner has the batch; true once it trains on it.
    Training(bool),
    /// The run has ended.
    Ended,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct JobState {
    answer: Option<Answer>,
    /// The lineage of the accepted result; `None` if the result came from a checkpoint and is not checked.
    of: Option<Lineage>,
    /// True if workers can take the job.
    pending: bool,
    claims: BTreeSet<WorkerName>,
    /// Workers that failed while they did only this job; in the next field, workers that vanished.
    failures: u32,
    vanished: u32,
    /// Workers that ended while they did this job and others, up to [`SUSPECT`](jobs::SUSPECT).
    shared_deaths: u32,
    /// Milliseconds since it was last offered.
    age_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct WorkerState {
    /// Milliseconds since its progress counter changed.
    still_ms: u64,
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

    /// The lineage of a published version that is still needed.
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

    /// The results that a checkpoint needs because only weights older than `version` can make them, and the jobs among
    /// them that are still open. They are of the batches that follow the weights of this version.
    pub fn frontier(&self, version: Version) -> (BTreeMap<JobName, Answer>, Vec<JobName>) {
        let mut there = BTreeMap::new();
        let mut missing = Vec::new();
        let next = version.batch();
        let end = BatchId(next.0.saturating_add(self.plan.max_staleness)).min(self.plan.end());
        for group in next.up_to(end).flat_map(|batch| self.plan.groups_of(batch)) {
            for chunk in 0..=self.plan.last_chunk() {
                let job = JobName { group, chunk };
                if self.plan.version_of(job) >= version {
                    break;
                }
                let Some(answer) = self.jobs.get(&job).and_then(|state| state.answer) else {
                    missing.push(job);
                    break;
                };
                there.insert(job, answer);
                if !answer.more {
                    break;
                }
            }
        }
        (there, missing)
    }

    /// The first batch that the learner does not train on yet. Results of earlier ones cannot be taken back.
    pub fn open_batch(&self) -> BatchId {
        if self.phase == Phase::Training(true) { self.batch.next() } else { self.batch }
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

    /// Handles an event. Returns the actions to carry out, in this order.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        if self.phase == Phase::Ended {
            // A late result is ignored and not deleted: another learner could use it.
            return out;
        }
        match event {
            Event::Recovered => {
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
            Event::Synced(batch) => {
                if self.phase == Phase::Syncing && batch == self.batch {
                    self.synced.insert(batch);
                    let done = self.plan.groups_of(batch).flat_map(|group| self.chain(group)).collect();
                    out.push(Action::Acknowledge(done));
                    self.phase = Phase::Collecting;
                }
            }
            Event::TrainingBegan => {
                if self.phase == Phase::Training(false) {
                    self.phase = Phase::Training(true);
                }
            }
            Event::Trained(lineage) => self.trained(lineage, &mut out),
        }
        self.advance(&mut out);
        out
    }

    fn trained(&mut self, lineage: Lineage, out: &mut Vec<Action>) {
        let Phase::Training(_) = self.phase else { return };
        self.synced.remove(&self.batch);
        self.batch = self.batch.next();
        self.lineages.insert(self.version(), lineage);
        self.phase = Phase::Collecting;
        self.prune();
        out.push(Action::Publish(self.version()));
    }

    /// Takes all further steps that have become possible.
    fn advance(&mut self, out: &mut Vec<Action>) {
        if self.phase == Phase::Starting {
            return;
        }
        if self.phase == Phase::Collecting {
            if self.batch >= self.plan.end() {
                self.phase = Phase::Ended;
                out.push(Action::End);
                return;
            }
            if self.synced.contains(&self.batch) {
                // A learner that continues in the middle of a batch has begun to train on it.
                self.phase = Phase::Training(self.version() < self.first);
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

    /// Removes the state of old batches. The batch before the current one is kept, to compare late second results with.
    fn prune(&mut self) {
        let oldest = self.plan.version(self.batch.before(), 0);
        let first = self.plan.first_group(self.batch.before());
        self.jobs.retain(|job, _| job.group >= first);
        self.lineages.retain(|version, _| *version >= oldest);
    }
}

#[cfg(test)]
mod tests;
