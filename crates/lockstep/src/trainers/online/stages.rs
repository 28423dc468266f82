//! The stages of a training step with rollouts, in the order of its data.

use super::reference::Reference;
use super::spread::{distributions, quantiles};
use super::waiting::{Progress, watched};
use super::{GenerationBatch, OnlineBatch, Report, RolloutPipeline, StageTimes};
use crate::config::Config;
use crate::models::WriteFiles;
use crate::rollouts::Rollouts;
use crate::rollouts::collector::{Collected, Observer};
use crate::rollouts::evaluate;
use crate::rollouts::function::lock;
use crate::rollouts::generation::Generation;
use crate::rollouts::lineage::batch_hash;
use crate::rollouts::samples;
use crate::rollouts::wire;
use crate::run::completion_log;
use crate::run::prepared::PreparedStep;
use crate::run::training::TrainingRun;
use crate::sources::{Batch, Now, StepDone, Watch};
use kernels::mean::{mean, over};
use model::columns::{OLD_LOGPS, REF_LOGPS, SAMPLER_LOGPS};
use std::collections::BTreeMap;
use telemetry::Stages;
use train::{Advantages, HeldOut, Sample};

/// The metric of the divergence from the reference model.
const KL: &str = "kl";

impl RolloutPipeline {
    /// Prepares the next step of `run`. The prepared step still has the current generation batch, which may be used up.
    pub fn prepare(&self, run: &TrainingRun) -> OnlineBatch {
        OnlineBatch { run: PreparedStep::after(run), state: self.state.clone(), sampled_by: None, report: None }
    }

    /// The state of the run between two steps, for the source of batches.
    fn now<'a>(&self, run: &'a TrainingRun, watch: &'a Watch<'a>) -> Now<'a> {
        let steps_left = run.learner.step.left_of(run.learner.schedule.total_steps);
        Now {
            policy: &run.learner.policy,
            ctx: &run.learner.ctx,
            step: run.learner.step,
            batches_left: steps_left.div_ceil(self.sizes.steps()).max(1),
            lineage: self.state.lineage,
            watch,
        }
    }

    /// The groups of the next batch with their scores. With dynamic sampling, further groups are generated while some
    /// groups have only equal rewards.
    pub fn rollouts(&mut self, run: &TrainingRun, next: &mut OnlineBatch) -> anyhow::Result<Rollouts> {
        let batch = watched(run, |watch| {
            let now = self.now(run, watch);
            self.source.next(&mut next.state.source, &mut next.run.data.sampler, &now)
        });
        let (collected, sampled_by, metrics) = match batch? {
            Batch::Generated { collected, sampled_by, metrics } => (collected, sampled_by, metrics),
            Batch::Recorded(rollouts) => {
                count_tokens(next, &rollouts);
                return Ok(rollouts);
            }
        };
        next.sampled_by = sampled_by;
        for (name, value) in &metrics {
            next.run.add(name, *value);
        }
        let (mut generation, mut times) = (Generation::default(), StageTimes::default());
        let span = run.log.stages.span("batch");
        generation.take(take_collected(run, next, collected, &mut times));
        span.end();
        while let Some(rows) = draw_again(run, next, &generation) {
            let collected = watched(run, |watch| {
                let now = self.now(run, watch);
                self.source.more(&mut next.state.source, &rows, &now)
            });
            generation.take(take_collected(run, next, collected?, &mut times));
        }
        let _span = run.log.stages.span("batch");
        let rollouts = finish_generation(run, next, generation, &times);
        self.log_profiles(next, &rollouts);
        Ok(rollouts)
    }

    /// Logs the mean reward and mean length of each sampling profile.
    fn log_profiles(&self, next: &mut OnlineBatch, rollouts: &Rollouts) {
        for name in self.sampling.names() {
            let of = || rollouts.groups.iter().filter(|group| self.sampling.profile(group.group) == Some(name));
            let rewards: Vec<f64> = of().flat_map(|group| rollouts.totals(group)).collect();
            let lengths = of().flat_map(|group| &group.completions).map(|c| c.completion.ids.len() as f64);
            let lengths: Vec<f64> = lengths.collect();
            for (what, values) in [("reward", rewards), ("mean_length", lengths)] {
                if let Some(mean) = mean(values) {
                    next.run.add(&format!("sampling_profiles/{name}/{what}"), mean);
                }
            }
        }
    }

    /// Makes samples of completions, without advantages. The reference model scores them, if there is one. The policy
    /// scores completions of older weights or of user code, if the importance sampling correction is on.
    pub fn samples(
        &mut self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        rollouts: &Rollouts,
    ) -> anyhow::Result<Vec<Sample>> {
        let span = run.log.stages.span("batch");
        for (name, value) in rollout::length_metrics(rollouts.completions().map(|c| &c.completion)) {
            next.run.add(&name, value);
        }
        let mut samples = samples::from_rollouts(rollouts);
        span.end();
        self.score_reference(run, &mut samples)?;
        self.score_stale(run, &mut samples)?;
        Ok(samples)
    }

    /// Adds the advantages to the samples, which become the batch of the next steps.
    pub fn fill_batch(
        &self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        rollouts: Rollouts,
        mut samples: Vec<Sample>,
        advantages: Advantages,
    ) -> anyhow::Result<()> {
        for (sample, advantage) in samples.iter_mut().zip(&advantages.advantages) {
            sample.advantage =
                if run.config.without_groups.contains(&sample.group.0) { advantage.zero() } else { advantage.clone() };
        }
        for (name, value) in &advantages.metrics {
            if let Some(value) = value {
                next.run.add(name, *value);
            }
        }
        self.take_batch(run, next, &rollouts, samples, &advantages)
    }

    /// Makes `samples` the generation batch of the next steps. The generation is reported when the first of these steps
    /// is taken.
    pub fn take_batch(
        &self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        rollouts: &Rollouts,
        samples: Vec<Sample>,
        advantages: &Advantages,
    ) -> anyhow::Result<()> {
        let recorded = run.config.record_rollouts.then(|| {
            let span = run.log.stages.span("record");
            let step = run.learner.step.next();
            let records = wire::records_of_rollouts(rollouts, &samples, &self.sampling, step, next.sampled_by);
            (records, span.end())
        });
        let _span = run.log.stages.span("batch");
        let batch = batch_hash(&self.settings, &samples);
        next.state.lineage = self.state.lineage.map(|lineage| lineage.advance(&batch));
        let distributions = distributions(rollouts, advantages);
        for (name, value) in &quantiles(&distributions) {
            next.run.add(name, *value);
        }
        next.report = Some(Report {
            recorded,
            completions: completion_log::rows(&run.config, &run.learner, &run.log, rollouts, advantages)?,
            distributions: if run.config.tensorboard { distributions } else { Vec::new() },
        });
        next.state.batch = GenerationBatch { samples: samples.into(), used: 0 };
        Ok(())
    }

    fn score_reference(&mut self, run: &TrainingRun, samples: &mut [Sample]) -> anyhow::Result<()> {
        let Some(reference) = &mut self.reference else { return Ok(()) };
        let _span = run.log.stages.span("reference");
        let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
        let scores = reference.score(
            &run.learner.ctx,
            &run.learner.policy.weights,
            &sequences,
            self.sampling.common().temperature,
        )?;
        for (sample, scores) in samples.iter_mut().zip(scores) {
            // Log-probabilities from a file are kept.
            if sample.columns.ref_logps().is_none() {
                sample.columns.set(REF_LOGPS, scores.logps);
            }
        }
        Ok(())
    }

    /// Computes log π_old under the current policy, for the samples that other weights generated.
    fn score_stale(&self, run: &TrainingRun, samples: &mut [Sample]) -> anyhow::Result<()> {
        let Some(scorer) = &self.stale_scorer else { return Ok(()) };
        if !run.config.vllm_importance_sampling_correction {
            return Ok(());
        }
        let weights = &run.learner.policy.weights;
        let stale = |s: &&mut Sample| s.versions.iter().any(|&v| v != weights.version());
        let mut stale: Vec<&mut Sample> = samples.iter_mut().filter(stale).collect();
        let sequences: Vec<_> = stale.iter().map(|sample| sample.sequence()).collect();
        let _span = run.log.stages.span("stale");
        let temperature = self.sampling.common().temperature;
        let scores = lock(scorer).score(&run.learner.ctx, weights, &sequences, temperature)?;
        for (sample, scores) in stale.iter_mut().zip(scores) {
            sample.columns.set(OLD_LOGPS, scores.logps);
        }
        Ok(())
    }

    /// The samples of the optimizer step.
    pub fn part<'a>(&self, OnlineBatch { state, .. }: &'a OnlineBatch) -> &'a [Sample] {
        let first = (state.batch.used % self.sizes.parts()) as usize * self.sizes.optimizer;
        &state.batch.samples[first..first + self.sizes.optimizer]
    }

    /// Commits a step: applies its changes to the run and the pipeline, and reports a new generation.
    pub fn commit(&mut self, run: &mut TrainingRun, next: OnlineBatch) -> anyhow::Result<()> {
        run.check_ranks()?;
        if let (Some(after), true) = (&mut self.after, next.report.is_some()) {
            let first = &next.state.batch.samples[..self.sizes.optimizer.min(next.state.batch.samples.len())];
            after.choose(first, telemetry::system::cpu_s());
        }
        let OnlineBatch { run: changes, state, report, .. } = next;
        if let Some(Report { recorded, completions, distributions }) = report {
            let span = run.log.stages.span("log");
            run.log.reporter.distributions(run.learner.step, distributions)?;
            span.end();
            if let Some((records, seconds)) = recorded {
                let span = run.log.stages.span("record");
                run.log.reporter.record_rollouts(records)?;
                let seconds = seconds + span.end();
                self.after.iter_mut().for_each(|after| after.recorded(seconds));
            }
            let span = run.log.stages.span("log");
            if let Some((rows, shown)) = completions {
                run.log.reporter.completions(rows, shown);
            }
            span.end();
        }
        run.commit(changes)?;
        self.state = state;
        self.state.batch.used += 1;
        if self.state.batch.used >= self.sizes.steps() {
            self.drop_batch();
        }
        Ok(())
    }

    /// Drops the current generation batch: no further step is taken on it.
    pub fn drop_batch(&mut self) {
        self.state.batch = GenerationBatch::default();
    }

    /// Ends an optimizer step: updates the reference model if this is due, and passes the weights to the source of
    /// batches.
    pub fn end_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        self.record_after_step(run)?;
        if let Some(reference) = &mut self.reference {
            reference.sync(&run.learner.ctx, &run.learner.policy.weights, run.learner.step)?;
        }
        let ends_batch = self.batch_is_used_up();
        let TrainingRun { learner, data, log, stop, .. } = run;
        let watch = Watch { stop, stages: &log.stages, on_wait: &|_, _| {}, warn: &|text| log.warn(text) };
        let done = StepDone {
            ends_batch,
            weights: &mut learner.policy.weights,
            data: &data.sampler,
            step: learner.step,
            lineage: self.state.lineage,
            watch: &watch,
        };
        self.source.advance(&self.state.source, done)
    }

    /// Completes the parts of later batches that a checkpoint at this step must contain.
    pub fn complete_ahead(&mut self, run: &TrainingRun) -> anyhow::Result<()> {
        let mut state = self.state.source.clone();
        watched(run, |watch| {
            let now = self.now(run, watch);
            self.source.complete_for_checkpoint(&mut state, &now)
        })?;
        self.state.source = state;
        Ok(())
    }

    /// Functions that write an updated reference model and the files of the batches to a checkpoint.
    pub fn write_tensors(&self) -> Vec<WriteFiles> {
        let moved = self.reference.iter().filter_map(Reference::write);
        moved.chain(self.write_batch()).chain(self.source.write(&self.state.source)).collect()
    }

    /// The metrics of an evaluation on held-out prompts. `advantages` computes the loss's advantages.
    pub fn evaluate(
        &mut self,
        run: &mut TrainingRun,
        advantages: impl Fn(&Config, &Rollouts, &[Sample]) -> Advantages,
    ) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let Some(evaluation) = &self.evaluation else { return Ok(None) };
        let Some(collector) = self.source.collector() else { return Ok(None) };
        let span = run.log.stages.span("evaluation");
        let progress = Progress::of(&run.log, &run.learner);
        // The evaluation is one stage; inner timers are ignored.
        let observer = Observer { stages: &Stages::default(), on_wait: &|reward, time| progress.waits(reward, time) };
        let outcomes =
            evaluation.run(collector, &run.learner.policy, &self.eval_weights, run.learner.step, &observer)?;
        // The time is measured without recording and loss.
        let (seconds, sampling) = (span.seconds(), evaluation.sampling());
        let (mut metrics, mut problems, mut unscored) = (Vec::new(), Vec::new(), None);
        for outcome in outcomes {
            if run.config.record_rollouts {
                wire::records_of_evaluation(&outcome.rollouts, &sampling, run.learner.step, &outcome.name)
                    .try_for_each(|record| run.log.reporter.record_evaluation(record))?;
            }
            self.state.source.health.check(&outcome.rollouts, &outcome.problems, &run.config)?;
            problems.extend(outcome.problems);
            unscored = unscored.or(outcome.unscored);
            metrics.extend(outcome.metrics);
            if run.config.has_eval_loss() {
                let loss_metrics = self.loss_of_evaluation(run, &outcome.rollouts, &advantages)?;
                let prefix = evaluate::prefix(&outcome.name);
                metrics.extend(loss_metrics.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
            }
        }
        span.end();
        let _span = run.log.stages.span("log");
        let alarms = run.log.alarms.evaluation(run.learner.step, &problems, unscored);
        run.log.emit_alarms(run.learner.step, alarms)?;
        metrics.push(("eval_num_tokens".into(), run.data.num_tokens as f64));
        metrics.push(("eval_runtime".into(), seconds));
        Ok(Some(metrics))
    }
}

impl RolloutPipeline {
    /// The loss of held-out completions as one batch, with its metrics; empty without a token in the loss, or without
    /// scores. The current policy generated them, so their importance ratios are 1.
    fn loss_of_evaluation(
        &mut self,
        run: &mut TrainingRun,
        rollouts: &Rollouts,
        advantages: impl Fn(&Config, &Rollouts, &[Sample]) -> Advantages,
    ) -> anyhow::Result<Vec<(String, f64)>> {
        if !rollouts.reward_names.is_empty() && rollouts.completions().all(|c| rollouts.total(c).is_none()) {
            return Ok(Vec::new());
        }
        let mut samples = samples::from_rollouts(rollouts);
        self.score_reference(run, &mut samples)?;
        let Some(scorer) = &self.scorer else { unreachable!("an evaluation with a loss needs a scorer") };
        let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
        let temperature = self.sampling.common().temperature;
        let policy = &run.learner.policy.weights;
        let scores = lock(scorer).score(&run.learner.ctx, policy, &sequences, temperature)?;
        for (sample, scores) in samples.iter_mut().zip(&scores) {
            sample.columns.set(OLD_LOGPS, scores.logps.clone());
            if !self.has_function {
                // Greedy completions have no log-probabilities at this temperature.
                sample.columns.set(SAMPLER_LOGPS, scores.logps.clone());
            }
        }
        // Some algorithms compute advantages from log π_old, which must therefore be set first.
        let Advantages { advantages, metrics, .. } = advantages(&run.config, rollouts, &samples);
        samples.iter_mut().zip(advantages).for_each(|(sample, advantage)| sample.advantage = advantage);
        let Some(HeldOut { loss, metrics: loss_metrics }) = run.learner.trainer.held_out(&samples, &scores)? else {
            return Ok(Vec::new());
        };
        // If the divergence is part of the reward, its mean is among the metrics of the advantages.
        let kl = metrics.into_iter().filter(|(name, _)| name == KL).filter_map(|(name, kl)| Some((name, kl?)));
        Ok([("loss".to_owned(), loss)].into_iter().chain(loss_metrics).chain(kl).collect())
    }
}

/// The dataset rows that replace the groups whose rewards are all equal; `None` if the generation is complete.
fn draw_again(run: &TrainingRun, next: &mut OnlineBatch, generation: &Generation) -> Option<Vec<usize>> {
    let config = &run.config;
    if !config.dynamic_sampling || generation.rounds() >= config.dynamic_sampling_max_rounds {
        return None;
    }
    let rows = next.run.data.sampler.take_extra(generation.zero_std_groups().len());
    (!rows.is_empty()).then_some(rows)
}

/// Takes the groups from a collector's answer, and logs its times and metrics.
fn take_collected(run: &TrainingRun, next: &mut OnlineBatch, collected: Collected, times: &mut StageTimes) -> Rollouts {
    let Collected { scored: output, rollout_s, reward_s, overlapped_s, .. } = collected;
    times.rollout_time_s += rollout_s;
    times.reward_time_s += reward_s;
    times.reward_hidden_time_s += overlapped_s;
    let names = output.rollouts.reward_names.iter().zip(&output.seconds);
    names.for_each(|(name, seconds)| *times.reward_seconds.entry(name.clone()).or_default() += seconds);
    let late = output.rollouts.reward_names.iter().zip(&output.timed_out);
    late.for_each(|(name, &completions)| next.run.notes.timed_out(name, completions));
    next.run.observed.problems(&output.problems);
    times.rollout_tokens += output.rollouts.completions().map(|c| c.completion.ids.len()).sum::<usize>();
    count_tokens(next, &output.rollouts);
    for (name, value) in &output.metrics {
        next.run.add(name, *value);
    }
    if run.config.max_staleness > 0 {
        log_lag(next, &output.rollouts);
    }
    output.rollouts
}

/// Logs the times of a generation, and returns its groups.
fn finish_generation(
    run: &TrainingRun,
    next: &mut OnlineBatch,
    generation: Generation,
    StageTimes { rollout_time_s, rollout_tokens, reward_time_s, reward_hidden_time_s, reward_seconds }: &StageTimes,
) -> Rollouts {
    let step = &mut next.run;
    step.notes.waited(*rollout_time_s, *reward_time_s, reward_seconds);
    step.measured.rewards(reward_seconds);
    step.add("rollout_time_s", *rollout_time_s);
    // If the completions already existed, the step did not wait for them.
    if *rollout_time_s > 0.0 {
        step.add("rollout_tokens_per_s", *rollout_tokens as f64 / rollout_time_s);
    }
    step.add("reward_time_s", *reward_time_s);
    step.add("reward_hidden_time_s", *reward_hidden_time_s);
    let (rollouts, metrics) = generation.finish();
    step.observed.generation(&rollouts);
    let tokenizer = &run.learner.policy.tokenizer;
    let tokens = rollouts.completions().flat_map(|c| c.completion.ids.iter().zip(&c.completion.sampled));
    let mut sampled: BTreeMap<u32, usize> = BTreeMap::new();
    tokens.filter(|(_, sampled)| **sampled).for_each(|(&id, _)| *sampled.entry(id).or_default() += 1);
    let unknown = sampled.iter().filter(|(id, _)| tokenizer.token(**id).is_none()).map(|(_, count)| count).sum();
    step.observed.tokens(unknown, sampled.values().sum());
    step.measured.lengths(rollouts.completions().map(|c| c.completion.ids.len()));
    if run.config.dynamic_sampling {
        for (name, value) in metrics {
            step.add(name, value);
        }
    }
    rollouts
}

/// Adds the tokens of prompts and completions to TRL's `num_tokens`.
fn count_tokens(next: &mut OnlineBatch, rollouts: &Rollouts) {
    let prompts: usize = rollouts.groups.iter().map(|g| g.prompt.tokens.ids.len() * g.completions.len()).sum();
    let tokens: usize = rollouts.completions().map(|c| c.completion.sampled_tokens()).sum();
    next.run.data.num_tokens += (prompts + tokens) as u64;
}

/// Logs the staleness of these completions: the number of batches that have since begun with newer weights.
fn log_lag(next: &mut OnlineBatch, rollouts: &Rollouts) {
    let (mut tokens, mut sum, mut max) = (0, 0usize, 0usize);
    for &version in rollouts.completions().flat_map(|c| &c.completion.versions) {
        let lag = next.state.source.lag(version);
        (tokens, sum, max) = (tokens + 1, sum + lag, max.max(lag));
    }
    if let Some(mean) = over(sum as f64, tokens) {
        next.run.add("async/lag_mean", mean);
        next.run.add("async/lag_max", max as f64);
    }
}
