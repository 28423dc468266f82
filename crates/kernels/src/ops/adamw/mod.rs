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
//! The factors that depend on the step alone are formed in f64 and rounded once. Where the gradients are not all finite,
//! nothing changes.

use crate::{Context, Result, View, ViewMut};

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

/// Arguments of [`step`]. The four tensors have the same number of elements in the same order; shapes are not looked at.
pub struct Step<'a> {
    /// *Updated.*
    pub param: ViewMut<'a>,
    /// Read.
    pub grad: View<'a>,
    /// First moment; *updated*.
    pub m: ViewMut<'a>,
    /// Second moment; *updated*.
    pub v: ViewMut<'a>,
    /// What the step depends on besides the tensors.
    pub hyper: Hyper,
    /// `[2]` as [`crate::ops::grad_norm::global`] writes it: the norm of all gradients, and 1 if they are finite.
    pub norm: View<'a>,
    /// The norm above which gradients are scaled down; 0: never.
    pub max_norm: f32,
}

/// One step of one tensor.
pub fn step(_ctx: &Context, _args: Step<'_>) -> Result<()> {
    unimplemented!()
}
