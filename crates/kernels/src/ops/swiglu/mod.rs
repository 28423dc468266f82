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

use crate::ops::args::{expect, two_dims};
use crate::{Context, DType::F32, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[T, 2F]`: gate, then up.
    pub gate_up: View<'a>,
    /// `[T, F]`: *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[T, 2F]`
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
    expect(OP, "y", args.y.view(), F32, &[t, f])?;
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
    expect(OP, "gate_up", args.gate_up, F32, &[t, 2 * f])?;
    expect(OP, "d_gate_up", args.d_gate_up.view(), F32, &[t, 2 * f])?;
    crate::context::count(25 * (t * f) as u64, 20 * (t * f) as u64);
    cpu::backward(ctx, args);
    Ok(())
}

#[cfg(test)]
mod tests;
