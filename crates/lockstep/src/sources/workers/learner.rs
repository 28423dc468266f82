//! The learner's side of a distributed run: it publishes weights, offers jobs for them, and waits for batches.

use super::chunks::{CHECKPOINT, Chunks, Link, Unusable};
use super::expelled::Expelled;
use super::ids::{group_from_fleet, group_of, job_name};
use super::made_by::MadeBy;
use super::missing::Missing;
use super::network::{Network, Serving, learner_exchange};
use super::payloads::Payloads;
use super::{Shared, SlotPlace, fleet_error};
use crate::config::SamplingPlan;
use crate::rollouts::jobs::GroupJob;
use crate::rollouts::scoring::Prompts;
use crate::stop::{StopSignal, Stopped};
use anyhow::{Context as _, bail};
use fleet::batches::BatchFiles;
use fleet::coordinator::Coordinator;
use fleet::exchange::{Counts, Exchange};
use fleet::learner::{Learner, LearnerHandle, Notice, Refused, SavedFrontier};
use fleet::{Answer, BatchId, Job, JobName, JobResult, Lineage, Plan, Version, WorkerName, takes};
use kernels::Context;
use model::io::ModelFiles;
use model::{AdaptedWeights, GroupId, HeldWeights};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telemetry::Step;

/// The longest wait for a single event. Stop requests are checked between waits.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a stopping learner waits for a worker to come back.
const LONELY_TIMEOUT: Duration = Duration::from_secs(3);

/// A batch that was offered to workers and not trained on yet.
#[derive(Clone)]
pub struct Pending {
    /// The prompt of each group.
    pub prompts: Prompts,
    /// The jobs of the groups, in group order.
    pub jobs: Vec<GroupJob>,
    /// Optimizer steps done when the batch was offered.
    pub step: Step,
}

/// An offered batch with the results of its jobs. A batch from a checkpoint has no [`Pending`].
pub type Arrived = (Option<Pending>, Vec<JobResult>);

/// A group in a checkpoint, which workers need not regenerate.
pub struct FrontierGroup {
    /// The group.
    pub group: GroupId,
    /// The answers to its jobs, one per generated chunk.
    pub answers: Vec<Answer>,
    /// The bytes of the last answer, if they are still needed. Empty if the checkpoint has the group itself.
    pub bytes: Vec<u8>,
}

/// Groups in a checkpoint that were sampled with older weights.
#[derive(Default)]
pub struct Frontier {
    /// The groups.
    pub groups: Vec<FrontierGroup>,
    /// The lineage of each version from which results may still arrive.
    pub lineages: BTreeMap<Version, Lineage>,
}

/// The point from which a learner starts: the start of a run, or a checkpoint.
pub struct LearnerStart {
    /// The next batch to train on, or the current batch if some of its steps are not done.
    pub batch: BatchId,
    /// True if the weights are those before the first step on this batch.
    pub at_beginning: bool,
    /// The lineage of the weights, if the frontier lacks it.
    pub lineage: Lineage,
    /// Groups and lineages from the checkpoint.
    pub frontier: Frontier,
    /// A hash of the settings that affect a step, besides its batch and the weights.
    pub settings: Lineage,
    /// True if answers are audited. The weights of a batch are then kept until [`Fleet::training_begins`].
    pub audits: bool,
    /// Selects each group's sampling profile.
    pub sampling: SamplingPlan,
    /// How groups are divided into jobs.
    pub chunks: Chunks,
    /// The learner's context, whose cores are released while the learner waits for workers.
    pub ctx: Context,
}

/// A learner's connection to its workers.
pub struct Fleet {
    out: PathBuf,
    ctx: Context,
    handle: LearnerHandle<Box<dyn Exchange + Send>>,
    /// The server for weights on other machines.
    serving: Option<Serving>,
    /// The content of jobs, read by the thread that offers them.
    payloads: Payloads,
    pending: BTreeMap<BatchId, Pending>,
    /// The results of batches whose files are on disk.
    arrived: BTreeMap<BatchId, Vec<JobResult>>,
    made_by: MadeBy,
    shared: Shared,
    plan: Plan,
    /// Weights that jobs may still need, by version, the newest last.
    held: VecDeque<(Version, HeldWeights)>,
    /// True if answers are audited. The sampling weights are then kept until the audit.
    audits: bool,
    expelled: Expelled,
    /// The workers expelled since this learner started.
    expulsions: usize,
    batch: BatchId,
    /// True after a stop found no worker for the results that its checkpoint needs.
    gave_up: bool,
}

impl Fleet {
    /// Opens the connection through the run directory `out`, or through `network` for workers on other machines, which
    /// fetch the `ModelFiles`. The current weights must generate `batches`.
    pub fn open(
        out: &Path,
        network: Option<(&Network, Arc<ModelFiles>)>,
        plan: Plan,
        mut shared: Shared,
        start: LearnerStart,
        weights: &mut AdaptedWeights,
        batches: BTreeMap<BatchId, Pending>,
    ) -> anyhow::Result<Fleet> {
        let exchange = learner_exchange(out, network.as_ref().map(|(network, _)| *network))?;
        let serve = |(network, files)| Serving::start(network, &out.join("config.toml"), files);
        let serving = network.map(serve).transpose()?;
        shared.network = serving.as_ref().map(Serving::place);
        let LearnerStart { batch, at_beginning, lineage, frontier, settings, audits, sampling, mut chunks, ctx } =
            start;
        let Frontier { groups, mut lineages } = frontier;
        let version = batch.version();
        let lineage = *lineages.entry(version).or_insert(lineage);
        forget_other_settings(out, settings)?;
        let files = BatchFiles::open(out).map_err(fleet_error)?;
        if at_beginning {
            let published = weights.publish(version.0, lineage.0)?;
            chunks.published(version, weights.version());
            shared.slots.insert(version, SlotPlace::of(published, lineage));
        }
        let worker = WorkerName::new(CHECKPOINT).map_err(fleet::Error::Failed)?;
        let results = |FrontierGroup { group, answers, mut bytes }: FrontierGroup| {
            let last = answers.len().saturating_sub(1);
            let result = |(chunk, answer)| JobResult {
                job: job_name(group, chunk as u32),
                lineage,
                worker: worker.clone(),
                answer,
                bytes: if chunk == last { std::mem::take(&mut bytes) } else { Vec::new() },
            };
            answers.into_iter().enumerate().map(result).collect::<Vec<_>>()
        };
        let frontier = groups.into_iter().flat_map(results).collect();
        let (expelled, names) = Expelled::open(out)?;
        let saved = SavedFrontier { version, in_batch: !at_beginning, lineages, frontier, expelled: names };
        let payloads = Payloads::new(chunks, sampling);
        payloads.offer(batch_jobs(&batches));
        if let Some(serving) = &serving {
            serving.publish(&shared.slots, shared.base.as_deref());
        }
        let json = serde_json::to_value(&shared)?;
        let learner = Learner::open(plan.clone(), saved, exchange, files, Box::new(payloads.clone()), json);
        let handle = LearnerHandle::start(learner.map_err(fleet_error)?).map_err(fleet_error)?;
        let holds = (plan.max_staleness > 0 || audits) && at_beginning;
        let held = VecDeque::from_iter(holds.then(|| (version, weights.hold())));
        let arrived = BTreeMap::new();
        let made_by = MadeBy::open(out)?;
        Ok(Fleet {
            out: out.to_owned(),
            ctx,
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
            expulsions: 0,
            batch,
            gave_up: false,
        })
    }

    /// The batch after the last offered one.
    pub fn offered_up_to(&self) -> BatchId {
        self.pending.last_key_value().map_or(self.batch, |(batch, _)| batch.next())
    }

    /// Waits until workers have completed a batch, whose file is then on disk.
    pub fn wait(&mut self, batch: BatchId, stop: &StopSignal, warn: &dyn Fn(&str)) -> anyhow::Result<Arrived> {
        let mut missing = Missing::new();
        loop {
            if let Some(results) = self.arrived.get(&batch) {
                let arrived = (self.pending.get(&batch).cloned(), results.clone());
                match self.first_unusable(&arrived, true) {
                    None => return Ok(arrived),
                    Some(unusable) => self.take_back(batch, &unusable, warn)?,
                }
            }
            self.take_step(warn)?;
            stop.check()?;
            self.look_for_missing(&mut missing, || self.open_groups(batch), warn);
        }
    }

    /// Waits for the part of later batches that a checkpoint must contain: the results of versions before `version`,
    /// whose weights will be lost after a resume. After a stop request it does not wait for missing workers.
    pub fn wait_for_frontier(
        &mut self,
        version: Version,
        stop: &StopSignal,
        warn: &dyn Fn(&str),
    ) -> anyhow::Result<Vec<(BatchId, Arrived)>> {
        let mut missing = Missing::new();
        let mut lonely_since = Instant::now();
        loop {
            if let Some(results) = self.handle.served(|learner| learner.frontier(version)).map_err(fleet_error)? {
                let batches = results.chunk_by(|a, b| self.batch_of(a) == self.batch_of(b));
                let arrived = batches.map(|results| {
                    let batch = self.batch_of(&results[0]);
                    (batch, (self.pending.get(&batch).cloned(), results.to_vec()))
                });
                let arrived: Vec<(BatchId, Arrived)> = arrived.collect();
                let unusable =
                    |(batch, arrived): &(BatchId, Arrived)| Some((*batch, self.first_unusable(arrived, false)?));
                match arrived.iter().find_map(unusable) {
                    None => return Ok(arrived),
                    Some((batch, unusable)) => self.take_back(batch, &unusable, warn)?,
                }
            }
            self.take_step(warn)?;
            let is_lonely = stop.is_requested()
                && (self.has_no_worker() || self.profile_of_nobody(&self.missing_before(version)).is_some());
            if !is_lonely {
                lonely_since = Instant::now();
                self.look_for_missing(&mut missing, || self.missing_before(version), warn);
            } else if self.gave_up || lonely_since.elapsed() > LONELY_TIMEOUT {
                if !std::mem::replace(&mut self.gave_up, true) {
                    warn(
                        "no worker is left to compute the results that a checkpoint of this step needs: a resumed run \
                         repeats the steps since the last checkpoint, whose batches are on disk",
                    );
                }
                return Err(Stopped.into());
            }
        }
    }

    fn batch_of(&self, result: &JobResult) -> BatchId {
        self.plan.batch_of(result.job.group)
    }

    /// Waits for an event and handles it. All waits for workers use this function.
    fn take_step(&mut self, warn: &dyn Fn(&str)) -> anyhow::Result<()> {
        self.ctx.release_cores();
        match self.handle.next_notice(POLL_INTERVAL).map_err(fleet_error)? {
            Some(Notice::Train(batch, results)) => {
                self.made_by.note(batch, &results)?;
                self.arrived.insert(batch, results);
            }
            Some(Notice::Warning(text)) => warn(&text),
            Some(Notice::Refused(Refused { worker, job, why, expels })) => {
                let group = group_of(job);
                let what = format!("its answer to the job of group {group} ({job}) cannot be read: {why}");
                if expels {
                    let open = self.handle.with(|learner| learner.coordinator().open_batch());
                    self.expel(&worker, open, &what, warn)?
                } else {
                    warn(&format!("worker {worker}: {what}; the job is repeated"))
                }
            }
            None => {}
        }
        Ok(())
    }

    /// The first result that does not answer its job; `None` for a batch from the checkpoint.
    fn first_unusable(&self, (pending, results): &Arrived, whole: bool) -> Option<Unusable> {
        self.payloads.lock().chunks.first_unusable(&pending.as_ref()?.jobs, results, whole)
    }

    /// Discards a result that an earlier learner accepted although it does not answer its job, so that it is
    /// recomputed.
    fn take_back(&mut self, batch: BatchId, unusable: &Unusable, warn: &dyn Fn(&str)) -> anyhow::Result<()> {
        if unusable.worker.as_ref().is_some_and(|worker| worker.as_str() == CHECKPOINT) {
            bail!("the checkpoint's answer to the job {} cannot be read: {}", unusable.job, unusable.why);
        }
        warn(&format!("{unusable}; an earlier learner accepted it, so it is recomputed"));
        self.arrived.retain(|other, _| *other < batch);
        self.handle.served(|learner| learner.take_back(batch, &[unusable.job])).map_err(fleet_error)
    }

    /// Warns if no connected worker can generate the groups that the learner is waiting for.
    fn look_for_missing(&self, missing: &mut Missing, open: impl Fn() -> Vec<GroupId>, warn: &dyn Fn(&str)) {
        if missing.is_due() {
            missing.news(self.what_is_missing(&open())).into_iter().for_each(warn);
        }
    }

    fn what_is_missing(&self, open: &[GroupId]) -> Option<String> {
        if self.has_no_worker() {
            let words = "no worker works for this run: start one with `lockstep worker --join DIR --name NAME`";
            return Some(words.to_owned());
        }
        self.profile_of_nobody(open).map(|profile| {
            format!(
                "no worker generates groups of the profile \"{profile}\": start one with `lockstep worker --join DIR \
                 --name NAME --profiles {profile}`"
            )
        })
    }

    /// The incomplete groups of a batch.
    fn open_groups(&self, batch: BatchId) -> Vec<GroupId> {
        self.handle.with(|learner| learner.coordinator().open_groups(batch).map(group_from_fleet).collect())
    }

    /// The groups for which a checkpoint lacks chunks of versions before `version`.
    fn missing_before(&self, version: Version) -> Vec<GroupId> {
        let (_, missing) = self.handle.with(|learner| learner.coordinator().frontier(version));
        missing.into_iter().map(group_of).collect()
    }

    /// A sampling profile of these groups for which no worker is connected.
    fn profile_of_nobody(&self, open: &[GroupId]) -> Option<String> {
        let workers = fleet::status::read(&self.out).ok()?.workers;
        let living =
            || workers.iter().filter(|worker| worker.alive.is_some()).filter_map(|worker| worker.status.as_ref());
        let takes = |name: &str| living().any(|one| takes(&one.profiles, name));
        let offered = self.payloads.lock();
        let mut names = open.iter().filter_map(|group| offered.sampling.profile(*group));
        names.find(|name| !takes(name)).map(str::to_owned)
    }

    fn has_no_worker(&self) -> bool {
        self.handle.with(|learner| learner.coordinator().workers().next().is_none())
    }

    /// Called after all steps on a batch. Publishes the weights with this `lineage` as the next version, and offers
    /// `batches` to be generated with it.
    pub fn advance(
        &mut self,
        weights: &mut AdaptedWeights,
        lineage: Lineage,
        batches: BTreeMap<BatchId, Pending>,
        warn: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        // A run that is resumed in the middle of a batch has not requested that batch.
        while !self.arrived.contains_key(&self.batch) {
            self.take_step(warn)?;
        }
        let next = self.batch.next();
        let version = next.version();
        let published = weights.publish(version.0, lineage.0).context("publishing the weights")?;
        if self.plan.max_staleness > 0 || self.audits {
            self.held.push_back((version, weights.hold()));
        }
        let oldest = self.plan.version(next, 0);
        self.held.retain(|(held, _)| *held >= oldest);
        if !self.audits {
            self.forget_weights_before(next.next());
        }
        self.arrived.remove(&self.batch);
        self.pending.remove(&self.batch);
        let first = group_from_fleet(self.plan.first_group(next));
        let mut offered = self.payloads.lock();
        offered.jobs.retain(|group, _| *group >= first);
        offered.chunks.published(version, weights.version());
        drop(offered);
        self.payloads.offer(batch_jobs(&batches));
        self.pending.extend(batches);
        self.shared.slots.retain(|published, _| *published >= oldest);
        self.shared.slots.insert(version, SlotPlace::of(published, lineage));
        self.shared.weight_sync_bytes_copied = weights.bytes_copied();
        self.batch = next;
        if let Some(serving) = &self.serving {
            serving.publish(&self.shared.slots, self.shared.base.as_deref());
            self.shared.bytes_fetched = serving.bytes_sent();
        }
        let json = serde_json::to_value(&self.shared)?;
        let trained = self.handle.served(|learner| {
            learner.share(json)?;
            learner.trained(lineage)
        });
        trained.map_err(fleet_error)
    }

    /// The weights of a version, while they are kept.
    pub fn weights_of(&self, version: Version) -> Option<&HeldWeights> {
        self.held.iter().find(|(held, _)| *held == version).map(|(_, weights)| weights)
    }

    /// Called when training on a batch begins. The batch's results are then final, and nothing reads its sampling
    /// weights any more, so the optimizer may overwrite these weights.
    pub fn training_begins(&mut self, batch: BatchId) -> anyhow::Result<()> {
        self.forget_weights_before(batch.next());
        self.handle.served(|learner| learner.training_began()).map_err(fleet_error)
    }

    /// Releases weights that only batches before `batch` need.
    fn forget_weights_before(&mut self, batch: BatchId) {
        let first = Version(batch.0.saturating_sub(self.plan.max_staleness));
        self.held.retain(|(version, _)| *version >= first);
    }

    /// Whether a result can still be replaced, because the run has not trained on it.
    pub fn can_remake(&self, job: JobName) -> bool {
        self.handle.with(|learner| learner.coordinator().can_remake(job))
    }

    /// The jobs of a group with their answers, from the results of its chunks.
    pub fn chain(&self, whole: &GroupJob, results: &[&JobResult]) -> Result<Vec<Link>, Unusable> {
        self.payloads.lock().chunks.chain(whole, results)
    }

    /// Expels a worker whose answer differs from the repeated job's. The worker's groups in batches from `from` on are
    /// regenerated.
    pub fn expel(&mut self, worker: &WorkerName, from: BatchId, why: &str, warn: &dyn Fn(&str)) -> anyhow::Result<()> {
        warn(&format!("worker {worker} is expelled: {why}; its groups that have not been trained on are regenerated"));
        self.expulsions += 1;
        self.expelled.note(worker, why)?;
        // Batches before `first` are not reopened or returned again.
        if let Some(first) = self.handle.served(|learner| learner.expel(worker, from)).map_err(fleet_error)? {
            self.arrived.retain(|batch, _| *batch < first);
        }
        Ok(())
    }

    /// Called after a checkpoint is complete: deletes the files of batches before the current one.
    pub fn checkpoint_written(&self) -> anyhow::Result<()> {
        let version = self.batch.version();
        self.handle.served(|learner| learner.committed(version)).map_err(fleet_error)
    }

    /// Discards `batch` and all later batches after a reward failure; the next learner has them regenerated.
    pub fn forget_from(&self, batch: BatchId) -> anyhow::Result<()> {
        self.handle.with(|learner| learner.forget_from(batch)).map_err(fleet_error)
    }

    /// Tells the workers that the run has ended; early stopping and callbacks end it before its last batch.
    pub fn end(&self) -> anyhow::Result<()> {
        self.handle.with(|learner| learner.end()).map_err(fleet_error)
    }

    /// The lineages of the weights, which a checkpoint saves with the batches.
    pub fn lineages(&self) -> BTreeMap<Version, Lineage> {
        self.handle.with(|learner| learner.coordinator().lineages().clone())
    }

    /// The number of workers expelled since this learner started.
    pub fn expulsions(&self) -> usize {
        self.expulsions
    }

    /// Bytes of weights and files fetched by other machines.
    pub fn bytes_fetched(&self) -> u64 {
        self.serving.as_ref().map_or(0, Serving::bytes_sent)
    }

    /// The plan of the run's batches, groups and limits.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The numbers of repeated jobs, and of complete groups of the next batches.
    pub fn counts(&self) -> (Counts, u64) {
        let complete = |coordinator: &Coordinator| {
            let last = coordinator.batch().after(self.plan.max_staleness);
            coordinator.batch().up_to(last.next()).map(|batch| coordinator.complete_groups(batch)).sum()
        };
        self.handle.with(|learner| (learner.counts(), complete(learner.coordinator())))
    }
}

fn batch_jobs(batches: &BTreeMap<BatchId, Pending>) -> impl Iterator<Item = &GroupJob> {
    batches.values().flat_map(|batch| &batch.jobs)
}

/// Deletes results that were generated with different settings, and thus with different weights.
fn forget_other_settings(out: &Path, settings: Lineage) -> anyhow::Result<()> {
    let layout = fleet::exchange::spool::Layout::in_run(out);
    let (file, text) = (layout.root().join("settings"), settings.to_string());
    if disk::read_to_string(&file, disk::most::STATE).is_ok_and(|known| known == text) {
        return Ok(());
    }
    layout.forget_results().map_err(fleet_error)?;
    let opened = disk::Options::new().write().create().truncate().mode(0o600).open(&file);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| file.display().to_string())
}

/// Decodes the payload of a job.
pub(super) fn job_of(job: &Job) -> anyhow::Result<GroupJob> {
    GroupJob::from_bytes(&job.payload).with_context(|| format!("the payload of job {}", job.name))
}

#[cfg(test)]
mod tests;
