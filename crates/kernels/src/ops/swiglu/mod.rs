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

use crate::{Context, Result, View, ViewMut};

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
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}

/// Gradients of gate and up.
pub fn backward(_ctx: &Context, _args: Backward<'_>) -> Result<()> {
    unimplemented!()
}
