//! Evaluation: generates completions of held-out prompts, scores them with the run's reward functions, and computes
//! pass@k. Completions without a score are left out of every mean.

use crate::algorithms;
use crate::config::{Config, SamplingPlan, WorkloadBounds, eval_sampling};
use crate::data::DatasetSpec;
use crate::data::prompt_dataset::PromptDataset;
use crate::error::BadInput;
use crate::models::Policy;
use crate::rollouts::collector::{Collect, CollectRequest, NonFiniteLogp, Observer};
use crate::rollouts::rewards::{ConfiguredReward, check_columns};
use crate::rollouts::scoring::ScoredRollouts;
use crate::rollouts::{Rollouts, ScoredCompletion};
use kernels::mean::share;
use model::{GroupId, ModelAssets};
use rewards::{Problem, Reward};
use rollout::{FinishReason, SamplingParams};
use std::sync::Arc;
use telemetry::Step;
use train::evaluation::pass_at_k;

/// The first group number of evaluations, far above training's, so that evaluations do not change the completions of
/// training.
const EVALUATION: GroupId = GroupId(1 << 62);

/// A completion is correct if the reward `eval_pass_at_k_reward` is at least this, regardless of its weight.
const RIGHT: f64 = 1.0;

/// The metric of the mean completion length.
const MEAN_LENGTH: &str = "completions/mean_length";
const CLIPPED_RATIO: &str = "completions/clipped_ratio";
/// Further length metrics, with TRL's names.
const LENGTHS: [&str; 5] = [
    "completions/min_length",
    "completions/max_length",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
];
/// The share of prompts whose completions all have the same reward.
const ZERO_STD: &str = "frac_reward_zero_std";

/// The held-out prompts of an evaluation, in one or more sets, and how completions are sampled.
pub struct Evaluation {
    sets: Vec<EvalSet>,
    sampling: SamplingPlan,
    generations: usize,
    pass_at_k: Vec<usize>,
    /// The index of the reward function that decides whether a completion is correct.
    right: usize,
}

/// A named set of held-out prompts.
#[derive(Clone)]
pub struct EvalSet {
    /// The set's name in `eval_datasets`; empty for the set of `eval_dataset_name`.
    pub name: String,
    /// The encoded prompts.
    pub questions: PromptDataset,
}

/// The result of evaluating one set.
pub struct Outcome {
    /// The evaluation set's name; empty for the set of `eval_dataset_name`.
    pub name: String,
    /// Names and values: `eval_reward`, `eval_rewards/<name>/mean`, `eval_completions/…`, `eval_pass@k`; for a named
    /// set `eval_<set>_reward` and so on.
    pub metrics: Vec<(String, f64)>,
    /// Errors of reward functions.
    pub problems: Vec<Problem>,
    /// A warning if completions have no score although no reward function reported an error.
    pub unscored: Option<String>,
    /// The prompts with their scored completions.
    pub rollouts: Rollouts,
}

impl Outcome {
    /// The value of a metric; `name` has neither the prefix `eval_` nor the set's name.
    pub fn metric(&self, name: &str) -> Option<f64> {
        find(&self.metrics, &format!("{}{name}", prefix(&self.name)))
    }
}

/// Reads and encodes evaluation sets, and checks that each has the columns that the reward functions read.
pub fn load_sets(
    specs: Vec<(String, DatasetSpec)>,
    config: &Config,
    assets: &ModelAssets,
    rewards: &[ConfiguredReward],
) -> anyhow::Result<Vec<EvalSet>> {
    let load = |(name, spec): (String, DatasetSpec)| -> anyhow::Result<EvalSet> {
        let questions = PromptDataset::load(&spec, config, assets, config.max_completion_length)?;
        check_columns(&questions, &spec.name, rewards)?;
        Ok(EvalSet { name, questions })
    };
    specs.into_iter().map(load).collect()
}

/// `bounds`, raised to the needs of an evaluation of these sets.
pub fn with_sets(bounds: WorkloadBounds, sets: &[EvalSet], config: &Config) -> WorkloadBounds {
    let longest = sets.iter().map(|set| set.questions.longest()).max().unwrap_or(0);
    let most = sets.iter().map(|set| set.questions.all.len()).max().unwrap_or(0);
    WorkloadBounds {
        longest_prompt: bounds.longest_prompt.max(longest),
        sequences: bounds.sequences.max(most * config.generations_eval()),
        ..bounds
    }
}

/// The prefix of the metric names of a set, as in transformers' Trainer.
pub fn prefix(set: &str) -> String {
    if set.is_empty() { "eval_".to_owned() } else { format!("eval_{set}_") }
}

/// The value of the evaluation metric `name`, with or without the prefix `eval_`.
pub fn find(metrics: &[(String, f64)], name: &str) -> Option<f64> {
    metrics.iter().find(|(n, _)| n == name || n.strip_prefix("eval_") == Some(name)).map(|(_, v)| *v)
}

/// Explains an error about non-finite log-probabilities.
fn explained(error: anyhow::Error, policy: &Policy) -> anyhow::Error {
    match error.downcast_ref() {
        Some(NonFiniteLogp(logp)) => anyhow::anyhow!(
            "the model's logits are not finite (a token's log-probability is {logp}), so it cannot be evaluated: {}",
            policy.why_not_finite()
        ),
        None => error,
    }
}

/// The names of all metrics that an evaluation reports if every reward function scores.
pub fn metric_names(config: &Config, rewards: &[Box<dyn Reward>]) -> Vec<String> {
    let reward_metrics =
        rewards.iter().flat_map(|r| ["mean", "std"].map(|what| format!("rewards/{}/{what}", r.name())));
    let total_metrics = ["reward", "reward_std", ZERO_STD].into_iter().filter(|_| !rewards.is_empty());
    let fixed = total_metrics.chain([MEAN_LENGTH, CLIPPED_RATIO]).chain(LENGTHS).map(str::to_owned);
    let loss = config.has_eval_loss().then(|| names_of_loss(config)).into_iter().flatten();
    let pass = config.eval_pass_at_k.iter().map(|k| format!("pass@{k}"));
    let set_names: Vec<String> = reward_metrics.chain(fixed).chain(loss).chain(pass).collect();
    let sets = config.eval_dataset_name.iter().map(|_| "").chain(config.eval_datasets.keys().map(String::as_str));
    let names = sets.flat_map(|set| set_names.iter().map(move |name| prefix(set) + name));
    names.chain(["eval_num_tokens", "eval_runtime"].map(str::to_owned)).collect()
}

/// The names of an evaluation's loss and of the metrics reported with it.
fn names_of_loss(config: &Config) -> Vec<String> {
    let objective = config.objective();
    let has_kl = matches!(config.reference(), Some(algorithms::Reference::Policy));
    let clips: &[&str] = if objective.clips() { &train::CLIP_RATIOS } else { &[] };
    let bonus: &[&str] = if objective.entropy().is_on() { &["policy_loss", "entropy_coef"] } else { &[] };
    let kl: &[&str] = if has_kl { &["kl"] } else { &[] };
    ["loss", "entropy"].iter().chain(kl).chain(bonus).chain(clips).map(|name| (*name).to_owned()).collect()
}

impl Evaluation {
    /// The evaluation that the configuration describes; `training` are training's sampling parameters.
    pub fn new(
        config: &Config,
        sets: Vec<EvalSet>,
        training: &SamplingParams,
        rewards: &[Box<dyn Reward>],
    ) -> anyhow::Result<Evaluation> {
        let right = match &config.eval_pass_at_k_reward {
            None => 0,
            Some(name) => rewards.iter().position(|reward| reward.name() == name).ok_or_else(|| {
                let names: Vec<&str> = rewards.iter().map(|reward| reward.name()).collect();
                BadInput::new(format!(
                    "`eval_pass_at_k_reward` = {name}: unknown reward; the rewards are: {}",
                    names.join(", ")
                ))
            })?,
        };
        Ok(Evaluation {
            sets,
            sampling: SamplingPlan::alike(Arc::new(eval_sampling(config, training))),
            generations: config.generations_eval(),
            pass_at_k: config.eval_pass_at_k.clone(),
            right,
        })
    }

    /// The sampling parameters of the evaluation.
    pub fn sampling(&self) -> Arc<SamplingParams> {
        self.sampling.common().clone()
    }

    /// Completes all prompts of each set and scores the completions. Each evaluation and each set uses the same random
    /// numbers: evaluations of a run differ only by the weights, and a set's metrics do not depend on other sets.
    pub fn run(
        &self,
        collector: &mut dyn Collect,
        policy: &Policy,
        reward_weights: &[f64],
        step: Step,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Vec<Outcome>> {
        let mut run_set = |set: &EvalSet| -> anyhow::Result<Outcome> {
            let request = CollectRequest {
                prompts: EVALUATION.and_after().zip(set.questions.all.iter().cloned()).collect(),
                num_generations: self.generations,
                sampling: &self.sampling,
                reward_weights,
                step,
                refuse_non_finite: true,
                activations: None,
            };
            let collected = collector.collect(&policy.weights, request, observer);
            let collected = collected.map_err(|error| explained(error, policy))?;
            Ok(self.outcome(set, collected.scored))
        };
        self.sets.iter().map(&mut run_set).collect()
    }

    /// Computes the metrics of a set from its scored completions.
    fn outcome(&self, set: &EvalSet, output: ScoredRollouts) -> Outcome {
        let prefix = prefix(&set.name);
        let unscored = output.unscored_warning();
        let rollouts = output.rollouts;
        let totals = train::advantages::compute(&rollouts.rewards(), train::ScaleRewards::None);
        let mut metrics: Vec<(String, f64)> = Vec::new();
        for (name, value) in &totals.metrics {
            metrics.extend(value.map(|value| (format!("{prefix}{name}"), value)));
        }
        let completions = || rollouts.completions().map(|c| &c.completion);
        let lengths = rollout::length_metrics(completions());
        metrics.extend(find(&lengths, MEAN_LENGTH).map(|mean| (prefix.clone() + MEAN_LENGTH, mean)));
        // The share is computed here, since training uses TRL's formula 1 − ended / all, which differs in the last bit.
        let cut = completions().filter(|c| c.finish_reason == FinishReason::Length).count();
        let cut = share(cut, completions().count());
        metrics.extend(cut.map(|share| (prefix.clone() + CLIPPED_RATIO, share)));
        let further = LENGTHS.iter().filter_map(|name| Some((format!("{prefix}{name}"), find(&lengths, name)?)));
        metrics.extend(further);
        // There may be no reward function at all.
        let right = |c: &ScoredCompletion| c.rewards.get(self.right)?.map(|score| score >= RIGHT);
        let groups: Vec<Vec<bool>> =
            rollouts.groups.iter().map(|group| group.completions.iter().filter_map(right).collect()).collect();
        for &k in &self.pass_at_k {
            metrics.extend(pass_at_k(&groups, k).map(|value| (format!("{prefix}pass@{k}"), value)));
        }
        Outcome { name: set.name.clone(), metrics, problems: output.problems, unscored, rollouts }
    }
}

#[cfg(test)]
mod tests;
