//! Linear interpolation in place, `y ← (1 − α) y + α x`, element by element. It moves a reference model towards the
//! policy.
//!
//! ```text
//! y[i] = fma(α, x[i], (1 − α) · y[i])
//! ```
//!
//! Both factors are computed in f64 and rounded to f32 once. The operation has no backward pass.

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_shape};
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Error, Result, View, ViewMut};

/// Arguments of [`lerp`]. Both tensors have the same number of elements in the same order; their shapes do not matter.
pub struct Lerp<'a> {
    /// The tensor to move: *updated*.
    pub y: ViewMut<'a>,
    /// Tensor towards which `y` is moved.
    pub x: View<'a>,
    /// α: 0 does not change `y`, 1 makes it equal to `x`.
    pub alpha: f64,
}

/// Moves `y` towards `x`, in place.
pub fn lerp(ctx: &Context, args: Lerp<'_>) -> Result<()> {
    const OP: &str = "lerp";
    let Lerp { ref y, x, alpha } = args;
    let len: usize = y.shape().iter().product();
    expect(OP, "y", y.view(), DType::F32, y.shape())?;
    expect(OP, "x", x, DType::F32, x.shape())?;
    expect_shape(OP, "x", &[x.shape().iter().product()], &[len])?;
    if !(0.0..=1.0).contains(&alpha) {
        return Err(Error::Value { op: OP, message: format!("alpha must be in 0 ..= 1, got {alpha}") });
    }
    count(3 * len as u64, 12 * len as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::lerp(cpu, args),
        Backend::Cuda(cuda) => cuda::lerp(cuda, args)?,
    }
    Ok(())
}
