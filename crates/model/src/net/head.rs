//! From hidden rows to the log-probabilities of given tokens, and back.

use super::{Rope, Tape};
use crate::batch::{Batch, BatchTensors};
use crate::weights::{Grads, Weights};
use kernels::{Context, Result, View};

/// What logits are multiplied with at a temperature: 1/T rounded to f32, the same number for sampler and trainer.
pub fn inv_temperature(temperature: f64) -> f32 {
    (1.0 / temperature) as f32
}

/// Scores of a batch's tokens in its order ([`Batch::scores_of_branches`] says whose they are).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Log-probability of each token at the temperature.
    pub logps: Vec<f32>,
    /// Entropy of the distribution that it comes from, in nats.
    pub entropies: Vec<f32>,
}

/// After [`forward`](super::forward): log-probabilities and entropies of the batch's scored tokens ([`Tape::logps`], [`Tape::entropies`]).
pub fn head_forward(
    ctx: &Context,
    weights: &Weights,
    batch: &BatchTensors,
    inv_temperature: f32,
    tape: &mut Tape,
) -> Result<()> {
    let _ = (ctx, weights, batch, tape, inv_temperature);
    unimplemented!()
}

/// The way back of [`head_forward`], from the gradients of log-probabilities and entropies `[R]`: overwrites the tape's
/// gradient of the hidden rows, and accumulates the head's into `grads`.
pub fn head_backward(
    ctx: &Context,
    weights: &Weights,
    batch: &BatchTensors,
    inv_temperature: f32,
    d_logps: View<'_>,
    d_entropies: Option<View<'_>>,
    tape: &mut Tape,
    grads: &mut Grads,
) -> Result<()> {
    let _ = (ctx, weights, batch, tape, inv_temperature, d_logps, d_entropies, grads);
    unimplemented!()
}

/// Log-probabilities and entropies of a batch's scored tokens: forward only. The batch must fit `tape` (any tape; with
/// [`Tape::forward_only`] memory does not grow with the number of layers).
pub fn score(
    ctx: &Context,
    weights: &Weights,
    rope: &Rope,
    batch: &Batch,
    tape: &mut Tape,
    temperature: f64,
) -> Result<Scores> {
    let _ = (ctx, weights, rope, batch, tape, temperature);
    unimplemented!()
}
