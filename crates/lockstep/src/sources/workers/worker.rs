//! The worker's side of a distributed run: it pins the weights of its jobs, generates all groups together, and has them
//! scored.

use super::learner::job_of;
use super::scorers::Scorers;
use super::{Identity, Shared};
use crate::error::paragraph;
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use anyhow::bail;
use fleet::exchange::LearnerState;
use fleet::exchange::spool::Layout;
use fleet::worker::{Done, Proceeded, Work};
use fleet::{Answer, Job, JobName};
use kernels::Context;
use kernels::memory::slot::Contents;
use model::{Adapter, GroupId, LoraConfig, ModelConfig, SharedSlot, Updates, Weights};
use rollout::{AdapterVersion, Drive, ModelVersion, Models, Outcome, RequestId};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a worker checks for weights that are not published yet.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest time that the engine runs between two checks of the worker.
const STEPS: Duration = Duration::from_millis(2);

/// Executes the jobs of a run. All groups form one batch of the engine, and completed groups are scored concurrently.
pub struct WorkerWork {
    parts: Parts,
    layout: Layout,
    slots: HashMap<PathBuf, SharedSlot>,
    base: Option<(PathBuf, Weights)>,
    begun: BTreeMap<JobName, Begun>,
    /// Jobs that failed, with the reason.
    failed: Vec<(JobName, String)>,
    /// Answers without scores, for groups that another job will continue.
    unscored: Vec<GroupAnswer>,
    /// The weights with which groups are being sampled, by their number of updates. Weights are released when the last
    /// group that is sampled with them has ended.
    pinned: BTreeMap<Updates, Pinned>,
    looked: Option<Instant>,
    /// The last learner whose identity was compared, as its process and number.
    checked: Option<(u32, u64)>,
    tokens: u64,
    seconds: f64,
}

/// The worker's parts.
pub struct Parts {
    /// The run's directory.
    pub out: PathBuf,
    /// The worker's device and threads.
    pub ctx: Context,
    /// The shape of the model.
    pub model: Arc<ModelConfig>,
    /// The shape of the adapter, if one is trained.
    pub lora: Option<LoraConfig>,
    /// Generates completions; each request belongs to a job.
    pub drive: Drive<JobName>,
    /// The number of groups that the engine generates at once.
    pub groups: usize,
    /// Scores completed groups.
    pub scorers: Scorers,
    /// The identity of this worker, which must equal the learner's.
    pub identity: Identity,
    /// True if a reward that cannot score ends the worker.
    pub refuses_failed_rewards: bool,
}

/// A job in progress.
struct Begun {
    job: Job,
    group: GroupJob,
    stage: Stage,
}

enum Stage {
    WaitsForWeights,
    Sampling {
        request: RequestId,
        since: Instant,
    },
    /// The group is being scored. The number is the fingerprint of its tokens.
    Scoring(u64),
}

/// Weights pinned in shared memory for a job.
struct Pinned {
    weights: PinnedWeights,
    /// Slot and number of the weights, which distinguish weights of different learners with equally many updates.
    place: (PathBuf, u64),
}

enum PinnedWeights {
    Whole(Weights),
    Adapter(Adapter),
}

impl WorkerWork {
    /// A worker with these parts and no jobs.
    pub fn new(parts: Parts) -> WorkerWork {
        let layout = Layout::in_run(&parts.out);
        WorkerWork {
            parts,
            layout,
            slots: HashMap::new(),
            base: None,
            begun: BTreeMap::new(),
            failed: Vec::new(),
            unscored: Vec::new(),
            pinned: BTreeMap::new(),
            looked: None,
            checked: None,
            tokens: 0,
            seconds: 0.0,
        }
    }

    /// The learner's shared state; `None` if the file is missing, or belongs to another run. The worker's loop
    /// [checks](Work::check) for this and ends the worker; its jobs did not fail.
    fn shared(&self) -> Option<Shared> {
        Shared::read(&disk::read(self.layout.learner(), disk::most::STATE).ok()?, &self.parts.identity).ok()
    }

    fn in_stage(&self, is_it: impl Fn(&Stage) -> bool) -> impl Iterator<Item = (&JobName, &Begun)> {
        self.begun.iter().filter(move |(_, begun)| is_it(&begun.stage))
    }

    /// Submits to the engine the groups whose weights have been published.
    fn submit(&mut self) -> anyhow::Result<()> {
        let waiting = self.in_stage(|stage| matches!(stage, Stage::WaitsForWeights));
        let waiting: Vec<JobName> = waiting.map(|(job, _)| *job).collect();
        if waiting.is_empty() || self.looked.is_some_and(|looked| looked.elapsed() < POLL_INTERVAL) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let Some(shared) = self.shared() else { return Ok(()) };
        // Slots of an ended learner occupy memory while they are mapped.
        // The next learner may reuse their names.
        let is_there = |path: &PathBuf| shared.slots.values().any(|place| place.path == *path);
        self.slots.retain(|path, slot| slot.run() == shared.run && is_there(path));
        for name in waiting {
            let Some(mut begun) = self.begun.remove(&name) else { continue };
            if let Some(model) = self.pin(&begun, &shared)? {
                let request = self.parts.drive.submit(name, begun.group.request(Some(model)))?;
                begun.stage = Stage::Sampling { request, since: Instant::now() };
                self.looked = None;
            }
            self.begun.insert(name, begun);
        }
        Ok(())
    }

    /// Pins the weights of a job. `None` if they are not published yet, or if their learner has ended.
    fn pin(&mut self, Begun { job, group, .. }: &Begun, shared: &Shared) -> anyhow::Result<Option<ModelVersion>> {
        let Some(place) = shared.slots.get(&job.version).filter(|place| place.lineage == job.lineage) else {
            return Ok(None);
        };
        let place = (place.path.clone(), place.stored_as);
        match self.pinned.get(&group.updates) {
            Some(pinned) if pinned.place == place => {}
            // These weights belong to another learner, whose groups have ended or are obsolete.
            Some(_) => return Ok(None),
            None => {
                let Some((weights, contents)) = self.load(&place.0, shared)? else { return Ok(None) };
                if contents.number != place.1 {
                    return Ok(None);
                }
                let updates = match &weights {
                    PinnedWeights::Whole(weights) => weights.version,
                    PinnedWeights::Adapter(adapter) => adapter.version,
                };
                if updates != group.updates {
                    bail!(
                        "the job of group {} is for weights of version {}, but the slot has version {updates}",
                        group.group,
                        group.updates
                    );
                }
                self.pinned.insert(updates, Pinned { weights, place });
            }
        }
        let base = self.base.as_ref().map(|(_, weights)| weights.version);
        Ok(Some(match (&self.parts.lora, base) {
            (Some(_), Some(base)) => {
                ModelVersion { base, adapter: Some(AdapterVersion { id: 0, version: group.updates }) }
            }
            _ => ModelVersion { base: group.updates, adapter: None },
        }))
    }

    /// Reads and pins the weights in a slot.
    fn load(&mut self, path: &Path, shared: &Shared) -> anyhow::Result<Option<(PinnedWeights, Contents)>> {
        let slot = match self.slots.entry(path.to_owned()) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(free) => match open(path, shared.run) {
                Some(slot) => free.insert(slot),
                None => return Ok(None),
            },
        };
        let (memory, config) = (self.parts.ctx.memory(), &self.parts.model);
        let (Some(lora), Some(base)) = (&self.parts.lora, &shared.base) else {
            let found = slot.weights(memory, config)?;
            return Ok(found.map(|(weights, contents)| (PinnedWeights::Whole(weights), contents)));
        };
        if self.base.as_ref().is_none_or(|(path, _)| path != base) {
            let is_in_use = self.begun.values().any(|begun| matches!(begun.stage, Stage::Sampling { .. }));
            let Some(slot) = open(base, shared.run).filter(|_| !is_in_use) else { return Ok(None) };
            let Some((weights, _)) = slot.weights(memory, config)? else { return Ok(None) };
            self.base = Some((base.clone(), weights));
        }
        let found = slot.adapter(memory, config, lora)?;
        Ok(found.map(|(adapter, contents)| (PinnedWeights::Adapter(adapter), contents)))
    }

    /// Runs steps of the engine until a group has ended or [`STEPS`] have passed.
    fn step(&mut self) -> anyhow::Result<Vec<Outcome<JobName>>> {
        let drive = &mut self.parts.drive;
        let base = self.base.as_ref().map(|(_, weights)| weights);
        let (mut bases, mut adapters): (Vec<&Weights>, Vec<_>) = (base.into_iter().collect(), Vec::new());
        for pinned in self.pinned.values() {
            match &pinned.weights {
                PinnedWeights::Whole(weights) => bases.push(weights),
                PinnedWeights::Adapter(adapter) => adapters.push((0, adapter)),
            }
        }
        let models = Models { current: None, bases: &bases, adapters: &adapters };
        let since = Instant::now();
        let ended = loop {
            let ended = drive.step(models)?;
            self.tokens += drive.drawn().len() as u64;
            if !ended.is_empty() || drive.is_idle() || since.elapsed() >= STEPS {
                break ended;
            }
        };
        self.seconds += since.elapsed().as_secs_f64();
        Ok(ended)
    }

    /// Submits ended groups for scoring.
    fn score(&mut self, outcomes: Vec<Outcome<JobName>>) -> anyhow::Result<()> {
        for outcome in outcomes {
            let Outcome::Ended { owner, group, .. } = outcome else { continue };
            let Some(begun) = self.begun.get_mut(&owner) else { continue };
            let Stage::Sampling { since, .. } = begun.stage else { continue };
            let rollout_s = since.elapsed().as_secs_f64();
            begun.stage = Stage::Scoring(GroupAnswer::fingerprint(&group));
            if group.is_unfinished() {
                self.unscored.push(GroupAnswer { group, scores: Vec::new(), rollout_s })
            } else {
                self.parts.scorers.submit(begun.group.clone(), group, rollout_s)?
            }
        }
        self.unpin();
        Ok(())
    }

    /// Releases weights with which no group is being sampled, so that the learner may overwrite their slots. Scoring
    /// needs no weights.
    fn unpin(&mut self) {
        let begun = &self.begun;
        let is_needed = |updates: &Updates| {
            let mut groups = begun.values().filter(|begun| matches!(begun.stage, Stage::Sampling { .. }));
            groups.any(|begun| begun.group.updates == *updates)
        };
        self.pinned.retain(|updates, _| is_needed(updates));
    }

    fn scored(
        &mut self,
        group: GroupId,
        answer: anyhow::Result<GroupAnswer>,
    ) -> Option<(JobName, Result<Done, String>)> {
        // The job may have been withdrawn and claimed again meanwhile: the same tokens then arrive again, or different
        // tokens if the job now continues a different answer.
        let name = {
            let scored = answer.as_ref().ok().map(|answer| GroupAnswer::fingerprint(&answer.group));
            let is_it = |stage: &Stage| matches!(stage, Stage::Scoring(own) if scored.is_none_or(|it| it == *own));
            let mut scoring = self.in_stage(is_it);
            scoring.find(|(_, begun)| begun.group.group == group).map(|(name, _)| *name)?
        };
        self.begun.remove(&name);
        let done = answer.and_then(|answer| {
            let mut problems = answer.scores.iter().flat_map(|given| &given.scores.problems);
            if let Some(problem) = problems.find(|problem| problem.fatal && self.parts.refuses_failed_rewards) {
                bail!("reward `{}` failed: {}", problem.reward, problem.message);
            }
            let fingerprint = GroupAnswer::fingerprint(&answer.group);
            let more = answer.group.is_unfinished();
            Ok(Done { bytes: answer.to_bytes(), answer: Answer { fingerprint, more } })
        });
        Some((name, done.map_err(|error| paragraph(&error))))
    }

    fn compute(&mut self) -> anyhow::Result<bool> {
        self.submit()?;
        let computes = !self.parts.drive.is_idle();
        if computes {
            let ended = self.step()?;
            self.score(ended)?;
        }
        if self.parts.drive.is_idle() {
            self.parts.ctx.release_cores();
        }
        Ok(computes)
    }
}

impl Work for WorkerWork {
    fn has_room(&self) -> bool {
        self.in_stage(|stage| !matches!(stage, Stage::Scoring(_))).count() < self.parts.groups
    }

    fn check(&mut self, learner: &LearnerState) -> Result<(), String> {
        let learner_is = (learner.pid, learner.incarnation);
        if self.checked == Some(learner_is) {
            return Ok(());
        }
        Shared::from_state(learner, &self.parts.identity).map_err(|error| paragraph(&error))?;
        self.checked = Some(learner_is);
        Ok(())
    }

    fn begin(&mut self, job: Job) {
        // If this worker already has the job, the job was offered again, perhaps with a different payload, and the work
        // in progress is discarded.
        self.forget(job.name);
        match job_of(&job) {
            Ok(group) => drop(self.begun.insert(job.name, Begun { job, group, stage: Stage::WaitsForWeights })),
            Err(error) => self.failed.push((job.name, paragraph(&error))),
        }
    }

    fn forget(&mut self, job: JobName) {
        let begun = self.begun.remove(&job);
        if let Some(Begun { stage: Stage::Sampling { request, .. }, .. }) = begun {
            self.parts.drive.cancel(request);
        }
        self.unpin();
    }

    fn proceed(&mut self) -> Proceeded {
        let mut ended: Vec<_> = self.failed.drain(..).map(|(job, why)| (job, Err(why))).collect();
        let computed = match self.compute() {
            Ok(computed) => computed,
            Err(error) => {
                // The error is reported for the first job. A job on which every worker fails is identified when it runs
                // alone.
                let why = paragraph(&error);
                ended.extend(self.begun.keys().next().map(|job| (*job, Err(why))));
                true
            }
        };
        for answer in std::mem::take(&mut self.unscored) {
            ended.extend(self.scored(answer.group.group, Ok(answer)));
        }
        while let Some((group, answer)) = self.parts.scorers.next_answer() {
            ended.extend(self.scored(group, answer));
        }
        Proceeded { ended, waits: !computed }
    }

    fn stages(&self) -> Vec<(JobName, String)> {
        let stage = |begun: &Begun| match begun.stage {
            Stage::WaitsForWeights => "waiting for weights",
            Stage::Sampling { .. } => "sampling",
            Stage::Scoring(_) => "scoring",
        };
        self.begun.iter().map(|(job, begun)| (*job, stage(begun).to_owned())).collect()
    }

    fn share(&self) -> serde_json::Value {
        serde_json::json!({ "tokens_per_s": self.tokens as f64 / self.seconds.max(1e-9) })
    }
}

/// Opens a slot of this run; `None` if it no longer exists.
fn open(path: &Path, run: [u8; 16]) -> Option<SharedSlot> {
    SharedSlot::open(path).ok().filter(|slot| slot.run() == run)
}
