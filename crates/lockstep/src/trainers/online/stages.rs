//! The stages of a step, in the order of the data.

use super::reference::Reference;
use super::waiting::Progress;
use super::{GenerationBatch, Report, RolloutPipeline, Source, StageTimes};
use crate::config::Config;
use crate::data::prompts::Prompt;
use crate::models::WriteFiles;
use crate::rollouts::collector::{CollectRequest, Collected, Observer};
use crate::rollouts::evaluate;
use crate::rollouts::function::SharedScorer;
use crate::rollouts::generation::Generation;
use crate::rollouts::samples;
use crate::rollouts::scoring::ScoredRollouts;
use crate::rollouts::{Rollouts, ScoredCompletion};
use crate::run::completion_log;
use crate::run::training::TrainingRun;
use model::Scorer;
use model::columns::{OLD_LOGPS, REF_LOGPS, SAMPLER_LOGPS};
use model::net::Scores;
use std::sync::{Arc, MutexGuard, PoisonError};
use telemetry::Stages;
use train::{Advantages, Sample, UpdateMetrics};

impl RolloutPipeline {
    /// The next groups of completions with their scores: the policy's own, or a file's.
    pub fn rollouts(&mut self, run: &mut TrainingRun) -> anyhow::Result<Rollouts> {
        self.number_before = Some(self.rollout_number);
        if matches!(self.source, Source::File(..)) { self.recorded(run) } else { self.generate(run) }
    }

    /// Takes back what the step that is given up (a stop request, a reward that judges no more) has changed: it draws
    /// the same prompts again. A batch from before it stays.
    pub fn give_up_step(&mut self) {
        if let Some(number) = self.number_before.take() {
            (self.rollout_number, self.batch, self.report) = (number, GenerationBatch::default(), None);
        }
    }

    /// The policy's next groups; with dynamic sampling more than once, for the groups whose rewards do not differ.
    fn generate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Rollouts> {
        let mut generation = Generation::default();
        while let Some(prompts) = self.draw_prompts(run, &generation) {
            generation.take(self.rollout_and_score(run, prompts)?);
        }
        Ok(self.end_generation(run, generation))
    }

    /// The next groups of the file.
    fn recorded(&mut self, run: &mut TrainingRun) -> anyhow::Result<Rollouts> {
        let Source::File(replay, scorer) = &mut self.source else { unreachable!("no file") };
        let picked = run.data.sampler.next_batch();
        // As if they had been generated: PPO's mini-batches are drawn by this number.
        let first_id = self.rollout_number;
        self.rollout_number += picked.len() as u64;
        let _span = run.log.stages.span("replay");
        let temperature = self.sampling.temperature;
        let rollouts = replay.rollouts(
            &picked,
            first_id,
            &run.learner.ctx,
            &run.learner.policy,
            scorer,
            temperature,
            &self.reward_weights,
        )?;
        count_tokens(run, &rollouts);
        Ok(rollouts)
    }

    /// The next prompts of the permutation; `None` once the generation is complete.
    fn draw_prompts(&mut self, run: &mut TrainingRun, generation: &Generation) -> Option<Vec<Arc<Prompt>>> {
        let config = &run.config;
        let rows = match generation.rounds() {
            0 => run.data.sampler.next_batch(),
            rounds if config.dynamic_sampling && rounds < config.dynamic_sampling_max_rounds => {
                run.data.sampler.take(generation.zero_std_groups().len())
            }
            _ => return None,
        };
        let Source::Prompts(all) = &self.source else { unreachable!("no prompts") };
        (!rows.is_empty()).then(|| rows.into_iter().map(|i| all[i].clone()).collect())
    }

    /// The complete generation.
    fn end_generation(&mut self, run: &mut TrainingRun, generation: Generation) -> Rollouts {
        let StageTimes { rollout_time_s, rollout_tokens, reward_time_s, reward_hidden_time_s, of_rewards } =
            std::mem::take(&mut self.times);
        run.log.remarks.waited(rollout_time_s, reward_time_s, &of_rewards);
        let reporter = &mut run.log.reporter;
        reporter.add("rollout_time_s", rollout_time_s);
        reporter.add("rollout_tokens_per_s", rollout_tokens as f64 / rollout_time_s);
        reporter.add("reward_time_s", reward_time_s);
        reporter.add("reward_hidden_time_s", reward_hidden_time_s);
        let (rollouts, metrics) = generation.finish();
        run.log.alarms.generation(&rollouts);
        if run.config.dynamic_sampling {
            for (name, value) in metrics {
                run.log.add(name, value);
            }
        }
        rollouts
    }

    /// `num_generations` completions of each prompt, and the score of each by every reward.
    fn rollout_and_score(&mut self, run: &mut TrainingRun, prompts: Vec<Arc<Prompt>>) -> anyhow::Result<Rollouts> {
        let Some(collector) = &mut self.collector else { unreachable!("the source is no file") };
        let request = CollectRequest {
            prompts: (self.rollout_number..).zip(prompts).collect(),
            num_generations: self.sizes.group,
            sampling: &self.sampling,
            reward_weights: &self.reward_weights,
            step: run.learner.step,
            refuse_non_finite: false,
        };
        let progress = Progress::of(&run.log, &run.learner);
        let observer = Observer { stages: &run.log.stages, on_wait: &|reward, time| progress.waits(reward, time) };
        let Collected { scored: output, next_number, rollout_s, reward_s } =
            collector.collect(&run.learner.policy.weights, request, &observer)?;
        self.rollout_number = next_number;
        self.times.rollout_time_s += rollout_s;
        self.times.reward_time_s += reward_s;
        let names = output.rollouts.reward_names.iter().zip(&output.seconds);
        names.for_each(|(name, seconds)| *self.times.of_rewards.entry(name.clone()).or_default() += seconds);
        let late = output.rollouts.reward_names.iter().zip(&output.timed_out);
        late.for_each(|(name, &completions)| run.log.remarks.timed_out(name, completions));
        self.health.check(&output.rollouts, &output.problems, &run.config)?;
        run.log.alarms.problems(&output.problems);
        self.times.rollout_tokens += output.rollouts.completions().map(|c| c.completion.ids.len()).sum::<usize>();
        count_tokens(run, &output.rollouts);
        self.report(run, &output);
        Ok(output.rollouts)
    }

    /// The metrics of rewards, and how long they took.
    fn report(&mut self, run: &mut TrainingRun, output: &ScoredRollouts) {
        for &(start, seconds) in &output.hidden {
            run.log.stages.record_overlapped("rewards", start, seconds);
            self.times.reward_hidden_time_s += seconds;
        }
        let reporter = &mut run.log.reporter;
        for (name, value) in &output.metrics {
            reporter.add(name, *value);
        }
    }

    /// Completions become samples, without their advantages. Where there is a reference model, it scores them; those of
    /// another sampler are scored by the policy, where that is corrected for.
    pub fn samples(&mut self, run: &mut TrainingRun, rollouts: &Rollouts) -> anyhow::Result<Vec<Sample>> {
        for (name, value) in rollout::length_metrics(rollouts.completions().map(|c| &c.completion)) {
            run.log.add(&name, value);
        }
        let mut samples = samples::of_rollouts(rollouts);
        self.score_reference(run, &mut samples)?;
        self.score_stale(run, &mut samples)?;
        Ok(samples)
    }

    /// Samples with their advantages are what the next steps train on.
    pub fn fill_batch(
        &mut self,
        run: &mut TrainingRun,
        rollouts: Rollouts,
        mut samples: Vec<Sample>,
        advantages: Advantages,
    ) -> anyhow::Result<()> {
        for (sample, advantage) in samples.iter_mut().zip(&advantages.advantages) {
            sample.advantage.clone_from(advantage);
        }
        self.take_batch(run, &rollouts, samples, &advantages)
    }

    /// The generation that the next steps learn from. It is reported once the first of them is taken.
    pub fn take_batch(
        &mut self,
        run: &TrainingRun,
        rollouts: &Rollouts,
        samples: Vec<Sample>,
        advantages: &Advantages,
    ) -> anyhow::Result<()> {
        let line = |(scored, sample): (&ScoredCompletion, _)| {
            scored.line(sample, &rollouts.reward_names, run.learner.step + 1)
        };
        let lines = match run.config.record_rollouts {
            true => rollouts.completions().zip(&samples).map(line).collect(),
            false => Vec::new(),
        };
        self.report = Some(Report {
            lines,
            completions: completion_log::rows(&run.config, &run.learner, &run.log, rollouts, advantages)?,
        });
        self.batch = GenerationBatch { samples, used: 0 };
        Ok(())
    }

    fn score_reference(&mut self, run: &mut TrainingRun, samples: &mut [Sample]) -> anyhow::Result<()> {
        let Some(reference) = &mut self.reference else { return Ok(()) };
        let _span = run.log.stages.span("reference");
        let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
        let scores =
            reference.score(&run.learner.ctx, &run.learner.policy.weights, &sequences, self.sampling.temperature)?;
        for (sample, scores) in samples.iter_mut().zip(scores) {
            // What a file gave stays.
            if sample.columns.ref_logps().is_none() {
                sample.columns.set(REF_LOGPS, scores.logps);
            }
        }
        Ok(())
    }

    /// log π_old of the samples that weights of another version wrote.
    fn score_stale(&mut self, run: &mut TrainingRun, samples: &mut [Sample]) -> anyhow::Result<()> {
        let mut shared = self.scorer.as_ref().filter(|_| self.has_function).map(lock);
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
        let scores = scorer.score(&run.learner.ctx, weights, &sequences, self.sampling.temperature)?;
        for (sample, scores) in stale.iter_mut().zip(scores) {
            sample.columns.set(OLD_LOGPS, scores.logps);
        }
        Ok(())
    }

    /// What the next optimizer step learns from.
    pub fn part(&self) -> &[Sample] {
        let first = (self.batch.used % self.sizes.parts()) as usize * self.sizes.optimizer;
        &self.batch.samples[first..first + self.sizes.optimizer]
    }

    /// The optimizer step of the gradient on the next [`part`](Self::part) of the batch.
    pub fn step(&mut self, run: &mut TrainingRun) -> anyhow::Result<UpdateMetrics> {
        self.number_before = None;
        if let Some(Report { lines, completions }) = self.report.take() {
            lines.into_iter().try_for_each(|line| run.log.reporter.record_rollout(line))?;
            completions.into_iter().for_each(|(rows, shown)| run.log.reporter.completions(rows, shown));
        }
        let metrics = run.step_policy()?;
        self.batch.used += 1;
        Ok(metrics)
    }

    /// Moves the reference model, if that is due.
    pub fn sync_reference(&mut self, run: &TrainingRun) -> anyhow::Result<()> {
        match &mut self.reference {
            Some(reference) => reference.sync(&run.learner.ctx, &run.learner.policy.weights, run.learner.step),
            None => Ok(()),
        }
    }

    /// Writes what moves beside the policy into a checkpoint.
    pub fn write_tensors(&self) -> Vec<WriteFiles> {
        self.reference.iter().filter_map(Reference::write).collect()
    }

    /// The metrics of an evaluation on held-out prompts; `advantages` are those of the loss.
    pub fn evaluate(
        &mut self,
        run: &mut TrainingRun,
        advantages: impl Fn(&Config, &Rollouts, &[Sample]) -> Advantages,
    ) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let (Some(evaluation), Some(collector)) = (&self.evaluation, &mut self.collector) else { return Ok(None) };
        let span = run.log.stages.span("evaluation");
        let progress = Progress::of(&run.log, &run.learner);
        // One stage: what is inside has timers that nobody reads.
        let observer = Observer { stages: &Stages::default(), on_wait: &|reward, time| progress.waits(reward, time) };
        let outcomes =
            evaluation.run(&mut **collector, &run.learner.policy, &self.eval_weights, run.learner.step, &observer)?;
        let seconds = span.end();
        let (mut metrics, mut problems, mut unscored) = (Vec::new(), Vec::new(), None);
        for outcome in outcomes {
            self.health.check(&outcome.rollouts, &outcome.problems, &run.config)?;
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
        let advantages = advantages(&run.config, rollouts, &samples).advantages;
        samples.iter_mut().zip(advantages).for_each(|(sample, advantage)| sample.advantage = advantage);
        let scores = match self.scorer.as_ref().map(lock) {
            Some(mut scorer) => {
                let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
                let scores = scorer.score(
                    &run.learner.ctx,
                    &run.learner.policy.weights,
                    &sequences,
                    self.sampling.temperature,
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
        Ok(run.learner.trainer.loss(&samples, &scores)?)
    }
}

fn lock(scorer: &SharedScorer) -> MutexGuard<'_, Scorer> {
    scorer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn recorded(sample: &Sample) -> Scores {
    let logps = sample.columns.sampler_logps().unwrap_or_default().to_vec();
    Scores { entropies: vec![0.0; logps.len()], logps }
}

/// TRL's `num_tokens`.
fn count_tokens(run: &mut TrainingRun, rollouts: &Rollouts) {
    let prompts: usize = rollouts.groups.iter().map(|g| g.prompt.tokens.ids.len() * g.completions.len()).sum();
    let tokens: usize = rollouts.completions().map(|c| c.completion.ids.len()).sum();
    run.data.num_tokens += (prompts + tokens) as u64;
}
