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
use super::passes::{Compute, Forward, ForwardSums, LossBatch, Measured, OutputGrads, Outputs};
use super::skip::{Skipped, only};
use crate::Result;
use crate::objective::{Objective, Scored};
use crate::optimizer_batch::Sequence;
use model::batch::Dropout;
use model::net::KeptRows;
use model::packing::longest;
use model::{BatchTensors, MicroBatch, PromptGroup, Updates};
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
        let planned = compute.plan(&self.config, batch.sequences, &checked, batch.kept, |_| 0);
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

/// Adds a micro-batch's contribution to the loss J to the sums. Returns the gradients of J with respect to the
/// log-probability and the entropy of each scored token.
pub(super) fn loss_and_gradient(
    batch: &LossBatch<'_>,
    version: Updates,
    micro: &MicroBatch<'_>,
    outputs: &Outputs,
    measured: &mut Measured,
) -> OutputGrads {
    let Outputs { logps, entropies, slots } = outputs;
    let (mut d_logps, mut d_entropies) = (vec![0.0; logps.len()], vec![0.0; logps.len()]);
    let (mut first, mut rest, mut rest_entropies) = (0, d_logps.as_mut_slice(), d_entropies.as_mut_slice());
    for group in micro.scored_groups() {
        let mut scored = Vec::new();
        for i in group {
            batch.count_skipped(i, version, measured);
            let Sequence { source, completion, mask, .. } = &batch.sequences[i];
            let tokens = first..first + completion.len();
            let (own, others) = rest.split_at_mut(tokens.len());
            let (own_entropies, other_entropies) = rest_entropies.split_at_mut(tokens.len());
            let (logps, entropies) = (&logps[tokens.clone()], &entropies[tokens.clone()]);
            if !batch.loss.is_of_scores() {
                let used = entropies.iter().zip(mask).filter(|(_, m)| **m);
                measured.entropy += used.map(|(e, _)| f64::from(*e)).sum::<f64>();
                // The log-probabilities of kept activations are the sampler's own.
                if let Some(sample) = source.sample().filter(|_| slots.is_none()) {
                    measured.compare(sample, logps, version);
                }
            }
            let source = *source;
            scored.push(Scored { source, mask, logps, entropies, d_logps: own, d_entropies: own_entropies });
            (first, rest, rest_entropies) = (tokens.end, others, other_entropies);
        }
        batch.loss.evaluate(batch.normalizer, &mut scored, &mut measured.sums);
    }
    OutputGrads { d_logps, d_entropies: batch.loss.has_entropy_grad(batch.normalizer).then_some(d_entropies) }
}
