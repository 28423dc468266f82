//! Sample completions, reported as rows with TRL's columns.

use super::training::TrainingRun;
use crate::rollouts::judge::Judged;
use serde_json::Value;
use telemetry::CompletionRows;
use train::{Advantage, Advantages};

/// Reports the completions that the step after `run.step` trains on, if it is one of those asked for.
pub fn log(run: &TrainingRun, judged: Judged, advantages: &Advantages) -> anyhow::Result<()> {
    let config = &run.config;
    let step = run.step + 1;
    let last = step >= run.schedule.total_steps;
    if !config.log_completions || !run.reporter.logs_at(step, last) {
        return Ok(());
    }
    let json = |contents: &[rewards::Content]| -> serde_json::Result<Vec<Value>> {
        contents.iter().map(serde_json::to_value).collect()
    };
    let column = |k: usize| judged.matrix.rewards.iter().map(|row| row[k]).collect();
    let rows = CompletionRows {
        step,
        prompts: json(&judged.prompts)?,
        completions: json(&judged.completions)?,
        rewards: judged.matrix.names.iter().enumerate().map(|(k, name)| (name.clone(), column(k))).collect(),
        extra: judged.extra,
        advantages: advantages.advantages.iter().map(Advantage::mean).collect(),
    };
    let prints = step.is_multiple_of(config.log_completions_steps.unwrap_or(config.logging_steps)) || last;
    let shown = if prints { config.num_completions_to_print.unwrap_or(rows.prompts.len()) } else { 0 };
    run.reporter.completions(rows, shown)
}
