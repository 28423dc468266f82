//! The passes over one micro-batch, whose activations are on the tape, and the types of their results.

use super::checked::is_checked;
use crate::loss::{LossSums, Normalizer};
use crate::objective::Objective;
use crate::optimizer_batch::Sequence;
use crate::{Result, Sample};
use kernels::{Context, Memory, Tensor};
use model::batch::Dropout;
use model::kept::{KeptRollout, RolloutActivations};
use model::net::{self, KeptRows, Rope, Tape};
use model::scoring::grow_rope;
use model::{BatchTensors, Capacity, Grads, ModelConfig, ModelView, StopCheck, Updates};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ops::AddAssign;

/// The tape with the activations of one micro-batch, and the tables that its passes need. States of models with the
/// same shape can share it.
pub struct Passes {
    memory: Memory,
    /// Whether the tape keeps only each layer's input.
    checkpointing: bool,
    rope: Option<(usize, Rope)>,
    tape: Option<Tape>,
    pub(super) stop: StopCheck,
    /// The activations of the last generation; `None` if the engine keeps none.
    pub(super) activations: Option<RolloutActivations>,
}

impl Passes {
    /// Passes without buffers, which [`reserve`](Self::reserve) allocates.
    pub fn new(memory: &Memory, checkpointing: bool) -> Passes {
        let (memory, stop) = (memory.clone(), StopCheck::default());
        Passes { memory, checkpointing, rope: None, tape: None, stop, activations: None }
    }

    /// Sets a check before each layer. Once `stop` returns true, the passes fail with [`model::Error::Stopped`].
    pub fn stop_with(&mut self, stop: impl Into<StopCheck>) {
        self.stop = stop.into();
        self.tape = self.tape.take().map(|tape| tape.stop_with(self.stop.clone()));
    }

    /// Allocates buffers for micro-batches of up to `capacity`, with sequences of up to `positions` tokens. Forward
    /// passes have up to `forwarded` rows; larger micro-batches use kept activations.
    pub fn reserve(&mut self, model: &ModelConfig, capacity: Capacity, forwarded: usize, positions: usize) {
        let old = self.tape.as_ref().map_or(Capacity::default(), Tape::capacity);
        let old_forwarded = self.tape.as_ref().map_or(0, Tape::forwarded);
        if self.tape.is_none() || !old.holds(capacity) || forwarded > old_forwarded {
            self.tape = None; // free before allocating
            let (capacity, forwarded) = (old.max(capacity), forwarded.max(old_forwarded));
            let tape = Tape::with_restored(&self.memory, model, capacity, forwarded, self.checkpointing);
            self.tape = Some(tape.stop_with(self.stop.clone()));
        }
        grow_rope(&mut self.rope, &self.memory, model, positions);
    }

    /// Frees the buffers.
    pub(crate) fn release(&mut self) {
        (self.tape, self.rope) = (None, None);
    }

    /// The memory of the buffers.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The tape and the tables, which must have been reserved.
    pub(super) fn parts(&mut self) -> (&mut Tape, &Rope) {
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        (tape, rope)
    }
}

/// A model with the threads and the passes that compute it.
pub(crate) struct Compute<'a> {
    pub(crate) passes: &'a mut Passes,
    pub(crate) ctx: &'a Context,
    pub(crate) model: ModelView<'a>,
}

impl Compute<'_> {
    /// The forward pass through decoder and head. Returns log-probabilities at `temperature` and entropies, or the
    /// scores if the model has a score head.
    pub(crate) fn forward(&mut self, tensors: &BatchTensors, temperature: f64, is_of_scores: bool) -> Result<Outputs> {
        let Compute { passes, ctx, model } = self;
        let (tape, rope) = passes.parts();
        net::forward(ctx, *model, rope, tensors, tape)?;
        if is_of_scores {
            net::score_forward(ctx, *model, tensors, tape)?;
            let scores = tape.scores().to_vec_f32();
            return Ok(Outputs { entropies: vec![0.0; scores.len()], logps: scores, slots: None });
        }
        net::head_forward(ctx, *model, tensors, net::inv_temperature(temperature), tape)?;
        Ok(Outputs { logps: tape.logps().to_vec_f32(), entropies: tape.entropies().to_vec_f32(), slots: None })
    }
}

impl Compute<'_> {
    /// The backward pass from the gradients of the outputs, which accumulates into `grads`. The tape must contain the
    /// activations of the forward pass, or `kept` the rows from which each layer's are restored.
    pub(crate) fn backward(
        &mut self,
        tensors: &BatchTensors,
        d_outputs: &OutputGrads,
        is_of_scores: bool,
        kept: Option<KeptRows<'_>>,
        grads: &mut Grads,
    ) -> Result<()> {
        let (ctx, model) = (self.ctx, self.model);
        let workspace = self.passes.memory.part("workspace");
        let OutputGrads { d_logps, d_entropies } = d_outputs;
        let d_logps = Tensor::from_f32(&workspace, &[d_logps.len()], d_logps);
        let (tape, rope) = self.passes.parts();
        if is_of_scores {
            net::score_backward(ctx, model, tensors, d_logps.view(), tape, grads)?;
        } else {
            let d_entropies = d_entropies.as_ref().map(|d| Tensor::from_f32(&workspace, &[d.len()], d));
            let d_entropies = d_entropies.as_ref().map(Tensor::view);
            net::head_backward(ctx, model, tensors, d_logps.view(), d_entropies, tape, grads)?;
        }
        Ok(net::backward_from(ctx, model, rope, tensors, kept, tape, grads)?)
    }
}

/// The gradients of the loss with respect to the outputs of a micro-batch.
pub(crate) struct OutputGrads {
    /// Of the log-probabilities, or of the scores.
    pub(crate) d_logps: Vec<f32>,
    /// Of the entropies; `None` if the loss does not depend on them.
    pub(crate) d_entropies: Option<Vec<f32>>,
}

/// The model's outputs for the scored tokens of a micro-batch.
pub(crate) struct Outputs {
    /// Log-probabilities, or the scores of a score head.
    pub(crate) logps: Vec<f32>,
    pub(crate) entropies: Vec<f32>,
    /// The kept rows from which the backward pass restores each layer; `None` if the activations are on the tape.
    pub(super) slots: Option<Tensor>,
}

/// The forward pass of a micro-batch.
pub(crate) struct Forward {
    pub(super) tensors: BatchTensors,
    /// Dropout of the second pass, which is differentiated; `None` without a second pass.
    pub(super) dropout: Option<Dropout>,
    pub(crate) outputs: Outputs,
}

/// Sums over forward passes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ForwardSums {
    /// Seconds, including the copies of kept activations.
    pub(crate) time_s: f64,
    /// Rows (tokens) whose activations were copied from those that the engine kept.
    pub(crate) kept_rows: u64,
    /// Kept rows that were compared with a forward pass, and how many of them differed in any bit.
    pub(crate) compared_rows: u64,
    pub(crate) mismatched_rows: u64,
}

impl AddAssign for ForwardSums {
    fn add_assign(&mut self, other: ForwardSums) {
        self.time_s += other.time_s;
        self.kept_rows += other.kept_rows;
        self.compared_rows += other.compared_rows;
        self.mismatched_rows += other.mismatched_rows;
    }
}

/// Sums over the micro-batches of a step.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) sums: LossSums,
    pub(crate) entropy: f64,
    /// Number of tokens in the loss whose entropy is unknown because their group was skipped.
    pub(crate) unknown_entropies: usize,
    pub(crate) skipped_groups: u64,
    pub(crate) skipped_tokens: u64,
    pub(crate) compared: u64,
    pub(crate) mismatches: u64,
    pub(crate) max_difference: f64,
    pub(crate) forward: ForwardSums,
    pub(crate) backward_time_s: f64,
}

/// The sequences and the loss of one call of [`TrainState::accumulate`].
pub(crate) struct LossBatch<'a> {
    pub(crate) loss: &'a Objective,
    pub(crate) normalizer: &'a Normalizer,
    pub(crate) sequences: &'a [Sequence<'a>],
    /// Number of sequences of the optimizer batch that earlier calls accumulated.
    pub(crate) before: usize,
    /// Indices of sequences of skipped groups that the metrics do not include yet, ascending.
    pub(crate) skipped: Cell<&'a [usize]>,
    /// The activations that the engine kept, if any.
    pub(crate) kept: Option<&'a KeptRollout>,
}

impl Measured {
    /// Compares the log-probabilities of a forward pass with the sampler's, if all tokens of the sample were sampled
    /// with weights of `version`, and counts the tokens where they differ in any bit. Tokens that cannot be in the loss
    /// (such as tool output) are not compared.
    ///
    /// The count of compared tokens includes only the groups whose forward pass every run computes, whether it keeps
    /// the activations of the rollout or not, so that the metric does not depend on this setting.
    pub(crate) fn compare(&mut self, sample: &Sample, logps: &[f32], version: Updates) {
        if !sample.is_of_version(version) {
            return;
        }
        let is_checked = is_checked(sample.group);
        let recorded = sample.columns.sampler_logps().unwrap_or_default();
        for ((&recorded, &logp), &used) in recorded.iter().zip(logps).zip(&sample.loss_mask) {
            if used {
                self.compared += u64::from(is_checked);
                self.mismatches += u64::from(recorded.to_bits() != logp.to_bits());
                let difference = (f64::from(recorded) - f64::from(logp)).abs();
                // A NaN maximum stays NaN, so that it is visible in the metric.
                if difference > self.max_difference || difference.is_nan() {
                    self.max_difference = difference;
                }
            }
        }
    }
}
