//! The stages of a step, in the order of the data.

use super::ahead::log_lag;
use super::parts::needs_scores;
use super::reference::Reference;
use super::spread::{distributions, quantiles};
use super::waiting::Progress;
use super::{GenerationBatch, OnlineBatch, Report, RolloutPipeline, Source, StageTimes};
use crate::config::Config;
use crate::data::prompts::Prompt;
use crate::models::WriteFiles;
use crate::rollouts::Rollouts;
use crate::rollouts::collector::{Collect, CollectRequest, Collected, Observer};
use crate::rollouts::evaluate;
use crate::rollouts::function::SharedScorer;
use crate::rollouts::generation::Generation;
use crate::rollouts::health::RewardHealth;
use crate::rollouts::lineage::batch_hash;
use crate::rollouts::samples;
use crate::rollouts::wire;
use crate::run::completion_log;
use crate::run::prepared::PreparedStep;
use crate::run::training::TrainingRun;
use model::Scorer;
use model::columns::{OLD_LOGPS, REF_LOGPS, SAMPLER_LOGPS};
use model::net::Scores;
use std::sync::{Arc, MutexGuard, PoisonError};
use telemetry::Stages;
use train::{Advantages, Sample};

impl RolloutPipeline {
    /// The next step of `run`: so far with the generation batch in use, which may be used up.
    pub fn prepare(&self, run: &TrainingRun) -> OnlineBatch {
        OnlineBatch { run: PreparedStep::after(run), state: self.state.clone(), sampled_by: None, report: None }
    }

    /// The next groups of completions with their scores: the policy's own, or a file's.
    pub fn rollouts(&mut self, run: &TrainingRun, next: &mut OnlineBatch) -> anyhow::Result<Rollouts> {
        if matches!(self.source, Source::File(..)) { self.recorded(run, next) } else { self.generate(run, next) }
    }

    /// The policy's next groups: the batch that was made for this step, ahead of it or now. With dynamic sampling more
    /// are drawn, for the groups whose rewards do not differ.
    fn generate(&mut self, run: &TrainingRun, next: &mut OnlineBatch) -> anyhow::Result<Rollouts> {
        let (mut generation, mut times) = (Generation::default(), StageTimes::default());
        let collected = self.next_collected(run, next)?;
        generation.take(take_collected(run, next, collected, &mut times));
        while let Some(prompts) = self.draw_again(run, next, &generation) {
            let first = next.state.rollout_number;
            let collected = self.collect(run, &mut next.state.health, prompts, first)?;
            generation.take(take_collected(run, next, collected, &mut times));
        }
        let rollouts = end_generation(run, next, generation, &times);
        self.log_profiles(next, &rollouts);
        Ok(rollouts)
    }

    /// The mean reward and length of each sampling profile.
    fn log_profiles(&self, next: &mut OnlineBatch, rollouts: &Rollouts) {
        for name in self.sampling.names() {
            let of = || rollouts.groups.iter().filter(|group| self.sampling.profile(group.id) == Some(name));
            let rewards: Vec<f64> = of().flat_map(|group| rollouts.totals(group)).collect();
            let lengths = of().flat_map(|group| &group.completions).map(|c| c.completion.ids.len() as f64);
            let lengths: Vec<f64> = lengths.collect();
            for (what, values) in [("reward", rewards), ("mean_length", lengths)] {
                if !values.is_empty() {
                    let mean = values.iter().sum::<f64>() / values.len() as f64;
                    next.run.add(&format!("sampling_profiles/{name}/{what}"), mean);
                }
            }
        }
    }

    /// The next groups of the file.
    fn recorded(&mut self, run: &TrainingRun, next: &mut OnlineBatch) -> anyhow::Result<Rollouts> {
        let Source::File(replay, scorer) = &mut self.source else { unreachable!("no file") };
        let picked = next.run.data.sampler.next_batch();
        // As if they had been generated: PPO's mini-batches are drawn by this number.
        let first_id = next.state.rollout_number;
        next.state.rollout_number += picked.len() as u64;
        let _span = run.log.stages.span("replay");
        let temperature = self.sampling.common().temperature;
        let rollouts = replay.rollouts(
            &picked,
            first_id,
            &run.learner.ctx,
            &run.learner.policy,
            scorer,
            temperature,
            &self.reward_weights,
        )?;
        count_tokens(next, &rollouts);
        Ok(rollouts)
    }

    /// Prompts in place of those whose groups teach nothing; `None` once the generation is complete.
    fn draw_again(
        &self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        generation: &Generation,
    ) -> Option<Vec<Arc<Prompt>>> {
        let config = &run.config;
        let again = config.dynamic_sampling && generation.rounds() < config.dynamic_sampling_max_rounds;
        let rows = if again { next.run.data.sampler.take(generation.zero_std_groups().len()) } else { Vec::new() };
        (!rows.is_empty()).then(|| self.prompts(&rows))
    }

    /// `num_generations` completions of each prompt, and the score of each by every reward. The first group has the
    /// number `first` in the run.
    pub(super) fn collect(
        &mut self,
        run: &TrainingRun,
        health: &mut RewardHealth,
        prompts: Vec<Arc<Prompt>>,
        first: u64,
    ) -> anyhow::Result<Collected> {
        let Some(collector) = &mut self.collector else { unreachable!("the source is no file") };
        let request = CollectRequest {
            prompts: (first..).zip(prompts).collect(),
            num_generations: self.sizes.group,
            sampling: &self.sampling,
            reward_weights: &self.reward_weights,
            step: run.learner.step,
            refuse_non_finite: false,
        };
        let progress = Progress::of(&run.log, &run.learner);
        let observer = Observer { stages: &run.log.stages, on_wait: &|reward, time| progress.waits(reward, time) };
        let collected = collector.collect(&run.learner.policy.weights, request, &observer)?;
        health.check(&collected.scored.rollouts, &collected.scored.problems, &run.config)?;
        collected.record_overlapped(&run.log.stages);
        Ok(collected)
    }

    /// Completions become samples, without their advantages. Where there is a reference model, it scores them; those of
    /// another sampler are scored by the policy, where that is corrected for.
    pub fn samples(
        &mut self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        rollouts: &Rollouts,
    ) -> anyhow::Result<Vec<Sample>> {
        for (name, value) in rollout::length_metrics(rollouts.completions().map(|c| &c.completion)) {
            next.run.add(&name, value);
        }
        let mut samples = samples::of_rollouts(rollouts);
        self.score_reference(run, &mut samples)?;
        self.score_stale(run, &mut samples)?;
        Ok(samples)
    }

    /// Samples with their advantages are what the next steps train on.
    pub fn fill_batch(
        &self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        rollouts: Rollouts,
        mut samples: Vec<Sample>,
        advantages: Advantages,
    ) -> anyhow::Result<()> {
        for (sample, advantage) in samples.iter_mut().zip(&advantages.advantages) {
            sample.advantage = match run.config.without_groups.contains(&sample.group) {
                true => advantage.zero(),
                false => advantage.clone(),
            };
        }
        for (name, value) in &advantages.metrics {
            if let Some(value) = value {
                next.run.add(name, *value);
            }
        }
        self.take_batch(run, next, &rollouts, samples, &advantages)
    }

    /// The generation that the next steps learn from. It is reported once the first of them is taken.
    pub fn take_batch(
        &self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        rollouts: &Rollouts,
        samples: Vec<Sample>,
        advantages: &Advantages,
    ) -> anyhow::Result<()> {
        let recorded = match run.config.record_rollouts {
            true => wire::of_rollouts(rollouts, &samples, &self.sampling, run.learner.step + 1, next.sampled_by),
            false => Vec::new(),
        };
        let batch = batch_hash(&self.settings, &samples);
        next.state.lineage = self.state.lineage.map(|lineage| lineage.advance(&batch));
        let distributions = distributions(rollouts, advantages);
        quantiles(&distributions).iter().for_each(|(name, value)| next.run.add(name, *value));
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
            // What a file gave stays.
            if sample.columns.ref_logps().is_none() {
                sample.columns.set(REF_LOGPS, scores.logps);
            }
        }
        Ok(())
    }

    /// log π_old of the samples that weights of another version wrote.
    fn score_stale(&mut self, run: &TrainingRun, samples: &mut [Sample]) -> anyhow::Result<()> {
        let others = self.has_function || run.config.max_staleness > 0;
        let mut shared = self.scorer.as_ref().filter(|_| others).map(lock);
        let scorer: &mut Scorer = match (&mut self.source, &mut shared) {
            (Source::File(_, scorer), _) => scorer,
            (_, Some(scorer)) => scorer,
            _ => return Ok(()),
        };
        if !run.config.vllm_importance_sampling_correction {
            return Ok(());
        }
        let weights = &run.learner.policy.weights;
        let stale = |s: &&mut Sample| s.versions.iter().any(|&v| v != weights.version());
        let mut stale: Vec<&mut Sample> = samples.iter_mut().filter(stale).collect();
        let sequences: Vec<_> = stale.iter().map(|sample| sample.sequence()).collect();
        let _span = run.log.stages.span("stale");
        let scores = scorer.score(&run.learner.ctx, weights, &sequences, self.sampling.common().temperature)?;
        for (sample, scores) in stale.iter_mut().zip(scores) {
            sample.columns.set(OLD_LOGPS, scores.logps);
        }
        Ok(())
    }

    /// What the optimizer step learns from.
    pub fn part<'a>(&self, OnlineBatch { state, .. }: &'a OnlineBatch) -> &'a [Sample] {
        let first = (state.batch.used % self.sizes.parts()) as usize * self.sizes.optimizer;
        &state.batch.samples[first..first + self.sizes.optimizer]
    }

    /// The step is taken: what its batch changes enters the run and the pipeline, and a new generation is reported.
    pub fn commit(&mut self, run: &mut TrainingRun, next: OnlineBatch) -> anyhow::Result<()> {
        if let (Some(after), true) = (&mut self.after, next.report.is_some()) {
            let first = &next.state.batch.samples[..self.sizes.optimizer.min(next.state.batch.samples.len())];
            after.choose(first, telemetry::system::cpu_s());
        }
        let OnlineBatch { run: changes, state, report, .. } = next;
        if let Some(Report { recorded, completions, distributions }) = report {
            run.log.reporter.distributions(run.learner.step, distributions)?;
            recorded.iter().try_for_each(|group| run.log.reporter.record_rollout(group))?;
            completions.into_iter().for_each(|(rows, shown)| run.log.reporter.completions(rows, shown));
        }
        run.commit(changes)?;
        self.state = state;
        self.state.batch.used += 1;
        if self.state.batch.used >= self.sizes.steps() {
            self.end_generation();
        }
        Ok(())
    }

    /// No further step is taken on the generation batch.
    pub fn end_generation(&mut self) {
        self.state.batch = GenerationBatch::default();
    }

    /// Moves the reference model, if that is due.
    pub(super) fn sync_reference(&mut self, run: &TrainingRun) -> anyhow::Result<()> {
        match &mut self.reference {
            Some(reference) => reference.sync(&run.learner.ctx, &run.learner.policy.weights, run.learner.step),
            None => Ok(()),
        }
    }

    /// Writes what moves beside the policy into a checkpoint.
    pub fn write_tensors(&self) -> Vec<WriteFiles> {
        let moved = self.reference.iter().filter_map(Reference::write);
        let made = self.write_batch().into_iter().chain(self.write_ahead()).chain(self.write_begun());
        moved.chain(made).chain(self.write_workers()).collect()
    }

    /// The metrics of an evaluation on held-out prompts; `advantages` are those of the loss.
    pub fn evaluate(
        &mut self,
        run: &mut TrainingRun,
        advantages: impl Fn(&Config, &Rollouts, &[Sample]) -> Advantages,
    ) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let Some(evaluation) = &self.evaluation else { return Ok(None) };
        let collector: &mut dyn Collect = match (&mut self.collector, &mut self.workers) {
            (Some(collector), _) => &mut **collector,
            (None, Some(workers)) => workers,
            (None, None) => return Ok(None),
        };
        let span = run.log.stages.span("evaluation");
        let progress = Progress::of(&run.log, &run.learner);
        // One stage: what is inside has timers that nobody reads.
        let observer = Observer { stages: &Stages::default(), on_wait: &|reward, time| progress.waits(reward, time) };
        let outcomes =
            evaluation.run(collector, &run.learner.policy, &self.eval_weights, run.learner.step, &observer)?;
        let (seconds, sampling) = (span.end(), evaluation.sampling());
        let (mut metrics, mut problems, mut unscored) = (Vec::new(), Vec::new(), None);
        for outcome in outcomes {
            if run.config.record_rollouts {
                let groups = wire::of_evaluation(&outcome.rollouts, &sampling, run.learner.step, &outcome.name);
                groups.iter().try_for_each(|group| run.log.reporter.record_evaluation(group))?;
            }
            self.state.health.check(&outcome.rollouts, &outcome.problems, &run.config)?;
            problems.extend(outcome.problems);
            unscored = unscored.or(outcome.unscored);
            metrics.extend(outcome.metrics);
            if run.config.has_eval_loss() {
                let loss = self.eval_loss(run, &outcome.rollouts, &advantages)?;
                metrics.push((evaluate::prefix(&outcome.name) + "loss", loss));
            }
        }
        let alarms = run.log.alarms.evaluation(run.learner.step, &problems, unscored);
        run.log.emit_alarms(run.learner.step, alarms)?;
        metrics.push(("eval_runtime".into(), seconds));
        Ok(Some(metrics))
    }
}

impl RolloutPipeline {
    /// The loss of completions that nothing is learned from, as one batch. They are the policy's own: its importance
    /// ratios are 1.
    fn eval_loss(
        &mut self,
        run: &mut TrainingRun,
        rollouts: &Rollouts,
        advantages: impl Fn(&Config, &Rollouts, &[Sample]) -> Advantages,
    ) -> anyhow::Result<f64> {
        let mut samples = samples::of_rollouts(rollouts);
        self.score_reference(run, &mut samples)?;
        let scored = self.has_function || needs_scores(&run.config);
        let scores = match self.scorer.as_ref().filter(|_| scored).map(lock) {
            Some(mut scorer) => {
                let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
                let scores = scorer.score(
                    &run.learner.ctx,
                    &run.learner.policy.weights,
                    &sequences,
                    self.sampling.common().temperature,
                )?;
                for (sample, scores) in samples.iter_mut().zip(&scores) {
                    sample.columns.set(OLD_LOGPS, scores.logps.clone());
                    if !self.has_function {
                        // Drawn greedily, they have no record of this temperature.
                        sample.columns.set(SAMPLER_LOGPS, scores.logps.clone());
                    }
                }
                scores
            }
            // The engine's record is what the trainer would compute, and entropies are of no use.
            None => samples.iter().map(recorded).collect(),
        };
        // After log π_old, with which some are made.
        let advantages = advantages(&run.config, rollouts, &samples).advantages;
        samples.iter_mut().zip(advantages).for_each(|(sample, advantage)| sample.advantage = advantage);
        Ok(run.learner.trainer.loss(&samples, &scores)?)
    }
}

pub(super) fn lock(scorer: &SharedScorer) -> MutexGuard<'_, Scorer> {
    scorer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn recorded(sample: &Sample) -> Scores {
    let logps = sample.columns.sampler_logps().unwrap_or_default().to_vec();
    Scores { entropies: vec![0.0; logps.len()], logps }
}

/// The groups that the step learns from, with what is logged of them.
fn take_collected(run: &TrainingRun, next: &mut OnlineBatch, collected: Collected, times: &mut StageTimes) -> Rollouts {
    let Collected { scored: output, next_number, rollout_s, reward_s, overlapped_s } = collected;
    next.state.rollout_number = next_number;
    times.rollout_time_s += rollout_s;
    times.reward_time_s += reward_s;
    times.reward_hidden_time_s += overlapped_s;
    let names = output.rollouts.reward_names.iter().zip(&output.seconds);
    names.for_each(|(name, seconds)| *times.of_rewards.entry(name.clone()).or_default() += seconds);
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

/// The complete generation.
fn end_generation(
    run: &TrainingRun,
    next: &mut OnlineBatch,
    generation: Generation,
    StageTimes { rollout_time_s, rollout_tokens, reward_time_s, reward_hidden_time_s, of_rewards }: &StageTimes,
) -> Rollouts {
    let step = &mut next.run;
    step.notes.waited(*rollout_time_s, *reward_time_s, of_rewards);
    step.measured.rewards(of_rewards);
    step.add("rollout_time_s", *rollout_time_s);
    // A step whose completions were there already waited for none.
    if *rollout_time_s > 0.0 {
        step.add("rollout_tokens_per_s", *rollout_tokens as f64 / rollout_time_s);
    }
    step.add("reward_time_s", *reward_time_s);
    step.add("reward_hidden_time_s", *reward_hidden_time_s);
    let (rollouts, metrics) = generation.finish();
    step.observed.generation(&rollouts);
    step.measured.lengths(rollouts.completions().map(|c| c.completion.ids.len()));
    if run.config.dynamic_sampling {
        for (name, value) in metrics {
            step.add(name, value);
        }
    }
    rollouts
}

/// TRL's `num_tokens`.
fn count_tokens(next: &mut OnlineBatch, rollouts: &Rollouts) {
    let prompts: usize = rollouts.groups.iter().map(|g| g.prompt.tokens.ids.len() * g.completions.len()).sum();
    let tokens: usize = rollouts.completions().map(|c| c.completion.ids.len()).sum();
    next.run.data.num_tokens += (prompts + tokens) as u64;
}
