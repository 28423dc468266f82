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
//! The factors that depend only on the step are computed in f64 and rounded to f32 once. If any gradient is infinite or
//! NaN, the step changes nothing.
//!
//! The moments m and v are f32, or bf16 with stochastic rounding. In bf16 they are widened, the step is computed in
//! f32, and the parameter is updated with the new moments before these are rounded. Then each moment is rounded up to
//! the next bf16 with a probability proportional to its distance from the bf16 below. So changes of less than half a
//! bf16 step, such as the multiplication of v by β2, are preserved in expectation. The 16 random bits for each moment
//! are Philox of (key, step, element), and depend neither on threads nor on the instruction set.
//!
//! ```text
//! word = philox(key, counter = [block, step])[element mod 4], block = first_block + element / 4
//! bf16(m) = (bits(m) + word mod 2^16) / 2^16,   bf16(v) = (bits(v) + word / 2^16) / 2^16      integer division
//! ```

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_floats, expect_shape};
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Error, Result, View, ViewMut};

/// Hyperparameters of an AdamW step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate.
    pub lr: f64,
    /// β1, the decay rate of the first moment.
    pub beta1: f64,
    /// β2, the decay rate of the second moment.
    pub beta2: f64,
    /// Added to the denominator √v.
    pub eps: f64,
    /// Decoupled weight decay, multiplied by the learning rate.
    pub weight_decay: f64,
    /// t, the index of this step, counted from 1.
    pub step: u64,
}

/// Source of the random bits for rounding bf16 moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// Random key of the training run.
    pub key: u64,
    /// Index of this tensor's first Philox block. Each block serves 4 elements; the blocks of two tensors must not
    /// overlap.
    pub first_block: u64,
}

impl Rounding {
    /// Number of Philox blocks that a tensor of `len` elements uses.
    pub fn blocks(len: usize) -> u64 {
        len.div_ceil(4) as u64
    }
}

/// Arguments of [`step`]. All tensors have the same number of elements in the same order; their shapes do not matter.
pub struct Step<'a> {
    /// The parameter: *updated*, or *overwritten* if `from` is set. Nothing is written if the gradients are not finite.
    pub param: ViewMut<'a>,
    /// The parameter before the step, if it must stay unchanged. The step then reads one slot of the weights and writes
    /// another, with the same bits as a step in place.
    pub from: Option<View<'a>>,
    /// The copy that matmuls read, if `param` is an f32 master weight: *overwrites* with `param` rounded to bf16. A
    /// matrix is stored in bf16 and its panels become pairs ([`crate::Layout`]); a vector is stored in f32, because
    /// operations read vectors as f32.
    pub rounded: Option<ViewMut<'a>>,
    /// Gradient of the parameter.
    pub grad: View<'a>,
    /// First moment m, f32 or bf16: *updated*.
    pub m: ViewMut<'a>,
    /// Second moment v, with the same dtype as `m`: *updated*.
    pub v: ViewMut<'a>,
    /// Learning rate and other hyperparameters.
    pub hyper: Hyper,
    /// `[2]`, as [`crate::ops::grad_norm::global`] writes it: norm of all gradients, and 1 if all of them are finite.
    pub norm: View<'a>,
    /// Gradient clipping: the largest norm that is not scaled down; 0 for no clipping.
    pub max_norm: f32,
    /// Source of random bits, used only if the moments are bf16.
    pub rounding: Rounding,
}

/// Takes one AdamW step for one tensor.
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
            let message = format!("{len} elements to round to bf16 must be panels with an even number of inputs");
            return Err(Error::Value { op: OP, message });
        }
    }
    expect(OP, "norm", norm, DType::F32, &[2])?;
    if hyper.step == 0 || max_norm.is_nan() || max_norm < 0.0 {
        let message =
            format!("step must be at least 1 and max_norm at least 0, got step {} and max_norm {max_norm}", hyper.step);
        return Err(Error::Value { op: OP, message });
    }
    count(15 * len as u64, ((3 * size_of::<f32>() + 4 * moments.bytes()) * len) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::step(cpu, args),
        Backend::Cuda(cuda) => cuda::step(cuda, args)?,
    }
    Ok(())
}
