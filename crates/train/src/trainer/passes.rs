//! The passes over one micro-batch: forward on the device, loss on the host, backward on the device; and their
//! measurements.
//!
//! With LoRA dropout, the gradient is that of a forward pass with dropout. A policy loss compares its log-probabilities
//! with those of the sampler and the reference model, which use no dropout. So they come from a pass without dropout,
//! the loss's gradient ∂J/∂log π_θ is computed there, and a second pass with dropout is differentiated:
//!
//! ∇ = Σ_t ∂J/∂log π_θ(t) ∇ log π_θ,dropped(t)
//!
//! This costs a second forward pass. The other losses (supervised, pairs, scores) are computed from the pass with
//! dropout alone.

use super::TrainState;
use crate::loss::{LossSums, Normalizer};
use crate::objective::{Objective, Scored};
use crate::optimizer_batch::Sequence;
use crate::{Result, Sample};
use kernels::{Context, Memory, Tensor};
use model::batch::Dropout;
use model::net::{self, Rope, Tape};
use model::scoring::grow_rope;
use model::{BatchTensors, Capacity, MicroBatch, ModelConfig, ModelView, StopCheck, Updates};
use std::cell::Cell;
use std::time::Instant;

/// The tape with the activations of one micro-batch, and the tables that its passes need. Several states of one shape
/// of model can take turns with it.
pub struct Passes {
    memory: Memory,
    /// Whether the tape keeps only each layer's input.
    checkpointing: bool,
    rope: Option<(usize, Rope)>,
    tape: Option<Tape>,
    stop: StopCheck,
}

impl Passes {
    /// Passes without buffers, which [`reserve`](Self::reserve) allocates.
    pub fn new(memory: &Memory, checkpointing: bool) -> Passes {
        Passes { memory: memory.clone(), checkpointing, rope: None, tape: None, stop: StopCheck::default() }
    }

    /// Makes the passes check `stop` before each layer, and end with [`model::Error::Stopped`] once it says so.
    pub fn stop_with(&mut self, stop: impl Into<StopCheck>) {
        self.stop = stop.into();
        self.tape = self.tape.take().map(|tape| tape.stop_with(self.stop.clone()));
    }

    /// Allocates buffers for micro-batches of up to `capacity`, with sequences of up to `positions` tokens.
    pub fn reserve(&mut self, model: &ModelConfig, capacity: Capacity, positions: usize) {
        let old = self.tape.as_ref().map_or(Capacity::default(), Tape::capacity);
        if self.tape.is_none() || !old.holds(capacity) {
            self.tape = None; // free before taking
            let tape = Tape::new(&self.memory, model, old.max(capacity), self.checkpointing);
            self.tape = Some(tape.stop_with(self.stop.clone()));
        }
        grow_rope(&mut self.rope, &self.memory, model, positions);
    }

    /// The tape and the tables, which were reserved.
    fn parts(&mut self) -> (&mut Tape, &Rope) {
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        (tape, rope)
    }

    /// Runs a forward pass, keeping activations on the tape. Returns log-probabilities at `temperature` and entropies,
    /// or the scores of a model that scores.
    fn forward(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        tensors: &BatchTensors,
        temperature: f64,
        is_of_scores: bool,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let (tape, rope) = self.parts();
        net::forward(ctx, model, rope, tensors, tape)?;
        if is_of_scores {
            net::score_forward(ctx, model, tensors, tape)?;
            let scores = tape.scores().to_vec_f32();
            let entropies = vec![0.0; scores.len()];
            return Ok((scores, entropies));
        }
        net::head_forward(ctx, model, tensors, net::inv_temperature(temperature), tape)?;
        Ok((tape.logps().to_vec_f32(), tape.entropies().to_vec_f32()))
    }
}

/// The model's output for the scored tokens of a micro-batch. The tape holds the activations.
pub(crate) struct Forward {
    tensors: BatchTensors,
    /// Dropout of the second pass, which is differentiated; none if there is no second pass.
    dropout: Option<Dropout>,
    pub(crate) logps: Vec<f32>,
    pub(crate) entropies: Vec<f32>,
}

/// Sums over the micro-batches of a step.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) sums: LossSums,
    pub(crate) entropy: f64,
    /// Number of tokens in the loss with unknown entropy, because their group was skipped.
    pub(crate) unknown_entropies: usize,
    pub(crate) skipped_groups: u64,
    pub(crate) skipped_tokens: u64,
    pub(crate) compared: u64,
    pub(crate) mismatches: u64,
    pub(crate) max_difference: f64,
    pub(crate) forward_time_s: f64,
    pub(crate) backward_time_s: f64,
}

/// The sequences and the loss of one call of [`TrainState::accumulate`].
pub(crate) struct LossBatch<'a> {
    pub(crate) loss: &'a Objective,
    pub(crate) normalizer: &'a Normalizer,
    pub(crate) sequences: &'a [Sequence<'a>],
    /// Number of sequences of the optimizer batch that earlier calls accumulated.
    pub(crate) before: usize,
    /// Indices of sequences of skipped groups that are not counted in the metrics yet, ascending.
    pub(crate) skipped: Cell<&'a [usize]>,
}

impl TrainState {
    /// Probability that an input of the LoRA adapter is dropped.
    pub(crate) fn dropout(&self) -> f64 {
        self.config.adapter.as_ref().map_or(0.0, |lora| lora.dropout)
    }

    pub(crate) fn forward(
        &self,
        passes: &mut Passes,
        ctx: &Context,
        model: ModelView<'_>,
        batch: &LossBatch<'_>,
        micro: &MicroBatch<'_>,
        forward_time_s: &mut f64,
    ) -> Result<Forward> {
        let start = Instant::now();
        let packed = micro.batch(self.config.prefix_sharing);
        let mut tensors = BatchTensors::new(&self.memory.part("workspace"), &packed);
        let p = self.dropout();
        let mut dropout = (p > 0.0).then(|| {
            let samples: Vec<u32> = micro.scored().map(|i| (batch.before + i) as u32).collect();
            // Skipped steps count, so that no two steps have the same noise.
            let step = self.optimizer.steps + self.skipped_total;
            Dropout::new(&self.memory, p, self.config.optimizer.seed, step, &packed, &samples)
        });
        if !batch.loss.is_policy() {
            tensors.set_dropout(dropout.take());
        }
        *forward_time_s += start.elapsed().as_secs_f64();
        let (logps, entropies) = self.pass(passes, ctx, model, batch.loss, &tensors, forward_time_s)?;
        Ok(Forward { tensors, dropout, logps, entropies })
    }

    fn pass(
        &self,
        passes: &mut Passes,
        ctx: &Context,
        model: ModelView<'_>,
        loss: &Objective,
        tensors: &BatchTensors,
        forward_time_s: &mut f64,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let start = Instant::now();
        let outputs = passes.forward(ctx, model, tensors, self.config.temperature, loss.is_of_scores())?;
        *forward_time_s += start.elapsed().as_secs_f64();
        Ok(outputs)
    }

    /// Computes the loss and the backward pass of a micro-batch. Its forward pass must be the last one on the tape.
    pub(crate) fn backward(
        &mut self,
        passes: &mut Passes,
        ctx: &Context,
        model: ModelView<'_>,
        batch: &LossBatch<'_>,
        micro: &MicroBatch<'_>,
        mut forward: Forward,
        measured: &mut Measured,
    ) -> Result<()> {
        if let Some(dropout) = forward.dropout.take() {
            forward.tensors.set_dropout(Some(dropout));
            self.pass(passes, ctx, model, batch.loss, &forward.tensors, &mut measured.forward_time_s)?;
        }
        let start = Instant::now();
        let (d_logps, d_entropies) = loss_and_gradient(batch, model.version().trained(), micro, &forward, measured);
        measured.forward_time_s += start.elapsed().as_secs_f64();

        let (start, tensors) = (Instant::now(), &forward.tensors);
        let workspace = self.memory.part("workspace");
        let d_logps = Tensor::from_f32(&workspace, &[d_logps.len()], &d_logps);
        let (tape, rope) = passes.parts();
        if batch.loss.is_of_scores() {
            net::score_backward(ctx, model, tensors, d_logps.view(), tape, &mut self.grads)?;
        } else {
            let d_entropies = batch.loss.has_entropy_grad(batch.normalizer).then_some(d_entropies);
            let d_entropies = d_entropies.map(|d| Tensor::from_f32(&workspace, &[d.len()], &d));
            let d_entropies = d_entropies.as_ref().map(Tensor::view);
            net::head_backward(ctx, model, tensors, d_logps.view(), d_entropies, tape, &mut self.grads)?;
        }
        net::backward(ctx, model, rope, tensors, tape, &mut self.grads)?;
        measured.backward_time_s += start.elapsed().as_secs_f64();
        Ok(())
    }
}

/// Adds a micro-batch's contribution to the loss J to the sums. Returns the gradients of J with respect to the
/// log-probability and the entropy of each scored token.
fn loss_and_gradient(
    batch: &LossBatch<'_>,
    version: Updates,
    micro: &MicroBatch<'_>,
    forward: &Forward,
    measured: &mut Measured,
) -> (Vec<f32>, Vec<f32>) {
    let Forward { logps, entropies, .. } = forward;
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
                source.sample().into_iter().for_each(|sample| measured.compare(sample, logps, version));
            }
            let source = *source;
            scored.push(Scored { source, mask, logps, entropies, d_logps: own, d_entropies: own_entropies });
            (first, rest, rest_entropies) = (tokens.end, others, other_entropies);
        }
        batch.loss.evaluate(batch.normalizer, &mut scored, &mut measured.sums);
    }
    (d_logps, d_entropies)
}

impl Measured {
    /// Counts the tokens whose log-probability recorded by the sampler differs in any bit from the trainer's, if all
    /// tokens of the sample were sampled with weights of `version`. Tokens that the loss may not use (such as tool
    /// output) are not compared.
    pub(crate) fn compare(&mut self, sample: &Sample, logps: &[f32], version: Updates) {
        if !sample.is_of_version(version) {
            return;
        }
        let recorded = sample.columns.sampler_logps().unwrap_or_default();
        for ((&recorded, &logp), &used) in recorded.iter().zip(logps).zip(&sample.loss_mask) {
            if used {
                self.compared += 1;
                self.mismatches += u64::from(recorded.to_bits() != logp.to_bits());
                let difference = (f64::from(recorded) - f64::from(logp)).abs();
                // Once the maximum is NaN it stays NaN, so that it shows.
                if difference > self.max_difference || difference.is_nan() {
                    self.max_difference = difference;
                }
            }
        }
    }
}
