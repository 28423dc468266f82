//! Batches that workers generate, in place of the pipeline's own collector.
//!
//! A batch is offered to workers when the weights that generate it are published: at the start of the run, and after
//! the last step on each batch. The learner waits for a batch when its first step begins. It also waits before a
//! checkpoint that must contain the batch, because the weights that generate it will be gone after a resume. The
//! learner makes evaluations itself.

use super::ahead::Ahead;
use super::audit::Auditor;
use super::waiting::Progress;
use super::{OnlineBatch, RolloutPipeline};
use crate::bad_input;
use crate::config::{Config, Trust};
use crate::distributed::{
    Chunks, Distributed, Frontier, FrontierGroup, Identity, Network, Pending, Shared, Start, by_group, makers,
    of_fleet_group, share_cores,
};
use crate::error::BadInput;
use crate::models::WriteFiles;
use crate::rollouts::collector::{Collect, CollectRequest, Collected, Collector, Observer};
use crate::rollouts::jobs::{Assembler, BegunBatch, GroupJob};
use crate::rollouts::lineage::Lineage;
use crate::rollouts::scoring::Prompts;
use crate::run::training::TrainingRun;
use fleet::{BatchId, Continued, JobResult, Plan, Version};
use model::{AdaptedWeights, GroupId, Updates};
use rollout::Engine;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The checkpoint file with the lineages of those weights that workers may still sample from.
const FILE: &str = "fleet.json";

/// A worker that has given this many answers which do not answer their jobs is expelled.
const MOST_REFUSALS: u32 = 3;

/// A batch as it was offered, with the results of its jobs.
pub(super) type Arrived = (Option<Pending>, Vec<JobResult>);

/// The workers of a distributed run, as the learner sees them.
pub(super) struct Workers {
    pub(super) assembler: Assembler,
    /// The learner's own engine, for evaluations and audits.
    pub(super) engine: Option<Engine>,
    pub(super) auditor: Auditor,
    slots: [u8; 16],
    network: Option<Network>,
    longest_prompt: usize,
    /// The connection to the workers; `None` before the run begins.
    pub(super) fleet: Option<Distributed>,
    /// Lineages of older weights, read from the checkpoint.
    restored: BTreeMap<Version, fleet::Lineage>,
    /// For each offered batch, the lineage of the weights that generate it.
    lineages: BTreeMap<BatchId, Option<Lineage>>,
    /// True while a checkpoint is being written.
    saving: bool,
}

impl Workers {
    /// Workers for a new run, before it begins.
    pub fn new(
        (assembler, engine, auditor): (Assembler, Option<Engine>, Auditor),
        slots: [u8; 16],
        longest_prompt: usize,
    ) -> Workers {
        let (restored, lineages) = Default::default();
        let (network, fleet) = (None, None);
        Workers { assembler, engine, auditor, slots, network, longest_prompt, fleet, restored, lineages, saving: false }
    }

    /// Adds a network address where workers on other machines join.
    pub fn over(self, network: Option<Network>) -> Workers {
        Workers { network, ..self }
    }

    /// Remembers that weights of this lineage generate these batches.
    fn remember(&mut self, batches: &BTreeMap<BatchId, Pending>, lineage: Option<Lineage>) {
        self.lineages.extend(batches.keys().map(|&batch| (batch, lineage)));
    }

    fn lineage(&self, batch: BatchId) -> Option<Lineage> {
        self.lineages.get(&batch).copied().flatten()
    }

    /// The last job of each group and its answer. With chunks, a group has several jobs in a row.
    fn last_of_each(
        &self,
        jobs: Vec<GroupJob>,
        results: Vec<JobResult>,
    ) -> anyhow::Result<(Vec<GroupJob>, Vec<Vec<u8>>)> {
        let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.plan().chunks) else {
            return Ok((jobs, results.into_iter().map(|result| result.bytes).collect()));
        };
        let of_groups = by_group(&results);
        let (mut last_jobs, mut answers) = (Vec::new(), Vec::new());
        for whole in jobs {
            let Some(results) = of_groups.get(&whole.group) else { continue };
            let (Some(last), Some(result)) = (fleet.chain(&whole, results)?.pop(), results.last()) else { continue };
            last_jobs.push(last.job);
            answers.push(result.bytes.clone());
        }
        Ok((last_jobs, answers))
    }

    fn assemble(
        &mut self,
        run: &TrainingRun,
        like: CollectRequest<'_>,
        (pending, results): Arrived,
        waited_s: f64,
    ) -> anyhow::Result<Collected> {
        let Some(Pending { prompts, jobs, step }) = pending else {
            anyhow::bail!("a batch that nobody offered has arrived");
        };
        let (jobs, answers) = self.last_of_each(jobs, results)?;
        let progress = Progress::of(&run.log, &run.learner);
        let observer = Observer { stages: &run.log.stages, on_wait: &|reward, time| progress.waits(reward, time) };
        self.assembler.assemble(CollectRequest { prompts, step, ..like }, &jobs, &answers, waited_s, &observer)
    }
}

/// The later batches that a checkpoint contains: complete ones, or unfinished ones with chunks.
enum Made {
    Whole(VecDeque<Arc<Ahead>>),
    Begun(VecDeque<Arc<BegunBatch>>),
}

/// Collects the completions of an evaluation, in the learner itself.
impl Collect for Workers {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        let Some(engine) = self.engine.take() else { anyhow::bail!("this run evaluates nothing") };
        let Assembler { rewards, tokenizer, stop, .. } = &mut self.assembler;
        let (rewards, tokenizer, stop) = (std::mem::take(rewards), tokenizer.clone(), stop.clone());
        let mut collector = Collector { engine, function: None, rewards, tokenizer, stop };
        let collected = collector.collect_with(weights.into(), request, observer);
        (self.engine, self.assembler.rewards) = (Some(collector.engine), collector.rewards);
        collected
    }
}

/// Refuses options with which a batch depends on the end of the previous one, since workers generate batches ahead.
pub(super) fn refuse_what_workers_cannot(config: &Config, has_function: bool) -> anyhow::Result<()> {
    let why = match () {
        () if config.dynamic_sampling => {
            "`dynamic_sampling` draws prompts by what the rewards of a batch say: set dynamic_sampling = false"
        }
        () if config.target_kl.is_some() => {
            "`target_kl` ends a batch early, and batches are counted before: leave it unset"
        }
        () if config.replay.is_some() => "`replay` reads completions from a file, and workers generate them",
        () if has_function => "a rollout function (rollout_func) is this program's own, and workers do not have it",
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
            "a distributed run: `queue_maxsize` is {}, and a checkpoint has the groups of the batches ahead, \
             max_staleness × {groups}: set it to {} or more",
            config.queue_maxsize,
            k * groups
        );
    }
    Ok(())
}

impl RolloutPipeline {
    /// Whether workers generate the batches.
    pub fn has_workers(&self) -> bool {
        self.workers.is_some()
    }

    /// Returns an error if an epoch cannot be ended early: its next batches are being made already, or a record of the
    /// rollouts would not tell of it.
    pub fn check_ends_epochs(&self, config: &Config) -> anyhow::Result<()> {
        let why = if self.has_workers() || config.max_staleness > 0 {
            "its next batches are being generated already (workers, max_staleness)"
        } else if config.record_rollouts {
            "`lockstep verify` draws the recorded prompts again, and would draw others (record_rollouts)"
        } else {
            return Ok(());
        };
        Err(BadInput::new(format!(
            "the epoch cannot be ended before its last step (should_epoch_stop): {why}: end training with \
             should_training_stop, or change that"
        )))
    }

    /// Groups in each batch.
    fn groups(&self) -> u64 {
        (self.sizes.generation / self.sizes.group) as u64
    }

    /// The batch after the one in use.
    fn next_batch(&self) -> BatchId {
        BatchId(self.state.next_group.0 / self.groups())
    }

    /// The batch after the one in use and after those that were generated ahead.
    fn next_after_ahead(&self) -> BatchId {
        self.next_batch().after(self.state.ahead.len() as u64)
    }

    /// The request that all collections of the run share, without prompts.
    pub(super) fn like(&self) -> CollectRequest<'_> {
        CollectRequest {
            prompts: BTreeMap::new(),
            num_generations: self.sizes.group,
            sampling: &self.sampling,
            reward_weights: &self.reward_weights,
            step: 0,
            refuse_non_finite: false,
        }
    }

    /// The batches `first` to `last`, as they are offered for the current weights.
    fn offered(
        &self,
        run: &TrainingRun,
        workers: &Workers,
        first: BatchId,
        last: BatchId,
    ) -> BTreeMap<BatchId, Pending> {
        let (mut sampler, groups) = (run.data.sampler.clone(), self.groups());
        self.next_batch().up_to(first).for_each(|_| drop(sampler.next_batch()));
        let (step, updates) = (run.learner.step, run.learner.policy.weights.version());
        let pending = |batch: BatchId| {
            let prompts = GroupId(batch.0 * groups).and_after().zip(self.prompts(&sampler.next_batch())).collect();
            (batch, self.pending(workers, step, prompts, updates))
        };
        first.up_to(last.next()).map(pending).collect()
    }

    /// A batch of these prompts as it is offered after `step` optimizer steps, for weights of version `updates`.
    fn pending(&self, workers: &Workers, step: u64, prompts: Prompts, updates: Updates) -> Pending {
        let request = CollectRequest { prompts, step, ..self.like() };
        let jobs = workers.assembler.jobs(&request, updates);
        Pending { prompts: request.prompts, jobs, step }
    }

    /// Opens the connection to the workers, and offers the batches that the current weights must generate.
    pub(super) fn begin_workers(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        let Some(mut workers) = self.workers.take() else { return Ok(()) };
        let config = &run.config;
        let batches = run.learner.schedule.total_steps.div_ceil(self.sizes.steps());
        let at_beginning = self.batch_is_used_up();
        let batch = if at_beginning { self.next_batch() } else { self.next_batch().before() };
        // Batches that the checkpoint does not have are sampled by the weights with which the run continues.
        let first = self.next_after_ahead().after(self.state.begun.len() as u64);
        let continued = Continued { batch: first, version: self.next_batch().version() };
        let refusals_per_worker = if config.trust == Trust::Audit { 1 } else { MOST_REFUSALS };
        let plan = Plan {
            continued,
            refusals_per_worker,
            max_inflight_tasks: config.max_inflight_tasks as u64,
            queue_maxsize: config.queue_maxsize as u64,
            stale_after_ms: (config.heartbeat_stale_after_s * 1000.0) as u64,
            failures_per_job: config.max_failures_per_job as u32,
            kills_per_job: config.max_kills_per_job as u32,
            chunks: config.partial_rollout_tokens.is_some(),
            ..Plan::new(batches, self.groups(), config.max_staleness as u64)
        };
        let vocabulary = run.learner.policy.weights.config().vocab_size;
        let chunks = Chunks::new(&plan, config.partial_rollout_tokens, vocabulary);
        let mut groups: Vec<FrontierGroup> = self.state.ahead.iter().flat_map(|ahead| ahead.groups()).collect();
        if !at_beginning {
            groups.extend(in_use(&self.state.batch.samples, plan.groups_of(batch).map(of_fleet_group), &chunks));
        }
        let mut begun = BTreeMap::new();
        for (place, answers) in (0..).zip(std::mem::take(&mut self.state.begun)) {
            let (batch, answers) = (self.next_batch().after(place), Arc::unwrap_or_clone(answers));
            begun.insert(batch, self.pending(&workers, answers.step, answers.prompts.clone(), Updates(0)));
            groups.extend(workers.frontier_of(answers, &chunks)?);
        }
        let last = batch.after(plan.max_staleness).min(plan.end().before());
        let mut pending =
            if at_beginning && batch < plan.end() { self.offered(run, &workers, first, last) } else { BTreeMap::new() };
        workers.remember(&pending, self.state.lineage);
        pending.append(&mut begun);
        let dir = &run.checkpoints.dir;
        let learner = &mut run.learner;
        let policy = &mut learner.policy;
        let shared = Shared {
            identity: Identity::of(&learner.ctx, config, &policy.files),
            run: workers.slots,
            base: policy.weights.shared_base.clone(),
            slots: BTreeMap::new(),
            rewards: workers.assembler.of_workers.iter().cloned().collect(),
            network: None,
            longest_prompt: workers.longest_prompt,
            prompt_time_s: run.prompt_time.0,
            weight_sync_bytes_copied: 0,
            bytes_fetched: 0,
        };
        share_cores(&learner.ctx, dir.root())?;
        let lineage = self.state.lineage.map_or([0; 16], |lineage| lineage.0);
        let settings = Lineage::of(&[&self.settings.0, run.data.hash.as_bytes()]);
        let start = Start {
            batch,
            at_beginning,
            lineage: fleet::Lineage(lineage),
            frontier: Frontier { groups, lineages: std::mem::take(&mut workers.restored) },
            settings: fleet::Lineage(settings.0),
            audits: workers.auditor.is_on(),
            sampling: self.sampling.clone(),
            chunks,
            ctx: learner.ctx.clone(),
        };
        let network = workers.network.as_ref().map(|network| (network, policy.files.clone()));
        let opened = Distributed::open(dir.root(), network, plan, shared, start, &mut policy.weights, pending)?;
        workers.fleet = Some(opened);
        self.workers = Some(workers);
        Ok(())
    }

    /// The batch of the next step, which workers have generated.
    pub(super) fn next_from_workers(&mut self, run: &TrainingRun, next: &mut OnlineBatch) -> anyhow::Result<Collected> {
        let Some(mut workers) = self.workers.take() else { unreachable!("there are workers") };
        let collected = self.take_from_workers(&mut workers, run, next);
        self.workers = Some(workers);
        collected
    }

    fn take_from_workers(
        &self,
        workers: &mut Workers,
        run: &TrainingRun,
        next: &mut OnlineBatch,
    ) -> anyhow::Result<Collected> {
        let batch = self.next_batch();
        workers.lineages = workers.lineages.split_off(&batch);
        let Some(fleet) = &mut workers.fleet else { unreachable!("the run has begun") };
        let since = Instant::now();
        let span = run.log.stages.span("rollout");
        let mut arrived = fleet.wait(batch, &run.stop, &|text| run.log.warn(text))?;
        // What a checkpoint has was looked at when it was written.
        while next.state.ahead.is_empty() && workers.expels_a_liar(run, batch, &arrived)? {
            let Some(fleet) = &mut workers.fleet else { break };
            arrived = fleet.wait(batch, &run.stop, &|text| run.log.warn(text))?;
        }
        let makers = makers(&arrived.1);
        let Some(fleet) = &mut workers.fleet else { unreachable!("the run has begun") };
        span.end();
        let waited_s = since.elapsed().as_secs_f64();
        run.log.stages.count("waited_for_workers_s", waited_s);
        let (counts, complete) = fleet.counts();
        let copied = run.learner.policy.weights.bytes_copied();
        for (name, value) in [
            ("learner_wait_s", waited_s),
            ("queue_complete", complete as f64),
            ("groups_remade", counts.remade as f64),
            ("groups_twice", counts.twice as f64),
            ("groups_differing", counts.differing as f64),
            ("weight_sync_bytes_copied", copied as f64),
            ("bytes_fetched", fleet.bytes_fetched() as f64),
        ] {
            next.run.add(&format!("async/{name}"), value);
        }
        let collected = match next.state.ahead.pop_front() {
            Some(ahead) => {
                next.sampled_by = ahead.lineage;
                Arc::try_unwrap(ahead).map_or_else(|ahead| ahead.collected.clone(), |ahead| ahead.collected)
            }
            None => {
                let in_chunks = run.config.partial_rollout_tokens.is_some();
                next.sampled_by = if in_chunks { self.state.lineage } else { workers.lineage(batch) };
                next.state.begun.clear();
                let collected = workers.assemble(run, self.like(), arrived, waited_s)?;
                self.score_again(run, workers, batch, &collected, &makers)?;
                collected
            }
        };
        if let Some(fleet) = &mut workers.fleet {
            for (name, value) in workers.auditor.metrics(fleet.expulsions()) {
                next.run.add(&format!("async/{name}"), value);
            }
            fleet.release(batch);
        }
        let checked = next.state.health.check(&collected.scored.rollouts, &collected.scored.problems, &run.config);
        if let (Err(_), Some(fleet)) = (&checked, &workers.fleet) {
            fleet.forget_from(batch)?;
        }
        checked?;
        collected.record_overlapped(&run.log.stages);
        next.run.data.sampler.next_batch();
        Ok(collected)
    }

    /// Waits for the batches that a checkpoint at this step must contain.
    pub fn complete_ahead(&mut self, run: &TrainingRun) -> anyhow::Result<()> {
        let Some(mut workers) = self.workers.take() else { return Ok(()) };
        let made = self.made_by_workers(&mut workers, run);
        self.workers = Some(workers);
        match made? {
            Made::Whole(ahead) => self.state.ahead.extend(ahead),
            Made::Begun(begun) => self.state.begun = begun,
        }
        Ok(())
    }

    fn made_by_workers(&self, workers: &mut Workers, run: &TrainingRun) -> anyhow::Result<Made> {
        workers.saving = true;
        let (mut ahead, mut begun) = (VecDeque::new(), VecDeque::new());
        let in_chunks = run.config.partial_rollout_tokens.is_some();
        let Some(fleet) = &workers.fleet else { return Ok(Made::Whole(ahead)) };
        let next = self.next_batch();
        let end = next.after(fleet.plan().max_staleness).min(fleet.plan().end());
        for batch in self.next_after_ahead().up_to(end) {
            let Some(fleet) = &mut workers.fleet else { break };
            // Of a run that was continued here nothing was made by older weights.
            if fleet.plan().version(batch, 0) >= next.version() {
                break;
            }
            let mut arrived =
                fleet.wait_for_frontier((batch, next.version()), &run.stop, &|text| run.log.warn(text))?;
            while workers.expels_a_liar(run, batch, &arrived)? {
                let Some(fleet) = &mut workers.fleet else { break };
                arrived = fleet.wait_for_frontier((batch, next.version()), &run.stop, &|text| run.log.warn(text))?;
            }
            if in_chunks {
                begun.push_back(Arc::new(workers.begun_batch(arrived)?));
                continue;
            }
            let (lineage, makers) = (workers.lineage(batch), makers(&arrived.1));
            let collected = workers.assemble(run, self.like(), arrived, 0.0)?;
            self.score_again(run, workers, batch, &collected, &makers)?;
            ahead.push_back(Arc::new(Ahead { collected, lineage }));
        }
        Ok(if in_chunks { Made::Begun(begun) } else { Made::Whole(ahead) })
    }

    /// Ends an optimizer step: moves the reference model, if that is due, and publishes the weights after the last step
    /// on a batch.
    pub fn end_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        self.record_after_step(run)?;
        self.sync_reference(run)?;
        let Some(mut workers) = self.workers.take() else { return Ok(()) };
        let ended = self.end_step_of_workers(&mut workers, run);
        self.workers = Some(workers);
        ended
    }

    fn end_step_of_workers(&self, workers: &mut Workers, run: &mut TrainingRun) -> anyhow::Result<()> {
        let Some(fleet) = &workers.fleet else { return Ok(()) };
        let _span = run.log.stages.span("publish");
        // A checkpoint is whole before the weights change.
        if std::mem::take(&mut workers.saving) {
            fleet.checkpoint_written()?;
        }
        if !self.batch_is_used_up() {
            return Ok(());
        }
        let (first, plan) = (fleet.offered_up_to().max(self.next_after_ahead()), fleet.plan());
        let last = self.next_batch().after(plan.max_staleness);
        let offered = match last.min(plan.end().before()) {
            last if first <= last => self.offered(run, workers, first, last),
            _ => BTreeMap::new(),
        };
        workers.remember(&offered, self.state.lineage);
        let TrainingRun { learner, log, .. } = run;
        let Some(fleet) = &mut workers.fleet else { return Ok(()) };
        fleet.advance(&mut learner.policy.weights, offered, &|text| log.warn(text))
    }

    /// Called when the run takes no further step now and its last checkpoint is whole: batches before it are deleted.
    pub fn checkpoint_written(&mut self) -> anyhow::Result<()> {
        let Some(workers) = &mut self.workers else { return Ok(()) };
        match &workers.fleet {
            Some(fleet) if std::mem::take(&mut workers.saving) => fleet.checkpoint_written(),
            _ => Ok(()),
        }
    }

    /// Ends the run, which will not take another step.
    pub fn end(&self) -> anyhow::Result<()> {
        self.workers.as_ref().and_then(|workers| workers.fleet.as_ref()).map_or(Ok(()), |fleet| fleet.end())
    }

    /// A function that writes the lineages of the weights into a checkpoint; `None` without workers.
    pub(super) fn write_workers(&self) -> Option<WriteFiles> {
        let lineages = self.workers.as_ref()?.fleet.as_ref()?.lineages();
        Some(Box::new(move |dir: &Path| Ok(disk::write(dir.join(FILE), serde_json::to_vec(&lineages)?)?)))
    }

    /// Restores the lineages from a checkpoint. Checkpoints of runs without workers have none.
    pub(super) fn restore_workers(&mut self, checkpoint: &Path) -> anyhow::Result<()> {
        let Some(workers) = &mut self.workers else { return Ok(()) };
        match disk::read(checkpoint.join(FILE), disk::most::STATE) {
            Ok(bytes) => workers.restored = serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// The groups of the generation batch in use, in the form of job answers.
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
