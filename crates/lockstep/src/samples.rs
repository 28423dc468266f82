//! The seam: a completion and its advantage become a sample. The one place where rollout and training meet.

use rollout::{Completion, FinishReason};
use std::sync::Arc;
use train::{Advantage, Sample};

/// Joins completions, group by group, with their advantages; `prompts` has the prompt of each group.
pub fn join(prompts: &[Arc<[u32]>], completions: &[Completion], advantages: &[f32]) -> Vec<Sample> {
    assert_eq!(completions.len(), advantages.len());
    let group = completions.len() / prompts.len().max(1);
    let sample = |(i, (c, &advantage)): (usize, (&Completion, &f32))| Sample {
        prompt: prompts[i / group].clone(),
        completion: c.ids.clone(),
        mask: c.mask.clone(),
        sampler_logps: c.logps.clone(),
        old_logps: None,
        ref_logps: None,
        versions: c.versions.clone(),
        advantage: Advantage::Sequence(advantage),
        values: None,
        truncated: c.finish_reason == FinishReason::Length,
    };
    completions.iter().zip(advantages).enumerate().map(sample).collect()
}
