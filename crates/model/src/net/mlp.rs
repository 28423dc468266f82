//! The second half of a layer, forward and back.
//!
//! ```text
//! m     = x + delta                          delta: what the attention half adds
//! g     = rmsnorm(m) · w
//! u     = silu(g Wgateᵀ) ⊙ g Wupᵀ
//! delta = u Wdownᵀ
//! ```

use super::layer::{Back, Buffers, Linears, Pass, Saved};
use crate::weights::{Layer, Was, trained};
use kernels::ops::{rmsnorm, swiglu};
use kernels::{Result, Tensor, View};

/// From `x` and `delta` to `s.mid` and the new `delta`.
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    buffers: &mut Buffers<'_>,
    delta: &mut Tensor,
) -> Result<()> {
    let Buffers { x, saved: s, wide, .. } = buffers;
    let (ctx, n, f) = (pass.ctx, pass.rows.len(), pass.config.intermediate_size);
    let norm = rmsnorm::Forward {
        x: x.rows(0..n),
        delta: Some(delta.rows(0..n)),
        sum: Some(s.mid.rows_mut(0..n)),
        weight: w.mlp_norm.view(),
        eps: pass.config.rms_norm_eps,
        y: s.mlp_in.rows_mut(0..n),
        rstd: s.mlp_rstd.rows_mut(0..n),
    };
    rmsnorm::forward(ctx, norm)?;
    let dropout = pass.dropout(layer, Linears::GateUp);
    match wide {
        None => {
            w.gate_up.forward(ctx, s.mlp_in.rows(0..n), dropout, s.gate_up.rows_mut(0..n))?;
            let (gate_up, y) = (s.gate_up.rows(0..n), s.gated.rows_mut(0..n));
            swiglu::forward(ctx, swiglu::Forward { gate_up, kept: None, y })?;
        }
        Some(wide) => {
            w.gate_up.forward(ctx, s.mlp_in.rows(0..n), dropout, wide.view_mut(n, 2 * f))?;
            let (gate_up, kept, y) = (wide.view(n, 2 * f), Some(s.gate_up.rows_mut(0..n)), s.gated.rows_mut(0..n));
            swiglu::forward(ctx, swiglu::Forward { gate_up, kept, y })?;
        }
    }
    w.down.forward(ctx, s.gated.rows(0..n), pass.dropout(layer, Linears::Down), delta.rows_mut(0..n))
}

/// `b.d_x` is the gradient of m + delta and becomes that of m.
pub(super) fn backward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    g: &mut Layer,
    s: &Saved,
    groups: View<'_>,
    b: &mut Back,
) -> Result<()> {
    let (ctx, n, f) = (pass.ctx, pass.rows.len(), pass.config.intermediate_size);
    let dropout = pass.dropout(layer, Linears::Down);
    let (d_y, d_x) = (b.d_x.rows(0..n), b.narrow.view_mut(n, f));
    w.down.backward(ctx, Was { x: s.gated.rows(0..n), dropout, groups }, d_y, d_x, &mut g.down)?;
    let gate = swiglu::Backward {
        gate_up: s.gate_up.rows(0..n),
        d_y: b.narrow.view(n, f),
        d_gate_up: b.wide.view_mut(n, 2 * f),
    };
    swiglu::backward(ctx, gate)?;
    let dropout = pass.dropout(layer, Linears::GateUp);
    let (d_y, d_x) = (b.wide.view(n, 2 * f), b.d_normed.rows_mut(0..n));
    w.gate_up.backward(ctx, Was { x: s.mlp_in.rows(0..n), dropout, groups }, d_y, d_x, &mut g.gate_up)?;
    let norm = rmsnorm::Backward {
        x: s.mid.rows(0..n),
        weight: w.mlp_norm.view(),
        rstd: s.mlp_rstd.rows(0..n),
        d_y: b.d_normed.rows(0..n),
        d_x: b.d_x.rows_mut(0..n),
        d_weight: trained(&mut g.mlp_norm),
    };
    rmsnorm::backward(ctx, norm)
}
