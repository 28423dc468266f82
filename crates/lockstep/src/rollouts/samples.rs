//! The seam: a completion becomes a sample. The one place where rollout and training meet.

use rollout::{Completion, FinishReason};
use std::sync::Arc;
use train::{Advantage, Sample};

/// Joins completions, group by group, with their prompts; `prompts` has the prompt of each group. Advantages are 0 yet.
pub fn join(prompts: &[Arc<[u32]>], completions: &[Completion]) -> Vec<Sample> {
    let group = completions.len() / prompts.len().max(1);
    let sample = |(i, c): (usize, &Completion)| Sample {
        prompt: prompts[i / group].clone(),
        completion: c.ids.clone(),
        mask: c.mask.clone(),
        sampler_logps: c.logps.clone(),
        old_logps: None,
        ref_logps: None,
        versions: c.versions.clone(),
        advantage: Advantage::Sequence(0.0),
        values: None,
        truncated: c.finish_reason == FinishReason::Length,
    };
    completions.iter().enumerate().map(sample).collect()
}
