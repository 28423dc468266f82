//! The stages of a step, in the order of the data.

use super::{Ended, GenerationBatch, Grpo};
use crate::data::Prompt;
use crate::judge::{Judged, judge};
use crate::{completion_log, samples};
use rollout::{Completion, FinishReason, Request};
use std::sync::Arc;
use std::time::Instant;
use train::{Advantages, PromptCompletion, Sample, advantages};

impl Grpo {
    /// The next prompts of the permutation.
    pub fn draw_prompts(&mut self) -> Vec<Arc<Prompt>> {
        self.sampler.next_batch().into_iter().map(|i| self.prompts[i].clone()).collect()
    }

    /// `num_generations` completions of each prompt.
    pub fn rollout(&mut self, prompts: &[Arc<Prompt>]) -> anyhow::Result<Vec<Completion>> {
        let span = self.stages.span("rollout");
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
        let completions = self.engine.generate(&self.policy.weights, requests)?;
        let seconds = span.end();
        let tokens: usize = completions.iter().map(|c| c.ids.len()).sum();
        self.reporter.add("rollout_time_s", seconds);
        self.reporter.add("rollout_tokens_per_s", tokens as f64 / seconds);
        self.count_completions(prompts, &completions);
        Ok(completions)
    }

    /// TRL's numbers about completions.
    fn count_completions(&mut self, prompts: &[Arc<Prompt>], completions: &[Completion]) {
        let prompt_tokens: usize = prompts.iter().map(|p| p.ids.len() * self.sizes.group).sum();
        let lengths: Vec<f64> = completions.iter().map(|c| c.ids.len() as f64).collect();
        self.num_tokens += prompt_tokens as u64 + lengths.iter().sum::<f64>() as u64;
        let ended = |(c, &l): (&Completion, &f64)| (c.finish_reason == FinishReason::Stop).then_some(l);
        let terminated: Vec<f64> = completions.iter().zip(&lengths).filter_map(ended).collect();
        for (kind, lengths) in [("", &lengths), ("terminated_", &terminated)] {
            // As TRL: where none ended by itself, its lengths are 0.
            let some = !lengths.is_empty();
            let mean = if some { lengths.iter().sum::<f64>() / lengths.len() as f64 } else { 0.0 };
            let least = if some { lengths.iter().copied().fold(f64::INFINITY, f64::min) } else { 0.0 };
            self.reporter.add(&format!("completions/mean_{kind}length"), mean);
            self.reporter.add(&format!("completions/min_{kind}length"), least);
            self.reporter.add(&format!("completions/max_{kind}length"), lengths.iter().copied().fold(0.0, f64::max));
        }
        let clipped = 1.0 - terminated.len() as f64 / lengths.len().max(1) as f64;
        self.reporter.add("completions/clipped_ratio", clipped);
    }

    /// The score of every completion by every reward.
    pub fn judge(&mut self, prompts: &[Arc<Prompt>], completions: &[Completion]) -> Judged {
        let span = self.stages.span("rewards");
        let judged =
            judge(&mut self.rewards, &self.reward_weights, &self.policy.tokenizer, prompts, completions, self.step);
        for problem in &judged.problems {
            self.reporter.console().warn(&problem.to_string());
        }
        for (name, value) in &judged.metrics {
            self.reporter.add(name, *value);
        }
        self.reporter.add("reward_time_s", span.end());
        judged
    }

    /// How much better than its group each completion is.
    pub fn advantages(&mut self, judged: &Judged) -> Advantages {
        let advantages = advantages::compute(&judged.matrix, self.sizes.group, self.config.scale_rewards);
        for (name, value) in &advantages.metrics {
            if let Some(value) = value {
                self.reporter.add(name, *value);
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
        completion_log::log(&self.config, &self.run, self.reporter.console(), self.step + 1, prompts, judged, &advantages)
    }

    fn score_reference(&mut self, samples: &mut [Sample]) -> anyhow::Result<()> {
        let Some((weights, scorer)) = &mut self.reference else { return Ok(()) };
        let _span = self.stages.span("reference");
        let pair = |s| -> PromptCompletion<'_> {
            let s: &Sample = s;
            PromptCompletion { prompt: &s.prompt, completion: &s.completion }
        };
        let pairs: Vec<_> = samples.iter().map(pair).collect();
        let scores = scorer.score(&self.ctx, weights, &pairs, self.sampling.temperature)?;
        for (sample, scores) in samples.iter_mut().zip(scores) {
            sample.ref_logps = Some(scores.logps);
        }
        Ok(())
    }

    /// One optimizer step on the next part of the batch.
    pub fn update(&mut self) -> anyhow::Result<()> {
        let span = self.stages.span("update");
        let parts = (self.sizes.generation / self.sizes.optimizer) as u64;
        let first = (self.batch.used % parts) as usize * self.sizes.optimizer;
        let part = &self.batch.samples[first..first + self.sizes.optimizer];
        let learning_rate = self.schedule.at(self.step);
        let metrics = self.trainer.update(&self.ctx, &mut self.policy.weights, part, learning_rate)?;
        let seconds = span.end();
        self.batch.used += 1;
        self.step += 1;
        if metrics.skipped {
            self.reporter.console().warn(&format!(
                "step {}: the loss or the gradient is not finite (loss {}, gradient norm {}); the step was skipped",
                self.step, metrics.loss, metrics.grad_norm
            ));
        }
        for (name, value) in metrics.entries() {
            self.reporter.add(name, value);
        }
        self.reporter.add("update_time_s", seconds);
        self.reporter.add("forward_time_s", metrics.forward_time_s);
        self.reporter.add("backward_time_s", metrics.backward_time_s);
        self.reporter.add("optimizer_time_s", metrics.optimizer_time_s);
        self.reporter.add("update_tokens_per_s", metrics.computed_tokens as f64 / seconds);
        Ok(())
    }

    /// What is due before step 0: an evaluation, if asked for.
    pub fn before_first_step(&mut self) -> anyhow::Result<()> {
        self.step_started = Instant::now();
        if self.step == 0 && self.config.eval_on_start {
            self.evaluate()?;
        }
        Ok(())
    }

    /// Logs, evaluates and saves as due; says whether the run ends here.
    pub fn after_step(&mut self) -> anyhow::Result<Option<Ended>> {
        let (step, last) = (self.step, self.step == self.total_steps());
        self.reporter.add("step_time", self.step_started.elapsed().as_secs_f64());
        self.step_started = Instant::now();
        self.reporter.set("epoch", step as f64 / self.steps_per_epoch);
        self.reporter.set("num_tokens", self.num_tokens as f64);
        if let Some(peak) = telemetry::system::peak_rss_bytes() {
            self.reporter.set("peak_bytes", peak as f64);
        }
        if let Some(record) = self.reporter.end_step(step, last)? {
            let number = |key| record.number(key).unwrap_or(f64::NAN);
            let note = format!("loss {:.4} · reward {:.3} · kl {:.1e}", number("loss"), number("reward"), number("kl"));
            let note = if self.reference.is_some() { note } else { note.split(" · kl").next().unwrap_or("").to_owned() };
            self.progress.set(step, &note);
        }
        let mut ended = None;
        if self.config.evaluates_at(step, last) && self.evaluate()? {
            ended = Some(Ended::Early);
        }
        if self.stop.asked() {
            ended = Some(Ended::Asked);
        }
        if self.config.saves_at(step, last) || ended.is_some() {
            self.save()?;
        }
        Ok(ended)
    }

    /// Evaluates, keeps the best, and says whether to stop early.
    fn evaluate(&mut self) -> anyhow::Result<bool> {
        let Some(evaluation) = &mut self.evaluation else { return Ok(false) };
        let span = self.stages.span("evaluation");
        let result =
            evaluation.run(&mut self.engine, &self.policy, &mut self.rewards, &self.reward_weights, self.step)?;
        let seconds = span.end();
        for problem in &result.problems {
            self.reporter.console().warn(&problem.to_string());
        }
        let mut values = result.metrics;
        values.push(("eval_runtime".into(), seconds));
        self.reporter.write(self.step, values.iter().map(|(n, v)| (n.as_str(), *v)))?;
        let summary: Vec<String> = values.iter().map(|(n, v)| format!("{n} {v:.4}")).collect();
        self.reporter.console().info(&format!("step {}: {}", self.step, summary.join(" · ")));
        self.judge_evaluation(&values)
    }
}
