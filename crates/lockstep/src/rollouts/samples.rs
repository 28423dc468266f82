//! Converts completions to training samples. Only this file uses the types of both rollout and training.

use super::Rollouts;
use model::{GroupId, Prompt};
use rollout::{Completion, RolloutGroup};
use std::sync::Arc;
use train::{Advantage, Sample};

/// The training samples of scored groups; their advantages are still 0.
pub fn from_rollouts(rollouts: &Rollouts) -> Vec<Sample> {
    let groups = rollouts.groups.iter();
    groups.flat_map(|g| g.completions.iter().map(|c| sample(g.group, &g.prompt.tokens, &c.completion))).collect()
}

/// The training samples of unscored groups; their advantages are still 0.
pub fn from_groups(groups: &[RolloutGroup]) -> Vec<Sample> {
    groups.iter().flat_map(|g| g.completions.iter().map(|c| sample(g.group, &g.prompt, c))).collect()
}

fn sample(group: GroupId, prompt: &Arc<Prompt>, completion: &Completion) -> Sample {
    Sample {
        group,
        prompt: prompt.clone(),
        completion: completion.ids.clone(),
        loss_mask: completion.sampled.clone(),
        versions: completion.versions.clone(),
        finish_reason: completion.finish_reason,
        advantage: Advantage::Sequence(0.0),
        columns: completion.columns.clone(),
    }
}
