//! The global L2 norm of the gradients, and whether all of them are finite.
//!
//! ```text
//! out[0] = √ Σ_tensors Σ_i g_i²        summed in f64
//! out[1] = 1 if every g_i, and the norm as f32, is finite, else 0
//! ```
//!
//! The sum of a fixed-length chunk is formed in one order and chunks are added in ascending order, so the bits do not
//! depend on the threads. Both results stay in a tensor: no host waits for them.

mod cpu;
pub mod reference;
#[cfg(test)]
mod tests;

use super::args::expect;
use crate::context::count;
use crate::pool::Disjoint;
use crate::{Context, DType, Result, View, ViewMut};

/// The norm over all `grads` (f32, any shapes); `out: [2]` *overwrites*.
pub fn global(ctx: &Context, grads: &[View<'_>], out: ViewMut<'_>) -> Result<()> {
    const OP: &str = "grad_norm::global";
    expect(OP, "out", out.view(), DType::F32, &[2])?;
    for grad in grads {
        expect(OP, "a gradient", *grad, DType::F32, grad.shape())?;
    }
    let grads: Vec<&[f32]> = grads.iter().map(|g| g.f32()).collect();
    let elements: usize = grads.iter().map(|g| g.len()).sum();
    count(2 * elements as u64, (size_of::<f32>() * elements) as u64);
    let chunks: Vec<&[f32]> = grads.iter().flat_map(|g| g.chunks(cpu::CHUNK)).collect();
    let mut sums = vec![0.0f64; chunks.len()];
    ctx.run(chunks.len(), &cpu::Squares { chunks: &chunks, sums: Disjoint::new(&mut sums) });
    let norm = sums.iter().sum::<f64>().sqrt() as f32;
    // The square of an f32 does not overflow an f64, so one element that is not finite shows in the norm and nothing else does,
    // but a norm beyond f32.
    out.f32().copy_from_slice(&[norm, f32::from(u8::from(norm.is_finite()))]);
    Ok(())
}
