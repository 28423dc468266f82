//! Embedding: rows of a packed matrix, by id.
//!
//! Shapes: `T` tokens, `V` vocabulary, `H` hidden.
//!
//! ```text
//! out[t,:]       = scale · table[ids[t],:]
//! d_table[v,:]  += Σ_{t: ids[t] = v} scale · d_out[t,:]        ascending t
//! ```

mod cpu;
mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_below};
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Matrix, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// u32 `[T]`, each below V.
    pub ids: View<'a>,
    /// `[V, H]`, f32 or bf16 (widened).
    pub table: &'a Matrix,
    /// 1, or what the family multiplies embeddings with.
    pub scale: f32,
    /// `[T, H]`: *overwrites*.
    pub out: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// u32 `[T]`, each below V.
    pub ids: View<'a>,
    /// `[T, H]`
    pub d_out: View<'a>,
    /// As in [`Forward`].
    pub scale: f32,
    /// `[V, H]`: *accumulates into*.
    pub d_table: &'a mut Matrix,
}

/// Looks rows up by id.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "embedding::forward";
    let Forward { ids, table, ref out, .. } = args;
    let (tokens, hidden) = (ids.shape().iter().product(), table.cols());
    expect(OP, "ids", ids, DType::U32, &[tokens])?;
    expect(OP, "out", out.view(), DType::F32, &[tokens, hidden])?;
    expect_below(OP, "ids", ids.indices(), table.rows())?;
    count(0, (2 * size_of::<f32>() * tokens * hidden) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Adds each token's gradient to its id's row.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "embedding::backward";
    let Backward { ids, d_out, ref d_table, .. } = args;
    let (tokens, hidden) = (ids.shape().iter().product(), d_table.cols());
    expect(OP, "ids", ids, DType::U32, &[tokens])?;
    expect(OP, "d_out", d_out, DType::F32, &[tokens, hidden])?;
    expect_below(OP, "ids", ids.indices(), d_table.rows())?;
    count((tokens * hidden) as u64, (3 * size_of::<f32>() * tokens * hidden) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}
