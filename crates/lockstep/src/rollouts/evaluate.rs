//! Evaluation: completions of held-out prompts, scored by the same rewards, and pass@k.

use crate::config::{Config, EvalSampling};
use crate::data::prompt_dataset::PromptDataset;
use crate::data::prompts::Prompt;
use crate::models::Policy;
use crate::rollouts::Rollouts;
use crate::rollouts::scoring::{Prompts, RolloutScorer};
use rewards::{Problem, Reward};
use rollout::{Engine, FinishReason, Request, SamplingParams};
use std::sync::Arc;
use train::evaluation::pass_at_k;

/// Rollout numbers of evaluation lie apart from those of training: evaluating changes no completion of training.
const EVALUATION: u64 = 1 << 62;

/// Held-out prompts and how they are sampled.
pub struct Evaluation {
    prompts: Vec<Arc<Prompt>>,
    sampling: Arc<SamplingParams>,
    generations: usize,
    pass_at_k: Vec<usize>,
}

/// What came out.
pub struct Outcome {
    /// `eval_reward`, `eval_rewards/<name>/mean`, `eval_completions/…`, `eval_pass@k`.
    pub metrics: Vec<(String, f64)>,
    /// What kept rewards from giving a score.
    pub problems: Vec<Problem>,
    /// The scored completions of each prompt.
    pub rollouts: Rollouts,
}

impl Outcome {
    /// The value of a metric, with or without `eval_`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        find(&self.metrics, name)
    }
}

/// The value of an evaluation metric, with or without `eval_`.
pub fn find(metrics: &[(String, f64)], name: &str) -> Option<f64> {
    metrics.iter().find(|(n, _)| n == name || n.strip_prefix("eval_") == Some(name)).map(|(_, v)| *v)
}

/// The names of what an evaluation by `rewards` gives, where they score anything.
pub fn metric_names(config: &Config, rewards: &[Box<dyn Reward>]) -> Vec<String> {
    let of_rewards =
        rewards.iter().flat_map(|r| ["mean", "std"].map(|what| format!("eval_rewards/{}/{what}", r.name())));
    let fixed = ["reward", "reward_std", "completions/mean_length", "completions/clipped_ratio", "runtime"];
    let pass = config.eval_pass_at_k.iter().map(|k| format!("eval_pass@{k}"));
    of_rewards.chain(fixed.map(|name| format!("eval_{name}"))).chain(pass).collect()
}

impl Evaluation {
    /// An evaluation as the configuration asks for it, with the sampling of training or greedy.
    pub fn new(config: &Config, prompts: &PromptDataset, training: &SamplingParams) -> Evaluation {
        let mut sampling = training.clone();
        if config.eval_sampling == EvalSampling::Greedy {
            sampling = SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..sampling };
        }
        Evaluation {
            prompts: prompts.all.clone(),
            sampling: Arc::new(sampling),
            generations: config.generations_eval(),
            pass_at_k: config.eval_pass_at_k.clone(),
        }
    }

    /// Completes all prompts and scores the completions. The same noise each time: evaluations of a run differ by the
    /// weights alone.
    pub fn run(
        &self,
        engine: &mut Engine,
        policy: &Policy,
        rewards: &mut [Box<dyn Reward>],
        weights: &[f64],
        step: u64,
    ) -> anyhow::Result<Outcome> {
        let prompts: Prompts = (EVALUATION..).zip(self.prompts.iter().cloned()).collect();
        let request = |(&id, prompt): (&u64, &Arc<Prompt>)| Request {
            id,
            prompt: prompt.tokens.clone(),
            num_generations: self.generations,
            sampling: self.sampling.clone(),
            pause_on_stop: false,
        };
        let requests = prompts.iter().map(request).collect();
        let scorer = RolloutScorer { rewards, weights, tokenizer: &policy.tokenizer, step };
        let output = std::thread::scope(|scope| -> anyhow::Result<_> {
            let mut job = scorer.start(scope, &prompts)?;
            let groups = engine.generate_with(&policy.weights, requests, |group| job.group_ended(group))?;
            job.finish(groups)
        })?;
        let rewards = output.rollouts.rewards();
        let totals = train::advantages::compute(&rewards, train::ScaleRewards::None);
        let mut metrics: Vec<(String, f64)> = Vec::new();
        for (name, value) in &totals.metrics {
            // Of the metrics of advantages, those about rewards mean something here.
            if name != "frac_reward_zero_std"
                && let Some(value) = value
            {
                metrics.push((format!("eval_{name}"), *value));
            }
        }
        let completions = || output.rollouts.completions().map(|c| &c.completion);
        let count = completions().count().max(1) as f64;
        let tokens: usize = completions().map(|c| c.ids.len()).sum();
        let cut = completions().filter(|c| c.finish_reason == FinishReason::Length).count();
        metrics.push(("eval_completions/mean_length".into(), tokens as f64 / count));
        metrics.push(("eval_completions/clipped_ratio".into(), cut as f64 / count));
        for &k in &self.pass_at_k {
            let groups: Vec<_> = rewards.groups().map(|group| &totals.rewards[group]).collect();
            metrics.push((format!("eval_pass@{k}"), pass_at_k(&groups, k)));
        }
        Ok(Outcome { metrics, problems: output.problems, rollouts: output.rollouts })
    }
}
