//! Generates batches in chunks, for `partial_rollout_tokens` = C and `max_staleness` = k: token t of batch b is sampled
//! with the weights at the start of batch clamp(b − k + ⌊t / C⌋, 0, b).
//!
//! So the weights at the start of batch b complete batch b, extend the j-th batch after it to (k − j + 1) · C tokens,
//! and generate the first C tokens of the k-th batch after it. A paused completion continues as if it had not been
//! paused; the newer weights recompute its keys and values. Unfinished batches belong to a prepared step and to the
//! frontier of a checkpoint, as in [`ahead`](super::ahead). Rewards are called when a batch is complete.

use super::local::LocalSource;
use super::{Batch, BatchSource, Now, SavedState, SourceState};
use crate::data::Sampler;
use crate::rollouts::collector::{Begun, Collect};
use crate::rollouts::jobs::{BegunBatch, GroupAnswer};
use anyhow::Context as _;
use model::GroupId;
use rollout::{Request, RolloutGroup};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

/// The source of batches whose tokens are sampled with several versions of the weights.
pub struct ChunkSource {
    local: LocalSource,
    /// C, the number of tokens in a chunk.
    tokens: usize,
}

impl ChunkSource {
    /// A source with chunks of `tokens` tokens.
    pub fn new(local: LocalSource, tokens: usize) -> ChunkSource {
        ChunkSource { local, tokens }
    }

    /// Requests that extend each batch after the next by the tokens that the current weights sample.
    fn beside<'a>(&'a self, later: impl Iterator<Item = &'a BegunBatch>) -> Vec<Request> {
        let spec = &self.local.spec;
        let k = spec.config.max_staleness;
        let mut requests = Vec::new();
        for (distance, batch) in (1..).zip(later) {
            let is_open = |group: GroupId| batch.answer(group).is_none_or(|answer| answer.group.is_unfinished());
            for (&group, prompt) in batch.prompts.iter().filter(|(group, _)| is_open(**group)) {
                let sampling = spec.sampling.of(group).clone();
                requests.push(Request {
                    so_far: batch.answer(group).map_or_else(Vec::new, |answer| answer.group.completions.clone()),
                    until: Some((k + 1 - distance).saturating_mul(self.tokens)),
                    ..Request::new(group, prompt.tokens.clone(), spec.sizes.group, sampling)
                });
            }
        }
        requests
    }
}

impl BatchSource for ChunkSource {
    fn next(&mut self, next: &mut SourceState, data: &mut Sampler, now: &Now<'_>) -> anyhow::Result<Batch> {
        let spec = &self.local.spec;
        next.note_published(now.policy.weights.version(), spec.config.max_staleness);
        let mut begun: VecDeque<BegunBatch> = next.begun.drain(..).map(Arc::unwrap_or_clone).collect();
        let (mut rows, mut first) = (data.clone(), next.next_group);
        for batch in 0..spec.wanted(now) {
            let rows = rows.next_batch();
            if batch == begun.len() {
                let (answers, rewards) = (Vec::new(), Vec::new());
                let prompts = spec.numbered(first, &rows);
                begun.push_back(BegunBatch { step: now.step, prompts, answers, rewards });
            }
            first = first.after(spec.sizes.groups());
        }
        let batch = begun.pop_front().context("the run has no batch left")?;
        let beside = self.beside(begun.iter());
        let so_far = batch.answers.into_iter().map(|answer| answer.group).collect();
        let begins = (batch.prompts, batch.step);
        let (collected, made) = self.local.complete(&mut next.health, begins, Begun { so_far, beside }, now)?;
        let mut made: BTreeMap<GroupId, RolloutGroup> = made.into_iter().map(|group| (group.group, group)).collect();
        for later in &mut begun {
            later.take_up(&mut made);
        }
        next.begun = begun.into_iter().map(Arc::new).collect();
        next.next_group = collected.next_group;
        data.next_batch();
        Ok(Batch::Generated { collected, sampled_by: now.lineage, metrics: Vec::new() })
    }

    fn collector(&mut self) -> Option<&mut dyn Collect> {
        self.local.collector()
    }

    fn restore(&mut self, saved: SavedState<'_>, checkpoint: &Path) -> anyhow::Result<SourceState> {
        self.local.restore(saved, checkpoint)
    }
}

impl BegunBatch {
    /// The answer of `group` so far.
    fn answer(&self, group: GroupId) -> Option<&GroupAnswer> {
        let first = self.prompts.first_key_value()?.0;
        self.answers.get(usize::try_from(group.0.checked_sub(first.0)?).ok()?)
    }

    /// Takes the new state of this batch's groups out of `made`. Groups that are not in `made` are unchanged.
    fn take_up(&mut self, made: &mut BTreeMap<GroupId, RolloutGroup>) {
        let group = |group: &GroupId| match made.remove(group) {
            Some(group) => Some(GroupAnswer { group, scores: Vec::new(), rollout_s: 0.0 }),
            None => self.answer(*group).cloned(),
        };
        self.answers = self.prompts.keys().filter_map(group).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::prompts::Prompt;
    use model::Updates;
    use rollout::{Completion, FinishReason};
    use serde_json::Map;
    use telemetry::Step;

    fn group(group: u64, tokens: usize) -> RolloutGroup {
        let completion = Completion {
            generation: 0,
            ids: vec![4; tokens],
            sampled: vec![true; tokens],
            versions: vec![Updates(0); tokens],
            columns: model::Columns::default(),
            finish_reason: FinishReason::Unfinished,
        };
        RolloutGroup::new(GroupId(group), model::Prompt::new([1]), vec![completion])
    }

    fn answer(of: u64, tokens: usize) -> GroupAnswer {
        GroupAnswer { group: group(of, tokens), scores: Vec::new(), rollout_s: 0.0 }
    }

    #[test]
    fn a_batch_takes_over_the_new_state_of_its_groups() {
        let prompt = || {
            let (tokens, content) = (model::Prompt::new([1]), "x".into());
            Arc::new(Prompt { row: 0, tokens, content, columns: Map::new() })
        };
        let prompts = (7..10).map(|group| (GroupId(group), prompt())).collect();
        let mut batch = BegunBatch { step: Step(3), prompts, answers: Vec::new(), rewards: Vec::new() };
        assert!([6, 7, 10].map(GroupId).into_iter().all(|group| batch.answer(group).is_none()));
        batch.take_up(&mut (6..11).map(|of| (GroupId(of), group(of, 1))).collect());
        let expected = [7, 8, 9].map(|group| answer(group, 1));
        assert_eq!(batch.answers, expected);
        let of = |batch: &BegunBatch, group: u64| batch.answer(GroupId(group)).map(|answer| answer.group.group.0);
        assert_eq!([6, 7, 8, 9, 10].map(|group| of(&batch, group)), [None, Some(7), Some(8), Some(9), None]);
        // An answer that was not regenerated is kept, with its scores.
        batch.answers[2].rollout_s = 0.5;
        let mut made = BTreeMap::from([(GroupId(8), group(8, 2)), (GroupId(11), group(11, 1))]);
        batch.take_up(&mut made);
        let last = GroupAnswer { rollout_s: 0.5, ..answer(9, 1) };
        assert_eq!(batch.answers, [answer(7, 1), answer(8, 2), last]);
        assert_eq!(made.into_keys().collect::<Vec<_>>(), [GroupId(11)]);
        let none = BegunBatch { step: Step(0), prompts: BTreeMap::new(), answers: Vec::new(), rewards: Vec::new() };
        assert!(none.answer(GroupId(0)).is_none());
    }
}
