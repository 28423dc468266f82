//! Gathers rows of a matrix by index; the backward pass adds gradients to these rows.
//!
//! Letters in shapes: `T` rows of the source, `R` chosen rows, `H` elements of a row.
//!
//! ```text
//! out[r,:]        = x[rows[r],:]
//! d_x[rows[r],:] += d_out[r,:]        ascending r
//! ```

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_below, expect_floats, two_dims};
use crate::context::count;
use crate::device::Backend;
use crate::{Context, DType, Result, View, ViewMut};

/// Arguments of [`gather`].
pub struct Gather<'a> {
    /// Source matrix `[T, H]`, f32 or bf16.
    pub x: View<'a>,
    /// Indices of the chosen rows: u32 `[R]`, each below T. A row may be chosen several times.
    pub rows: View<'a>,
    /// Output `[R, H]` of the dtype of `x`: *overwrites*.
    pub out: ViewMut<'a>,
}

/// Arguments of [`scatter_add`].
pub struct ScatterAdd<'a> {
    /// Gradient of the chosen rows: `[R, H]`.
    pub d_out: View<'a>,
    /// Indices of the chosen rows: u32 `[R]`, each below T.
    pub rows: View<'a>,
    /// Gradient of the source matrix: `[T, H]`, *accumulates into*.
    pub d_x: ViewMut<'a>,
}

/// Copies the chosen rows of `x` to `out`.
pub fn gather(ctx: &Context, args: Gather<'_>) -> Result<()> {
    const OP: &str = "rows::gather";
    let Gather { x, rows, ref out } = args;
    let [from, hidden] = two_dims(OP, "x", x)?;
    let chosen = rows.shape().iter().product();
    expect_floats(OP, "x", x, &[from, hidden])?;
    expect(OP, "rows", rows, DType::U32, &[chosen])?;
    expect(OP, "out", out.view(), x.dtype(), &[chosen, hidden])?;
    expect_below(OP, "rows", rows.indices(), from)?;
    count(0, (2 * x.dtype().bytes() * chosen * hidden) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::gather(cpu, args),
        Backend::Cuda(cuda) => cuda::gather(cuda, args)?,
    }
    Ok(())
}

/// Adds the gradient of each chosen row to the gradient of its source row.
pub fn scatter_add(ctx: &Context, args: ScatterAdd<'_>) -> Result<()> {
    const OP: &str = "rows::scatter_add";
    let ScatterAdd { d_out, rows, ref d_x } = args;
    let [to, hidden] = two_dims(OP, "d_x", d_x.view())?;
    let chosen = rows.shape().iter().product();
    expect(OP, "d_x", d_x.view(), DType::F32, &[to, hidden])?;
    expect(OP, "rows", rows, DType::U32, &[chosen])?;
    expect(OP, "d_out", d_out, DType::F32, &[chosen, hidden])?;
    expect_below(OP, "rows", rows.indices(), to)?;
    count((chosen * hidden) as u64, (3 * size_of::<f32>() * chosen * hidden) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::scatter_add(cpu, args),
        Backend::Cuda(cuda) => cuda::scatter_add(cuda, args)?,
    }
    Ok(())
}
