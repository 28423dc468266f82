//! The learner's side of the protocol as a pure state machine: events in, actions out. It does no I/O, reads no clock
//! and holds no payloads, so a search can visit all of its states.
//!
//! The basic rule: a job's batch and chunk determine the version of the weights that samples it ([`Plan::version`]). So
//! a job may be lost, repeated, or done by any worker, and its result is the same. Only results that could not be
//! reproduced must be kept: the synced batch files, and the *frontier* of each checkpoint (the results whose weights
//! are gone).

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
    /// The current batch: it is trained on now or next. All earlier batches have been trained on.
    batch: BatchId,
    phase: Phase,
    /// The lineages of the versions whose results may still arrive.
    lineages: BTreeMap<Version, Lineage>,
    /// Batches from `batch` on that have a file on disk.
    synced: BTreeSet<BatchId>,
    /// The first batch without a file when this learner started.
    replayed: BatchId,
    /// The first version that this learner has published. Older weights are gone.
    first: Version,
    jobs: BTreeMap<JobName, JobState>,
    workers: BTreeMap<WorkerName, WorkerState>,
    /// Workers that returned a wrong result.
    expelled: BTreeSet<WorkerName>,
}

/// The rules of the protocol. A test switches each rule off, and checks that the search then finds a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    /// A checkpoint waits for the results that only older weights can produce.
    pub frontier: bool,
    /// Weights that an unfinished job needs are kept.
    pub needed: bool,
    /// A stalled worker is killed.
    pub kill: bool,
    /// A result that was sampled with the wrong weights is refused.
    pub lineage: bool,
    /// A result that continues an answer other than the accepted one is refused.
    pub continues: bool,
    /// A job is offered only after its weights have been published.
    pub published: bool,
    /// The jobs of a dead worker are offered again.
    pub reclaim: bool,
    /// After a restart, the run trains again on the synced batch files.
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
    /// The caller is reporting state that survived an earlier learner.
    Starting,
    /// The learner waits for results.
    Collecting,
    /// The learner writes the batch file.
    Syncing,
    /// The batch is ready for training; true once training has begun.
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
    /// The number of workers that failed while doing only this job. `vanished` counts those that gave no reason.
    failures: u32,
    vanished: u32,
    /// The number of workers that ended while doing this job and others, at most [`SUSPECT`](jobs::SUSPECT).
    shared_deaths: u32,
    /// Milliseconds since the job was last offered.
    age_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct WorkerState {
    /// Milliseconds since the worker's progress counter changed.
    still_ms: u64,
}

impl Coordinator {
    /// The current batch: it is trained on now or next. All earlier batches have been trained on.
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

    /// The lineages of all published versions that are still needed.
    pub fn lineages(&self) -> &BTreeMap<Version, Lineage> {
        &self.lineages
    }

    /// Whether the coordinator has requested the end of the run.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// The results that a checkpoint needs because only weights older than `version` can produce them, and the jobs
    /// whose results are still missing. All belong to batches from `version` on.
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

    /// The first batch that the learner has not begun to train on. Results of earlier batches cannot be taken back.
    pub fn open_batch(&self) -> BatchId {
        if self.phase == Phase::Training(true) { self.batch.next() } else { self.batch }
    }

    /// The number of complete groups of a batch.
    pub fn complete_groups(&self, batch: BatchId) -> u64 {
        self.plan.groups - self.open_groups(batch).count() as u64
    }

    /// The groups of a batch that are not complete.
    pub fn open_groups(&self, batch: BatchId) -> impl Iterator<Item = GroupId> {
        self.plan.groups_of(batch).filter(|group| self.current(*group).is_some())
    }

    /// The workers that have joined and have not ended.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerName> {
        self.workers.keys()
    }

    /// Handles an event. Returns the actions to carry out, in order.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        if self.phase == Phase::Ended {
            // A late result is ignored and not deleted, since another learner could use it.
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
                    // The worker may have taken the job without the coordinator's knowledge.
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

    /// Carries out all steps that have become possible.
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
                // A learner that resumes in the middle of a batch has already begun to train on it.
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

    /// Removes the state of old batches. The batch before the current one is kept, to compare late duplicates with it.
    fn prune(&mut self) {
        let oldest = self.plan.version(self.batch.before(), 0);
        let first = self.plan.first_group(self.batch.before());
        self.jobs.retain(|job, _| job.group >= first);
        self.lineages.retain(|version, _| *version >= oldest);
    }
}

#[cfg(test)]
mod tests;
