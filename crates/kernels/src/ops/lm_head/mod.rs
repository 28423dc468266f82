//! The lm head: each hidden row's entropy and the log-probability of its target token, without ever storing all logits
//! in memory.
//!
//! Letters in shapes: `R` rows, `H` hidden size, `V` vocabulary size; `β` = 1/T, where T is the sampling temperature.
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
//! The vocabulary is cut into chunks of [`CHUNK`] entries, regardless of the number of threads. The logits of a chunk
//! exist only in a thread's scratch memory. Three numbers are kept for each chunk of a row: m = max z, Σ exp(z−m) and Σ
//! exp(z−m)(z−m). The chunks of a row are combined in ascending order. So the bits of a row depend only on that row and
//! the weights. The sampler ([`super::sample`]) calls the same functions, so its log-probabilities equal the trainer's.
//! The backward pass recomputes the logits, one window of the vocabulary at a time. β dz is rounded to bf16 for a
//! matmul with bf16 hidden rows or weights; if both are bf16, β dz is already stored in bf16.

pub(crate) mod cpu;
pub(crate) mod cuda;
pub mod emulated;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_below, expect_floats, expect_offsets, expect_shape, two_dims};
use crate::device::Backend;
use crate::{Context, DType, Error, Matrix, Result, View, ViewMut};

/// Vocabulary entries per chunk, over which the log-sum-exp is computed: 16 panels of the weight.
pub const CHUNK: usize = 512;
/// Rows per block. For each block, the weight is read once, and its gradient is read and written once.
pub(super) const BLOCK_ROWS: usize = 512;

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Hidden rows `[R, H]`.
    pub hidden: View<'a>,
    /// Weight of the lm head: `[V, H]`.
    pub weight: &'a Matrix,
    /// Token ids whose log-probabilities are computed: u32 `[R]`, each below V.
    pub targets: View<'a>,
    /// β = 1/T, the inverse of the sampling temperature.
    pub inv_temperature: f32,
    /// Log-probability of each target: `[R]`, *overwrites*.
    pub logps: ViewMut<'a>,
    /// Log-sum-exp of each row's scaled logits: `[R]`, *overwrites*.
    pub lse: ViewMut<'a>,
    /// Entropy of each row's distribution, in nats: `[R]`, *overwrites*.
    pub entropies: Option<ViewMut<'a>>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// Hidden rows `[R, H]`.
    pub hidden: View<'a>,
    /// Weight of the lm head: `[V, H]`.
    pub weight: &'a Matrix,
    /// Token ids of the forward pass: u32 `[R]`, each below V.
    pub targets: View<'a>,
    /// β = 1/T, as in the forward pass.
    pub inv_temperature: f32,
    /// Log-sum-exp of each row, from the forward pass: `[R]`.
    pub lse: View<'a>,
    /// Gradients of the log-probabilities: `[R]`.
    pub d_logps: View<'a>,
    /// Gradients of the entropies: `[R]`. Requires `entropies`.
    pub d_entropies: Option<View<'a>>,
    /// Entropies from the forward pass: `[R]`.
    pub entropies: Option<View<'a>>,
    /// Gradient of the hidden rows: `[R, H]`, *overwrites*.
    pub d_hidden: ViewMut<'a>,
    /// Gradient of the weight: `[V, H]`, *accumulates into*. The padding of the last panel is not changed.
    pub d_weight: Option<&'a mut Matrix>,
    /// First row of each of the S segments, then R: u32 `[S + 1]`. Splitting a batch between segments into several
    /// calls does not change a bit. `None` means one segment.
    pub segments: Option<View<'a>>,
}

/// Arguments of [`logits`].
pub struct Logits<'a> {
    /// Hidden rows `[R, H]`.
    pub hidden: View<'a>,
    /// Weight of the lm head: `[V, H]`.
    pub weight: &'a Matrix,
    /// β = 1/T, the inverse of the sampling temperature.
    pub inv_temperature: f32,
    /// Scaled logits z: `[R, V]`, *overwrites*.
    pub logits: ViewMut<'a>,
    /// Log-sum-exp of each row's scaled logits: `[R]`, *overwrites*.
    pub lse: ViewMut<'a>,
}

/// Computes whole rows of scaled logits z, for the few rows that need the log-probabilities of other tokens.
/// z − lse are the log-probabilities of [`forward`], bit for bit.
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

/// Computes log-probabilities, log-sum-exps and entropies. Memory in addition to the outputs: 12 bytes per row and
/// chunk for up to 512 rows, and 240 KiB of logits per thread (512 KiB on AMX tiles).
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

/// Computes the gradients of hidden rows and weight. Memory in addition to the outputs: gradients of at most 512 rows ×
/// 4096 logits (8 MiB, in bf16 4 MiB), and 240 KiB of logits per thread (512 KiB on AMX tiles).
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
            return Err(Error::Value { op: OP, message: "d_entropies requires entropies".into() });
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

/// Checks that `hidden` has the width of the weight. Returns the number of rows.
pub(crate) fn check(op: &'static str, hidden: View<'_>, weight: &Matrix) -> Result<usize> {
    let [rows, _] = two_dims(op, "hidden", hidden)?;
    expect_floats(op, "hidden", hidden, &[rows, weight.cols()])?;
    Ok(rows)
}

/// Counts the work for the profile: `matmuls` matmuls over all rows, and for each block of rows `passes` reads or
/// writes of the weight.
pub(crate) fn count_matmuls(hidden: View<'_>, weight: &Matrix, matmuls: usize, passes: usize) {
    let (rows, len) = (hidden.shape()[0], hidden.shape().iter().product::<usize>());
    let bytes = weight.data().bytes() * passes * rows.div_ceil(BLOCK_ROWS) + len * hidden.dtype().bytes();
    crate::context::count(2 * (matmuls * len * weight.rows()) as u64, bytes as u64);
}
