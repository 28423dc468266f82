//! A simulated run with its workers as one value: the files in the spool, the state of each process, the content of the
//! disk, and all possible next moves. Coordinator and observer are the real code.

mod moves;

use crate::batches::answers;
use crate::coordinator::{Action, Coordinator, Dropped, Event, HowEnded, Rules, Saved};
use crate::exchange::{Observer, Queue, Seen};
use crate::ids::{BatchId, Version};
use crate::job::{Job, JobName, JobResult, Lineage, WorkerName};
use crate::plan::Plan;
use std::collections::{BTreeMap, VecDeque};
use twox_hash::XxHash3_64;

/// The number of faults of each kind that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Kills of a worker.
    pub kills: u32,
    /// Stops of a worker (SIGSTOP), which may continue later.
    pub stops: u32,
    /// Kills of the learner; the spool and the workers survive.
    pub crashes: u32,
    /// Power failures: only synced files survive.
    pub power: u32,
    /// Kills of the learner, after which the newest batch file cannot be read.
    pub rots: u32,
    /// Expulsions of a worker. Its results in the next batch to train on are then treated as wrong.
    pub lies: u32,
}

/// Rules that hold outside the coordinator, and properties of the simulated environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Environment {
    /// Weights that a worker has pinned are not overwritten.
    pub pins: bool,
    /// A batch file is on disk before the update.
    pub sync: bool,
    /// Scores come from outside, and may differ when a job is repeated.
    pub judge: bool,
    /// Events are delivered one by one, and may be late, repeated or lost.
    pub lossy: bool,
    /// The first worker lies about the first chunk of each group, and is expelled once a batch with a lie is complete.
    pub liar: bool,
    /// A batch has two optimizer steps, so that a checkpoint can be taken between them.
    pub halves: bool,
    /// The number of workers.
    pub workers: usize,
}

impl Environment {
    pub const SOUND: Environment =
        Environment { pins: true, sync: true, judge: true, lossy: false, liar: false, halves: false, workers: 2 };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    Claimed(Job),
    /// The job, and the weights that the worker has pinned.
    Sampling(Job, u64),
    Made(JobResult),
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    name: WorkerName,
    doing: Doing,
    stopped: bool,
    expelled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Learner {
    coordinator: Coordinator,
    observer: Observer,
    /// The published weights that are kept, by version.
    memory: BTreeMap<Version, (Lineage, u64)>,
    /// The weights after the last optimizer step.
    weights: u64,
    kept: BTreeMap<JobName, JobResult>,
    /// The batch to train on. `begun` is true once its first optimizer step is done.
    trains: Option<BatchId>,
    begun: bool,
    /// True while a checkpoint waits for its frontier. Training is then paused.
    saving: bool,
    /// A checkpoint that is being written and is not on disk yet.
    written: Option<(Saved, u64, Vec<JobResult>)>,
    /// Batch files that have not been synced.
    unsynced: BTreeMap<BatchId, Vec<JobResult>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    plan: Plan,
    rules: Rules,
    environment: Environment,
    pub budget: Budget,
    learner: Option<Learner>,
    queue: Queue,
    workers: Vec<Worker>,
    /// The checkpoint on disk: version and lineages, weights, frontier.
    checkpoint: (Saved, u64, Vec<JobResult>),
    files: BTreeMap<BatchId, Vec<JobResult>>,
    /// The content of each version that was ever published.
    published: BTreeMap<Version, u64>,
    /// True once the first rollout has been scored. If it is scored again, the score will differ.
    scored: bool,
    /// Events that have been sent but not delivered yet. Used only if events can be lost.
    pub mail: Vec<Event>,
    ended: bool,
}

/// A move: one step of a process, or a fault.
#[derive(Clone, Debug)]
pub enum Move {
    Poll,
    Deliver(usize, bool),
    Lose(usize),
    Tick(u64),
    /// The first of two optimizer steps on a batch. True if a checkpoint follows.
    Begin(bool),
    Update(bool),
    /// The frontier of a checkpoint is complete, and the checkpoint is written. `Commit` puts it on disk.
    Save,
    Commit,
    Restart,
    Claim(usize, JobName),
    Pin(usize),
    Leave(usize),
    Sample(usize),
    Complete(usize),
    Revive(usize),
    Continue(usize),
    Kill(usize),
    Halt(usize),
    Crash,
    Power,
    Rot,
    Expel(usize),
}

fn hash(parts: &[u64]) -> u64 {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    XxHash3_64::oneshot(&bytes)
}

/// The tokens that a job samples, and whether another chunk follows (it does in groups with an even number).
fn tokens(job: JobName, weights: u64, payload: &[u8]) -> (u64, bool) {
    let more = job.group.0.is_multiple_of(2);
    (hash(&[XxHash3_64::oneshot(job.to_string().as_bytes()), weights, XxHash3_64::oneshot(payload)]), more)
}

const TORN: u64 = 0xbad;

impl World {
    pub fn new(plan: Plan, rules: Rules, environment: Environment, budget: Budget) -> World {
        let origin = Lineage([0; 16]);
        // A continued run starts from its checkpoint, which holds no results for later batches.
        let version = plan.continued.version;
        let lineages = BTreeMap::from([(version, origin)]);
        let saved = Saved { version, in_batch: false, lineages, frontier: BTreeMap::new() };
        let name = |i: usize| WorkerName::new(&format!("w{i}")).unwrap();
        let worker = |i| Worker { name: name(i), doing: Doing::Dead, stopped: false, expelled: false };
        let mut world = World {
            plan,
            rules,
            environment,
            budget,
            learner: None,
            queue: Queue::default(),
            workers: (0..environment.workers).map(worker).collect(),
            checkpoint: (saved, 1, Vec::new()),
            files: BTreeMap::new(),
            published: BTreeMap::from([(version, 1)]),
            scored: false,
            mail: Vec::new(),
            ended: false,
        };
        (0..environment.workers).for_each(|i| world.revive(i));
        world.restart().unwrap();
        world
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The weights of each published version.
    pub fn published(&self) -> &BTreeMap<Version, u64> {
        &self.published
    }

    pub fn apply(&mut self, step: &Move) -> Result<(), String> {
        match step {
            Move::Poll => {
                let scan = self.queue.scan();
                let Some(learner) = &mut self.learner else { return Ok(()) };
                let events = learner.observer.compare(scan);
                events.into_iter().try_for_each(|event| self.tell(event))?;
            }
            Move::Deliver(i, again) => {
                let event = if *again { self.mail[*i].clone() } else { self.mail.swap_remove(*i) };
                self.tell(event)?;
            }
            Move::Lose(i) => drop(self.mail.swap_remove(*i)),
            Move::Tick(ms) => {
                self.tell(Event::Tick(*ms))?;
                for i in 0..self.workers.len() {
                    let worker = &self.workers[i];
                    if worker.doing != Doing::Dead && !worker.stopped {
                        self.tell(Event::Progress(worker.name.clone()))?;
                    }
                }
            }
            Move::Begin(saves) => self.begin(*saves)?,
            Move::Update(saves) => self.update(*saves)?,
            Move::Save => self.save()?,
            Move::Commit => self.commit(),
            Move::Restart => self.restart()?,
            Move::Crash => {
                self.budget.crashes -= 1;
                self.crash();
            }
            Move::Power => {
                self.budget.power -= 1;
                self.crash();
                self.queue.pending.clear();
                self.queue.processing.clear();
                self.queue.complete.clear();
                (0..self.workers.len()).for_each(|i| self.kill(i));
            }
            Move::Rot => {
                self.budget.rots -= 1;
                self.crash();
                if let Some((batch, _)) = self.files.pop_last() {
                    // Versions published after the checkpoint are lost.
                    self.published.retain(|version, _| *version <= batch.version());
                }
            }
            Move::Claim(i, job) => {
                if let Some(job) = self.queue.claim(&self.workers[*i].name, *job) {
                    self.send(Event::Claimed(self.workers[*i].name.clone(), job.name));
                    self.workers[*i].doing = Doing::Claimed(job);
                    self.pin(*i);
                }
            }
            Move::Pin(i) => self.pin(*i),
            Move::Leave(i) => self.workers[*i].doing = Doing::Nothing,
            Move::Sample(i) => self.sample(*i),
            Move::Complete(i) => {
                if let Doing::Made(result) = std::mem::replace(&mut self.workers[*i].doing, Doing::Nothing) {
                    let (worker, job, lineage) = (result.worker.clone(), result.job, result.lineage);
                    self.queue.complete(&result);
                    self.send(Event::Result { worker, job, lineage, answer: result.answer });
                }
            }
            Move::Revive(i) => self.revive(*i),
            Move::Continue(i) => self.workers[*i].stopped = false,
            Move::Kill(i) => {
                self.budget.kills -= 1;
                self.kill(*i);
            }
            Move::Expel(i) => self.expel(*i)?,
            Move::Halt(i) => {
                self.budget.stops -= 1;
                self.workers[*i].stopped = true;
            }
        }
        Ok(())
    }

    fn send(&mut self, event: Event) {
        if self.environment.lossy {
            self.mail.push(event);
        }
    }

    fn kill(&mut self, i: usize) {
        let worker = &mut self.workers[i];
        if worker.doing == Doing::Dead {
            // Deliver the event once more if it was not delivered yet.
            let worker = worker.name.clone();
            return self.send(Event::Ended { worker, how: HowEnded::Vanished });
        }
        (worker.doing, worker.stopped) = (Doing::Dead, false);
        if let Some(seen) = self.queue.workers.get_mut(&worker.name) {
            seen.alive = false;
        }
        let worker = worker.name.clone();
        self.send(Event::Ended { worker, how: HowEnded::Vanished });
    }

    fn revive(&mut self, i: usize) {
        self.workers[i].doing = Doing::Nothing;
        let name = self.workers[i].name.clone();
        let seen = self.queue.workers.entry(name.clone()).or_default();
        *seen = Seen { incarnation: seen.incarnation + 1, alive: true, ..Seen::default() };
        let left: Vec<JobName> =
            self.queue.processing.keys().filter(|(worker, _)| *worker == name).map(|(_, job)| *job).collect();
        for job in left {
            if self.rules.reclaim {
                self.queue.give_back(&name, job);
            }
            self.send(Event::Returned { worker: name.clone(), job, faulty: false });
        }
        self.send(Event::Joined(name));
    }

    /// Removes the learner. Memory that workers have mapped survives.
    fn crash(&mut self) {
        self.learner = None;
        self.mail.clear();
    }

    fn restart(&mut self) -> Result<(), String> {
        let (saved, weights, frontier) = self.checkpoint.clone();
        let version = saved.version;
        let files = self.files.range(version.batch()..);
        let synced = files.clone().map(|(batch, results)| (*batch, answers(results))).collect();
        let replayed = files.flat_map(|(_, results)| results).filter(|_| self.rules.replay);
        let kept = frontier.iter().chain(replayed).map(|result| (result.job, result.clone())).collect();
        let (lineage, in_batch) = (saved.lineages[&version], saved.in_batch);
        // In the middle of a batch the weights do not belong to a version, so no worker can sample with them.
        let memory = if in_batch { BTreeMap::new() } else { BTreeMap::from([(version, (lineage, weights))]) };
        let coordinator = Coordinator::with_rules(self.plan.clone(), saved, synced, self.rules)?;
        self.queue.pending.clear();
        self.learner = Some(Learner {
            coordinator,
            observer: Observer::default(),
            memory,
            weights,
            kept,
            trains: None,
            begun: in_batch,
            saving: false,
            written: None,
            unsynced: BTreeMap::new(),
        });
        let events = Observer::default().compare(self.queue.scan());
        if self.environment.lossy {
            events.into_iter().try_for_each(|event| self.tell(event))?;
        } else {
            self.apply(&Move::Poll)?;
        }
        self.tell_of_expelled()?;
        self.tell(Event::Recovered)
    }

    /// The weights of a job, if they still exist.
    fn weights_for(&self, job: &Job) -> Option<u64> {
        let (lineage, weights) = self.learner.as_ref()?.memory.get(&job.version)?;
        (*lineage == job.lineage || !self.rules.lineage).then_some(*weights)
    }

    fn pin(&mut self, i: usize) {
        if let Doing::Claimed(job) = self.workers[i].doing.clone()
            && let Some(weights) = self.weights_for(&job)
        {
            self.workers[i].doing = Doing::Sampling(job, weights);
        }
    }

    /// Takes the first of two optimizer steps on a batch. After that the weights do not belong to a version.
    fn begin(&mut self, saves: bool) -> Result<(), String> {
        if let Some(learner) = &mut self.learner {
            (learner.begun, learner.saving) = (true, saves);
            if self.plan.max_staleness == 0 {
                // The optimizer updates the weights in place.
                learner.memory.clear();
            }
            learner.weights = hash(&[learner.weights, learner.trains.unwrap_or_default().0]);
        }
        self.tell(Event::TrainingBegan)
    }

    /// Writes a checkpoint with the results that only older weights can produce.
    fn save(&mut self) -> Result<(), String> {
        let Some(learner) = &mut self.learner else { return Ok(()) };
        let (coordinator, in_batch) = (&learner.coordinator, learner.begun);
        let version = coordinator.version();
        let next = if in_batch { version.batch().next().version() } else { version };
        let (mut frontier, _) = coordinator.frontier(next);
        if in_batch {
            let own = self.plan.groups_of(version.batch()).flat_map(|group| coordinator.chain(group));
            frontier.extend(own.map(|job| (job, learner.kept[&job].answer)));
        }
        let result =
            |job: &JobName| learner.kept.get(job).cloned().ok_or(format!("the result of job {job} is missing"));
        let results = frontier.keys().map(result).collect::<Result<Vec<_>, _>>()?;
        let lineages = coordinator.lineages().clone();
        learner.written = Some((Saved { version, in_batch, lineages, frontier }, learner.weights, results));
        learner.saving = false;
        Ok(())
    }

    fn commit(&mut self) {
        let Some(written) = self.learner.as_mut().and_then(|learner| learner.written.take()) else { return };
        self.files.retain(|batch, _| *batch >= written.0.version.batch());
        self.checkpoint = written;
    }

    /// Takes the optimizer step, after checking that the results were sampled with the right weights.
    fn update(&mut self, saves: bool) -> Result<(), String> {
        self.tell(Event::TrainingBegan)?;
        let Some(learner) = &self.learner else { return Ok(()) };
        let Some(batch) = learner.trains else { return Ok(()) };
        let version = batch.next().version();
        let jobs = self.plan.groups_of(batch).flat_map(|group| learner.coordinator.chain(group));
        let results: Vec<JobResult> = jobs.filter_map(|job| learner.kept.get(&job).cloned()).collect();
        for result in &results {
            let version = self.plan.version_of(result.job);
            if self.is_lie(result) {
                return Err(format!(
                    "job {} was sampled with other weights than those of version {version}",
                    result.job
                ));
            }
        }
        let parts = results.iter().map(|result| XxHash3_64::oneshot(&result.bytes));
        let weights = hash(&std::iter::once(learner.weights).chain(parts).collect::<Vec<_>>());
        let lineage = Lineage([weights.to_le_bytes(); 2].concat().try_into().map_err(|_| "16 bytes")?);
        if *self.published.entry(version).or_insert(weights) != weights {
            return Err(format!("version {version} has two contents"));
        }
        if let Some(learner) = &mut self.learner {
            learner.weights = weights;
            learner.memory.insert(version, (lineage, weights));
            let oldest = if self.rules.needed { self.plan.version(batch.next(), 0) } else { version };
            learner.memory.retain(|version, _| *version >= oldest);
            (learner.trains, learner.begun, learner.saving) = (None, false, saves);
        }
        self.tell(Event::Trained(lineage))
    }

    fn tell(&mut self, event: Event) -> Result<(), String> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(learner) = &mut self.learner else { return Ok(()) };
            for action in learner.coordinator.handle(event) {
                events.extend(self.carry_out(action)?);
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action) -> Result<Option<Event>, String> {
        if let Action::Offer { job, version, lineage, continues, alone } = action {
            let (payload, profile) = (self.payload(job), String::new());
            self.queue.offer(&Job { name: job, version, lineage, continues, alone, profile, payload });
            if let Some(learner) = &mut self.learner {
                learner.observer.offered(job);
            }
            return Ok(None);
        }
        if let Action::Kill(name) = &action {
            if let Some(i) = self.workers.iter().position(|worker| worker.name == *name) {
                self.kill(i);
            }
            return Ok(None);
        }
        let Some(learner) = &mut self.learner else { return Ok(None) };
        let result =
            |job: &JobName| learner.kept.get(job).cloned().ok_or(format!("the result of job {job} is missing"));
        match action {
            Action::Release(worker, job) => {
                learner.observer.released(&worker, job);
                self.queue.release(&worker, job);
            }
            Action::Withdraw(job) => {
                learner.observer.withdrawn(job);
                self.queue.withdraw(job);
            }
            Action::Accept(worker, job) => match self.queue.complete.get(&(worker, job)) {
                // The worker of an accepted result does not matter, so states that differ only in this worker are
                // treated as equal.
                Some(result) => {
                    let worker = WorkerName::new("any")?;
                    learner.kept.insert(job, JobResult { worker, ..result.clone() });
                }
                None => return Err(format!("the result of job {job} was deleted")),
            },
            Action::Drop(_, job, Dropped::Differs) if !self.environment.liar => {
                return Err(format!("two results of job {job} differ"));
            }
            Action::Drop(worker, job, _) => {
                learner.observer.discarded(&worker, job);
                // An exchange does not report a result that it no longer has.
                self.mail.retain(|event| match event {
                    Event::Result { worker: maker, job: made, .. } => (maker, *made) != (&worker, job),
                    _ => true,
                });
                self.queue.complete.remove(&(worker, job));
            }
            Action::SyncBatch(batch, jobs) => {
                let results = jobs.iter().map(result).collect::<Result<Vec<_>, _>>()?;
                let files = if self.environment.sync { &mut self.files } else { &mut learner.unsynced };
                files.insert(batch, results);
                return Ok(Some(Event::Synced(batch)));
            }
            Action::Acknowledge(jobs) => self.queue.acknowledge(&jobs),
            Action::Train(batch) => learner.trains = Some(batch),
            Action::Gone(job, version) => {
                return Err(format!("stuck: job {job} needs version {version}, which is gone"));
            }
            Action::Fail(job, count, _) => return Err(format!("job {job} ended {count} workers")),
            Action::End => self.ended = true,
            Action::Publish(version) => {
                let first = self.plan.first_group(version.batch());
                learner.kept.retain(|job, _| job.group >= first);
            }
            Action::Offer { .. } | Action::Kill(_) => {}
        }
        Ok(None)
    }
}
