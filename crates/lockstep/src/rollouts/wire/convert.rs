//! Converts between groups and samples of rollout and training, and the groups of the byte format.

use super::group::{Completion, Group};
use super::record::WireError;
use super::view::{CompletionView, GroupView, json};
use crate::config::SamplingPlan;
use crate::data::prompts::Prompt;
use crate::rollouts::lineage::Lineage;
use crate::rollouts::{Rollouts, ScoredCompletion, ScoredGroup};
use rollout::{FinishReason, SamplingParams};
use serde_json::{Map, Value, json as value};
use std::collections::BTreeMap;
use std::sync::Arc;
use telemetry::Step;
use train::{Advantage, Sample};

impl Group {
    /// Converts a scored group, without names of reward functions; with `content`, texts are included.
    pub fn from_scored(group: &ScoredGroup, content: bool) -> Group {
        let completion = |scored: &ScoredCompletion| {
            let c = &scored.completion;
            Completion {
                sampled: c.sampled.clone(),
                loss_mask: c.sampled.clone(),
                versions: c.versions.clone(),
                columns: c.columns.clone(),
                finish_reason: Some(c.finish_reason),
                rewards: scored.rewards.clone(),
                steps: scored.steps.clone(),
                content: content.then(|| scored.content.clone()),
                extra: scored.extra.clone(),
                ..Completion::new(c.generation, c.ids.clone())
            }
        };
        Group {
            group: group.group,
            prompt_ids: group.prompt.tokens.ids.clone(),
            prompt_id: Some(group.prompt.row as u64),
            prompt: Some(group.prompt.content.clone()),
            dataset: group.prompt.columns.clone(),
            completions: group.completions.iter().map(completion).collect(),
            problems: group.problems.iter().map(|problem| value!(problem)).collect(),
            lineage: group.lineage,
            ..Group::default()
        }
    }

    /// Converts to a scored group. The texts that reward functions read must have been written.
    pub fn into_scored(self) -> Result<ScoredGroup, WireError> {
        let group = self.group;
        let lacks = |what: &str| WireError::new(format!("group {group}: column `{what}` is missing"));
        let completion = |c: Completion| -> Result<ScoredCompletion, WireError> {
            Ok(ScoredCompletion {
                content: c.content.ok_or_else(|| lacks("completions"))?,
                rewards: c.rewards,
                steps: c.steps,
                extra: c.extra,
                completion: rollout::Completion {
                    generation: c.generation,
                    ids: c.ids,
                    sampled: c.sampled,
                    versions: c.versions,
                    columns: c.columns,
                    finish_reason: c.finish_reason.ok_or_else(|| lacks("finish_reasons"))?,
                },
            })
        };
        let prompt = Prompt {
            row: self.prompt_id.and_then(|row| usize::try_from(row).ok()).ok_or_else(|| lacks("prompt_id"))?,
            tokens: model::Prompt::new(self.prompt_ids),
            content: self.prompt.ok_or_else(|| lacks("prompt"))?,
            columns: self.dataset,
        };
        let completions = self.completions.into_iter().map(completion).collect::<Result<_, _>>()?;
        let problem = |value| {
            serde_json::from_value(value).map_err(|e| WireError::new(format!("group {group}: column `problems`: {e}")))
        };
        let problems = self.problems.into_iter().map(problem).collect::<Result<_, _>>()?;
        Ok(ScoredGroup { group, prompt: Arc::new(prompt), completions, problems, lineage: self.lineage })
    }

    /// Converts samples to groups: adjacent samples with the same group number and prompt form a group.
    pub fn from_samples(samples: &[Sample]) -> Vec<Group> {
        let mut prompts: BTreeMap<*const model::Prompt, u64> = BTreeMap::new();
        let mut groups: Vec<Group> = Vec::new();
        for sample in samples {
            let next = prompts.len() as u64;
            let prompt = *prompts.entry(Arc::as_ptr(&sample.prompt)).or_insert(next);
            let open = groups.last().is_some_and(|g| (g.group, g.prompt_in_batch) == (sample.group, Some(prompt)));
            if !open {
                groups.push(Group {
                    group: sample.group,
                    prompt_ids: sample.prompt.ids.clone(),
                    prompt_in_batch: Some(prompt),
                    ..Group::default()
                });
            }
            let group = groups.last_mut().expect("there is one");
            group.completions.push(Completion {
                loss_mask: sample.loss_mask.clone(),
                versions: sample.versions.clone(),
                columns: sample.columns.clone(),
                finish_reason: Some(sample.finish_reason),
                advantage: Some(sample.advantage.clone()),
                ..Completion::new(group.completions.len(), sample.completion.clone())
            });
        }
        groups
    }

    /// Converts groups to samples. Samples that shared a prompt object before writing share one again.
    pub fn into_samples(groups: Vec<Group>) -> Vec<Sample> {
        let mut prompts: BTreeMap<u64, Arc<model::Prompt>> = BTreeMap::new();
        let mut samples = Vec::new();
        for group in groups {
            let own = model::Prompt::new(group.prompt_ids);
            let prompt = match group.prompt_in_batch {
                Some(number) => prompts.entry(number).or_insert(own).clone(),
                None => own,
            };
            samples.extend(group.completions.into_iter().map(|c| Sample {
                group: group.group,
                prompt: prompt.clone(),
                completion: c.ids,
                loss_mask: c.loss_mask,
                versions: c.versions,
                finish_reason: c.finish_reason.unwrap_or(FinishReason::Stop),
                advantage: c.advantage.unwrap_or(Advantage::Sequence(0.0)),
                columns: c.columns,
            }));
        }
        samples
    }
}

/// The records of the groups of a generation batch, with their samples' additional values: columns from scorers, loss
/// masks, and advantages. Texts of completions are left out, since they follow from the token ids. `lineage` is the
/// lineage of groups that have none of their own.
pub(crate) fn records_of_rollouts(
    rollouts: &Rollouts,
    samples: &[Sample],
    plan: &SamplingPlan,
    step: Step,
    lineage: Option<Lineage>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut samples = samples.iter();
    // Most often all groups have the same parameters.
    let mut known: Option<(&SamplingParams, String)> = None;
    for group in &rollouts.groups {
        let params: &SamplingParams = plan.of(group.group);
        let (_, sampling) = match known.take() {
            Some(last) if std::ptr::eq(last.0, params) => known.insert(last),
            _ => known.insert((params, json(&sampling_settings(params)))),
        };
        let completion = |scored| {
            let sample: &Sample = samples.next().expect("a sample of each completion");
            CompletionView {
                loss_mask: &sample.loss_mask,
                columns: &sample.columns,
                advantage: Some(&sample.advantage),
                ..CompletionView::from_scored(scored)
            }
        };
        let view = GroupView {
            step: Some(step),
            lineage: group.lineage.or(lineage),
            completions: group.completions.iter().map(completion).collect(),
            ..view(rollouts, group, sampling)
        };
        view.write(&mut bytes);
    }
    bytes
}

/// The records of the groups of an evaluation of the set `set` after optimizer step `step`, as an iterator: all records
/// of a large set together would take much memory.
pub(crate) fn records_of_evaluation(
    rollouts: &Rollouts,
    sampling: &SamplingParams,
    step: Step,
    set: &str,
) -> impl Iterator<Item = Vec<u8>> {
    let mut sampling = sampling_settings(sampling);
    sampling.insert("evaluation_set".to_owned(), set.into());
    let sampling = json(&sampling);
    rollouts.groups.iter().map(move |group| {
        let mut bytes = Vec::new();
        let completions = group.completions.iter().map(CompletionView::from_scored).collect();
        let view = GroupView { step: Some(step), completions, ..view(rollouts, group, &sampling) };
        view.write(&mut bytes);
        bytes
    })
}

/// The view of a group, without its completions.
fn view<'a>(rollouts: &'a Rollouts, group: &'a ScoredGroup, sampling: &'a str) -> GroupView<'a> {
    GroupView {
        group: group.group,
        step: None,
        prompt_ids: &group.prompt.tokens.ids,
        prompt_id: Some(group.prompt.row as u64),
        prompt: Some(&group.prompt.content),
        prompt_in_batch: None,
        prompt_columns: None,
        dataset: &group.prompt.columns,
        sampling: sampling.into(),
        lineage: group.lineage,
        reward_names: &rollouts.reward_names,
        reward_weights: &rollouts.reward_weights,
        problems: group.problems.iter().map(json).collect(),
        completions: Vec::new(),
    }
}

/// The sampling parameters, named by their configuration keys.
fn sampling_settings(sampling: &SamplingParams) -> Map<String, Value> {
    let settings = value!({
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "max_completion_length": sampling.max_new_tokens,
        "stop_token_ids": sampling.stop_ids,
        "stop": sampling.stop_strings,
        "seed": sampling.seed,
    });
    let Value::Object(settings) = settings else { unreachable!("an object") };
    settings
}
