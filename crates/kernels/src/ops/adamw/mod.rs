//! AdamW (Loshchilov & Hutter, arXiv 1711.05101), as `torch.optim.AdamW` computes it, with the clipping of
//! `torch.nn.utils.clip_grad_norm_` fused in.
//!
//! ```text
//! c = min(1, max_norm / (norm + 1e-6))        1 if max_norm = 0
//! g = c · grad
//! p ← p · (1 − lr · weight_decay)
//! m ← m + (1 − β1) (g − m)
//! v ← β2 v + (1 − β2) g²
//! p ← p − lr / (1 − β1^t) · m / (√v / √(1 − β2^t) + eps)
//! ```
//!
//! The factors that depend on the step alone are formed in f64 and rounded once. Where the gradients are not all
//! finite, nothing changes.
//!
//! Moments are f32, or bf16 by stochastic rounding: the step is that of f32 on the widened moments, the parameter sees
//! the new moments unrounded, and each is then rounded up with the probability of its distance from the bf16 below, so
//! that a change of less than half a bf16 step (1 − β2 of v is one) is kept on average. The 16 random bits of a moment
//! come from Philox of (key, step, element): they depend on neither threads nor instruction set.
//!
//! ```text
//! word = philox(key, counter = [block, step])[element mod 4], block = first_block + element / 4
//! bf16(m) = (bits(m) + word mod 2^16) / 2^16,   bf16(v) = (bits(v) + word / 2^16) / 2^16      integer division
//! ```

mod cpu;
mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_floats, expect_shape};
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Error, Result, View, ViewMut};

/// What the step depends on besides the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// t, the number of this step, from 1.
    pub step: u64,
}

/// Where the random bits of bf16 moments come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// The run's random key.
    pub key: u64,
    /// The first of this tensor's random blocks, one for 4 elements: those of two tensors must not overlap.
    pub first_block: u64,
}

impl Rounding {
    /// Random blocks of a tensor of `len` elements.
    pub fn blocks(len: usize) -> u64 {
        len.div_ceil(4) as u64
    }
}

/// Arguments of [`step`]. The tensors have the same number of elements in the same order; shapes are not looked at.
pub struct Step<'a> {
    /// *Updated*; where there is `from`, *overwrites*. If the gradients are not finite, nothing is written.
    pub param: ViewMut<'a>,
    /// The parameter before the step, where that stays as it is: from slot to slot. The bits of `param` are those of a
    /// step in place.
    pub from: Option<View<'a>>,
    /// Where `param` is the f32 master of what matmuls read: *overwrites* with it rounded to bf16. The tensor itself
    /// is bf16, a matrix whose panels become pairs ([`crate::Layout`]), or f32 where operations read f32 (vectors).
    pub rounded: Option<ViewMut<'a>>,
    /// Read.
    pub grad: View<'a>,
    /// First moment, f32 or bf16; *updated*.
    pub m: ViewMut<'a>,
    /// Second moment, of the same dtype; *updated*.
    pub v: ViewMut<'a>,
    /// What the step depends on besides the tensors.
    pub hyper: Hyper,
    /// `[2]` as [`crate::ops::grad_norm::global`] writes it: the norm of all gradients, and 1 if they are finite.
    pub norm: View<'a>,
    /// The norm above which gradients are scaled down; 0: never.
    pub max_norm: f32,
    /// Read if the moments are bf16.
    pub rounding: Rounding,
}

/// One step of one tensor.
pub fn step(ctx: &Context, args: Step<'_>) -> Result<()> {
    const OP: &str = "adamw::step";
    let Step { ref param, from, ref rounded, grad, ref m, ref v, hyper, norm, max_norm, .. } = args;
    let len: usize = param.shape().iter().product();
    let moments = if m.dtype() == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    let all = [("param", param.view(), DType::F32), ("grad", grad, DType::F32)];
    for (what, view, dtype) in all.into_iter().chain([("m", m.view(), moments), ("v", v.view(), moments)]) {
        expect(OP, what, view, dtype, view.shape())?;
        expect_shape(OP, what, &[view.shape().iter().product()], &[len])?;
    }
    if let Some(from) = from {
        expect(OP, "from", from, DType::F32, from.shape())?;
        expect_shape(OP, "from", &[from.shape().iter().product()], &[len])?;
    }
    if let Some(rounded) = rounded {
        expect_floats(OP, "rounded", rounded.view(), rounded.shape())?;
        expect_shape(OP, "rounded", &[rounded.shape().iter().product()], &[len])?;
        if rounded.dtype() == DType::Bf16 && !len.is_multiple_of(cpu::TWO_INPUTS) {
            let message = format!("{len} elements to round to bf16 are not panels with an even number of inputs");
            return Err(Error::Value { op: OP, message });
        }
    }
    expect(OP, "norm", norm, DType::F32, &[2])?;
    if hyper.step == 0 || max_norm.is_nan() || max_norm < 0.0 {
        let message =
            format!("step {} and max_norm {max_norm}: steps count from 1, norms are not negative", hyper.step);
        return Err(Error::Value { op: OP, message });
    }
    count(15 * len as u64, ((3 * size_of::<f32>() + 4 * moments.bytes()) * len) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::step(cpu, args),
        Backend::Cuda(cuda) => cuda::step(cuda, args)?,
    }
    Ok(())
}
