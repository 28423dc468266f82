//! RMS norms before and after the attention and MLP parts of a decoder layer. The model family decides which of them
//! exist.

use super::pass::Pass;
use crate::weights::trained;
use kernels::ops::{residual, rmsnorm, zero};
use kernels::{Result, Tensor, View, ViewMut};

/// Arguments of [`input`]: `sum` = `x` + `delta`, and `y` = the norm of `sum`, if the layer has this norm.
pub(super) struct HalfInput<'a> {
    pub x: View<'a>,
    pub delta: Option<View<'a>>,
    pub sum: Option<ViewMut<'a>>,
    pub y: ViewMut<'a>,
    pub rstd: ViewMut<'a>,
}

/// Computes the input of the attention or MLP part of a layer: adds `delta` to the residual stream, then applies the
/// norm, if there is one.
pub(super) fn input(pass: &Pass<'_>, norm: Option<&Tensor>, input: HalfInput<'_>) -> Result<()> {
    let HalfInput { x, delta, sum, y, rstd } = input;
    match norm {
        Some(weight) => {
            let (weight, offset, eps) = (weight.view(), pass.config.norm_offset, pass.config.rms_norm_eps);
            rmsnorm::forward(pass.ctx, rmsnorm::Forward { x, delta, sum, weight, offset, eps, y, rstd })
        }
        None => residual::forward(pass.ctx, residual::Forward { x, delta, sum, y }),
    }
}

/// Recomputes `y` of [`input`] from the residual stream, with the same bits.
pub(super) fn recompute_input(
    pass: &Pass<'_>,
    norm: Option<&Tensor>,
    x: View<'_>,
    rstd: View<'_>,
    y: ViewMut<'_>,
) -> Result<()> {
    match norm {
        Some(weight) => {
            let (weight, offset) = (weight.view(), pass.config.norm_offset);
            rmsnorm::recompute(pass.ctx, rmsnorm::Recompute { x, weight, offset, rstd, y })
        }
        None => residual::forward(pass.ctx, residual::Forward { x, delta: None, sum: None, y }),
    }
}

/// Arguments of the backward pass of [`input`].
pub(super) struct InputBackward<'a> {
    pub x: View<'a>,
    pub rstd: View<'a>,
    pub d_y: View<'a>,
    /// Gradient of the residual stream. *Accumulates into.*
    pub d_x: ViewMut<'a>,
    pub groups: View<'a>,
}

/// The backward pass of [`input`].
pub(super) fn input_backward(
    pass: &Pass<'_>,
    norm: Option<&Tensor>,
    d_norm: &mut Option<Tensor>,
    args: InputBackward<'_>,
) -> Result<()> {
    let InputBackward { x, rstd, d_y, d_x, groups } = args;
    match norm {
        Some(weight) => {
            let (weight, offset) = (weight.view(), pass.config.norm_offset);
            let (d_weight, segments) = (d_norm.as_mut().and_then(trained), Some(groups));
            rmsnorm::backward(pass.ctx, rmsnorm::Backward { x, weight, offset, rstd, d_y, d_x, d_weight, segments })
        }
        None => residual::backward(pass.ctx, residual::Backward { d_y, d_x }),
    }
}

/// Applies the norm after the attention or MLP part of a layer: reads the part's output `out`, keeps 1 / rms in `rstd`,
/// and writes the normed output to `delta`.
pub(super) fn output(
    pass: &Pass<'_>,
    weight: &Tensor,
    (out, rstd): &mut (Tensor, Tensor),
    delta: &mut Tensor,
) -> Result<()> {
    let n = pass.rows.len();
    let norm = rmsnorm::Forward {
        x: pass.kept(out),
        delta: None,
        sum: None,
        weight: weight.view(),
        offset: pass.config.norm_offset,
        eps: pass.config.rms_norm_eps,
        y: delta.rows_mut(0..n),
        rstd: pass.kept_mut(rstd),
    };
    rmsnorm::forward(pass.ctx, norm)
}

/// The backward pass of [`output`]. `d_y` is the gradient of `delta`, which equals the gradient of the residual stream.
/// `d_out` is overwritten.
pub(super) fn output_backward(
    pass: &Pass<'_>,
    (weight, d_weight): (&Tensor, &mut Option<Tensor>),
    (out, rstd): &(Tensor, Tensor),
    d_y: View<'_>,
    d_out: &mut Tensor,
    groups: View<'_>,
) -> Result<()> {
    let n = pass.rows.len();
    zero(pass.ctx, d_out.rows_mut(0..n));
    let norm = rmsnorm::Backward {
        x: pass.kept(out),
        weight: weight.view(),
        offset: pass.config.norm_offset,
        rstd: pass.kept(rstd),
        d_y,
        d_x: d_out.rows_mut(0..n),
        d_weight: d_weight.as_mut().and_then(trained),
        segments: Some(groups),
    };
    rmsnorm::backward(pass.ctx, norm)
}
