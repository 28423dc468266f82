//! Generates batches ahead of training, for `max_staleness` = k > 0.
//!
//! Batch b is generated with the weights at the start of batch max(0, b − k). So before the first step on a batch, all
//! batches up to the k-th after it are generated, as far as the run lasts. This needs no older weights later, but a
//! checkpoint must contain the batches that were generated ahead (the *frontier*). The data position and the next
//! group of a run are those of the batch in use, not of the batches ahead.

use super::{OnlineBatch, RolloutPipeline, Source};
use crate::bad_input;
use crate::data::prompts::Prompt;
use crate::distributed::FrontierGroup;
use crate::models::WriteFiles;
use crate::rollouts::Rollouts;
use crate::rollouts::collector::Collected;
use crate::rollouts::jobs::GroupAnswer;
use crate::rollouts::lineage::Lineage;
use crate::run::training::TrainingRun;
use anyhow::Context as _;
use fleet::Answer;
use kernels::mean::over;
use model::Updates;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

/// The checkpoint file with the batches that were generated ahead, one after another as collector answers.
const FILE: &str = "frontier.bin";

/// A batch that was generated before it is trained on.
pub(crate) struct Ahead {
    pub(super) collected: Collected,
    /// The lineage of the weights that generated the batch.
    pub(super) lineage: Option<Lineage>,
}

impl Ahead {
    /// The groups of the batch, which workers need not generate again.
    pub(super) fn groups(&self) -> impl Iterator<Item = FrontierGroup> {
        self.collected.scored.rollouts.groups.iter().map(|group| {
            let tokens = group.completions.iter().map(|c| (&c.completion.ids[..], c.completion.logps()));
            let answers = vec![Answer { fingerprint: GroupAnswer::fingerprint_of(tokens), more: false }];
            FrontierGroup { group: group.group, answers, bytes: Vec::new() }
        })
    }
}

impl RolloutPipeline {
    /// The batch of the next step. Before it is returned, all batches are generated that must come from the current
    /// weights.
    pub(super) fn next_collected(&mut self, run: &TrainingRun, next: &mut OnlineBatch) -> anyhow::Result<Collected> {
        next.note_published(run);
        if self.has_workers() {
            return self.next_from_workers(run, next);
        }
        if let Some(tokens) = run.config.partial_rollout_tokens {
            return self.next_in_chunks(run, next, tokens);
        }
        let steps_left = run.learner.schedule.total_steps.saturating_sub(run.learner.step);
        let batches_left = steps_left.div_ceil(self.sizes.steps()).max(1);
        let wanted = batches_left.min(run.config.max_staleness as u64 + 1) as usize;
        // Where the data will be after the batches that are there.
        let (mut sampler, mut first) = (next.run.data.sampler.clone(), next.state.next_group);
        for batch in &next.state.ahead {
            sampler.next_batch();
            first = batch.collected.next_group;
        }
        while next.state.ahead.len() < wanted {
            let prompts = self.prompts(&sampler.next_batch());
            let collected = self.collect(run, &mut next.state.health, prompts, first)?;
            first = collected.next_group;
            next.state.ahead.push_back(Arc::new(Ahead { collected, lineage: self.state.lineage }));
        }
        next.run.data.sampler.next_batch();
        let batch = next.state.ahead.pop_front().expect("one at least");
        next.sampled_by = batch.lineage;
        Ok(Arc::try_unwrap(batch).map_or_else(|batch| batch.collected.clone(), |batch| batch.collected))
    }

    /// The prompts of these dataset rows.
    pub(super) fn prompts(&self, rows: &[usize]) -> Vec<Arc<Prompt>> {
        let Source::Prompts(all) = &self.source else { unreachable!("no prompts") };
        rows.iter().map(|&row| all[row].clone()).collect()
    }

    /// A function that writes the batches generated ahead into a checkpoint; `None` if there are none.
    pub(super) fn write_ahead(&self) -> Option<WriteFiles> {
        let ahead = self.state.ahead.clone();
        let write = move |dir: &Path| Ok(disk::write(dir.join(FILE), bytes(&ahead))?);
        (!self.state.ahead.is_empty()).then(|| -> WriteFiles { Box::new(write) })
    }

    /// Restores the batches that a checkpoint has ahead. `lineages` are those of the weights that generated each batch.
    pub(super) fn restore_ahead(&mut self, lineages: &[Option<Lineage>], checkpoint: &Path) -> anyhow::Result<()> {
        let Source::Prompts(all) = &self.source else { return Ok(()) };
        if lineages.is_empty() {
            return Ok(());
        }
        let file = checkpoint.join(FILE);
        let place = || file.display().to_string();
        let bytes = disk::read(&file, disk::most::GROUPS).with_context(place)?;
        let rows: BTreeMap<u64, &Arc<Prompt>> = all.iter().map(|prompt| (prompt.row as u64, prompt)).collect();
        let request = self.like();
        let (mut ahead, mut rest) = (Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let taken = Collected::take(rest, &request, |row| rows.get(&row).map(|&prompt| prompt.clone()));
            let (batch, behind) = taken.with_context(place)?;
            ahead.push(batch);
            rest = behind;
        }
        let batches = lineages.len();
        if ahead.len() != batches {
            bad_input!("{} has {} batches, and the run left off with {batches}", file.display(), ahead.len());
        }
        let groups = ahead.iter().flat_map(|batch| &batch.scored.rollouts.groups).map(|group| group.group);
        let expected = self.state.next_group.and_after().take(batches * self.sizes.generation / self.sizes.group);
        if !groups.eq(expected) {
            bad_input!(
                "{} does not have the groups from number {} on, which come next",
                file.display(),
                self.state.next_group
            );
        }
        let of = |(collected, &lineage): (_, &_)| Arc::new(Ahead { collected, lineage });
        self.state.ahead = ahead.into_iter().zip(lineages).map(of).collect();
        Ok(())
    }
}

fn bytes(ahead: &VecDeque<Arc<Ahead>>) -> Vec<u8> {
    ahead.iter().flat_map(|batch| batch.collected.to_bytes()).collect()
}

impl OnlineBatch {
    /// Notes that a batch begins with the current weights.
    fn note_published(&mut self, run: &TrainingRun) {
        if run.config.max_staleness > 0 {
            let published = &mut self.state.published;
            published.push_back(run.learner.policy.weights.version());
            while published.len() > run.config.max_staleness + 1 {
                published.pop_front();
            }
        }
    }
}

/// Logs how old the weights are that generated these completions: how many batches have begun with newer weights since
/// then.
pub(super) fn log_lag(next: &mut OnlineBatch, rollouts: &Rollouts) {
    let published = &next.state.published;
    let lag = |version: Updates| published.iter().filter(|&&newer| newer > version).count();
    let (mut tokens, mut sum, mut max) = (0, 0usize, 0usize);
    for &version in rollouts.completions().flat_map(|c| &c.completion.versions) {
        let lag = lag(version);
        (tokens, sum, max) = (tokens + 1, sum + lag, max.max(lag));
    }
    if let Some(mean) = over(sum as f64, tokens) {
        next.run.add("async/lag_mean", mean);
        next.run.add("async/lag_max", max as f64);
    }
}
