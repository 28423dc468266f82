//! Converts a batch that workers generate in chunks, between two of its chunks, to its form in checkpoints and back.

use super::learner::Arrived;
use super::source::WorkerSource;
use super::{Chunks, FrontierGroup, Pending, by_group};
use crate::data::prompts::Prompt;
use crate::rollouts::assembler::Assembler;
use crate::rollouts::jobs::{BegunBatch, GroupAnswer, GroupJob, score};
use crate::sources::Ahead;
use anyhow::Context as _;
use fleet::Answer;
use model::Updates;
use rollout::SamplingParams;

impl Ahead {
    /// The groups of the batch, which workers need not regenerate.
    pub(super) fn frontier(&self) -> impl Iterator<Item = FrontierGroup> {
        self.collected.scored.rollouts.groups.iter().map(|group| {
            let tokens = group.completions.iter().map(|c| (&c.completion.ids[..], c.completion.logps()));
            let answers = vec![Answer { fingerprint: GroupAnswer::fingerprint_of(tokens), more: false }];
            FrontierGroup { group: group.group, answers, bytes: Vec::new() }
        })
    }
}

impl WorkerSource {
    /// The groups of an unfinished batch in a checkpoint, as job results. Complete groups without scores are scored
    /// here.
    pub(super) fn frontier_of(
        &mut self,
        BegunBatch { step, prompts, answers, rewards }: BegunBatch,
        chunks: &Chunks,
    ) -> anyhow::Result<Vec<FrontierGroup>> {
        let (_, names) = self.assembler.asked_elsewhere();
        let Assembler { rewards: asked, tokenizer, stop, .. } = &mut self.assembler;
        let (mut groups, sampling) = (Vec::new(), SamplingParams::default());
        for mut answer in answers {
            let group = &answer.group;
            if !group.is_unfinished() && (answer.scores.is_empty() || rewards != names) {
                let job = GroupJob {
                    group: group.group,
                    prompt: Prompt::clone(&prompts[&group.group]),
                    num_generations: group.completions.len(),
                    sampling: sampling.clone(),
                    updates: Updates(0),
                    step,
                    rewards: names.clone(),
                    so_far: Vec::new(),
                    until: None,
                };
                answer.scores = score(asked, tokenizer, stop, group, &job)?;
            }
            let tokens = answer.group.completions.iter().map(|c| (&c.ids[..], c.logps(), c.is_unfinished()));
            let answers = chunks.answers(&tokens.collect::<Vec<_>>());
            groups.push(FrontierGroup { group: answer.group.group, answers, bytes: answer.to_bytes() });
        }
        Ok(groups)
    }

    /// The part of a batch that workers have generated so far, for a checkpoint.
    pub(super) fn begun_batch(&self, (pending, results): Arrived) -> anyhow::Result<BegunBatch> {
        let Pending { prompts, jobs, step } = pending.context("a batch that was not offered has begun")?;
        let group_results = by_group(&results);
        let answer = |whole: &GroupJob| {
            let last = group_results.get(&whole.group).and_then(|results| results.last());
            let last = last.with_context(|| format!("no answer of group {} has arrived", whole.group))?;
            Ok(GroupAnswer::believed(&last.bytes, whole)?)
        };
        let answers = jobs.iter().map(answer).collect::<anyhow::Result<_>>()?;
        Ok(BegunBatch { step, prompts, answers, rewards: self.assembler.asked_elsewhere().1 })
    }
}
