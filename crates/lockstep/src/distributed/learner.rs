//! The learner's side: publishes weights, offers the jobs that they are to do, and waits for batches.

use super::chunks::{Chunks, Link};
use super::expelled::Expelled;
use super::made_by::MadeBy;
use super::network::{Network, Serving, learner_exchange};
use super::{Shared, SlotPlace, of_fleet};
use crate::config::SamplingPlan;
use crate::rollouts::jobs::GroupJob;
use crate::rollouts::scoring::Prompts;
use crate::stop::StopSignal;
use anyhow::Context as _;
use fleet::batches::BatchFiles;
use fleet::coordinator::Coordinator;
use fleet::exchange::{Counts, Exchange};
use fleet::learner::{Feed, Learner, LearnerHandle, SavedFrontier, Step};
use fleet::{Answer, Job, JobName, JobResult, Lineage, Plan, WorkerName, takes};
use model::{AdaptedWeights, HeldWeights};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one look for a step takes at most: a stop request is seen between two.
const LOOK: Duration = Duration::from_millis(50);
/// A run without a worker says so after this time.
const LONELY: Duration = Duration::from_secs(10);
/// So long a stop waits for a worker to come back.
const PATIENCE: Duration = Duration::from_secs(3);
/// The profile of every job of a run without profiles.
const PROFILE: &str = "any";

/// A batch that was offered and is not learned from yet.
#[derive(Clone)]
pub struct Pending {
    /// Its rows, by the groups' numbers.
    pub prompts: Prompts,
    /// Its jobs, in the order of their numbers.
    pub jobs: Vec<GroupJob>,
    /// Optimizer steps done when it was offered.
    pub step: u64,
}

/// What a checkpoint has of a group, which nobody needs to make again.
pub struct FrontierGroup {
    /// Its number in the run.
    pub number: u64,
    /// What its jobs gave, the chunks that are made.
    pub answers: Vec<Answer>,
    /// Of the last of them, if it is learned from or continued; else the checkpoint has what it made.
    pub bytes: Vec<u8>,
}

/// What a checkpoint has of batches that older weights made.
#[derive(Default)]
pub struct Frontier {
    /// Their groups.
    pub groups: Vec<FrontierGroup>,
    /// Of the versions that results may still come from.
    pub lineages: BTreeMap<u64, Lineage>,
}

/// Where a run begins.
pub struct Start {
    /// The batch that is learned from next, or whose steps are not all done.
    pub batch: u64,
    /// The weights are those that this batch begins with, and not of the middle of it.
    pub at_beginning: bool,
    /// What made the weights, if the frontier does not say it.
    pub lineage: Lineage,
    /// From the checkpoint.
    pub frontier: Frontier,
    /// A hash of what a step depends on beside its batch and the weights.
    pub settings: Lineage,
    /// The weights of a batch's version are held until [`Distributed::release`].
    pub audits: bool,
    /// Which profile each group has.
    pub sampling: SamplingPlan,
    /// How groups are cut into jobs.
    pub chunks: Chunks,
}

/// A run's workers, as its learner sees them.
pub struct Distributed {
    out: PathBuf,
    handle: LearnerHandle<Box<dyn Exchange + Send>>,
    /// Serves weights to other machines.
    serving: Option<Serving>,
    /// Payloads, read by the thread that offers jobs.
    payloads: Payloads,
    pending: BTreeMap<u64, Pending>,
    /// Batches whose files are on the disk.
    arrived: BTreeMap<u64, Vec<JobResult>>,
    made_by: MadeBy,
    shared: Shared,
    plan: Plan,
    /// The versions that jobs may need, the newest last, with their numbers.
    held: VecDeque<(u64, HeldWeights)>,
    /// Answers are checked with the weights that made them, which are held for so long.
    audits: bool,
    expelled: Expelled,
    /// The updates that the published weights have had.
    version: u64,
    batch: u64,
}

/// What jobs ask for, read by the thread that offers them.
#[derive(Clone)]
struct Payloads(Arc<Mutex<Offered>>);

struct Offered {
    /// Each group's whole job.
    jobs: BTreeMap<u64, GroupJob>,
    chunks: Chunks,
    /// Says the profile of each.
    sampling: SamplingPlan,
}

impl Payloads {
    fn lock(&self) -> MutexGuard<'_, Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed for Payloads {
    fn job(&mut self, job: JobName, before: &[JobResult]) -> fleet::Result<(String, Vec<u8>)> {
        let failed = |what: &str| fleet::Error::Failed(format!("job {job} {what}"));
        let JobName::Rollout { number, .. } = job else { return Err(failed("is none of this run's")) };
        let offered = self.lock();
        let whole = offered.jobs.get(&number).ok_or_else(|| failed("was not prepared"))?;
        let before: Vec<&JobResult> = before.iter().collect();
        // What cannot be read is found when the batch is whole, with who said it; until then it begins again.
        let chain = offered.chunks.chain(whole, &before).unwrap_or_default();
        let so_far = chain.last().map_or_else(Vec::new, |link| link.answer.group.completions.clone());
        let asked = offered.chunks.job(job, whole, so_far).ok_or_else(|| failed("needs weights that are gone"))?;
        Ok((offered.sampling.profile(number).unwrap_or(PROFILE).to_owned(), asked.to_bytes()))
    }
}

impl Distributed {
    /// Opens the exchange of the run directory `out`. `batches` are those that the weights as they are must make.
    /// `network` is how other machines reach it, which are served the files of the directory `model`.
    pub fn open(
        out: &Path,
        network: Option<(&Network, &Path)>,
        plan: Plan,
        mut shared: Shared,
        start: Start,
        weights: &mut AdaptedWeights,
        batches: BTreeMap<u64, Pending>,
    ) -> anyhow::Result<Distributed> {
        let exchange = learner_exchange(out, network.map(|(network, _)| network))?;
        let serve = |(network, model)| Serving::start(network, &out.join("config.toml"), model);
        let serving = network.map(serve).transpose()?;
        shared.network = serving.as_ref().map(Serving::place);
        let Start { batch, at_beginning, lineage, frontier, settings, audits, sampling, mut chunks } = start;
        let Frontier { groups, mut lineages } = frontier;
        let lineage = *lineages.entry(batch).or_insert(lineage);
        forget_other_settings(out, settings)?;
        let files = BatchFiles::open(out).map_err(of_fleet)?;
        if at_beginning {
            let published = weights.publish(batch, lineage.0)?;
            chunks.published(batch, weights.version());
            shared.slots.insert(batch, SlotPlace::of(published, lineage));
        }
        let worker = WorkerName::new("checkpoint").map_err(fleet::Error::Failed)?;
        let results = |FrontierGroup { number, answers, mut bytes }: FrontierGroup| {
            let last = answers.len().saturating_sub(1);
            let result = |(chunk, answer)| JobResult {
                job: JobName::Rollout { number, chunk: chunk as u32 },
                lineage,
                worker: worker.clone(),
                answer,
                bytes: if chunk == last { std::mem::take(&mut bytes) } else { Vec::new() },
            };
            answers.into_iter().enumerate().map(result).collect::<Vec<_>>()
        };
        let frontier = groups.into_iter().flat_map(results).collect();
        let (expelled, names) = Expelled::open(out)?;
        let saved = SavedFrontier { step: batch, lineages, frontier, expelled: names };
        let payloads = Payloads(Arc::new(Mutex::new(Offered { jobs: BTreeMap::new(), chunks, sampling })));
        offer(&payloads, &batches);
        if let Some(serving) = &serving {
            serving.publish(&shared.slots, shared.base.as_deref());
        }
        let json = serde_json::to_value(&shared)?;
        let learner = Learner::open(plan.clone(), saved, exchange, files, Box::new(payloads.clone()), json);
        let handle = LearnerHandle::start(learner.map_err(of_fleet)?).map_err(of_fleet)?;
        let holds = (plan.max_staleness > 0 || audits) && at_beginning;
        let held = VecDeque::from_iter(holds.then(|| (batch, weights.hold())));
        let version = weights.version();
        let arrived = BTreeMap::new();
        let made_by = MadeBy::open(out)?;
        Ok(Distributed {
            out: out.to_owned(),
            handle,
            serving,
            payloads,
            pending: batches,
            arrived,
            made_by,
            shared,
            plan,
            held,
            audits,
            expelled,
            version,
            batch,
        })
    }

    /// The batch that is offered next by the weights as they are, and those before it: up to which number.
    pub fn offered_up_to(&self) -> u64 {
        self.pending.last_key_value().map_or(self.batch, |(batch, _)| batch + 1)
    }

    /// Waits for a batch, whose file is on the disk then.
    pub fn wait(
        &mut self,
        batch: u64,
        stop: &StopSignal,
        warn: &dyn Fn(&str),
    ) -> anyhow::Result<(Option<Pending>, Vec<JobResult>)> {
        let since = Instant::now();
        let mut is_lonely = false;
        loop {
            if let Some(results) = self.arrived.get(&batch) {
                return Ok((self.pending.get(&batch).cloned(), results.clone()));
            }
            self.take_step(warn)?;
            stop.check()?;
            if !is_lonely && since.elapsed() > LONELY {
                is_lonely = true;
                if self.has_no_worker() {
                    warn("no worker has joined this run: start one with `lockstep worker --join DIR --name NAME`");
                } else if let Some(profile) = self.profile_of_nobody(batch) {
                    warn(&format!(
                        "no worker makes groups of the profile \"{profile}\": start one with `lockstep worker --join \
                         DIR --name NAME --profiles {profile}`"
                    ));
                }
            }
        }
    }

    /// Waits for what a checkpoint must have of a batch, because its weights will be gone: those before `version`.
    /// After a stop request it does not wait for workers that are not there.
    pub fn wait_for_frontier(
        &mut self,
        (batch, version): (u64, u64),
        stop: &StopSignal,
        warn: &dyn Fn(&str),
    ) -> anyhow::Result<(Option<Pending>, Vec<JobResult>)> {
        let mut lonely_since = Instant::now();
        loop {
            if let Some(results) = self.handle.with(|learner| learner.made_before(version, batch)) {
                return Ok((self.pending.get(&batch).cloned(), results));
            }
            self.take_step(warn)?;
            if !self.has_no_worker() || !stop.is_requested() {
                lonely_since = Instant::now();
            } else if lonely_since.elapsed() > PATIENCE {
                warn(
                    "no worker is left to make what a checkpoint of this step needs: a resume repeats the steps since \
                     the last one, whose batches are on the disk",
                );
                stop.check()?;
            }
        }
    }

    fn take_step(&mut self, warn: &dyn Fn(&str)) -> anyhow::Result<()> {
        match self.handle.next_step(LOOK).map_err(of_fleet)? {
            Some(Step::Train(batch, results)) => {
                self.made_by.note(batch, &results)?;
                self.arrived.insert(batch, results);
            }
            Some(Step::Warning(text)) => warn(&text),
            Some(Step::CommitCheckpoint(_) | Step::Evaluated(..) | Step::End) | None => {}
        }
        Ok(())
    }

    /// A profile of the batch's groups that no worker takes.
    fn profile_of_nobody(&self, batch: u64) -> Option<String> {
        let workers = fleet::status::read(&self.out).ok()?.workers;
        let living =
            || workers.iter().filter(|worker| worker.alive.is_some()).filter_map(|worker| worker.status.as_ref());
        let takes = |name: &str| living().any(|one| takes(&one.profiles, name));
        let offered = self.payloads.lock();
        let mut names = self.plan.numbers(batch).filter_map(|number| offered.sampling.profile(number));
        names.find(|name| !takes(name)).map(str::to_owned)
    }

    fn has_no_worker(&self) -> bool {
        self.handle.with(|learner| learner.coordinator().workers().next().is_none())
    }

    /// All steps of a batch are done: the weights become the next version, which makes `batches`.
    pub fn advance(
        &mut self,
        weights: &mut AdaptedWeights,
        batches: BTreeMap<u64, Pending>,
        warn: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        // A run that is resumed in the middle of a batch has not asked for it.
        while !self.arrived.contains_key(&self.batch) {
            self.take_step(warn)?;
        }
        let next = self.batch + 1;
        let written = weights.version() != self.version;
        let lineage = self.handle.with(|learner| {
            if let (true, Some(slot)) = (written, learner.writable().first()) {
                learner.writing(*slot)?;
            }
            let lineage = learner.coordinator().lineage_of(next);
            lineage.ok_or_else(|| fleet::Error::Failed(format!("the lineage of version {next} is not known")))
        });
        let lineage = lineage.map_err(of_fleet)?;
        let published = weights.publish(next, lineage.0).context("publishing the weights")?;
        if self.plan.max_staleness > 0 || self.audits {
            self.held.push_back((next, weights.hold()));
        }
        let oldest = self.plan.version(next, 0);
        self.held.retain(|(version, _)| *version >= oldest);
        if !self.audits {
            self.release(next);
        }
        self.arrived.remove(&self.batch);
        self.pending.remove(&self.batch);
        let first = self.plan.numbers(next).start;
        let mut offered = self.payloads.lock();
        offered.jobs.retain(|number, _| *number >= first);
        offered.chunks.published(next, weights.version());
        drop(offered);
        offer(&self.payloads, &batches);
        self.pending.extend(batches);
        self.shared.slots.retain(|version, _| *version >= oldest);
        self.shared.slots.insert(next, SlotPlace::of(published, lineage));
        self.shared.weight_sync_bytes_copied = weights.bytes_copied();
        (self.batch, self.version) = (next, weights.version());
        if let Some(serving) = &self.serving {
            serving.publish(&self.shared.slots, self.shared.base.as_deref());
            self.shared.bytes_fetched = serving.bytes_sent();
        }
        let json = serde_json::to_value(&self.shared)?;
        let trained = self.handle.with(|learner| {
            learner.share(json)?;
            learner.trained(written)
        });
        trained.map_err(of_fleet)
    }

    /// The weights of a version, as long as they are held.
    pub fn weights_of(&self, version: u64) -> Option<&HeldWeights> {
        self.held.iter().find(|(held, _)| *held == version).map(|(_, weights)| weights)
    }

    /// The weights that made a batch are not read again: the optimizer may overwrite them.
    pub fn release(&mut self, batch: u64) {
        let first = (batch + 1).saturating_sub(self.plan.max_staleness);
        self.held.retain(|(version, _)| *version >= first);
    }

    /// Whether a result may be taken back: nobody has learned from it, an earlier learner included.
    pub fn can_remake(&self, job: JobName) -> bool {
        self.handle.with(|learner| learner.coordinator().can_remake(job))
    }

    /// The jobs of a group and their answers, by the results of its chunks.
    pub fn chain(&self, whole: &GroupJob, results: &[&JobResult]) -> anyhow::Result<Vec<Link>> {
        self.payloads.lock().chunks.chain(whole, results)
    }

    /// An answer of this worker is not what its job gives: it is out, and its groups of batches from `from` on are made
    /// again.
    pub fn expel(&mut self, worker: &WorkerName, from: u64, why: &str) -> anyhow::Result<()> {
        self.expelled.note(worker, why)?;
        self.arrived.retain(|batch, _| *batch < from);
        self.handle.with(|learner| learner.expel(worker, from)).map_err(of_fleet)
    }

    /// A checkpoint of the batch in use has its name: files of batches before it are deleted.
    pub fn checkpoint_written(&self) -> anyhow::Result<()> {
        let batch = self.batch;
        self.handle.with(|learner| learner.committed(batch)).map_err(of_fleet)
    }

    /// Scores of a batch are no good: it and all after it are made again by the next learner.
    pub fn forget_from(&self, batch: u64) -> anyhow::Result<()> {
        self.handle.with(|learner| learner.forget_from(batch)).map_err(of_fleet)
    }

    /// What a checkpoint keeps, beside the batches themselves.
    pub fn lineages(&self) -> BTreeMap<u64, Lineage> {
        self.handle.with(|learner| learner.coordinator().lineages().clone())
    }

    /// Bytes that other machines have fetched.
    pub fn bytes_fetched(&self) -> u64 {
        self.serving.as_ref().map_or(0, Serving::bytes_sent)
    }

    /// The numbers of the run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What happened to jobs, and how many of the next batches' groups are complete.
    pub fn counts(&self) -> (Counts, u64) {
        let complete = |coordinator: &Coordinator| {
            let batches = coordinator.step()..=coordinator.step() + self.plan.max_staleness;
            batches.map(|batch| coordinator.complete_groups(batch)).sum()
        };
        self.handle.with(|learner| (learner.counts(), complete(learner.coordinator())))
    }
}

fn offer(payloads: &Payloads, batches: &BTreeMap<u64, Pending>) {
    let jobs = batches.values().flat_map(|batch| &batch.jobs);
    payloads.lock().jobs.extend(jobs.map(|job| (job.number, job.clone())));
}

/// Results of other settings are none of this run's: what follows from them has other weights.
fn forget_other_settings(out: &Path, settings: Lineage) -> anyhow::Result<()> {
    let layout = fleet::exchange::spool::Layout::of_run(out);
    let (file, text) = (layout.root().join("settings"), settings.to_string());
    if std::fs::read_to_string(&file).is_ok_and(|known| known == text) {
        return Ok(());
    }
    layout.forget_results().map_err(of_fleet)?;
    let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(&file);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| file.display().to_string())
}

/// The payload of a job, as a worker reads it.
pub(super) fn job_of(job: &Job) -> anyhow::Result<GroupJob> {
    GroupJob::from_bytes(&job.payload).with_context(|| format!("the payload of job {}", job.name))
}
