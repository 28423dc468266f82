//! The decoder: the forward pass from token ids to hidden states, and the backward pass.
//!
//! Read `layer.rs` first, then `attend.rs` and `mlp.rs`: they show the equations, with the forward pass next to the
//! backward pass. Decoding, prefill, scoring and training call the same forward function. They differ only in their
//! rows, their KV cache, and the activations that they keep, so a token gets the same bits from each of them. This
//! module has no sampling, losses or optimizer.

mod attend;
mod head;
mod keep;
mod layer;
mod mlp;
mod norms;
mod pass;
mod rope;
mod tape;

pub(crate) use head::most_likely;
pub use head::{
    HeadColumns, LEAST_TEMPERATURE, Scores, head_backward, head_forward, head_restore, inv_temperature, score,
    score_backward, score_forward,
};
pub use keep::{KeptRows, differing_rows, infer_keeping, restore};
pub use rope::Rope;
pub use tape::{RowStore, Tape, Workspace};

use crate::batch::{BatchTensors, InferRows};
use crate::kv::KvCache;
use crate::weights::{AdapterRanges, Grads, ModelView, RowAdapters, Weights, trained};
use kernels::ops::{embedding, rmsnorm, zero};
use kernels::{Context, Error, Result};
use pass::{Buffers, Input, Pass};
use tape::{Activations, PassScratch};

/// The forward pass for inference. It computes `rows`, attending to the keys and values in `kv`, and writes their own
/// keys and values to `kv`. [`Workspace::hidden`] then contains the hidden states.
pub fn infer<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    rope: &Rope,
    rows: &InferRows,
    kv: &mut KvCache,
    workspace: &mut Workspace,
) -> Result<()> {
    let Workspace { activations, scratch, adapters } = workspace;
    infer_from(ctx, model.into(), rope, rows, kv, (activations, 0), (scratch, adapters))
}

/// Computes `rows` and writes them to the tensors of `activations`, from row `first` on.
fn infer_from(
    ctx: &Context,
    ModelView { weights, adapters }: ModelView<'_>,
    rope: &Rope,
    rows: &InferRows,
    kv: &mut KvCache,
    (activations, first): (&mut Activations, usize),
    (scratch, ranges): (&mut PassScratch, &mut AdapterRanges),
) -> Result<()> {
    let adapters = RowAdapters::new(adapters, rows.sequences(), ranges)?;
    let rows = rows.views();
    let pass = Pass { ctx, config: &weights.config, rope, rows, first, adapters: &adapters, dropout: None };
    layers_forward(&pass, weights, kv, (activations, scratch), || Ok(()))
}

/// The forward pass for training. It computes a batch of whole sequences and keeps in `tape` the activations that
/// [`backward`] needs. [`Tape::hidden`] then contains the hidden states.
pub fn forward<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    rope: &Rope,
    batch: &BatchTensors,
    tape: &mut Tape,
) -> crate::Result<()> {
    tape.check(batch.capacity)?;
    let ModelView { weights, adapters } = model.into();
    let mut ranges = AdapterRanges::default();
    let adapters = RowAdapters::new(adapters, batch.sequences(), &mut ranges)?;
    let pass = pass(ctx, weights, rope, batch, &adapters);
    layers_forward(&pass, weights, &mut tape.pages, (&mut tape.activations, &mut tape.scratch), || tape.stop.check())
}

fn pass<'a>(
    ctx: &'a Context,
    weights: &'a Weights,
    rope: &'a Rope,
    batch: &'a BatchTensors,
    adapters: &'a RowAdapters<'a>,
) -> Pass<'a> {
    let (rows, dropout) = (batch.rows.views(), batch.dropout.as_ref());
    Pass { ctx, config: &weights.config, rope, rows, first: 0, adapters, dropout }
}

/// Embedding, decoder layers, final norm. `check` is called before each layer, and an error from it ends the pass.
fn layers_forward<E: From<Error>>(
    pass: &Pass<'_>,
    weights: &Weights,
    kv: &mut KvCache,
    (a, scratch): (&mut Activations, &mut PassScratch),
    check: impl Fn() -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let Pass { ctx, config, rows, .. } = *pass;
    let n = rows.len();
    a.begin(pass.first, n)?;
    let (table, scale, out) = (&weights.params.embedding, config.embedding_scale(), pass.kept_mut(&mut a.inputs[0]));
    embedding::forward(ctx, embedding::Forward { ids: rows.ids, table, scale, out })?;
    for (l, w) in weights.params.layers.iter().enumerate() {
        check()?;
        let (x, s) = (a.input_of(l), a.saved_of(l));
        let (before, here) = a.saved.split_at_mut(s);
        let input = match before.last() {
            _ if l == 0 => Input::Ready,
            Some(previous) => Input::After(previous),
            None => Input::AfterInPlace,
        };
        let mut buffers = Buffers {
            x: &mut a.inputs[x],
            saved: &mut here[0],
            gates: None,
            pages: kv.layer_mut(l),
            scratch: &mut scratch.layers,
        };
        layer::forward(pass, l, w, input, &mut buffers, &mut scratch.delta)?;
    }
    rmsnorm::forward(
        ctx,
        rmsnorm::Forward {
            x: pass.kept(&a.saved[a.saved.len() - 1].mid),
            delta: Some(scratch.delta.rows(0..n)),
            sum: Some(pass.kept_mut(&mut a.last)),
            weight: weights.params.norm.view(),
            offset: config.norm_offset,
            eps: config.rms_norm_eps,
            y: pass.kept_mut(&mut a.hidden),
            rstd: pass.kept_mut(&mut a.rstd),
        },
    )?;
    Ok(())
}

/// The backward pass of [`forward`]. It starts from the gradient of the hidden states ([`Tape::d_hidden_mut`], written
/// by [`head_backward`]) and accumulates the gradients of all parameters except the head into `grads`.
pub fn backward<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    rope: &Rope,
    batch: &BatchTensors,
    tape: &mut Tape,
    grads: &mut Grads,
) -> crate::Result<()> {
    backward_from(ctx, model.into(), rope, batch, None, tape, grads)
}

/// The backward pass of [`forward`] if `kept` is `None`, and otherwise of [`restore`] with these rows.
pub fn backward_from(
    ctx: &Context,
    ModelView { weights, adapters }: ModelView<'_>,
    rope: &Rope,
    batch: &BatchTensors,
    kept: Option<KeptRows<'_>>,
    tape: &mut Tape,
    grads: &mut Grads,
) -> crate::Result<()> {
    let (a, back) = (&mut tape.activations, tape.back.as_mut().ok_or_else(no_backward_buffers)?);
    let mut ranges = AdapterRanges::default();
    let adapters = RowAdapters::new(adapters, batch.sequences(), &mut ranges)?;
    if adapters.trained()?.is_some() != grads.is_for_adapter() {
        let message = "weights and gradients must belong to the same adapter".into();
        return Err(Error::Value { op: "backward", message }.into());
    }
    let pass = pass(ctx, weights, rope, batch, &adapters);
    let (n, groups) = (a.rows, batch.groups());

    zero(ctx, back.layer.d_x.rows_mut(0..n));
    rmsnorm::backward(
        ctx,
        rmsnorm::Backward {
            x: a.last.rows(0..n),
            weight: weights.params.norm.view(),
            offset: weights.config.norm_offset,
            rstd: a.rstd.rows(0..n),
            d_y: back.d_hidden.rows(0..n),
            d_x: back.layer.d_x.rows_mut(0..n),
            d_weight: trained(&mut grads.params.norm),
            segments: Some(groups),
        },
    )?;
    for (l, w) in weights.params.layers.iter().enumerate().rev() {
        tape.stop.check()?;
        let (shares, s) = (a.shares(), a.saved_of(l));
        let (x, s) = if kept.is_some() { (0, 0) } else { (l, s) };
        let (pages, scratch) = (tape.pages.layer_mut(l), &mut tape.scratch.layers);
        let mut buffers = Buffers { x: &mut a.inputs[x], saved: &mut a.saved[s], gates: None, pages, scratch };
        if let Some(kept) = kept {
            // All layers use the same buffers, so that these stay in the cache.
            keep::restore_layer(&pass, kept, l, &mut buffers)?;
        } else if shares {
            // With checkpointing, only the layer's input was kept. Recomputing the layer gives the same bits.
            layer::forward(&pass, l, w, Input::Ready, &mut buffers, &mut tape.scratch.delta)?;
        }
        layer::backward(&pass, l, w, &mut grads.params.layers[l], &mut buffers, groups, &mut back.layer)?;
    }
    Ok(grads.add_embedding(ctx, &batch.ids, back.layer.d_x.rows(0..n))?)
}

fn no_backward_buffers() -> Error {
    Error::Value { op: "backward", message: "the tape is forward-only".into() }
}

#[cfg(test)]
mod tests;
