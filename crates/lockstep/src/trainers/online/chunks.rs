//! Generates batches in chunks, for `partial_rollout_tokens` = C and `max_staleness` = k: token t of batch b is sampled
//! with the weights at the start of batch clamp(b − k + ⌊t / C⌋, 0, b).
//!
//! So the weights at the start of batch b complete batch b, extend the j-th batch after it to (k − j + 1) · C tokens,
//! and make the first C tokens of the k-th batch after it. A stopped completion continues as if it had not been
//! stopped; the newer weights compute its keys and values again. Unfinished batches belong to a prepared step and to
//! the frontier of a checkpoint, as in [`ahead`](super::ahead). Rewards are called when a batch is complete.

use super::waiting::Progress;
use super::workers::{Arrived, Workers};
use super::{OnlineBatch, RolloutPipeline, Source};
use crate::bad_input;
use crate::data::prompts::Prompt;
use crate::distributed::{Chunks, FrontierGroup, Pending, by_group};
use crate::models::WriteFiles;
use crate::rollouts::collector::{Begun, CollectRequest, Collected, Observer};
use crate::rollouts::jobs::{Assembler, BegunBatch, GroupAnswer, GroupJob, score};
use crate::rollouts::scoring::Prompts;
use crate::run::training::TrainingRun;
use anyhow::{Context as _, bail};
use model::{GroupId, Updates};
use rollout::{Request, RolloutGroup, SamplingParams};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

/// The checkpoint file with the unfinished batches.
const FILE: &str = "frontier.begun.bin";

impl RolloutPipeline {
    /// The batch of the next step. The current weights generate its completions to their end, and extend those of later
    /// batches as far as these weights are responsible for them.
    pub(super) fn next_in_chunks(
        &mut self,
        run: &TrainingRun,
        next: &mut OnlineBatch,
        tokens: usize,
    ) -> anyhow::Result<Collected> {
        let k = run.config.max_staleness;
        let steps_left = run.learner.schedule.total_steps.saturating_sub(run.learner.step);
        let batches_left = steps_left.div_ceil(self.sizes.steps()).max(1);
        let wanted = batches_left.min(k as u64 + 1) as usize;
        let mut begun: VecDeque<BegunBatch> = next.state.begun.drain(..).map(Arc::unwrap_or_clone).collect();
        let (mut sampler, mut first) = (next.run.data.sampler.clone(), next.state.next_group);
        for batch in 0..wanted {
            let rows = sampler.next_batch();
            if batch == begun.len() {
                let prompts = first.and_after().zip(self.prompts(&rows)).collect();
                let (answers, rewards) = (Vec::new(), Vec::new());
                begun.push_back(BegunBatch { step: run.learner.step, prompts, answers, rewards });
            }
            first = first.after(self.sizes.generation / self.sizes.group);
        }
        let Some(batch) = begun.pop_front() else { unreachable!("one at least") };
        let mut beside = Vec::new();
        for (distance, later) in (1..).zip(&begun) {
            let open = |group: &GroupId| later.answer(*group).is_none_or(|answer| answer.group.is_unfinished());
            let request = |(&group, prompt): (&GroupId, &Arc<Prompt>)| Request {
                so_far: later.answer(group).map_or_else(Vec::new, |answer| answer.group.completions.clone()),
                until: Some((k + 1 - distance).saturating_mul(tokens)),
                ..Request::new(group, prompt.tokens.clone(), self.sizes.group, self.sampling.of(group).clone())
            };
            beside.extend(later.prompts.iter().filter(|(group, _)| open(group)).map(request));
        }
        let so_far = batch.answers.into_iter().map(|answer| answer.group).collect();
        let (collected, made) = self.continue_batch(run, batch.prompts, batch.step, Begun { so_far, beside })?;
        next.state.health.check(&collected.scored.rollouts, &collected.scored.problems, &run.config)?;
        collected.record_overlapped(&run.log.stages);
        let mut made: BTreeMap<GroupId, RolloutGroup> = made.into_iter().map(|group| (group.group, group)).collect();
        for later in &mut begun {
            later.take_up(&mut made);
        }
        next.state.begun = begun.into_iter().map(Arc::new).collect();
        next.sampled_by = self.state.lineage;
        next.run.data.sampler.next_batch();
        Ok(collected)
    }

    fn continue_batch(
        &mut self,
        run: &TrainingRun,
        prompts: Prompts,
        step: u64,
        begun: Begun,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        let Some(collector) = &mut self.collector else { unreachable!("the source is no file") };
        let request = CollectRequest {
            prompts,
            num_generations: self.sizes.group,
            sampling: &self.sampling,
            reward_weights: &self.reward_weights,
            step,
            refuse_non_finite: false,
        };
        let progress = Progress::of(&run.log, &run.learner);
        let observer = Observer { stages: &run.log.stages, on_wait: &|reward, time| progress.waits(reward, time) };
        collector.continue_with(&run.learner.policy.weights, request, begun, &observer)
    }

    /// A function that writes the unfinished batches into a checkpoint; `None` if there are none.
    pub(super) fn write_begun(&self) -> Option<WriteFiles> {
        let begun = self.state.begun.clone();
        let write = move |dir: &Path| {
            let bytes: Vec<u8> = begun.iter().flat_map(|batch| batch.to_bytes()).collect();
            Ok(disk::write(dir.join(FILE), bytes)?)
        };
        (!self.state.begun.is_empty()).then(|| -> WriteFiles { Box::new(write) })
    }

    /// Restores the unfinished batches of a checkpoint, of which there must be `batches`.
    pub(super) fn restore_begun(&mut self, batches: usize, checkpoint: &Path) -> anyhow::Result<()> {
        let Source::Prompts(all) = &self.source else { return Ok(()) };
        if batches == 0 {
            return Ok(());
        }
        let file = checkpoint.join(FILE);
        let place = || file.display().to_string();
        let bytes = disk::read(&file, disk::most::GROUPS).with_context(place)?;
        let rows: BTreeMap<u64, &Arc<Prompt>> = all.iter().map(|prompt| (prompt.row as u64, prompt)).collect();
        let (mut begun, mut rest) = (VecDeque::new(), &bytes[..]);
        while !rest.is_empty() {
            let taken = BegunBatch::take(rest, &self.like(), |row| rows.get(&row).map(|&prompt| prompt.clone()));
            let (batch, behind) = taken.with_context(place)?;
            begun.push_back(Arc::new(batch));
            rest = behind;
        }
        let found = begun.iter().flat_map(|batch| batch.prompts.keys().copied());
        let groups = batches * self.sizes.generation / self.sizes.group;
        if begun.len() != batches || !found.eq(self.state.next_group.and_after().take(groups)) {
            bad_input!(
                "{} does not have the {batches} batches with the groups from number {} on, which come next",
                file.display(),
                self.state.next_group
            );
        }
        self.state.begun = begun;
        Ok(())
    }
}

impl Workers {
    /// The groups of an unfinished batch from a checkpoint, in the form of job results. Completed groups without scores
    /// are scored here.
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

    /// The part of a batch that workers have made so far, for a checkpoint.
    pub(super) fn begun_batch(&self, (pending, results): Arrived) -> anyhow::Result<BegunBatch> {
        let Some(Pending { prompts, jobs, step }) = pending else { bail!("a batch that nobody offered has begun") };
        let of_groups = by_group(&results);
        let answer = |whole: &GroupJob| {
            let last = of_groups.get(&whole.group).and_then(|results| results.last());
            let last = last.with_context(|| format!("nothing of group {} has arrived", whole.group))?;
            Ok(GroupAnswer::believed(&last.bytes, whole)?)
        };
        let answers = jobs.iter().map(answer).collect::<anyhow::Result<_>>()?;
        Ok(BegunBatch { step, prompts, answers, rewards: self.assembler.asked_elsewhere().1 })
    }
}

impl BegunBatch {
    /// The answer that `group` has so far.
    pub(super) fn answer(&self, group: GroupId) -> Option<&GroupAnswer> {
        let first = self.prompts.first_key_value()?.0;
        self.answers.get(usize::try_from(group.0.checked_sub(first.0)?).ok()?)
    }

    /// Takes the new state of this batch's groups out of `made`. Groups that are not in `made` stay as they are.
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
    use rollout::{Completion, FinishReason};
    use serde_json::Map;

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
    fn a_batch_takes_up_the_groups_that_were_made_of_it() {
        let prompt = || {
            let (tokens, content) = (model::Prompt::new([1]), "x".into());
            Arc::new(Prompt { row: 0, tokens, content, columns: Map::new() })
        };
        let prompts = (7..10).map(|group| (GroupId(group), prompt())).collect();
        let mut batch = BegunBatch { step: 3, prompts, answers: Vec::new(), rewards: Vec::new() };
        assert!([6, 7, 10].map(GroupId).into_iter().all(|group| batch.answer(group).is_none()));
        batch.take_up(&mut (6..11).map(|of| (GroupId(of), group(of, 1))).collect());
        let expected = [7, 8, 9].map(|group| answer(group, 1));
        assert_eq!(batch.answers, expected);
        let of = |batch: &BegunBatch, group: u64| batch.answer(GroupId(group)).map(|answer| answer.group.group.0);
        assert_eq!([6, 7, 8, 9, 10].map(|group| of(&batch, group)), [None, Some(7), Some(8), Some(9), None]);
        // What was not made again stays, with its scores.
        batch.answers[2].rollout_s = 0.5;
        let mut made = BTreeMap::from([(GroupId(8), group(8, 2)), (GroupId(11), group(11, 1))]);
        batch.take_up(&mut made);
        let last = GroupAnswer { rollout_s: 0.5, ..answer(9, 1) };
        assert_eq!(batch.answers, [answer(7, 1), answer(8, 2), last]);
        assert_eq!(made.into_keys().collect::<Vec<_>>(), [GroupId(11)]);
        let none = BegunBatch { step: 0, prompts: BTreeMap::new(), answers: Vec::new(), rewards: Vec::new() };
        assert!(none.answer(GroupId(0)).is_none());
    }
}
