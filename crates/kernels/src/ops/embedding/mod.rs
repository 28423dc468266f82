//! Token embedding: the lookup of rows of a packed matrix by token id, and its backward pass.
//!
//! Letters in shapes: `T` tokens, `V` vocabulary size, `H` hidden size.
//!
//! ```text
//! out[t,:]       = scale · table[ids[t],:]
//! d_table[v,:]  += Σ_{t: ids[t] = v} scale · d_out[t,:]        ascending t
//! ```

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_below};
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Matrix, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Token ids: u32 `[T]`, each below V.
    pub ids: View<'a>,
    /// Embedding table `[V, H]`, f32 or bf16 (widened to f32).
    pub table: &'a Matrix,
    /// Factor on the embeddings: 1 in most models, √H in Gemma.
    pub scale: f32,
    /// Embeddings `[T, H]`: *overwrites*.
    pub out: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// Token ids: u32 `[T]`, each below V.
    pub ids: View<'a>,
    /// Gradient of the embeddings: `[T, H]`.
    pub d_out: View<'a>,
    /// Factor on the embeddings, as in [`Forward`].
    pub scale: f32,
    /// Gradient of the table `[V, H]`: *accumulates into*.
    pub d_table: &'a mut Matrix,
}

/// Looks up the embedding of each token id.
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

/// Adds each token's gradient to the row of the token's id.
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
