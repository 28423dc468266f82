//! Takes batches from a file of recorded rollouts. Completions are not generated, and rewards are not called.

use super::{Batch, BatchSource, BatchSpec, Now, SavedState, SourceState};
use crate::data::Sampler;
use crate::rollouts::collector::Collect;
use crate::rollouts::function::{SharedScorer, lock};
use crate::rollouts::replay::Replay;
use std::path::Path;

/// The source of recorded batches.
pub struct ReplaySource {
    spec: BatchSpec,
    replay: Replay,
    /// Computes log-probabilities that the file lacks.
    scorer: SharedScorer,
    /// The collector of evaluations.
    collector: Option<Box<dyn Collect>>,
}

impl ReplaySource {
    /// A source of the groups in `replay`.
    pub fn new(
        spec: BatchSpec,
        replay: Replay,
        scorer: SharedScorer,
        collector: Option<Box<dyn Collect>>,
    ) -> ReplaySource {
        ReplaySource { spec, replay, scorer, collector }
    }
}

impl BatchSource for ReplaySource {
    fn next(&mut self, next: &mut SourceState, data: &mut Sampler, now: &Now<'_>) -> anyhow::Result<Batch> {
        let picked = data.next_batch();
        // Numbers the groups as if they had been generated, since the first number selects PPO's mini-batches.
        let first = next.next_group;
        next.next_group = first.after(picked.len());
        let _span = now.watch.stages.span("replay");
        let temperature = self.spec.sampling.common().temperature;
        let (scorer, weights) = (&mut lock(&self.scorer), &self.spec.reward_weights);
        Ok(Batch::Recorded(self.replay.rollouts(&picked, first, now.ctx, now.policy, scorer, temperature, weights)?))
    }

    fn collector(&mut self) -> Option<&mut dyn Collect> {
        self.collector.as_deref_mut().map(|collector| collector as &mut dyn Collect)
    }

    fn restore(&mut self, saved: SavedState<'_>, _checkpoint: &Path) -> anyhow::Result<SourceState> {
        Ok(SourceState { next_group: saved.next_group, ..SourceState::default() })
    }
}
