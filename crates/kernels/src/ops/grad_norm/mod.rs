//! The global L2 norm of all gradients, and whether all of them are finite.
//!
//! ```text
//! out[0] = √ Σ_tensors Σ_i g_i²        the norm, summed in f64
//! out[1] = 1 if every g_i, and the norm as f32, is finite, else 0
//! ```
//!
//! The squares of each chunk of fixed length are summed in one order, and the sums of the chunks are added in ascending
//! order. So the bits do not depend on the number of threads. Both results stay in a tensor on the device, so that the
//! host need not wait for them.

mod cpu;
mod cuda;
pub use cpu::CHUNK;

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use super::args::expect;
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Error, Result, View, ViewMut};

/// Computes the norm of all `grads` (f32 tensors of any shape) into `out: [2]`, *overwriting* it.
pub fn global(ctx: &Context, grads: &[View<'_>], out: ViewMut<'_>) -> Result<()> {
    const OP: &str = "grad_norm::global";
    expect(OP, "out", out.view(), DType::F32, &[2])?;
    for grad in grads {
        expect(OP, "a gradient", *grad, DType::F32, grad.shape())?;
    }
    count_squares(grads);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::global(cpu, grads, out),
        Backend::Cuda(cuda) => cuda::global(cuda, grads, out)?,
    }
    Ok(())
}

/// The sum of squares of each chunk of `grads` (f32 tensors of any shape), in order, for [`from_chunks`]. Several
/// processes can compute the chunks of one gradient, if they divide it where a tensor's chunks of [`CHUNK`] elements
/// begin.
pub fn sums_of_chunks(ctx: &Context, grads: &[View<'_>]) -> Result<Vec<f64>> {
    const OP: &str = "grad_norm::sums_of_chunks";
    for grad in grads {
        expect(OP, "a gradient", *grad, DType::F32, grad.shape())?;
    }
    count_squares(grads);
    match ctx.backend() {
        Backend::Cpu(cpu) => Ok(cpu::sums(cpu, grads)),
        Backend::Cuda(_) => Err(Error::Value { op: OP, message: "the gradient must be on the CPU".to_owned() }),
    }
}

fn count_squares(grads: &[View<'_>]) {
    let elements: usize = grads.iter().map(|g| g.shape().iter().product::<usize>()).sum();
    count(2 * elements as u64, (size_of::<f32>() * elements) as u64);
}

/// The norm, as [`global`] writes it, of a gradient whose chunks have these sums of squares.
pub fn from_chunks(sums: &[f64]) -> [f32; 2] {
    let norm = sums.iter().sum::<f64>().sqrt() as f32;
    // The square of an f32 cannot overflow an f64. So the norm is finite if and only if all elements are finite and the
    // norm fits an f32.
    [norm, f32::from(u8::from(norm.is_finite()))]
}
