//! Scores the completions in a file with the configured rewards, as a run would, to try a reward before a run. No model
//! is loaded, except reward models.

use crate::bad_input;
use crate::config::{ComputeDType, Config};
use crate::data::{DatasetSpec, Example};
use crate::error::OrBadInput;
use crate::rollouts::rewards::{check_columns_of, models, named_rewards, ready_rewards};
use crate::step::model_step;
use crate::stop::StopSignal;
use model::chat::PromptTime;
use model::{GroupId, Tokenizer};
use rewards::{Content, Problem, RewardInputs, RewardManager};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use telemetry::{Sinks, Step};

/// A completion with its scores.
pub struct ScoredRow {
    /// The index of the row in the file, from 0.
    pub row: usize,
    /// The prompt of the completion; empty if the file has no prompts.
    pub prompt: Content,
    /// The scored completion.
    pub completion: Content,
    /// The score of each reward; `None` without a score.
    pub rewards: Vec<Option<f64>>,
    /// Additional columns from rewards.
    pub extra: Map<String, Value>,
}

/// The scores of all completions in a file.
pub struct ScoredFile {
    /// The names of the rewards, in the order of each row's scores.
    pub names: Vec<String>,
    /// The completions with their scores, in file order.
    pub rows: Vec<ScoredRow>,
    /// The errors of rewards that gave no score.
    pub problems: Vec<Problem>,
    /// Metrics that rewards report, as (name, value).
    pub metrics: Vec<(String, f64)>,
    /// True if rewards received empty token ids, because the file has none.
    pub without_ids: bool,
    /// Seconds spent in the rewards.
    pub seconds: f64,
}

/// Scores the completions in the file `path`. Token ids come from the column `completion_ids`, or else from the
/// tokenizer in the directory `tokenizer`. Messages go to `sinks`.
pub fn score_file(
    config: &Config,
    path: &str,
    tokenizer: Option<&Path>,
    sinks: &Sinks,
    stop: &StopSignal,
) -> anyhow::Result<ScoredFile> {
    let spec = DatasetSpec { stop: stop.clone(), ..DatasetSpec::completions(config, path.to_owned()) };
    let prompt = spec.prompt_column.clone();
    let data = spec.load_with(&mut |row| {
        row.entry(prompt.as_str()).or_insert_with(|| "".into());
    })?;
    let named = named_rewards(config, Vec::new(), PromptTime::now(), stop)?;
    data.examples.iter().try_for_each(|example| {
        check_columns_of(&example.columns, &format!("{path}, row {}", example.row + 1), &named)
    })?;
    let ctx = crate::context(config.device, config.threads, ComputeDType::F32)?;
    let models = models(&named).map(|files| files.load(config, &ctx, sinks, stop)).collect::<anyhow::Result<_>>()?;
    let mut rewards = ready_rewards(named, models, stop);
    let tokenizer = tokenizer.map(|dir| Tokenizer::load(dir).or_bad_input()).transpose()?;
    let mut without_ids = false;
    let groups = data.examples.chunk_by(|a, b| a.prompt == b.prompt && a.prompt != Content::from(""));
    let mut inputs = Vec::new();
    for group in groups {
        stop.check()?;
        inputs.push(group_inputs(group, &data.columns, path, tokenizer.as_ref(), &mut without_ids)?);
    }
    if let Some(reward) = rewards.iter().find(|reward| without_ids && reward.reads_ids()) {
        bad_input!(
            "reward {} reads token ids, but {path} has no column `completion_ids`: give --tokenizer DIR, a model's \
             directory",
            reward.name()
        );
    }
    let ids: Vec<Vec<Vec<u32>>> = inputs.iter().map(|inputs| inputs.ids.clone()).collect();
    let inputs: Vec<_> = inputs.into_iter().map(|inputs| std::sync::Mutex::new(Some(inputs))).collect();
    let make_inputs = |group: GroupId, _| {
        let mut place = inputs[group.0 as usize].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(place.take().expect("each group is requested once"))
    };
    let start = Instant::now();
    let (names, output) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let manager =
            RewardManager { rewards: &mut rewards, make_inputs: Arc::new(make_inputs), step: model_step(Step::START) };
        let mut job = manager.start(scope, &[])?;
        let numbered = || GroupId(0).and_after().zip(&ids);
        numbered().for_each(|(group, ids)| job.group_ended(group, || ids.clone()));
        let names = job.names().to_vec();
        let groups: Vec<_> = numbered().map(|(group, ids)| (group, move || ids.clone())).collect();
        Ok((names, job.finish(groups.into_iter(), BTreeMap::new())?))
    })?;
    stop.check()?;
    let row = |(example, (completion, scores)): (Example, (Content, rewards::CompletionScores))| ScoredRow {
        row: example.row,
        prompt: example.prompt,
        completion,
        rewards: scores.rewards,
        extra: scores.extra,
    };
    Ok(ScoredFile {
        names,
        rows: data.examples.into_iter().zip(output.completions).map(row).collect(),
        problems: output.problems,
        metrics: output.metrics,
        without_ids,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// The completions of one prompt, in the form that rewards receive.
fn group_inputs(
    group: &[Example],
    columns: &[String],
    path: &str,
    tokenizer: Option<&Tokenizer>,
    without_ids: &mut bool,
) -> anyhow::Result<RewardInputs> {
    let mut inputs = RewardInputs::default();
    for example in group {
        let completion = example.completion.clone().unwrap_or_else(|| "".into());
        let ids = match (example.columns.get("completion_ids"), tokenizer) {
            (Some(ids), _) => serde_json::from_value(ids.clone()).or_bad_input_in(format!(
                "{path}, row {}: `completion_ids` must be a list of token ids",
                example.row + 1
            ))?,
            (None, Some(tokenizer)) => tokenizer.encode(&completion.text())?,
            (None, None) => {
                *without_ids = true;
                Vec::new()
            }
        };
        inputs.prompts.push(example.prompt.clone());
        inputs.completions.push(completion);
        inputs.ids.push(ids);
        inputs.rows.push(example.row);
    }
    let column = |name: &String| {
        let value = |example: &Example| example.columns.get(name).cloned().unwrap_or(Value::Null);
        (name.clone(), group.iter().map(value).collect())
    };
    inputs.columns = columns.iter().filter(|name| *name != "completion_ids").map(column).collect();
    Ok(inputs)
}

#[cfg(test)]
mod tests;
