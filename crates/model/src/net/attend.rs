//! The attention part of a decoder layer, forward and backward.
//!
//! ```text
//! x       = m + delta                        m, delta: from the previous layer
//! h       = rmsnorm(x) · w                   or x, where the family has no norm here
//! q, k, v = h Wqkvᵀ + b                      q and k normed, where the family has norms here; then both rotated
//! a       = softmax(q Kᵀ / √s) V             K, V: pages, which k and v are written to first; s: usually hd
//! delta   = a Woᵀ                            through a norm, where the family has one here
//! ```
//!
//! Training reads keys and values from KV-cache pages, as decoding does. So the sums of a row run in the same order
//! whether earlier rows are computed in this pass or were computed before, and training, prefill and decoding give the
//! same bits.

use super::norms::{self, HalfInput, InputBackward};
use super::pass::{BackwardBuffers, Buffers, Input, LayerActivations, Linears, Pass};
use crate::kv::LayerPages;
use crate::weights::{Layer, SavedInput, trained};
use kernels::ops::{attention, qk_norm, rope};
use kernels::{DType, Result, Tensor, View, ViewMut};

/// The forward pass of the attention part. It first updates `x` to hold the layer's input, as `input` specifies, then
/// writes the attention output to `delta`.
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    input: Input<'_>,
    buffers: &mut Buffers<'_>,
    delta: &mut Tensor,
) -> Result<()> {
    let Buffers { x, saved: s, pages, scratch, .. } = buffers;
    let Pass { ctx, config, rows, .. } = *pass;
    let (n, eps) = (rows.len(), config.rms_norm_eps);

    let before = match input {
        Input::Ready => None,
        Input::After(before) => Some(&before.mid),
        Input::AfterInPlace => Some(&s.mid),
    };
    let (y, rstd) = (scratch.normed.rows_mut(0..n), pass.kept_mut(&mut s.attend_rstd));
    let (x, delta_in, sum) = match before {
        None => (pass.kept(x), None, None),
        Some(mid) => (pass.kept(mid), Some(delta.rows(0..n)), Some(pass.kept_mut(x))),
    };
    norms::input(pass, w.attention_norm.as_ref(), HalfInput { x, delta: delta_in, sum, y, rstd })?;

    let low_rank = pass.low_rank(layer, Linears::Qkv);
    let rounds = config.compute != DType::F32;
    let mut qkv = if !rounds { pass.kept_mut(&mut s.qkv) } else { scratch.wide.view_mut(n, config.qkv_width()) };
    let h = scratch.normed.rows(0..n);
    match (&w.qk_norm, &mut s.raw_qkv) {
        (Some((q_weight, k_weight)), Some((raw, rstd))) => {
            w.qkv.forward(ctx, h, low_rank, pass.kept_mut(raw))?;
            let norm = qk_norm::Forward {
                x: pass.kept(raw),
                heads: config.num_heads,
                kv_heads: config.num_kv_heads,
                head_dim: config.head_dim,
                q_weight: q_weight.view(),
                k_weight: k_weight.view(),
                offset: config.norm_offset,
                eps,
                y: qkv.reborrow(),
                rstd: pass.kept_mut(rstd),
            };
            qk_norm::forward(ctx, norm)?;
        }
        _ => w.qkv.forward(ctx, h, low_rank, qkv.reborrow())?,
    }
    if rounds {
        let (heads, head_dim, positions) = (config.num_heads + config.num_kv_heads, config.head_dim, rows.positions);
        let (x, y, table) = (
            scratch.wide.view(n, config.qkv_width()),
            pass.kept_mut(&mut s.qkv),
            pass.rope.of(config.layer_ropes[layer]),
        );
        rope::forward_into(ctx, rope::RotateInto { x, y, heads, head_dim, positions, table })?;
    } else {
        rope::forward(ctx, rotate(pass, layer, pass.kept_mut(&mut s.qkv)))?;
    }
    write_kv(pass, layer, s, pages)?;
    let attend = attention::Forward {
        qkv: pass.kept(&s.qkv),
        geometry: geometry(pass, layer),
        rows: rows.attention(),
        pages: pages.view(),
        out: pass.kept_mut(&mut s.attended),
        lse: Some(pass.kept_mut(&mut s.lse)),
    };
    attention::forward(ctx, attend)?;
    let (a, low_rank) = (pass.kept(&s.attended), pass.low_rank(layer, Linears::O));
    match (&w.attention_post_norm, &mut s.attention_out) {
        (Some(weight), Some(out)) => {
            w.o.forward(ctx, a, low_rank, pass.kept_mut(&mut out.0))?;
            norms::output(pass, weight, out, delta)
        }
        _ => w.o.forward(ctx, a, low_rank, delta.rows_mut(0..n)),
    }
}

/// The backward pass of the attention part. `b.d_x` contains the gradient of the sum x + delta and is overwritten with
/// the gradient of x.
pub(super) fn backward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    g: &mut Layer,
    buffers: &mut Buffers<'_>,
    groups: View<'_>,
    b: &mut BackwardBuffers,
) -> Result<()> {
    let Buffers { x, saved: s, pages, scratch, .. } = buffers;
    let Pass { ctx, config, rows, .. } = *pass;
    let (n, width, qkv_width) = (rows.len(), config.num_heads * config.head_dim, config.qkv_width());

    let low_rank = pass.low_rank(layer, Linears::O);
    let d_y = match (&w.attention_post_norm, &s.attention_out, &mut b.d_out) {
        (Some(weight), Some(out), Some(d_out)) => {
            let weights = (weight, &mut g.attention_post_norm);
            norms::output_backward(pass, weights, out, b.d_x.rows(0..n), d_out, groups)?;
            d_out.rows(0..n)
        }
        _ => b.d_x.rows(0..n),
    };
    let (input, d_x) = (SavedInput { x: pass.kept(&s.attended), low_rank, groups }, b.narrow.view_mut(n, width));
    w.o.backward(ctx, input, d_y, d_x, &mut g.o)?;
    // Later layers have overwritten the pages, so keys and values are written again.
    write_kv(pass, layer, s, pages)?;
    let attend = attention::Backward {
        qkv: pass.kept(&s.qkv),
        geometry: geometry(pass, layer),
        rows: rows.attention(),
        pages: pages.view(),
        write_rows: rows.write_rows,
        write_slots: rows.write_slots,
        out: pass.kept(&s.attended),
        lse: pass.kept(&s.lse),
        d_out: b.narrow.view(n, width),
        d_qkv: b.wide.view_mut(n, qkv_width),
        d_pages: b.d_pages.view_mut(),
        groups,
    };
    attention::backward(ctx, attend)?;
    rope::backward(ctx, rotate(pass, layer, b.wide.view_mut(n, qkv_width)))?;

    let mut d_qkv = b.wide.view(n, qkv_width);
    if let (Some((q_weight, k_weight)), Some((d_q_weight, d_k_weight)), Some((raw, rstd))) =
        (&w.qk_norm, &mut g.qk_norm, &s.raw_qkv)
    {
        let norm = qk_norm::Backward {
            x: pass.kept(raw),
            heads: config.num_heads,
            kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            q_weight: q_weight.view(),
            k_weight: k_weight.view(),
            offset: config.norm_offset,
            rstd: pass.kept(rstd),
            d_y: d_qkv,
            d_x: b.narrow.view_mut(n, qkv_width),
            d_weights: trained(d_q_weight).zip(trained(d_k_weight)),
            segments: Some(groups),
        };
        qk_norm::backward(ctx, norm)?;
        d_qkv = b.narrow.view(n, qkv_width);
    }
    let (low_rank, rstd, norm) =
        (pass.low_rank(layer, Linears::Qkv), pass.kept(&s.attend_rstd), w.attention_norm.as_ref());
    norms::recompute_input(pass, norm, pass.kept(x), rstd, scratch.normed.rows_mut(0..n))?;
    let (input, d_x) = (SavedInput { x: scratch.normed.rows(0..n), low_rank, groups }, b.d_normed.rows_mut(0..n));
    w.qkv.backward(ctx, input, d_qkv, d_x, &mut g.qkv)?;
    let (d_y, d_x) = (b.d_normed.rows(0..n), b.d_x.rows_mut(0..n));
    let args = InputBackward { x: pass.kept(x), rstd, d_y, d_x, groups };
    norms::input_backward(pass, norm, &mut g.attention_norm, args)
}

fn geometry(pass: &Pass<'_>, layer: usize) -> attention::Geometry {
    let c = pass.config;
    attention::Geometry {
        heads: c.num_heads,
        kv_heads: c.num_kv_heads,
        head_dim: c.head_dim,
        scale: c.attention_scale(),
        window: c.windows[layer],
    }
}

/// Arguments for the rotary embedding of the query and key heads in fused q, k, v rows.
fn rotate<'a>(pass: &Pass<'a>, layer: usize, x: ViewMut<'a>) -> rope::Rotate<'a> {
    let Pass { config: c, rope, rows, .. } = *pass;
    let heads = c.num_heads + c.num_kv_heads;
    rope::Rotate { x, heads, head_dim: c.head_dim, positions: rows.positions, table: rope.of(c.layer_ropes[layer]) }
}

fn write_kv(pass: &Pass<'_>, layer: usize, s: &LayerActivations, pages: &mut LayerPages) -> Result<()> {
    let write = attention::WriteKv {
        qkv: pass.kept(&s.qkv),
        geometry: geometry(pass, layer),
        rows: pass.rows.write_rows,
        slots: pass.rows.write_slots,
        pages: pages.view_mut(),
    };
    attention::write_kv(pass.ctx, write)
}
