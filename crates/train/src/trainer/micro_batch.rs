//! One micro-batch of a [`TrainState`]: forward pass on the device, loss on the host, backward pass on the device; and
//! the comparison of log-probabilities for skipped groups.
//!
//! With LoRA dropout, the gradient is that of a forward pass with dropout. But a policy loss compares its
//! log-probabilities with those of the sampler and the reference model, which use no dropout. So the loss and its
//! gradient ∂J/∂log π_θ are computed from a pass without dropout, and a second pass with dropout is differentiated:
//!
//! ∇ = Σ_t ∂J/∂log π_θ(t) ∇ log π_θ,dropped(t)
//!
//! This costs a second forward pass. The other losses (supervised, pairs, scores) need only the pass with dropout.

use super::TrainState;
use super::kept::Planned;
use super::loss_gradient::loss_and_gradient;
use super::passes::{Compute, Forward, ForwardSums, LossBatch, Measured};
use super::skip::{Skipped, only};
use crate::Result;
use crate::objective::Objective;
use crate::optimizer_batch::Sequence;
use model::batch::Dropout;
use model::net::KeptRows;
use model::packing::longest;
use model::{BatchTensors, MicroBatch, PromptGroup};
use std::time::Instant;

impl TrainState {
    /// Probability with which an input of the LoRA adapter is dropped.
    pub(crate) fn dropout(&self) -> f64 {
        self.config.adapter.as_ref().map_or(0.0, |lora| lora.dropout)
    }

    /// Whether kept activations can replace a forward pass.
    pub(super) fn can_use_activations(&self) -> bool {
        self.dropout() == 0.0 && self.config.objective.is_policy()
    }

    pub(crate) fn forward(
        &self,
        compute: &mut Compute<'_>,
        batch: &LossBatch<'_>,
        planned: &Planned<'_>,
        sums: &mut ForwardSums,
    ) -> Result<Forward> {
        let start = Instant::now();
        let micro = &planned.micro;
        let packed = micro.batch(self.config.prefix_sharing);
        let mut tensors = BatchTensors::new(&self.memory.part("workspace"), &packed);
        let p = self.dropout();
        let mut dropout = (p > 0.0).then(|| {
            let samples: Vec<u32> = micro.scored().map(|i| (batch.before + i) as u32).collect();
            // Skipped steps are also counted, so that no two steps have the same noise.
            let step = self.optimizer.steps + self.skipped_total;
            Dropout::new(&self.memory, p, self.config.optimizer.seed, step, &packed, &samples)
        });
        if !batch.loss.is_policy() {
            tensors.set_dropout(dropout.take());
        }
        let head = (self.config.temperature, batch.loss.is_of_scores());
        let outputs = planned.forward(compute, &packed, &tensors, batch.kept, head, sums)?;
        sums.time_s += start.elapsed().as_secs_f64();
        Ok(Forward { tensors, dropout, outputs })
    }

    /// Computes the loss and the backward pass of a micro-batch. The tape must contain the activations of its forward
    /// pass.
    pub(crate) fn backward(
        &mut self,
        compute: &mut Compute<'_>,
        batch: &LossBatch<'_>,
        micro: &MicroBatch<'_>,
        mut forward: Forward,
        measured: &mut Measured,
    ) -> Result<()> {
        if let Some(dropout) = forward.dropout.take() {
            let start = Instant::now();
            forward.tensors.set_dropout(Some(dropout));
            compute.forward(&forward.tensors, self.config.temperature, batch.loss.is_of_scores())?;
            measured.forward.time_s += start.elapsed().as_secs_f64();
        }
        let start = Instant::now();
        let d_outputs = loss_and_gradient(batch, compute.model.version().trained(), micro, &forward.outputs, measured);
        measured.forward.time_s += start.elapsed().as_secs_f64();

        let start = Instant::now();
        let store = batch.kept.map(|kept| &kept.store);
        let kept =
            store.zip(forward.outputs.slots.as_ref()).map(|(store, slots)| KeptRows { store, slots: slots.view() });
        compute.backward(&forward.tensors, &d_outputs, batch.loss.is_of_scores(), kept, &mut self.grads)?;
        measured.backward_time_s += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether the trainer skips groups with gradient 0 for this loss.
    pub(crate) fn skips(&self, loss: &Objective) -> bool {
        self.config.skip_zero_gradients && loss.can_skip()
    }

    /// Counts the skipped groups and their rows, and runs the forward passes of those whose log-probabilities are
    /// compared.
    pub(crate) fn check_skipped(
        &mut self,
        compute: &mut Compute<'_>,
        batch: &LossBatch<'_>,
        groups: &[PromptGroup<'_>],
        skipped: &Skipped,
        measured: &mut Measured,
    ) -> Result<()> {
        let rows = |&place: &usize| groups[place].capacity(self.config.prefix_sharing).tokens as u64;
        measured.skipped_groups += skipped.groups.len() as u64;
        measured.skipped_tokens += skipped.groups.iter().map(rows).sum::<u64>();
        let version = compute.model.version().trained();
        let checked = only(groups, |place| skipped.checked.contains(&place));
        let planned = compute.plan(&self.config, batch.sequences, &checked, batch.kept, |_| 0, |_, _| None);
        // If the tokens were sampled with other weights, there is nothing to compare.
        let is_comparable = |i: usize| batch.sequences[i].source.sample().is_some_and(|s| s.is_of_version(version));
        for planned in planned.iter().filter(|planned| planned.micro.scored().any(is_comparable)) {
            self.reserve_for(compute, std::slice::from_ref(planned), longest(&checked))?;
            let forward = self.forward(compute, batch, planned, &mut measured.forward)?;
            let mut logps = &forward.outputs.logps[..];
            for i in planned.micro.scored() {
                let Sequence { source, completion, .. } = &batch.sequences[i];
                let (own, others) = logps.split_at(completion.len());
                source.sample().into_iter().for_each(|sample| measured.compare(sample, own, version));
                logps = others;
            }
        }
        Ok(())
    }
}
