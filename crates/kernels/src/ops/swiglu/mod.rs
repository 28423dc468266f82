//! SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020), gate and up projections in one row.
//!
//! Shapes: `T` tokens, `F` ffn.
//!
//! With g = gate_up[t, f], u = gate_up[t, F + f], σ the logistic function:
//! ```text
//! y[t,f]               = (g · σ(g)) · u
//!
//! d_gate_up[t, f]      = d_y[t,f] · u · σ(g) · (1 + g · (1 − σ(g)))
//! d_gate_up[t, F + f]  = d_y[t,f] · g · σ(g)
//! ```

mod cpu;
pub mod reference;

use crate::ops::args::{expect, expect_floats, two_dims};
use crate::{Context, DType::F32, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// f32 `[T, 2F]`: gate, then up. Where `y` is bf16 they are rounded to bf16 first.
    pub gate_up: View<'a>,
    /// `[T, 2F]`, of y's dtype: *overwrites* with gate and up as they were rounded, for the way back.
    pub kept: Option<ViewMut<'a>>,
    /// `[T, F]`, f32 or bf16: *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[T, 2F]`, f32 or bf16.
    pub gate_up: View<'a>,
    /// `[T, F]`
    pub d_y: View<'a>,
    /// `[T, 2F]`: *overwrites*.
    pub d_gate_up: ViewMut<'a>,
}

/// Gates.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "swiglu::forward";
    let [t, f] = two_dims(OP, "y", args.y.view())?;
    expect_floats(OP, "y", args.y.view(), &[t, f])?;
    if let Some(kept) = &args.kept {
        expect(OP, "kept", kept.view(), args.y.dtype(), &[t, 2 * f])?;
    }
    expect(OP, "gate_up", args.gate_up, F32, &[t, 2 * f])?;
    crate::context::count(20 * (t * f) as u64, 12 * (t * f) as u64);
    cpu::forward(ctx, args);
    Ok(())
}

/// Gradients of gate and up.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "swiglu::backward";
    let [t, f] = two_dims(OP, "d_y", args.d_y)?;
    expect(OP, "d_y", args.d_y, F32, &[t, f])?;
    expect_floats(OP, "gate_up", args.gate_up, &[t, 2 * f])?;
    expect(OP, "d_gate_up", args.d_gate_up.view(), F32, &[t, 2 * f])?;
    crate::context::count(25 * (t * f) as u64, 20 * (t * f) as u64);
    cpu::backward(ctx, args);
    Ok(())
}

#[cfg(test)]
mod tests;
