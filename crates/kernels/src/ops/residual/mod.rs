//! Residual addition without a norm after it: computes the sum, and a copy of the sum in the dtype that the next matmul
//! reads.
//!
//! Letters in shapes: `T` tokens, `H` hidden size.
//!
//! ```text
//! s[t,h]    = x[t,h] + delta[t,h]         (s = x without a delta)
//! y[t,h]    = s[t,h]                      rounded where y is bf16
//!
//! d_x[t,h] += d_y[t,h]
//! ```

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_floats, two_dims};
use crate::device::Backend;
use crate::{Context, DType::F32, Error, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Residual stream: `[T, H]`.
    pub x: View<'a>,
    /// Output of a layer that is added to `x`: `[T, H]`.
    pub delta: Option<View<'a>>,
    /// The sum x + delta: `[T, H]`, *overwrites*. Set if and only if `delta` is set.
    pub sum: Option<ViewMut<'a>>,
    /// Copy of the sum for the next matmul: `[T, H]`, f32 or rounded to bf16, *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// Gradient of `y`: `[T, H]`.
    pub d_y: View<'a>,
    /// Gradient of the residual stream: `[T, H]`, *accumulates into*.
    pub d_x: ViewMut<'a>,
}

/// Adds `delta` to the residual stream and copies the sum to `y`.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "residual::forward";
    let [t, h] = two_dims(OP, "x", args.x)?;
    expect(OP, "x", args.x, F32, &[t, h])?;
    expect_floats(OP, "y", args.y.view(), &[t, h])?;
    match (&args.delta, &args.sum) {
        (None, None) => {}
        (Some(delta), Some(sum)) => {
            expect(OP, "delta", *delta, F32, &[t, h])?;
            expect(OP, "sum", sum.view(), F32, &[t, h])?;
        }
        _ => return Err(Error::Value { op: OP, message: "sum and delta must be given together".into() }),
    }
    crate::context::count((t * h) as u64, 8 * (t * h) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Adds the gradient of `y` to the gradient of the residual stream.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "residual::backward";
    let [t, h] = two_dims(OP, "d_y", args.d_y)?;
    expect(OP, "d_y", args.d_y, F32, &[t, h])?;
    expect(OP, "d_x", args.d_x.view(), F32, &[t, h])?;
    crate::context::count((t * h) as u64, 12 * (t * h) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}
