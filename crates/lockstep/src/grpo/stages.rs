//! The stages of a step, in the order of the data.

use super::{GenerationBatch, Grpo};
use crate::checkpoint::state::Buffer;
use crate::course::{Ended, Own, book};
use crate::data::prompts::Prompt;
use crate::judge::{Judged, judge};
use crate::{completion_log, samples};
use rollout::{Completion, FinishReason, Request};
use std::sync::Arc;
use train::{Advantages, PromptCompletion, Sample, advantages};

impl Grpo {
    /// The next prompts of the permutation.
    pub fn draw_prompts(&mut self) -> Vec<Arc<Prompt>> {
        self.course.sampler.next_batch().into_iter().map(|i| self.questions[i].clone()).collect()
    }

    /// `num_generations` completions of each prompt.
    pub fn rollout(&mut self, prompts: &[Arc<Prompt>]) -> anyhow::Result<Vec<Completion>> {
        let span = self.course.stages.span("rollout");
        let mut requests = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            requests.push(Request {
                prompt: prompt.ids.clone(),
                num_generations: self.sizes.group,
                rollout_number: self.rollout_number,
                sampling: self.sampling.clone(),
                pause_on_stop: false,
            });
            self.rollout_number += 1;
        }
        let before = kernels::context::counted();
        let completions = self.engine.generate(&self.course.policy.weights, requests)?;
        book(&span, before);
        let seconds = span.end();
        let tokens: usize = completions.iter().map(|c| c.ids.len()).sum();
        self.course.reporter.add("rollout_time_s", seconds);
        self.course.reporter.add("rollout_tokens_per_s", tokens as f64 / seconds);
        self.count_completions(prompts, &completions);
        Ok(completions)
    }

    /// TRL's numbers about completions.
    fn count_completions(&mut self, prompts: &[Arc<Prompt>], completions: &[Completion]) {
        let prompt_tokens: usize = prompts.iter().map(|p| p.ids.len() * self.sizes.group).sum();
        let lengths: Vec<f64> = completions.iter().map(|c| c.ids.len() as f64).collect();
        self.course.num_tokens += prompt_tokens as u64 + lengths.iter().sum::<f64>() as u64;
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

    /// The score of every completion by every reward.
    pub fn judge(&mut self, prompts: &[Arc<Prompt>], completions: &[Completion]) -> anyhow::Result<Judged> {
        let span = self.course.stages.span("rewards");
        let tokenizer = &self.course.policy.tokenizer;
        let judged = judge(&mut self.rewards, &self.reward_weights, tokenizer, prompts, completions, self.course.step)?;
        let reporter = &mut self.course.reporter;
        for problem in &judged.problems {
            reporter.console().warn(&problem.to_string());
        }
        for (name, value) in &judged.metrics {
            reporter.add(name, *value);
        }
        reporter.add("reward_time_s", span.end());
        Ok(judged)
    }

    /// How much better than its group each completion is.
    pub fn advantages(&mut self, judged: &Judged) -> Advantages {
        let advantages = advantages::compute(&judged.matrix, self.sizes.group, self.course.config.scale_rewards);
        for (name, value) in &advantages.metrics {
            if let Some(value) = value {
                self.course.reporter.add(name, *value);
            }
        }
        advantages
    }

    /// Completions and advantages become the next samples; with `beta`, the reference model scores them.
    pub fn fill_batch(
        &mut self,
        prompts: &[Arc<Prompt>],
        completions: &[Completion],
        judged: Judged,
        advantages: Advantages,
    ) -> anyhow::Result<()> {
        let ids: Vec<_> = prompts.iter().map(|p| p.ids.clone()).collect();
        let mut samples = samples::join(&ids, completions, &advantages.advantages);
        self.score_reference(&mut samples)?;
        self.batch = GenerationBatch { samples, used: 0 };
        completion_log::log(&self.course, judged, &advantages)
    }

    fn score_reference(&mut self, samples: &mut [Sample]) -> anyhow::Result<()> {
        let Some((weights, scorer)) = &mut self.reference else { return Ok(()) };
        let _span = self.course.stages.span("reference");
        let pairs: Vec<PromptCompletion<'_>> =
            samples.iter().map(|s| PromptCompletion { prompt: &s.prompt, completion: &s.completion }).collect();
        let scores = scorer.score(&self.course.ctx, weights, &pairs, self.sampling.temperature)?;
        for (sample, scores) in samples.iter_mut().zip(scores) {
            sample.ref_logps = Some(scores.logps);
        }
        Ok(())
    }

    /// One optimizer step on the next part of the batch.
    pub fn update(&mut self) -> anyhow::Result<()> {
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
        Ok(())
    }

    /// What is due before the first step: an evaluation, if asked for.
    pub fn before_first_step(&mut self) -> anyhow::Result<()> {
        if self.course.step == 0 && self.course.config.eval_on_start {
            self.evaluate()?;
        }
        Ok(())
    }

    /// Logs, evaluates and saves as due; says whether the run ends here.
    pub fn after_step(&mut self) -> anyhow::Result<Option<Ended>> {
        self.course.log_step(&["loss", "reward", "kl", "completions/mean_length"])?;
        let early = self.course.evaluates_now() && self.evaluate()?;
        let ended = self.course.ends(early);
        if self.course.saves_now(ended) {
            let buffer = (!self.batch_is_used_up()).then(|| Buffer::new(&self.batch.samples, self.batch.used));
            self.course.save(Own { rollout_number: self.rollout_number, buffer })?;
        }
        Ok(ended)
    }

    /// Evaluates, and says whether to stop early.
    fn evaluate(&mut self) -> anyhow::Result<bool> {
        let Some(evaluation) = &self.evaluation else { return Ok(false) };
        let course = &mut self.course;
        let span = course.stages.span("evaluation");
        let outcome =
            evaluation.run(&mut self.engine, &course.policy, &mut self.rewards, &self.reward_weights, course.step)?;
        let seconds = span.end();
        for problem in &outcome.problems {
            course.reporter.console().warn(&problem.to_string());
        }
        let mut metrics = outcome.metrics;
        metrics.push(("eval_runtime".into(), seconds));
        course.take_evaluation(&metrics)
    }
}
