//! Generates each batch at the start of its first step, in this process, with the current weights.

use super::{Batch, BatchSource, BatchSpec, Now, SavedState, SourceState};
use crate::data::Sampler;
use crate::rollouts::collector::{Begun, Collect, CollectRequest, Collected};
use crate::rollouts::health::RewardHealth;
use crate::rollouts::scoring::Prompts;
use model::kept::RolloutActivations;
use rollout::RolloutGroup;
use std::path::Path;
use telemetry::Step;

/// The source of on-policy batches. The completions come from the engine or from the caller's rollout function.
pub struct LocalSource {
    pub(super) spec: BatchSpec,
    pub(super) collector: Box<dyn Collect>,
    /// Keeps the activations of each batch for its first update; `None` if none are kept.
    pub(super) activations: Option<RolloutActivations>,
}

impl LocalSource {
    /// A source with the collector `collector`.
    pub fn new(spec: BatchSpec, collector: Box<dyn Collect>, activations: Option<RolloutActivations>) -> LocalSource {
        LocalSource { spec, collector, activations }
    }

    /// Generates and scores completions of `prompts`.
    pub(super) fn collect(
        &mut self,
        health: &mut RewardHealth,
        prompts: Prompts,
        now: &Now<'_>,
    ) -> anyhow::Result<Collected> {
        let request = CollectRequest { activations: self.activations.as_ref(), ..self.spec.request(prompts, now.step) };
        let collected = self.collector.collect(&now.policy.weights, request, &now.watch.observer())?;
        self.accept(health, &collected, now)?;
        Ok(collected)
    }

    /// Checks that the rewards still score, and records the times of overlapped scoring.
    fn accept(&self, health: &mut RewardHealth, collected: &Collected, now: &Now<'_>) -> anyhow::Result<()> {
        health.check(&collected.scored.rollouts, &collected.scored.problems, &self.spec.config)?;
        collected.record_overlapped(now.watch.stages);
        Ok(())
    }

    /// Continues the groups of a batch that began after `step` optimizer steps, scores them, and also returns the
    /// groups of the concurrent requests.
    pub(super) fn complete(
        &mut self,
        health: &mut RewardHealth,
        (prompts, step): (Prompts, Step),
        begun: Begun,
        now: &Now<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        let request = self.spec.request(prompts, step);
        let observer = now.watch.observer();
        let (collected, others) = self.collector.continue_with(&now.policy.weights, request, begun, &observer)?;
        self.accept(health, &collected, now)?;
        Ok((collected, others))
    }
}

impl BatchSource for LocalSource {
    fn next(&mut self, next: &mut SourceState, data: &mut Sampler, now: &Now<'_>) -> anyhow::Result<Batch> {
        // The activations of an earlier batch, or of an earlier attempt, are obsolete.
        self.activations.iter().for_each(|activations| activations.lock().clear());
        let collected = self.more(next, &data.next_batch(), now)?;
        Ok(Batch::Generated { collected, sampled_by: now.lineage, metrics: Vec::new() })
    }

    fn more(&mut self, next: &mut SourceState, rows: &[usize], now: &Now<'_>) -> anyhow::Result<Collected> {
        let prompts = self.spec.numbered(next.next_group, rows);
        let collected = self.collect(&mut next.health, prompts, now)?;
        next.next_group = collected.next_group;
        Ok(collected)
    }

    fn collector(&mut self) -> Option<&mut dyn Collect> {
        Some(&mut *self.collector)
    }

    fn restore(&mut self, saved: SavedState<'_>, checkpoint: &Path) -> anyhow::Result<SourceState> {
        SourceState::read(saved, &self.spec, checkpoint)
    }
}
