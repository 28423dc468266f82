//! A group to be written, with borrowed values, so that recording a generation does not copy them.

use super::group::{Completion, Fork, Group};
use crate::rollouts::groups::{ScoredCompletion, TokenScores};
use crate::rollouts::lineage::Lineage;
use model::{Columns, GroupId, Updates};
use rewards::Content;
use rollout::FinishReason;
use serde::Serialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use telemetry::Step;
use train::Advantage;

/// The fields of a [`Group`], borrowed.
pub(super) struct GroupView<'a> {
    pub group: GroupId,
    pub step: Option<Step>,
    pub prompt_ids: &'a [u32],
    pub prompt_id: Option<u64>,
    pub prompt: Option<&'a Content>,
    pub prompt_in_batch: Option<u64>,
    pub prompt_columns: Option<&'a Columns>,
    pub dataset: &'a Map<String, Value>,
    /// The sampling parameters as JSON; empty if unknown.
    pub sampling: Cow<'a, str>,
    pub lineage: Option<Lineage>,
    pub reward_names: &'a [String],
    pub reward_weights: &'a [f64],
    /// The problems, each as JSON.
    pub problems: Vec<String>,
    pub completions: Vec<CompletionView<'a>>,
}

/// The fields of a [`Completion`], borrowed.
pub(super) struct CompletionView<'a> {
    pub generation: usize,
    pub ids: &'a [u32],
    pub sampled: &'a [bool],
    pub loss_mask: &'a [bool],
    pub versions: Cow<'a, [Updates]>,
    pub columns: &'a Columns,
    pub finish_reason: Option<FinishReason>,
    pub advantage: Option<&'a Advantage>,
    pub rewards: &'a [Option<f64>],
    pub steps: &'a [Option<TokenScores>],
    pub content: Option<&'a Content>,
    pub extra: &'a Map<String, Value>,
    pub fork: Option<Fork>,
}

impl<'a> GroupView<'a> {
    pub fn new(group: &'a Group) -> GroupView<'a> {
        GroupView {
            group: group.group,
            step: group.step,
            prompt_ids: &group.prompt_ids,
            prompt_id: group.prompt_id,
            prompt: group.prompt.as_ref(),
            prompt_in_batch: group.prompt_in_batch,
            prompt_columns: Some(&group.prompt_columns),
            dataset: &group.dataset,
            sampling: if group.sampling.is_empty() { "".into() } else { json(&group.sampling).into() },
            lineage: group.lineage,
            reward_names: &group.reward_names,
            reward_weights: &group.reward_weights,
            problems: group.problems.iter().map(Value::to_string).collect(),
            completions: group.completions.iter().map(CompletionView::new).collect(),
        }
    }
}

impl<'a> CompletionView<'a> {
    fn new(c: &'a Completion) -> CompletionView<'a> {
        CompletionView {
            generation: c.generation,
            ids: &c.ids,
            sampled: &c.sampled,
            loss_mask: &c.loss_mask,
            versions: c.versions.as_slice().into(),
            columns: &c.columns,
            finish_reason: c.finish_reason,
            advantage: c.advantage.as_ref(),
            rewards: &c.rewards,
            steps: &c.steps,
            content: c.content.as_ref(),
            extra: &c.extra,
            fork: c.fork,
        }
    }

    /// The view of a scored completion, without its text, which follows from the token ids.
    pub fn from_scored(scored: &'a ScoredCompletion) -> CompletionView<'a> {
        let c = &scored.completion;
        CompletionView {
            generation: c.generation,
            ids: &c.ids,
            sampled: &c.sampled,
            loss_mask: &c.sampled,
            versions: crate::rollouts::versions::recorded_versions(&c.versions),
            columns: &c.columns,
            finish_reason: Some(c.finish_reason),
            advantage: None,
            rewards: &scored.rewards,
            steps: &scored.steps,
            content: None,
            extra: &scored.extra,
            fork: None,
        }
    }
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}
