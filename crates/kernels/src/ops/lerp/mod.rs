//! Linear interpolation in place: `y ← (1 − α) y + α x`, element by element (reference models that follow the policy).
//!
//! ```text
//! y[i] = fma(α, x[i], (1 − α) · y[i])
//! ```
//!
//! Both factors are formed in f64 and rounded once. No gradient passes through.

mod cpu;
mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_shape};
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Error, Result, View, ViewMut};

/// Arguments of [`lerp`]. Both tensors have the same number of elements in the same order; shapes are not looked at.
pub struct Lerp<'a> {
    /// *Updated.*
    pub y: ViewMut<'a>,
    /// Read.
    pub x: View<'a>,
    /// How far: 0 leaves y, 1 makes it x.
    pub alpha: f64,
}

/// Moves `y` towards `x`.
pub fn lerp(ctx: &Context, args: Lerp<'_>) -> Result<()> {
    const OP: &str = "lerp";
    let Lerp { ref y, x, alpha } = args;
    let len: usize = y.shape().iter().product();
    expect(OP, "y", y.view(), DType::F32, y.shape())?;
    expect(OP, "x", x, DType::F32, x.shape())?;
    expect_shape(OP, "x", &[x.shape().iter().product()], &[len])?;
    if !(0.0..=1.0).contains(&alpha) {
        return Err(Error::Value { op: OP, message: format!("alpha is {alpha}, which is not in 0 ..= 1") });
    }
    count(3 * len as u64, 12 * len as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::lerp(cpu, args),
        Backend::Cuda(cuda) => cuda::lerp(cuda, args)?,
    }
    Ok(())
}
