//! The decoder: tokens in, hidden rows out, and the way back.
//!
//! Read `layer.rs` first: one layer's equations, forward and backward. The same forward serves decoding, prefill, scoring
//! and training; they differ in the rows they pass, in whose pages keys and values lie, and in what is kept.
//! It does not know sampling, losses or the optimizer.

mod head;
mod rows;
mod tape;

pub use head::{Scores, head_backward, head_forward, inv_temperature, score};
pub use rows::{InferRows, Rope};
pub use tape::{Tape, Workspace};

use crate::batch::BatchTensors;
use crate::kv::KvCache;
use crate::weights::{Grads, Weights};
use kernels::{Context, Result};

/// Computes `rows` on top of what `kv` holds, writing their keys and values to it. Hidden rows: [`Workspace::hidden`].
pub fn infer(
    ctx: &Context,
    weights: &Weights,
    rope: &Rope,
    rows: &InferRows,
    kv: &mut KvCache,
    workspace: &mut Workspace,
) -> Result<()> {
    let _ = (ctx, weights, rope, rows, kv, workspace);
    unimplemented!()
}

/// Computes a batch of whole sequences, keeping in `tape` what [`backward`] needs. Hidden rows: [`Tape::hidden`].
pub fn forward(ctx: &Context, weights: &Weights, rope: &Rope, batch: &BatchTensors, tape: &mut Tape) -> Result<()> {
    let _ = (ctx, weights, rope, batch, tape);
    unimplemented!()
}

/// The way back of [`forward`], from the gradient of the hidden rows ([`Tape::d_hidden_mut`], as [`head_backward`] writes
/// it): accumulates into `grads` (all but the head's).
pub fn backward(
    ctx: &Context,
    weights: &Weights,
    rope: &Rope,
    batch: &BatchTensors,
    tape: &mut Tape,
    grads: &mut Grads,
) -> Result<()> {
    let _ = (ctx, weights, rope, batch, tape, grads);
    unimplemented!()
}
