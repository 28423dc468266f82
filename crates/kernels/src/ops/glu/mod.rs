//! Gated linear units of the feed-forward layer (Shazeer, "GLU Variants Improve Transformer", 2020), with the gate and
//! up projections in one row: SwiGLU, and GeGLU with the tanh form of GELU (Hendrycks and Gimpel, "Gaussian Error
//! Linear Units", 2016).
//!
//! Letters in shapes: `T` tokens, `F` the intermediate size of the feed-forward layer.
//!
//! g = gate_up[t, f], u = gate_up[t, F + f], σ is the logistic function, and z(g) depends on the [`Activation`]:
//! ```text
//! y[t,f]               = (g · σ(z)) · u
//!
//! d_gate_up[t, f]      = d_y[t,f] · u · σ(z) · (1 + g · (1 − σ(z)) · z′)
//! d_gate_up[t, F + f]  = d_y[t,f] · g · σ(z)
//!
//! SiLU                 z = g                                    z′ = 1
//! GELU                 z = 2 √(2/π) · g · (1 + 0.044715 g²)     z′ = 2 √(2/π) · (1 + 3 · 0.044715 g²)
//! ```
//!
//! GELU has this form because ½ (1 + tanh x) = σ(2x).

mod cpu;
mod cuda;
mod fused;
#[cfg(test)]
pub(crate) mod reference;

use crate::context::count_matmul;
use crate::device::Backend;
use crate::matrix::PANEL;
use crate::ops::args::{expect, expect_below, expect_floats, two_dims};
use crate::{Context, DType, DType::F32, Error, Matrix, Result, View, ViewMut};

/// Activation function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `silu`, for SwiGLU.
    Silu,
    /// `gelu_pytorch_tanh`, for GeGLU.
    GeluTanh,
}

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// The activation of the gate.
    pub activation: Activation,
    /// Gate and up projections: `[T, 2F]`, gate first. If `y` is bf16, they are rounded to bf16 first. Inputs that are
    /// already rounded (`kept`) give the same `y`.
    pub gate_up: View<'a>,
    /// The rounded gate and up, for the backward pass: `[T, 2F]` of the dtype of `y`, *overwrites*.
    pub kept: Option<ViewMut<'a>>,
    /// Output `[T, F]`, f32 or bf16: *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// The activation of the gate.
    pub activation: Activation,
    /// Gate and up projections: `[T, 2F]`, f32 or bf16; with `rows`, `[S, 2F]`.
    pub gate_up: View<'a>,
    /// The row of `gate_up` for each of the T rows: u32 `[T]`, each below S. If `None`, row t uses row t.
    pub rows: Option<View<'a>>,
    /// Gradient of the output: `[T, F]`.
    pub d_y: View<'a>,
    /// Gradients of gate and up: `[T, 2F]`, *overwrites*. f32, or bf16 if `gate_up` is bf16 (rounded for the matmuls
    /// that read it).
    pub d_gate_up: ViewMut<'a>,
    /// The output of [`forward`], recomputed with the same bits for a caller that did not keep it: `[T, F]` of the
    /// dtype of `gate_up`, *overwrites*.
    pub y: Option<ViewMut<'a>>,
}

/// Arguments of [`fused`].
pub struct Fused<'a> {
    /// The activation of the gate.
    pub activation: Activation,
    /// Input of the layer: `[T, K]`, f32 or bf16.
    pub x: View<'a>,
    /// Weights of the gate and up projections: `[2F, K]`, gate first. F is a multiple of [`PANEL`].
    pub w: &'a Matrix,
    /// Bias of the projections: `[2F]`.
    pub bias: Option<View<'a>>,
    /// The rounded gate and up, as in [`Forward`].
    pub kept: Option<ViewMut<'a>>,
    /// Output `[T, F]` of the dtype of `x`: *overwrites*.
    pub y: ViewMut<'a>,
}

/// Computes the gated output from the gate and up projections.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "glu::forward";
    let [t, f] = two_dims(OP, "y", args.y.view())?;
    expect_floats(OP, "y", args.y.view(), &[t, f])?;
    if let Some(kept) = &args.kept {
        expect(OP, "kept", kept.view(), args.y.dtype(), &[t, 2 * f])?;
    }
    let dtype = if args.y.dtype() == F32 { F32 } else { args.gate_up.dtype() };
    expect_floats(OP, "gate_up", args.gate_up, &[t, 2 * f])?;
    expect(OP, "gate_up", args.gate_up, dtype, &[t, 2 * f])?;
    crate::context::count(20 * (t * f) as u64, 12 * (t * f) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Computes [`super::linear::forward`] and [`forward`] in one pass, with the same bits. Gate and up projections go from
/// the matmul's tiles to `y` without being written to memory (except to `kept`).
pub fn fused(ctx: &Context, args: Fused<'_>) -> Result<()> {
    const OP: &str = "glu::fused";
    let [t, f] = two_dims(OP, "y", args.y.view())?;
    let k = args.w.cols();
    expect_floats(OP, "x", args.x, &[t, k])?;
    expect(OP, "y", args.y.view(), args.x.dtype(), &[t, f])?;
    if let Some(kept) = &args.kept {
        expect(OP, "kept", kept.view(), args.y.dtype(), &[t, 2 * f])?;
    }
    if let Some(bias) = args.bias {
        expect(OP, "bias", bias, F32, &[2 * f])?;
    }
    if args.w.rows() != 2 * f || !f.is_multiple_of(PANEL) {
        let message = format!(
            "the weight has {} rows, but {f} outputs need twice as many, in whole panels of {PANEL}",
            args.w.rows()
        );
        return Err(Error::Value { op: OP, message });
    }
    count_matmul(t, 2 * f, k, args.w.data().bytes());
    crate::context::count(20 * (t * f) as u64, 0);
    match ctx.backend() {
        Backend::Cpu(cpu) => fused::forward(cpu, args),
        Backend::Cuda(cuda) => return Err(cuda.lacks(OP)),
    }
    Ok(())
}

/// Computes the gradients of the gate and up projections.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "glu::backward";
    let [t, f] = two_dims(OP, "d_y", args.d_y)?;
    expect(OP, "d_y", args.d_y, F32, &[t, f])?;
    let from = if args.rows.is_some() { two_dims(OP, "gate_up", args.gate_up)?[0] } else { t };
    expect_floats(OP, "gate_up", args.gate_up, &[from, 2 * f])?;
    if let Some(rows) = args.rows {
        expect(OP, "rows", rows, DType::U32, &[t])?;
        expect_below(OP, "rows", rows.indices(), from)?;
    }
    let dtype = if args.gate_up.dtype() == F32 { F32 } else { args.d_gate_up.dtype() };
    expect_floats(OP, "d_gate_up", args.d_gate_up.view(), &[t, 2 * f])?;
    expect(OP, "d_gate_up", args.d_gate_up.view(), dtype, &[t, 2 * f])?;
    if let Some(y) = &args.y {
        expect(OP, "y", y.view(), args.gate_up.dtype(), &[t, f])?;
    }
    crate::context::count(25 * (t * f) as u64, 20 * (t * f) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
