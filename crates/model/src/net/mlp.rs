//! The MLP part of a decoder layer, forward and backward.
//!
//! ```text
//! m     = x + delta                          delta: the attention part's output
//! g     = rmsnorm(m) · w                   or m, where the family has no norm here
//! u     = f(g Wgateᵀ) ⊙ g Wupᵀ            f: silu, or GELU
//! delta = u Wdownᵀ                         through a norm, where the family has one here
//! ```
//!
//! On CPUs with matrix tiles (AMX), u is computed without writing gate and up as f32. The exceptions are layers with
//! adapters, which add to gate and up in f32, and an MLP width F that is not a multiple of the panel width. In these
//! cases gate and up are written for some rows at a time, or for all rows if f32 activations are kept.

use super::norms::{self, HalfInput, InputBackward};
use super::pass::{BackwardBuffers, Buffers, LayerScratch, Linears, Pass};
use crate::weights::{Layer, SavedInput};
use kernels::ops::glu;
use kernels::{DType, Error, Result, Tensor, View};
use std::ops::Range;

/// The forward pass of the MLP part. It adds `delta` to the residual stream `x`, and writes the sum to `s.mid` and the
/// MLP's output to `delta`.
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    buffers: &mut Buffers<'_>,
    delta: &mut Tensor,
) -> Result<()> {
    let Buffers { x, saved: s, scratch: LayerScratch { normed, gated, wide }, .. } = buffers;
    let (ctx, n, f) = (pass.ctx, pass.rows.len(), pass.config.intermediate_size);
    let activation = pass.config.activation;
    let input = HalfInput {
        x: pass.kept(x),
        delta: Some(delta.rows(0..n)),
        sum: Some(pass.kept_mut(&mut s.mid)),
        y: normed.rows_mut(0..n),
        rstd: pass.kept_mut(&mut s.mlp_rstd),
    };
    norms::input(pass, w.mlp_norm.as_ref(), input)?;
    let low_rank = pass.low_rank(layer, Linears::GateUp);
    match &mut s.gate_up {
        kept if low_rank.is_empty() && w.gate_up.can_fuse_gates(ctx) => {
            let kept = kept.as_mut().map(|kept| pass.kept_mut(kept));
            w.gate_up.forward_gated(ctx, activation, normed.rows(0..n), kept, gated.rows_mut(0..n))?;
        }
        Some(kept) if pass.config.compute == DType::F32 => {
            w.gate_up.forward(ctx, normed.rows(0..n), low_rank, pass.kept_mut(kept))?;
            let (gate_up, y) = (pass.kept(kept), gated.rows_mut(0..n));
            glu::forward(ctx, glu::Forward { activation, gate_up, kept: None, y })?;
        }
        kept => {
            for rows in pieces(n, ctx.rows_at_once()) {
                let (x, low_rank) = (normed.rows(rows.clone()), low_rank.rows(rows.clone()));
                w.gate_up.forward(ctx, x, low_rank, wide.view_mut(rows.len(), 2 * f))?;
                let kept = kept.as_mut().map(|kept| kept.rows_mut(pass.first + rows.start..pass.first + rows.end));
                let (gate_up, y) = (wide.view(rows.len(), 2 * f), gated.rows_mut(rows));
                glu::forward(ctx, glu::Forward { activation, gate_up, kept, y })?;
            }
        }
    }
    let (u, low_rank) = (gated.rows(0..n), pass.low_rank(layer, Linears::Down));
    match (&w.mlp_post_norm, &mut s.mlp_out) {
        (Some(weight), Some(out)) => {
            w.down.forward(ctx, u, low_rank, pass.kept_mut(&mut out.0))?;
            norms::output(pass, weight, out, delta)
        }
        _ => w.down.forward(ctx, u, low_rank, delta.rows_mut(0..n)),
    }
}

/// The backward pass of the MLP part. `b.d_x` contains the gradient of the sum m + delta and is overwritten with the
/// gradient of m.
pub(super) fn backward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    g: &mut Layer,
    buffers: &mut Buffers<'_>,
    groups: View<'_>,
    b: &mut BackwardBuffers,
) -> Result<()> {
    let Buffers { saved: s, gates, scratch: LayerScratch { normed, gated, .. }, .. } = buffers;
    let (ctx, n, f) = (pass.ctx, pass.rows.len(), pass.config.intermediate_size);
    let activation = pass.config.activation;
    // Gate and up projections that were kept in a store are read in place.
    let (kept, from) = gates.unzip();
    let Some(gate_up) = kept.or(s.gate_up.as_ref().map(|gate_up| pass.kept(gate_up))) else {
        return Err(Error::Value { op: "backward", message: "the forward pass must keep gate and up".into() });
    };
    let (norm, rstd) = (w.mlp_norm.as_ref(), pass.kept(&s.mlp_rstd));
    norms::recompute_input(pass, norm, pass.kept(&s.mid), rstd, normed.rows_mut(0..n))?;
    let d_out = match (&w.mlp_post_norm, &s.mlp_out, &mut b.d_out) {
        (Some(weight), Some(out), Some(d_out)) => {
            let weights = (weight, &mut g.mlp_post_norm);
            norms::output_backward(pass, weights, out, b.d_x.rows(0..n), d_out, groups)?;
            d_out.rows(0..n)
        }
        _ => b.d_x.rows(0..n),
    };

    // The backward pass of the gates also recomputes u, but an adapter on the down projection needs u before that.
    let low_rank = pass.low_rank(layer, Linears::Down);
    let later = low_rank.is_empty();
    let d_x = b.narrow.view_mut(n, f);
    if later {
        w.down.backward_input(ctx, d_out, d_x)?;
    } else {
        let y = gated.rows_mut(0..n);
        glu::forward(ctx, glu::Forward { activation, gate_up, kept: None, y })?;
        w.down.backward(ctx, SavedInput { x: gated.rows(0..n), low_rank, groups }, d_out, d_x, &mut g.down)?;
    }
    let low_rank = pass.low_rank(layer, Linears::GateUp);
    let adapted = !low_rank.is_empty();
    // With an adapter, the weight is frozen and has no gradient to sum over groups, so rows may be split anywhere.
    let at_once = if adapted && b.d_gates.is_some() { ctx.rows_at_once() } else { n };
    for rows in pieces(n, at_once) {
        let (chosen, d_y) = (from.map(|from| from.rows(rows.clone())), b.narrow.view(n, f).rows(rows.clone()));
        let gate_up = if chosen.is_some() { gate_up } else { gate_up.rows(rows.clone()) };
        let mut d_gate_up = match &mut b.d_gates {
            Some(d_gates) if !adapted => d_gates.rows_mut(rows.clone()),
            _ => b.wide.view_mut(rows.len(), 2 * f),
        };
        let y = later.then(|| gated.rows_mut(rows.clone()));
        let d_out = d_gate_up.reborrow();
        glu::backward(ctx, glu::Backward { activation, gate_up, rows: chosen, d_y, d_gate_up: d_out, y })?;
        let (x, low_rank) = (normed.rows(rows.clone()), low_rank.rows(rows.clone()));
        let (input, d_x) = (SavedInput { x, low_rank, groups }, b.d_normed.rows_mut(rows));
        w.gate_up.backward(ctx, input, d_gate_up.view(), d_x, &mut g.gate_up)?;
    }
    if later {
        w.down.backward_weight(ctx, gated.rows(0..n), d_out, groups, &mut g.down)?;
    }
    let (d_y, d_x) = (b.d_normed.rows(0..n), b.d_x.rows_mut(0..n));
    let args = InputBackward { x: pass.kept(&s.mid), rstd, d_y, d_x, groups };
    norms::input_backward(pass, norm, &mut g.mlp_norm, args)
}

/// Splits `0..n` into ranges of at most `most` elements.
fn pieces(n: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(most.max(1)).map(move |start| start..n.min(start + most))
}
