//! The head: log-probability of a given token and entropy, from hidden rows, without the logits ever being in memory.
//!
//! Shapes: `R` rows, `H` hidden, `V` vocabulary; `β` = 1/T, T the temperature.
//!
//! ```text
//! z[r,v]    = β · Σ_h hidden[r,h] W[v,h]
//! lse[r]    = ln Σ_v exp z[r,v]                 p[r,v] = exp(z[r,v] − lse[r])
//! logp[r]   = z[r, target[r]] − lse[r]
//! ent[r]    = −Σ_v p[r,v] ln p[r,v]
//!
//! dz[r,v]      = dlogp[r] (1[v = target[r]] − p[r,v]) − dent[r] p[r,v] (z[r,v] − lse[r] + ent[r])
//! dhidden[r,:] = Σ_v β dz[r,v] W[v,:]           ascending v
//! dW[v,:]     += Σ_r β dz[r,v] hidden[r,:]      ascending r
//! ```
//!
//! The vocabulary is cut into chunks of [`CHUNK`] whatever the threads. A chunk's logits live in a thread's scratch;
//! what is kept of them is (m, Σ exp(z−m), Σ exp(z−m)(z−m)), m their maximum, and the chunks of a row are combined in
//! ascending order. The bits of a row depend on that row and the weights alone. The sampler ([`super::sample`]) calls
//! the same functions, which is why its log-probabilities are the trainer's. Where weight or hidden rows are bf16, β dz
//! is rounded to it for the matmul with them, and where both are, as it is written. The backward pass recomputes the
//! logits window by window.

pub(crate) mod cpu;
pub(crate) mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_below, expect_floats, expect_offsets, expect_shape, two_dims};
use crate::device::Backend;
use crate::{Context, DType, Error, Matrix, Result, View, ViewMut};

/// Vocabulary entries of a chunk: 16 panels of the weight.
pub const CHUNK: usize = 512;
/// Rows of a block: the weight is read once for each, and its gradient read and written.
pub(super) const BLOCK_ROWS: usize = 512;

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[R, H]`
    pub hidden: View<'a>,
    /// `[V, H]`
    pub weight: &'a Matrix,
    /// u32 `[R]`, each below V.
    pub targets: View<'a>,
    /// β = 1/T.
    pub inv_temperature: f32,
    /// `[R]`: *overwrites*.
    pub logps: ViewMut<'a>,
    /// `[R]`: *overwrites*.
    pub lse: ViewMut<'a>,
    /// `[R]`, in nats: *overwrites*.
    pub entropies: Option<ViewMut<'a>>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[R, H]`
    pub hidden: View<'a>,
    /// `[V, H]`
    pub weight: &'a Matrix,
    /// u32 `[R]`, each below V.
    pub targets: View<'a>,
    /// β = 1/T, as in the forward.
    pub inv_temperature: f32,
    /// `[R]`, as the forward wrote it.
    pub lse: View<'a>,
    /// `[R]`
    pub d_logps: View<'a>,
    /// `[R]`; needs `entropies`.
    pub d_entropies: Option<View<'a>>,
    /// `[R]`, as the forward wrote it.
    pub entropies: Option<View<'a>>,
    /// `[R, H]`: *overwrites*.
    pub d_hidden: ViewMut<'a>,
    /// `[V, H]`: *accumulates into*; the padding of the last panel is left alone.
    pub d_weight: Option<&'a mut Matrix>,
    /// u32 `[S + 1]`: the first row of each segment, and R at last; between segments a batch may be cut. None: one.
    pub segments: Option<View<'a>>,
}

/// Arguments of [`logits`].
pub struct Logits<'a> {
    /// `[R, H]`
    pub hidden: View<'a>,
    /// `[V, H]`
    pub weight: &'a Matrix,
    /// β = 1/T.
    pub inv_temperature: f32,
    /// `[R, V]`, z: *overwrites*.
    pub logits: ViewMut<'a>,
    /// `[R]`: *overwrites*.
    pub lse: ViewMut<'a>,
}

/// Whole rows of scaled logits, for the few rows whose alternatives somebody wants to see: z − lse are the
/// log-probabilities of [`forward`], bit for bit.
pub fn logits(ctx: &Context, args: Logits<'_>) -> Result<()> {
    const OP: &str = "lm_head::logits";
    let rows = check(OP, args.hidden, args.weight)?;
    expect(OP, "logits", args.logits.view(), DType::F32, &[rows, args.weight.rows()])?;
    expect(OP, "lse", args.lse.view(), DType::F32, &[rows])?;
    count_matmuls(args.hidden, args.weight, 1, 1);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::logits(cpu, args),
        Backend::Cuda(cuda) => cuda::logits(cuda, args)?,
    }
    Ok(())
}

/// Log-probabilities, log-sum-exps and entropies. Beside its outputs it holds statistics of up to 512 rows, 12 bytes
/// for each and every chunk, and 240 KiB of logits per thread (512 KiB on tiles).
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "lm_head::forward";
    let Forward { hidden, weight, targets, ref logps, ref lse, ref entropies, .. } = args;
    let rows = check(OP, hidden, weight)?;
    expect(OP, "targets", targets, DType::U32, &[rows])?;
    expect(OP, "logps", logps.view(), DType::F32, &[rows])?;
    expect(OP, "lse", lse.view(), DType::F32, &[rows])?;
    if let Some(entropies) = entropies {
        expect(OP, "entropies", entropies.view(), DType::F32, &[rows])?;
    }
    expect_below(OP, "targets", targets.indices(), weight.rows())?;
    count_matmuls(hidden, weight, 1, 1);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Gradients of hidden rows and weight. Beside its outputs it holds gradients of at most 512 rows × 4096 logits (8 MiB,
/// in bf16 half of it) and 240 KiB of logits per thread (512 KiB on tiles).
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "lm_head::backward";
    let Backward { hidden, weight, targets, lse, d_logps, d_entropies, entropies, ref d_hidden, ref d_weight, .. } =
        args;
    let (rows, h) = (check(OP, hidden, weight)?, weight.cols());
    expect(OP, "targets", targets, DType::U32, &[rows])?;
    expect(OP, "lse", lse, DType::F32, &[rows])?;
    expect(OP, "d_logps", d_logps, DType::F32, &[rows])?;
    expect(OP, "d_hidden", d_hidden.view(), DType::F32, &[rows, h])?;
    match (d_entropies, entropies) {
        (None, _) => {}
        (Some(_), None) => {
            return Err(Error::Value { op: OP, message: "d_entropies is given without entropies".into() });
        }
        (Some(d), Some(e)) => {
            expect(OP, "d_entropies", d, DType::F32, &[rows])?;
            expect(OP, "entropies", e, DType::F32, &[rows])?;
        }
    }
    if let Some(d_weight) = d_weight {
        expect_shape(OP, "d_weight", &[d_weight.rows(), d_weight.cols()], &[weight.rows(), h])?;
    }
    expect_below(OP, "targets", targets.indices(), weight.rows())?;
    if let Some(segments) = args.segments {
        expect_offsets(OP, "segments", segments, rows)?;
    }
    let (matmuls, passes) = if d_weight.is_some() { (3, 4) } else { (2, 2) };
    count_matmuls(hidden, weight, matmuls, passes);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}

/// Rows of `hidden`, if they are of the weight's width.
pub(crate) fn check(op: &'static str, hidden: View<'_>, weight: &Matrix) -> Result<usize> {
    let [rows, _] = two_dims(op, "hidden", hidden)?;
    expect_floats(op, "hidden", hidden, &[rows, weight.cols()])?;
    Ok(rows)
}

/// Books `matmuls` matmuls of all rows, and the weight `passes` times for each block of them.
pub(crate) fn count_matmuls(hidden: View<'_>, weight: &Matrix, matmuls: usize, passes: usize) {
    let (rows, len) = (hidden.shape()[0], hidden.shape().iter().product::<usize>());
    let bytes = weight.data().bytes() * passes * rows.div_ceil(BLOCK_ROWS) + len * hidden.dtype().bytes();
    crate::context::count(2 * (matmuls * len * weight.rows()) as u64, bytes as u64);
}
