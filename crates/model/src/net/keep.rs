//! Activations that generation keeps for the first update on its tokens.
//!
//! Inference and training give a row the same bits. So if the weights have not changed since a token was sampled, its
//! row of activations in training equals the one in inference. [`infer_keeping`] keeps the rows of a pass in a
//! [`RowStore`]; [`restore`] and [`backward_from`](super::backward_from) copy them to a tape in the order of a batch,
//! in place of [`forward`](super::forward).

use super::pass::{Buffers, Linears, Pass};
use super::{Rope, RowStore, Tape, Workspace, infer_from};
use crate::batch::{BatchTensors, InferRows};
use crate::kv::KvCache;
use crate::weights::ModelView;
use kernels::ops::rows;
use kernels::{Context, Memory, Result, Tensor, View};

/// Rows that are compared at once.
const COMPARED_AT_ONCE: usize = 64;

/// Like [`infer`](super::infer), but also keeps the activations of the pass in `store`, in the rows from `first` on.
/// [`RowStore::hidden`] then contains the hidden states.
pub fn infer_keeping<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    rope: &Rope,
    rows: &InferRows,
    kv: &mut KvCache,
    workspace: &mut Workspace,
    (store, first): (&mut RowStore, usize),
) -> Result<()> {
    let Workspace { scratch, adapters, .. } = workspace;
    store.first = first;
    infer_from(ctx, model.into(), rope, rows, kv, (&mut store.activations, first), (scratch, adapters))
}

/// The rows of a store that belong to a batch.
#[derive(Clone, Copy)]
pub struct KeptRows<'a> {
    /// The store.
    pub store: &'a RowStore,
    /// The row of the store for each row of the batch: u32 `[T]`.
    pub slots: View<'a>,
}

/// Replaces [`forward`](super::forward) for a batch whose rows were `kept`. [`Tape::hidden`] then contains the hidden
/// states. [`backward_from`](super::backward_from) must be given the same rows; it restores each layer just before
/// using it.
pub fn restore(ctx: &Context, kept: KeptRows<'_>, batch: &BatchTensors, tape: &mut Tape) -> crate::Result<()> {
    tape.check_restored(batch.capacity)?;
    let (n, from, to) = (batch.capacity.tokens, &kept.store.activations, &mut tape.activations);
    to.begin(0, n)?;
    let last = [(&from.last, &mut to.last), (&from.rstd, &mut to.rstd), (&from.hidden, &mut to.hidden)];
    Ok(last.into_iter().try_for_each(|(from, to)| gather(ctx, from, kept.slots, to, n))?)
}

/// Fills the buffers of layer `layer` for its backward pass over the rows of `pass`. The gate and up projections, which
/// are the largest part, are read directly from the store, unless the backward pass needs u before their gradients.
pub(super) fn restore_layer<'a>(
    pass: &Pass<'_>,
    KeptRows { store, slots }: KeptRows<'a>,
    layer: usize,
    buffers: &mut Buffers<'a>,
) -> Result<()> {
    let (ctx, n, from) = (pass.ctx, pass.rows.len(), &store.activations);
    let copies_gates = !pass.low_rank(layer, Linears::Down).is_empty();
    buffers.gates = match &from.saved[layer].gate_up {
        Some(gate_up) if !copies_gates => Some((gate_up.view(), slots)),
        _ => None,
    };
    gather(ctx, &from.inputs[layer], slots, buffers.x, n)?;
    let mut pairs = from.saved[layer].tensors(copies_gates).zip(buffers.saved.tensors_mut(copies_gates));
    pairs.try_for_each(|(from, to)| gather(ctx, from, slots, to, n))
}

/// For each row of the tape's last [`forward`](super::forward) pass, whether it differs in any bit from the kept row.
/// With checkpointing, only the inputs of layers and the hidden states are compared.
pub fn differing_rows(
    ctx: &Context,
    memory: &Memory,
    KeptRows { store, slots }: KeptRows<'_>,
    tape: &Tape,
) -> Result<Vec<bool>> {
    let (kept, computed) = (&store.activations, &tape.activations);
    let mut differs = vec![false; computed.rows];
    for (kept, computed) in kept.kept(!computed.shares()).zip(computed.kept(!computed.shares())) {
        let width: usize = computed.shape()[1..].iter().product();
        let mut found = Tensor::zeros(memory, &[COMPARED_AT_ONCE, width], computed.dtype());
        // Compares a few rows at a time, which takes little memory.
        for (i, differs) in differs.chunks_mut(COMPARED_AT_ONCE).enumerate() {
            let (first, n) = (i * COMPARED_AT_ONCE, differs.len());
            gather(ctx, kept, slots.rows(first..first + n), &mut found, n)?;
            let (found, computed) = (found.rows(0..n).to_vec_f32(), computed.rows(first..first + n).to_vec_f32());
            for (differs, (found, computed)) in differs.iter_mut().zip(found.chunks(width).zip(computed.chunks(width)))
            {
                *differs |= found.iter().zip(computed).any(|(a, b)| a.to_bits() != b.to_bits());
            }
        }
    }
    Ok(differs)
}

/// Copies the rows `slots` of `from` to the first `n` rows of `to`.
fn gather(ctx: &Context, from: &Tensor, slots: View<'_>, to: &mut Tensor, n: usize) -> Result<()> {
    let (rows, width) = (from.shape()[0], from.shape()[1..].iter().product());
    let x = from.view().reshape(&[rows, width]);
    rows::gather(ctx, rows::Gather { x, rows: slots, out: to.rows_mut(0..n).reshape(&[n, width]) })
}
