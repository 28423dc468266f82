//! Reports sample completions as table rows with TRL's columns.

use super::learner::Learner;
use super::log::RunLog;
use crate::config::Config;
use crate::rollouts::{Rollouts, ScoredCompletion};
use serde_json::Value;
use telemetry::CompletionRows;
use train::{Advantage, Advantages};

/// The completions that the next step of `learner` trains on, as table rows, and how many of them the console shows.
/// `None` if the configuration does not ask for completions at this step.
pub fn rows(
    config: &Config,
    learner: &Learner,
    log: &RunLog,
    rollouts: &Rollouts,
    advantages: &Advantages,
) -> anyhow::Result<Option<(CompletionRows, usize)>> {
    let step = learner.step + 1;
    let last = step >= learner.schedule.total_steps;
    if !config.log_completions || !log.reporter.logs_at(step, last) {
        return Ok(None);
    }
    // Columns that some rewards add, in the order in which they come.
    let mut extra: Vec<(String, Vec<Value>)> = Vec::new();
    for name in rollouts.completions().flat_map(|c| c.extra.keys()) {
        if extra.iter().all(|(known, _)| known != name) {
            let value = |c: &ScoredCompletion| c.extra.get(name).cloned().unwrap_or(Value::Null);
            extra.push((name.clone(), rollouts.completions().map(value).collect()));
        }
    }
    let mut prompts = Vec::new();
    for group in &rollouts.groups {
        let prompt = serde_json::to_value(&group.prompt.content)?;
        prompts.extend(std::iter::repeat_n(prompt, group.completions.len()));
    }
    let column = |k: usize| rollouts.completions().map(|c| c.rewards[k]).collect();
    let rows = CompletionRows {
        step,
        prompts,
        completions: rollouts.completions().map(|c| serde_json::to_value(&c.content)).collect::<Result<_, _>>()?,
        rewards: rollouts.reward_names.iter().enumerate().map(|(k, name)| (name.clone(), column(k))).collect(),
        extra,
        advantages: advantages.advantages.iter().map(Advantage::mean).collect(),
    };
    let prints = step.is_multiple_of(config.log_completions_steps.unwrap_or(config.logging_steps)) || last;
    let shown = if prints { config.num_completions_to_print.unwrap_or(rows.prompts.len()) } else { 0 };
    Ok(Some((rows, shown)))
}
