//! Generates batches ahead of training, for `max_staleness` = k > 0.
//!
//! Batch b is generated with the weights at the start of batch max(0, b − k). So before the first step on a batch, all
//! batches up to the k-th after it are generated, unless the run ends earlier. No older weights are needed later, but a
//! checkpoint must contain the batches generated ahead.

use super::local::LocalSource;
use super::{Ahead, Batch, BatchSource, Now, SavedState, SourceState};
use crate::data::Sampler;
use crate::rollouts::collector::Collect;
use anyhow::Context as _;
use std::path::Path;
use std::sync::Arc;

/// The source of batches that are sampled with older weights.
pub struct AheadSource(pub LocalSource);

impl BatchSource for AheadSource {
    fn next(&mut self, next: &mut SourceState, data: &mut Sampler, now: &Now<'_>) -> anyhow::Result<Batch> {
        let AheadSource(local) = self;
        next.note_published(now.policy.weights.version(), local.spec.config.max_staleness);
        // Finds the position in the data after the existing batches.
        let (mut rows, mut first) = (data.clone(), next.next_group);
        for batch in &next.ahead {
            rows.next_batch();
            first = batch.collected.next_group;
        }
        while next.ahead.len() < local.spec.wanted(now) {
            let prompts = local.spec.numbered(first, &rows.next_batch());
            let collected = local.collect(&mut next.health, prompts, now)?;
            first = collected.next_group;
            next.ahead.push_back(Arc::new(Ahead { collected, lineage: now.lineage }));
        }
        data.next_batch();
        let batch = next.ahead.pop_front().context("the run has no batch left")?;
        let (sampled_by, collected) = (batch.lineage, Ahead::into_collected(batch));
        next.next_group = collected.next_group;
        Ok(Batch::Generated { collected, sampled_by, metrics: Vec::new() })
    }

    fn collector(&mut self) -> Option<&mut dyn Collect> {
        self.0.collector()
    }

    fn restore(&mut self, saved: SavedState<'_>, checkpoint: &Path) -> anyhow::Result<SourceState> {
        self.0.restore(saved, checkpoint)
    }
}
