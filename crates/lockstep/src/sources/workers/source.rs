//! The source of batches that workers generate.
//!
//! A batch is offered to workers when the weights that generate it are published: at the start of the run, and after
//! the last step on each batch. The learner waits for a batch at the start of its first step, and before a checkpoint
//! that must contain it, because the weights of the batch will be lost after a resume. The learner runs evaluations
//! itself.

use super::audit::Auditor;
use super::learner::Arrived;
use super::{
    Chunks, Fleet, Frontier, FrontierGroup, Identity, LearnerStart, Network, Pending, Shared, by_group,
    group_from_fleet, makers, share_cores,
};
use crate::bad_input;
use crate::config::{Config, Trust};
use crate::data::Sampler;
use crate::models::WriteFiles;
use crate::rollouts::assembler::Assembler;
use crate::rollouts::collector::{Collect, CollectRequest, Collected, Generator, Observer};
use crate::rollouts::function::SharedScorer;
use crate::rollouts::jobs::GroupJob;
use crate::rollouts::lineage::Lineage;
use crate::rollouts::scoring::Prompts;
use crate::sources::{Ahead, Batch, BatchSource, BatchSpec, Now, SavedState, SourceState, Start, StepDone, Watch};
use anyhow::Context as _;
use fleet::{BatchId, Continued, JobResult, Plan, Version};
use model::{AdaptedWeights, GroupId, Updates};
use rollout::Engine;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use telemetry::Step;

/// The checkpoint file with the lineages of weights that workers may still sample from.
const FILE: &str = "fleet.json";

/// A worker is expelled after this many answers that do not match their jobs.
const MOST_REFUSALS: u32 = 3;

/// The source of batches of a distributed run.
pub struct WorkerSource {
    pub(super) spec: BatchSpec,
    pub(super) assembler: Assembler,
    /// The learner's own engine, for evaluations and audits.
    pub(super) engine: Option<Engine>,
    /// Recomputes log-probabilities for audits.
    pub(super) scorer: Option<SharedScorer>,
    pub(super) auditor: Auditor,
    /// Identifies the slots of shared memory with the weights.
    slots: [u8; 16],
    network: Option<Network>,
    longest_prompt: usize,
    /// The connection to the workers; `None` before the run begins.
    pub(super) fleet: Option<Fleet>,
    /// Lineages of older weights, from the checkpoint.
    restored: BTreeMap<Version, fleet::Lineage>,
    /// For each offered batch, the lineage of the weights that generate it.
    lineages: BTreeMap<BatchId, Option<Lineage>>,
    /// True while a checkpoint has all its data, but `fleet` has not been notified that the checkpoint is complete. The
    /// notification comes before the next step, or at a stop.
    uncommitted: bool,
}

/// The parts of a learner besides the settings of its batches.
pub struct WorkerSourceParts {
    /// Calls the rewards that workers lack.
    pub assembler: Assembler,
    /// The learner's own engine, for evaluations and audits.
    pub engine: Option<Engine>,
    /// Recomputes log-probabilities for audits.
    pub scorer: Option<SharedScorer>,
    /// Identifies the slots of shared memory with the weights.
    pub slots: [u8; 16],
    /// The network address where workers on other machines join.
    pub network: Option<Network>,
    /// Tokens of the longest prompt in the run's data.
    pub longest_prompt: usize,
}

impl WorkerSource {
    /// A source of a run that has not begun.
    pub fn new(spec: BatchSpec, parts: WorkerSourceParts) -> anyhow::Result<WorkerSource> {
        let WorkerSourceParts { assembler, engine, scorer, slots, network, longest_prompt } = parts;
        let auditor = Auditor::new(&spec.config)?;
        Ok(WorkerSource {
            spec,
            assembler,
            engine,
            scorer,
            auditor,
            slots,
            network,
            longest_prompt,
            fleet: None,
            restored: BTreeMap::new(),
            lineages: BTreeMap::new(),
            uncommitted: false,
        })
    }

    /// The connection to the workers.
    pub(super) fn fleet(&mut self) -> anyhow::Result<&mut Fleet> {
        self.fleet.as_mut().context("the run has not begun, so it has no workers")
    }

    /// The number of the batch after the current one.
    fn number_of_next(&self, at: &SourceState) -> BatchId {
        BatchId(at.next_group.0 / self.spec.sizes.groups() as u64)
    }

    /// The batch after the current one and those generated ahead.
    fn next_after_ahead(&self, at: &SourceState) -> BatchId {
        self.number_of_next(at).after(at.ahead.len() as u64)
    }

    /// The batches `first` to `last`, as offered for weights of version `updates` after `step` optimizer steps. `data`
    /// is the position in the data after the current batch.
    fn offered(
        &self,
        at: &SourceState,
        (first, last): (BatchId, BatchId),
        mut data: Sampler,
        (step, updates): (Step, Updates),
    ) -> BTreeMap<BatchId, Pending> {
        self.number_of_next(at).up_to(first).for_each(|_| drop(data.next_batch()));
        let groups = self.spec.sizes.groups() as u64;
        let pending = |batch: BatchId| {
            let prompts = self.spec.numbered(GroupId(batch.0 * groups), &data.next_batch());
            (batch, self.pending(step, prompts, updates))
        };
        first.up_to(last.next()).map(pending).collect()
    }

    /// A batch of these prompts, as offered after `step` optimizer steps for weights of version `updates`.
    fn pending(&self, step: Step, prompts: Prompts, updates: Updates) -> Pending {
        let request = self.spec.request(prompts, step);
        let jobs = self.assembler.jobs(&request, updates);
        Pending { prompts: request.prompts, jobs, step }
    }

    /// Records that weights of this lineage generate these batches.
    fn remember(&mut self, batches: &BTreeMap<BatchId, Pending>, lineage: Option<Lineage>) {
        self.lineages.extend(batches.keys().map(|&batch| (batch, lineage)));
    }

    fn lineage(&self, batch: BatchId) -> Option<Lineage> {
        self.lineages.get(&batch).copied().flatten()
    }

    /// The last job of each group and its answer. With chunks, a group has several consecutive jobs.
    fn last_of_each(
        &self,
        jobs: Vec<GroupJob>,
        results: Vec<JobResult>,
    ) -> anyhow::Result<(Vec<GroupJob>, Vec<Vec<u8>>)> {
        let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.plan().chunks) else {
            return Ok((jobs, results.into_iter().map(|result| result.bytes).collect()));
        };
        let groups = by_group(&results);
        let (mut last_jobs, mut answers) = (Vec::new(), Vec::new());
        for whole in jobs {
            let Some(results) = groups.get(&whole.group) else { continue };
            let (Some(last), Some(result)) = (fleet.chain(&whole, results)?.pop(), results.last()) else { continue };
            last_jobs.push(last.job);
            answers.push(result.bytes.clone());
        }
        Ok((last_jobs, answers))
    }

    /// Assembles a batch, and calls the rewards that workers lack. A share of the batch is audited.
    fn assemble(
        &mut self,
        batch: BatchId,
        (pending, results): Arrived,
        waited_s: f64,
        now: &Now<'_>,
    ) -> anyhow::Result<Collected> {
        let makers = makers(&results);
        let Pending { prompts, jobs, step } = pending.context("a batch that was not offered has arrived")?;
        let (jobs, answers) = self.last_of_each(jobs, results)?;
        let request = self.spec.request(prompts, step);
        let observer = now.watch.observer();
        let collected = self.assembler.assemble(request, &jobs, &answers, waited_s, &observer)?;
        self.score_again(batch, &collected, &makers, now)?;
        Ok(collected)
    }

    /// The metrics of the wait for a batch.
    fn metrics_of_wait(&mut self, waited_s: f64, weights: &AdaptedWeights) -> anyhow::Result<Vec<(String, f64)>> {
        let fleet = self.fleet()?;
        let (counts, complete) = fleet.counts();
        let metrics = [
            ("learner_wait_s", waited_s),
            ("queue_complete", complete as f64),
            ("groups_remade", counts.remade as f64),
            ("groups_twice", counts.twice as f64),
            ("groups_differing", counts.differing as f64),
            ("weight_sync_bytes_copied", weights.bytes_copied() as f64),
            ("bytes_fetched", fleet.bytes_fetched() as f64),
        ];
        Ok(metrics.map(|(name, value)| (format!("async/{name}"), value)).into())
    }
}

impl BatchSource for WorkerSource {
    /// Opens the connection to the workers, and offers the batches that the current weights must generate.
    fn begin(&mut self, at: &mut SourceState, start: Start<'_>) -> anyhow::Result<()> {
        let config = &self.spec.config;
        let batches = start.total_steps.div_ceil(self.spec.sizes.steps());
        let at_beginning = start.in_use.is_empty();
        let batch = if at_beginning { self.number_of_next(at) } else { self.number_of_next(at).before() };
        // Batches that the checkpoint lacks are sampled with the weights from which the run continues.
        let first = self.next_after_ahead(at).after(at.begun.len() as u64);
        let plan = Plan {
            continued: Continued { batch: first, version: self.number_of_next(at).version() },
            refusals_per_worker: if config.trust == Trust::Audit { 1 } else { MOST_REFUSALS },
            max_inflight_tasks: config.max_inflight_tasks as u64,
            queue_maxsize: config.queue_maxsize as u64,
            stale_after_ms: (config.heartbeat_stale_after_s * 1000.0) as u64,
            failures_per_job: config.max_failures_per_job as u32,
            kills_per_job: config.max_kills_per_job as u32,
            chunks: config.partial_rollout_tokens.is_some(),
            ..Plan::new(batches, self.spec.sizes.groups() as u64, config.max_staleness as u64)
        };
        let Start { policy, ctx, .. } = start;
        let vocabulary = policy.weights.config().vocab_size;
        let chunks = Chunks::new(&plan, config.partial_rollout_tokens, vocabulary);
        let identity = Identity::of(ctx, config, &policy.files);
        let mut groups: Vec<FrontierGroup> = at.ahead.iter().flat_map(|ahead| ahead.frontier()).collect();
        if !at_beginning {
            groups.extend(in_use(start.in_use, plan.groups_of(batch).map(group_from_fleet), &chunks));
        }
        let mut begun = BTreeMap::new();
        for (place, answers) in (0..).zip(std::mem::take(&mut at.begun)) {
            let (batch, answers) = (self.number_of_next(at).after(place), Arc::unwrap_or_clone(answers));
            begun.insert(batch, self.pending(answers.step, answers.prompts.clone(), Updates(0)));
            groups.extend(self.frontier_of(answers, &chunks)?);
        }
        let last = batch.after(plan.max_staleness).min(plan.end().before());
        let mut pending = BTreeMap::new();
        if at_beginning && batch < plan.end() {
            let weights = (start.step, policy.weights.version());
            pending = self.offered(at, (first, last), start.data.clone(), weights);
        }
        self.remember(&pending, start.lineage);
        pending.append(&mut begun);
        let shared = Shared {
            identity,
            run: self.slots,
            base: policy.weights.shared_base.clone(),
            slots: BTreeMap::new(),
            rewards: self.assembler.worker_rewards.iter().cloned().collect(),
            network: None,
            longest_prompt: self.longest_prompt,
            prompt_time_s: start.prompt_time.0,
            weight_sync_bytes_copied: 0,
            bytes_fetched: 0,
        };
        share_cores(ctx, start.dir)?;
        let settings = Lineage::of(&[&start.settings.0, start.data_hash.as_bytes()]);
        let learner = LearnerStart {
            batch,
            at_beginning,
            lineage: fleet_lineage(start.lineage),
            frontier: Frontier { groups, lineages: std::mem::take(&mut self.restored) },
            settings: fleet::Lineage(settings.0),
            audits: self.auditor.is_on(),
            sampling: self.spec.sampling.clone(),
            chunks,
            ctx: ctx.clone(),
        };
        let network = self.network.as_ref().map(|network| (network, policy.files.clone()));
        let opened = Fleet::open(start.dir, network, plan, shared, learner, &mut policy.weights, pending)?;
        self.fleet = Some(opened);
        Ok(())
    }

    /// The batch of the next step, which workers have generated.
    fn next(&mut self, next: &mut SourceState, data: &mut Sampler, now: &Now<'_>) -> anyhow::Result<Batch> {
        let Watch { stop, stages, warn, .. } = *now.watch;
        let (batch, config) = (self.number_of_next(next), &self.spec.config);
        let in_chunks = config.partial_rollout_tokens.is_some();
        if config.max_staleness > 0 {
            next.note_published(now.policy.weights.version(), config.max_staleness);
        }
        self.lineages = self.lineages.split_off(&batch);
        let since = Instant::now();
        let span = stages.span("rollout");
        let mut arrived = self.fleet()?.wait(batch, stop, warn)?;
        // A batch from a checkpoint was audited when the checkpoint was written.
        while next.ahead.is_empty() && self.expels_a_liar(batch, &arrived, now.watch)? {
            arrived = self.fleet()?.wait(batch, stop, warn)?;
        }
        span.end();
        let waited_s = since.elapsed().as_secs_f64();
        stages.count("waited_for_workers_s", waited_s);
        let mut metrics = self.metrics_of_wait(waited_s, &now.policy.weights)?;
        let (collected, sampled_by) = match next.ahead.pop_front() {
            Some(ahead) => {
                let lineage = ahead.lineage;
                (Ahead::into_collected(ahead), lineage)
            }
            None => {
                next.begun.clear();
                let sampled_by = if in_chunks { now.lineage } else { self.lineage(batch) };
                (self.assemble(batch, arrived, waited_s, now)?, sampled_by)
            }
        };
        let expulsions = self.fleet()?.expulsions();
        let audited = self.auditor.metrics(expulsions);
        metrics.extend(audited.into_iter().map(|(name, value)| (format!("async/{name}"), value)));
        self.fleet()?.training_begins(batch)?;
        let scored = &collected.scored;
        let checked = next.health.check(&scored.rollouts, &scored.problems, &self.spec.config);
        if checked.is_err() {
            self.fleet()?.forget_from(batch)?;
        }
        checked?;
        collected.record_overlapped(stages);
        next.next_group = collected.next_group;
        data.next_batch();
        Ok(Batch::Generated { collected, sampled_by, metrics })
    }

    /// Waits for the batches that a checkpoint at this step must contain.
    fn complete_for_checkpoint(&mut self, at: &mut SourceState, now: &Now<'_>) -> anyhow::Result<()> {
        let Watch { stop, warn, .. } = *now.watch;
        let in_chunks = self.spec.config.partial_rollout_tokens.is_some();
        let (version, first) = (self.number_of_next(at).version(), self.next_after_ahead(at));
        let batches = loop {
            let mut batches = self.fleet()?.wait_for_frontier(version, stop, warn)?;
            batches.retain(|(batch, _)| *batch >= first);
            let mut expels = false;
            for (batch, arrived) in &batches {
                expels = expels || self.expels_a_liar(*batch, arrived, now.watch)?;
            }
            if !expels {
                break batches;
            }
        };
        let (mut ahead, mut begun) = (VecDeque::new(), VecDeque::new());
        for (batch, arrived) in batches {
            if in_chunks {
                begun.push_back(Arc::new(self.begun_batch(arrived)?));
            } else {
                let lineage = self.lineage(batch);
                ahead.push_back(Arc::new(Ahead { collected: self.assemble(batch, arrived, 0.0, now)?, lineage }));
            }
        }
        if in_chunks {
            at.begun = begun;
        } else {
            at.ahead.extend(ahead);
        }
        self.uncommitted = true;
        Ok(())
    }

    /// Publishes the weights after the last step on a batch, and offers the batches that they will generate.
    fn advance(&mut self, at: &SourceState, done: StepDone<'_>) -> anyhow::Result<()> {
        let _span = done.watch.stages.span("publish");
        // A checkpoint must be complete before the weights change.
        if std::mem::take(&mut self.uncommitted) {
            self.fleet()?.checkpoint_written()?;
        }
        if !done.ends_batch {
            return Ok(());
        }
        let (next, after_ahead) = (self.number_of_next(at), self.next_after_ahead(at));
        let fleet = self.fleet()?;
        let (first, plan) = (fleet.offered_up_to().max(after_ahead), fleet.plan());
        let last = next.after(plan.max_staleness).min(plan.end().before());
        let mut offered = BTreeMap::new();
        if first <= last {
            offered = self.offered(at, (first, last), done.data.clone(), (done.step, done.weights.version()));
        }
        self.remember(&offered, done.lineage);
        self.fleet()?.advance(done.weights, fleet_lineage(done.lineage), offered, done.watch.warn)
    }

    fn collector(&mut self) -> Option<&mut dyn Collect> {
        Some(self)
    }

    /// Restores the state and the lineages of the weights. Checkpoints of runs without workers contain no lineages.
    fn restore(&mut self, saved: SavedState<'_>, checkpoint: &Path) -> anyhow::Result<SourceState> {
        match disk::read(checkpoint.join(FILE), disk::most::STATE) {
            Ok(bytes) => self.restored = serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        SourceState::read(saved, &self.spec, checkpoint)
    }

    /// Writes the state's files and the lineages of the weights.
    fn write(&self, at: &SourceState) -> Vec<WriteFiles> {
        let mut writes = at.write();
        if let Some(fleet) = &self.fleet {
            let lineages = fleet.lineages();
            writes.push(Box::new(move |dir| Ok(disk::write(dir.join(FILE), serde_json::to_vec(&lineages)?)?)));
        }
        writes
    }

    /// Deletes the files of batches before the checkpoint.
    fn checkpoint_written(&mut self) -> anyhow::Result<()> {
        match &self.fleet {
            Some(fleet) if std::mem::take(&mut self.uncommitted) => fleet.checkpoint_written(),
            _ => Ok(()),
        }
    }

    fn end(&self) -> anyhow::Result<()> {
        self.fleet.as_ref().map_or(Ok(()), Fleet::end)
    }

    fn is_distributed(&self) -> bool {
        true
    }
}

/// Collects the completions of an evaluation in the learner itself.
impl Collect for WorkerSource {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        let engine = self.engine.as_mut().context("this run has no evaluations")?;
        let Assembler { rewards, tokenizer, stop, .. } = &mut self.assembler;
        let generator = Generator { engine, divided: None, function: None, rewards, tokenizer, stop };
        generator.collect(weights.into(), request, observer)
    }
}

/// Refuses options that make a batch depend on the end of the previous one, since workers generate batches ahead.
pub fn refuse_what_workers_cannot(config: &Config, has_function: bool) -> anyhow::Result<()> {
    let why = match () {
        () if config.dynamic_sampling => {
            "`dynamic_sampling` must know the rewards of a batch before it draws prompts: set dynamic_sampling = false"
        }
        () if config.target_kl.is_some() => {
            "`target_kl` ends batches early, but batches are counted in advance: leave it unset"
        }
        () if config.replay.is_some() => {
            "`replay` reads completions from a file, but workers generate them: remove \
            one"
        }
        () if has_function => {
            "a rollout function (rollout_func) exists only in this program, and workers do not have \
            it"
        }
        () => return refuse_short_queue(config),
    };
    bad_input!("a distributed run: {why}");
}

/// Refuses a `queue_maxsize` too small for a checkpoint, which waits for all groups of the batches ahead, even from a
/// single worker.
fn refuse_short_queue(config: &Config) -> anyhow::Result<()> {
    let (k, groups) = (config.max_staleness, config.prompts_per_generation());
    if config.queue_maxsize < k * groups {
        bad_input!(
            "a distributed run: `queue_maxsize` is {}, but a checkpoint needs the groups of the batches ahead, \
             max_staleness × {groups}: set it to {} or more",
            config.queue_maxsize,
            k * groups
        );
    }
    Ok(())
}

/// The lineage of a run's weights in the fleet's type.
fn fleet_lineage(lineage: Option<Lineage>) -> fleet::Lineage {
    fleet::Lineage(lineage.map_or([0; 16], |lineage| lineage.0))
}

/// The groups of the current generation batch, as job answers.
fn in_use(samples: &[train::Sample], groups: impl Iterator<Item = GroupId>, chunks: &Chunks) -> Vec<FrontierGroup> {
    let of = |group: GroupId| {
        let own = samples.iter().filter(|sample| sample.group == group);
        let tokens = own.map(|s| (&s.completion[..], s.columns.sampler_logps().unwrap_or_default(), false));
        FrontierGroup { group, answers: chunks.answers(&tokens.collect::<Vec<_>>()), bytes: Vec::new() }
    };
    groups.map(of).collect()
}

#[cfg(test)]
mod tests;
