//! Divides the steps of a [`Trainer`] among ranks.

use super::kept::Planned;
use super::passes::{ForwardSums, LossBatch, Outputs};
use super::ranks::{DividedBatch, OtherRanks, Ranks, World};
use super::{TrainState, Trainer};
use crate::loss::Normalizer;
use crate::{Error, Result};
use kernels::Context;
use model::{GroupId, ModelConfig, StopCheck, Updates};
use std::path::Path;
use std::sync::Arc;

impl TrainState {
    /// Leaves all shares but the first 1/`world_size` of them to other ranks, and frees their memory.
    pub(super) fn divide(&mut self, world_size: usize) -> Result<()> {
        let total = self.shares.total();
        if !world_size.is_power_of_two() || world_size > total {
            let why = "must be a power of two and at most gradient_shares";
            return Err(Error::Config(format!("{world_size} ranks with gradient_shares = {total}: the number {why}")));
        }
        self.shares.keep_first(total / world_size);
        Ok(())
    }

    /// The context for the passes of this process: `ctx`, or with other ranks a part of its threads.
    pub(super) fn own_context(&self, ctx: &Context) -> Context {
        self.ranks.as_ref().map_or(ctx, |ranks| &ranks.ctx).clone()
    }

    /// A function that returns, for a share of another rank, whether that rank has kept the rows of a group.
    pub(super) fn kept_elsewhere(&self) -> impl Fn(usize, GroupId) -> Option<bool> + use<> {
        let ranks = self.ranks.clone();
        move |share, group| ranks.as_ref()?.keeps(share, group)
    }

    /// Splits micro-batches into those of this process and those of other ranks.
    pub(super) fn divided<'p, 'a>(&self, planned: &'p [Planned<'a>]) -> (&'p [Planned<'a>], &'p [Planned<'a>]) {
        planned.split_at(self.ranks.as_ref().map_or(planned.len(), |ranks| ranks.own(planned)))
    }

    /// The batch as other ranks compute it. The gradient is computed if there is a `normalizer`.
    pub(super) fn divided_batch<'a>(
        &self,
        batch: &LossBatch<'a>,
        version: Updates,
        normalizer: Option<&'a Normalizer>,
        stop: &'a StopCheck,
    ) -> DividedBatch<'a> {
        let LossBatch { loss, sequences, before, .. } = *batch;
        let dropout = (self.dropout() > 0.0).then_some(self.optimizer.steps + self.skipped_total);
        DividedBatch { loss, sequences, before, version, dropout, normalizer, stop }
    }

    /// Computes the micro-batches of this process by `own`, and meanwhile those of other ranks, whose outputs are
    /// returned in order, with the sums of their kept rows.
    pub(super) fn compute_divided(
        &mut self,
        batch: DividedBatch<'_>,
        others: &[Planned<'_>],
        own: impl FnOnce(&mut TrainState) -> Result<()>,
    ) -> Result<(Vec<Outputs>, ForwardSums)> {
        match self.ranks.clone() {
            Some(ranks) => ranks.compute(batch, others, || own(self)),
            None => own(self).map(|()| Default::default()),
        }
    }
}

impl Trainer {
    /// Leaves all shares of the gradient but the first 1/`world_size` of them to other ranks
    /// ([`use_ranks`](Self::use_ranks)), and frees their memory.
    pub fn divide(&mut self, world_size: usize) -> Result<()> {
        self.state.divide(world_size)
    }

    /// Divides the passes of each step among this process and other ranks. `ctx` has all threads, `model` is the
    /// configuration of the trained model. The weights must be [shared](Self::share_weights) before each gradient.
    pub fn use_ranks(&mut self, ctx: &Context, model: &Arc<ModelConfig>, world: World) -> Result<()> {
        self.divide(world.peers.world_size())?;
        let (lost, stop) = (world.peers.lost().clone(), self.passes.stop.clone());
        self.passes.stop_with(StopCheck::new(move || lost.is_lost() || stop.is_requested()));
        let TrainState { memory, config, .. } = &self.state;
        self.state.ranks = Some(Arc::new(Ranks::start(ctx, memory, model, config, world)?));
        Ok(())
    }

    /// Whether other ranks compute a part of each step.
    pub fn has_ranks(&self) -> bool {
        self.state.ranks.is_some()
    }

    /// Lets the other ranks, if there are any, read the weights that were published at `trained`, and frozen base
    /// weights at `base`. They read them until the gradient is complete.
    pub fn share_weights(&self, trained: &Path, base: Option<&Path>) -> Result<()> {
        self.state.ranks.as_ref().map_or(Ok(()), |ranks| ranks.share_weights(trained, base))
    }

    /// The ranks that divide the steps, for work besides training.
    pub fn other_ranks(&self) -> Option<OtherRanks> {
        self.state.ranks.clone().map(OtherRanks::of)
    }

    /// The ranks that divide the steps, to train a second model with them.
    pub fn world_of_second_model(&self) -> Option<World> {
        self.state.ranks.as_ref().map(|ranks| ranks.world_of_second_model())
    }

    /// The sentence about the rank that was lost, if any was. No step can be taken after that.
    pub fn lost_rank(&self) -> Option<&str> {
        self.state.ranks.as_ref().and_then(|ranks| ranks.lost().why())
    }
}
