//! Divides the steps of a [`Trainer`] among ranks.

use super::kept::Planned;
use super::passes::{ForwardSums, LossBatch, Outputs};
use super::ranks::{DividedBatch, OtherRanks, PartStep, Ranks, SharedGradients, World};
use super::state::LentSlots;
use super::{TrainState, Trainer};
use crate::loss::Normalizer;
use crate::optimizer::GradNorm;
use crate::{Error, Result};
use kernels::{Context, Device, Memory};
use model::weights::{NextParams, Sharing};
use model::{Grads, GroupId, ModelConfig, StopCheck, Trainable, Updates};
use std::path::PathBuf;
use std::sync::Arc;

impl TrainState {
    /// Leaves all shares but the first 1/`world_size` of them to other ranks, and all parameters but a part of them.
    /// Gradients and the optimizer's state are then in slots of shared memory; in a plan, they are only counted.
    pub(super) fn divide(&mut self, model: &ModelConfig, world_size: usize, sharing: &Sharing) -> Result<()> {
        let total = self.shares.total();
        if !world_size.is_power_of_two() || world_size > total {
            let why = "must be a power of two and at most gradient_shares";
            return Err(Error::Config(format!("{world_size} ranks with gradient_shares = {total}: the number {why}")));
        }
        let (memory, lora) = (&self.memory, self.config.adapter.as_ref());
        let state = self.optimizer.divide(memory, model, lora, sharing, world_size)?;
        if !memory.has_values() {
            self.shares.keep_first(total / world_size);
            return Ok(());
        }
        let meta = Memory::new(Device::Meta);
        self.grads = Grads::trained(&meta, model, lora); // frees the memory before other memory is allocated
        self.shares.keep_first(1);
        let SharedGradients { grads, shares, slots } =
            SharedGradients::new(sharing, memory, model, lora, [0, world_size, total])?;
        (self.grads, self.shares) = (grads, shares);
        self.lent = Some(LentSlots { gradients: slots, state });
        Ok(())
    }

    /// Takes the optimizer step with the gradient norm of the complete gradient: each rank on its part.
    pub(super) fn step_with_ranks(
        &mut self,
        ranks: &Ranks,
        model: &mut impl Trainable,
        norm: GradNorm,
        learning_rate: f64,
    ) -> Result<()> {
        self.optimizer.state_mut()?; // no checkpoint is being written from it
        let norm = [norm.norm as f32, f32::from(u8::from(norm.finite))].map(f32::to_bits);
        let step = PartStep { learning_rate, before: self.optimizer.steps, norm };
        model.update(|weights| {
            let own = |ctx: &Context, weights: &mut NextParams<'_>| {
                self.optimizer.step(ctx, weights, &self.grads.params, learning_rate)
            };
            ranks.step(weights, step, own)
        })
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
    /// Leaves shares of the gradient and parts of the optimizer's state, which is zeros, to other ranks
    /// ([`use_ranks`](Self::use_ranks)).
    pub fn divide(&mut self, model: &ModelConfig, world_size: usize, sharing: &Sharing) -> Result<()> {
        self.state.divide(model, world_size, sharing)
    }

    /// Divides each step among this process and other ranks, for a trainer that was [divided](Self::divide). `ctx` has
    /// all threads, `model` is the configuration of the trained model. The weights must be
    /// [shared](OtherRanks::share_weights) before each gradient.
    pub fn use_ranks(&mut self, ctx: &Context, model: &Arc<ModelConfig>, world: World) -> Result<()> {
        let undivided = || Error::Config("`divide` must be called before `use_ranks`".to_owned());
        let lent = self.state.lent.as_ref().ok_or_else(undivided)?;
        let (lost, stop) = (world.peers.lost().clone(), self.passes.stop.clone());
        self.passes.stop_with(StopCheck::new(move || lost.is_lost() || stop.is_requested()));
        self.state.ranks = Some(Arc::new(Ranks::start(ctx, model, &self.state.config, &lent.state, world)?));
        Ok(())
    }

    /// Whether other ranks compute a part of each step.
    pub fn has_ranks(&self) -> bool {
        self.state.ranks.is_some()
    }

    /// Lets each other rank, if there are any, write its log to the file that `file` returns for it.
    pub fn open_rank_logs(&self, file: &dyn Fn(usize) -> PathBuf) -> Result<()> {
        self.state.ranks.as_ref().map_or(Ok(()), |ranks| ranks.open_logs(file))
    }

    /// The rank that has failed or was lost.
    pub fn failed_rank(&self) -> Option<usize> {
        self.state.ranks.as_ref().and_then(|ranks| ranks.failed())
    }

    /// The ranks that divide the steps, for work besides training.
    pub fn other_ranks(&self) -> Option<OtherRanks> {
        self.state.ranks.clone().map(OtherRanks::of)
    }

    /// The ranks that divide the steps, to train a second model with them.
    pub fn world_of_second_model(&self) -> Option<World> {
        self.state.ranks.as_ref().map(|ranks| ranks.world_of_second_model())
    }

    /// Whether an optimizer step of any model that is trained with the ranks has begun and has failed, so that weights
    /// and moments are those of no step.
    pub fn is_stepping(&self) -> bool {
        self.state.ranks.as_ref().is_some_and(|ranks| ranks.is_stepping())
    }

    /// Fails if a rank is lost.
    pub fn check_ranks(&self) -> Result<()> {
        self.lost_rank().map_or(Ok(()), |why| Err(Error::Rank(why.to_owned())))
    }

    /// The sentence about the rank that was lost, if any was. No step can be taken after that.
    pub fn lost_rank(&self) -> Option<&str> {
        self.state.ranks.as_ref().and_then(|ranks| ranks.lost().why())
    }
}
