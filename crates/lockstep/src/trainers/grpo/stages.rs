//! The stages of a step, in the order of the data.

use super::{GenerationBatch, Grpo, Source, Spent};
use crate::data::prompts::Prompt;
use crate::rollouts::Rollouts;
use crate::rollouts::generation::Generation;
use crate::rollouts::judge::{Judged, Judges};
use crate::rollouts::samples;
use crate::run::checkpoint::state::{Buffer, CriticState};
use crate::run::completion_log;
use crate::run::course::{Ended, Own, book};
use model::PromptCompletion;
use rollout::{Completion, FinishReason, Request};
use std::path::Path;
use std::sync::Arc;
use train::{Advantages, Sample, UpdateMetrics};

impl Grpo {
    /// The next groups of the file.
    pub fn recorded(&mut self) -> anyhow::Result<Rollouts> {
        let Source::File(replay, scorer) = &mut self.source else { unreachable!("no file") };
        let course = &mut self.course;
        let picked = course.sampler.next_batch();
        // As if they had been asked for: PPO's mini-batches are drawn by this number.
        self.rollout_number += picked.len() as u64;
        let _span = course.stages.span("replay");
        let temperature = self.sampling.temperature;
        let rollouts =
            replay.rollouts(&picked, &course.ctx, &course.policy, scorer, temperature, &self.reward_weights)?;
        self.count_tokens(&rollouts.prompts, &rollouts.completions);
        Ok(rollouts)
    }

    /// A generation of no rounds.
    pub fn new_generation(&self) -> Generation {
        Generation::default()
    }

    /// The next prompts of the permutation; `None` once the generation is complete.
    pub fn draw_prompts(&mut self, generation: &Generation) -> Option<Vec<Arc<Prompt>>> {
        let config = &self.course.config;
        let rows = match generation.rounds() {
            0 => self.course.sampler.next_batch(),
            rounds if config.dynamic_sampling && rounds < config.dynamic_sampling_max_rounds => {
                self.course.sampler.take(generation.without_spread().len())
            }
            _ => return None,
        };
        let Source::Prompts(questions) = &self.source else { unreachable!("no prompts") };
        (!rows.is_empty()).then(|| rows.into_iter().map(|i| questions[i].clone()).collect())
    }

    /// The complete generation.
    pub fn end_generation(&mut self, generation: Generation) -> Rollouts {
        let Spent { rollout_time_s, rollout_tokens, reward_time_s, reward_hidden_time_s } =
            std::mem::take(&mut self.spent);
        let reporter = &mut self.course.reporter;
        reporter.add("rollout_time_s", rollout_time_s);
        reporter.add("rollout_tokens_per_s", rollout_tokens as f64 / rollout_time_s);
        reporter.add("reward_time_s", reward_time_s);
        reporter.add("reward_hidden_time_s", reward_hidden_time_s);
        let (rollouts, metrics) = generation.finish();
        if self.course.config.dynamic_sampling {
            for (name, value) in metrics {
                self.course.reporter.add(name, value);
            }
        }
        rollouts
    }

    /// `num_generations` completions of each prompt, and the score of each by every reward: a group that has ended is judged
    /// while others are still generated, by the rewards that need no more than a group.
    pub fn rollout_and_judge(&mut self, prompts: &[Arc<Prompt>]) -> anyhow::Result<(Vec<Completion>, Judged)> {
        let requests = self.requests(prompts);
        let course = &self.course;
        let Some(engine) = &mut self.engine else { unreachable!("the source is no file") };
        let judges = Judges {
            rewards: &mut self.rewards,
            weights: &self.reward_weights,
            tokenizer: &course.policy.tokenizer,
            step: course.step,
        };
        let (completions, judged) = std::thread::scope(|scope| -> anyhow::Result<_> {
            let mut judging = judges.begin(scope, prompts, self.sizes.group)?;
            let span = course.stages.span("rollout");
            let before = kernels::context::counted();
            let completions = engine.generate_with(&course.policy.weights, requests, |c| judging.ended(c))?;
            book(&span, before);
            self.spent.rollout_time_s += span.end();
            // What is left to judge: this is what rewards cost the run.
            let span = course.stages.span("rewards");
            let judged = judging.finish(&completions)?;
            self.spent.reward_time_s += span.end();
            Ok((completions, judged))
        })?;
        self.spent.rollout_tokens += completions.iter().map(|c| c.ids.len()).sum::<usize>();
        self.count_tokens(prompts, &completions);
        self.report(&judged);
        Ok((completions, judged))
    }

    /// What the engine is asked for.
    fn requests(&mut self, prompts: &[Arc<Prompt>]) -> Vec<Request> {
        let request = |prompt: &Arc<Prompt>| {
            self.rollout_number += 1;
            Request {
                prompt: prompt.ids.clone(),
                num_generations: self.sizes.group,
                rollout_number: self.rollout_number - 1,
                sampling: self.sampling.clone(),
                pause_on_stop: false,
            }
        };
        prompts.iter().map(request).collect()
    }

    /// What rewards want said, and how long they took.
    fn report(&mut self, judged: &Judged) {
        for &(start, seconds) in &judged.hidden {
            self.course.stages.record_overlapped("rewards", start, seconds);
            self.spent.reward_hidden_time_s += seconds;
        }
        let reporter = &mut self.course.reporter;
        for problem in &judged.problems {
            reporter.sinks().warn(&problem.to_string());
        }
        if let Some(warning) = judged.unscored() {
            reporter.sinks().warn(&warning);
        }
        for (name, value) in &judged.metrics {
            reporter.add(name, *value);
        }
    }

    /// TRL's `num_tokens`.
    fn count_tokens(&mut self, prompts: &[Arc<Prompt>], completions: &[Completion]) {
        let prompt_tokens: usize = prompts.iter().map(|p| p.ids.len() * self.sizes.group).sum();
        let tokens: usize = completions.iter().map(|c| c.ids.len()).sum();
        self.course.num_tokens += (prompt_tokens + tokens) as u64;
    }

    /// TRL's numbers about completions.
    fn count_completions(&mut self, completions: &[Completion]) {
        let lengths: Vec<f64> = completions.iter().map(|c| c.ids.len() as f64).collect();
        let ended = |(c, &l): (&Completion, &f64)| (c.finish_reason == FinishReason::Stop).then_some(l);
        let terminated: Vec<f64> = completions.iter().zip(&lengths).filter_map(ended).collect();
        let reporter = &mut self.course.reporter;
        for (kind, lengths) in [("", &lengths), ("terminated_", &terminated)] {
            // As TRL: where none ended by itself, the terminated lengths are 0.
            let some = !lengths.is_empty();
            let mean = if some { lengths.iter().sum::<f64>() / lengths.len() as f64 } else { 0.0 };
            let least = if some { lengths.iter().copied().fold(f64::INFINITY, f64::min) } else { 0.0 };
            reporter.add(&format!("completions/mean_{kind}length"), mean);
            reporter.add(&format!("completions/min_{kind}length"), least);
            reporter.add(&format!("completions/max_{kind}length"), lengths.iter().copied().fold(0.0, f64::max));
        }
        let clipped = 1.0 - terminated.len() as f64 / lengths.len().max(1) as f64;
        reporter.add("completions/clipped_ratio", clipped);
    }

    /// How much better than its group (or its batch) each completion is.
    pub fn advantages(&mut self, rollouts: &Rollouts, samples: &[Sample]) -> Advantages {
        let advantages = self.course.config.advantages(&rollouts.judged.matrix, samples);
        for (name, value) in &advantages.metrics {
            if let Some(value) = value {
                self.course.reporter.add(name, *value);
            }
        }
        advantages
    }

    /// Completions become samples, without their advantages. Where there is a reference model, it scores them; those of
    /// another sampler are scored by the policy, where that is corrected for.
    pub fn samples(&mut self, rollouts: &Rollouts) -> anyhow::Result<Vec<Sample>> {
        self.count_completions(&rollouts.completions);
        let ids: Vec<_> = rollouts.prompts.iter().map(|p| p.ids.clone()).collect();
        let mut samples = samples::join(&ids, &rollouts.completions);
        for (sample, given) in samples.iter_mut().zip(&rollouts.ref_logps) {
            sample.ref_logps.clone_from(given);
        }
        self.score_reference(&mut samples)?;
        self.score_stale(&mut samples)?;
        Ok(samples)
    }

    /// Samples with their advantages are what the next steps train on.
    pub fn fill_batch(
        &mut self,
        rollouts: Rollouts,
        mut samples: Vec<Sample>,
        advantages: Advantages,
    ) -> anyhow::Result<()> {
        for (sample, advantage) in samples.iter_mut().zip(&advantages.advantages) {
            sample.advantage.clone_from(advantage);
        }
        self.take_batch(rollouts, samples, &advantages)
    }

    /// The generation that the next steps learn from.
    pub fn take_batch(
        &mut self,
        rollouts: Rollouts,
        samples: Vec<Sample>,
        advantages: &Advantages,
    ) -> anyhow::Result<()> {
        for (i, sample) in samples.iter().enumerate() {
            self.course.reporter.record_rollout(|| rollouts.line(i, sample, self.course.step + 1))?;
        }
        self.batch = GenerationBatch { samples, used: 0 };
        completion_log::log(&self.course, rollouts.judged, advantages)
    }

    fn score_reference(&mut self, samples: &mut [Sample]) -> anyhow::Result<()> {
        let Some(reference) = &mut self.reference else { return Ok(()) };
        let course = &mut self.course;
        let _span = course.stages.span("reference");
        let pairs: Vec<PromptCompletion<'_>> =
            samples.iter().map(|s| PromptCompletion { prompt: &s.prompt, completion: &s.completion }).collect();
        let scores = reference.score(&course.ctx, &course.policy.weights, &pairs, self.sampling.temperature)?;
        for (sample, scores) in samples.iter_mut().zip(scores) {
            // What a file gave stays.
            sample.ref_logps.get_or_insert(scores.logps);
        }
        Ok(())
    }

    /// log π_old of the samples that weights of another version wrote.
    fn score_stale(&mut self, samples: &mut [Sample]) -> anyhow::Result<()> {
        let course = &mut self.course;
        let Source::File(_, scorer) = &mut self.source else { return Ok(()) };
        if !course.config.vllm_importance_sampling_correction {
            return Ok(());
        }
        let weights = &course.policy.weights;
        let stale = |s: &&mut Sample| s.versions.iter().any(|&v| v != weights.version());
        let mut stale: Vec<&mut Sample> = samples.iter_mut().filter(stale).collect();
        let pairs: Vec<PromptCompletion<'_>> =
            stale.iter().map(|s| PromptCompletion { prompt: &s.prompt, completion: &s.completion }).collect();
        let _span = course.stages.span("stale");
        let scores = scorer.score(&course.ctx, weights, &pairs, self.sampling.temperature)?;
        for (sample, scores) in stale.iter_mut().zip(scores) {
            sample.old_logps = Some(scores.logps);
        }
        Ok(())
    }

    /// What the next optimizer step learns from.
    pub fn part(&self) -> &[Sample] {
        let first = (self.batch.used % self.sizes.parts()) as usize * self.sizes.optimizer;
        &self.batch.samples[first..first + self.sizes.optimizer]
    }

    /// One optimizer step on the next part of the batch.
    pub fn update(&mut self) -> anyhow::Result<UpdateMetrics> {
        let first = (self.batch.used % self.sizes.parts()) as usize * self.sizes.optimizer;
        let part = &self.batch.samples[first..first + self.sizes.optimizer];
        let course = &mut self.course;
        let learning_rate = course.schedule.at(course.step);
        let span = course.stages.span("update");
        let before = kernels::context::counted();
        let metrics = course.trainer.update(&course.ctx, &mut course.policy.weights, part, learning_rate)?;
        book(&span, before);
        let seconds = span.end();
        self.batch.used += 1;
        course.count_update(&metrics, seconds);
        Ok(metrics)
    }

    /// What is due before the first step: an evaluation, if asked for.
    pub fn before_first_step(&mut self) -> anyhow::Result<()> {
        if self.course.step == 0 && self.course.config.eval_on_start {
            self.evaluate()?;
        }
        Ok(())
    }

    /// Moves the reference, logs, evaluates and saves as due; says whether the run ends here.
    pub fn after_step(&mut self) -> anyhow::Result<Option<Ended>> {
        self.end_step(&["loss", "reward", "kl", "completions/mean_length"], None, |_| Ok(()))
    }

    /// [`after_step`](Self::after_step) of a run that shows these metrics, and has more to save.
    pub(crate) fn end_step(
        &mut self,
        shown: &[&str],
        critic: Option<CriticState>,
        more: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Ended>> {
        if let Some(reference) = &mut self.reference {
            reference.sync(&self.course.ctx, &self.course.policy.weights, self.course.step)?;
        }
        self.course.log_step(shown)?;
        let early = self.course.evaluates_now() && self.evaluate()?;
        let ended = self.course.ends(early);
        if self.course.saves_now(ended) {
            let buffer = (!self.batch_is_used_up()).then(|| Buffer::new(&self.batch.samples, self.batch.used));
            let reference = self.reference.as_ref();
            self.course.save(Own { rollout_number: self.rollout_number, buffer, critic }, |dir| {
                reference.map_or(Ok(()), |reference| reference.save(dir))?;
                more(dir)
            })?;
        }
        Ok(ended)
    }

    /// Evaluates, and says whether to stop early.
    fn evaluate(&mut self) -> anyhow::Result<bool> {
        let (Some(evaluation), Some(engine)) = (&self.evaluation, &mut self.engine) else { return Ok(false) };
        let course = &mut self.course;
        let span = course.stages.span("evaluation");
        let outcome = evaluation.run(engine, &course.policy, &mut self.rewards, &self.eval_weights, course.step)?;
        let seconds = span.end();
        for problem in &outcome.problems {
            course.reporter.sinks().warn(&problem.to_string());
        }
        let mut metrics = outcome.metrics;
        metrics.push(("eval_runtime".into(), seconds));
        course.take_evaluation(&metrics)
    }
}
