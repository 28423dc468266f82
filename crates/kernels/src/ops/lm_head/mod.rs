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
//! The vocabulary is cut into chunks of [`CHUNK`] whatever the threads. A chunk's logits live in a thread's scratch; what
//! is kept of them is (m, Σ exp(z−m), Σ exp(z−m)(z−m)), m their maximum, and the chunks of a row are combined in ascending
//! order. The bits of a row depend on that row and the weights alone. The sampler ([`super::sample`]) calls the same
//! functions, which is why its log-probabilities are the trainer's. Where weight or hidden rows are bf16, β dz is rounded to
//! it for the product with them, and where both are, as it is written. The way back recomputes the logits window by window.

pub(crate) mod cpu;
pub mod reference;
#[cfg(test)]
mod tests;

use super::args::{expect, expect_below, expect_offsets, expect_shape};
use crate::pool::Disjoint;
use crate::{Context, DType, Error, Matrix, Result, View, ViewMut};
use cpu::{Beta, Head};

/// Vocabulary entries of a chunk: 16 panels of the weight.
pub const CHUNK: usize = 512;

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

/// Log-probabilities, log-sum-exps and entropies. Beside its outputs it holds statistics of up to 512 rows, 12 bytes for
/// each and every chunk, and 240 KiB of logits per thread (512 KiB on tiles).
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "lm_head::forward";
    let Forward { hidden, weight, targets, inv_temperature, logps, lse, entropies } = args;
    let head = Head::new(ctx, OP, hidden, weight)?;
    let rows = head.rows();
    expect(OP, "targets", targets, DType::U32, &[rows])?;
    expect(OP, "logps", logps.view(), DType::F32, &[rows])?;
    expect(OP, "lse", lse.view(), DType::F32, &[rows])?;
    if let Some(entropies) = &entropies {
        expect(OP, "entropies", entropies.view(), DType::F32, &[rows])?;
    }
    let targets = targets.u32();
    expect_below(OP, "targets", targets, head.vocab)?;
    head.count_product(1, 1);
    let (logps, lse) = (Disjoint::new(logps.f32()), Disjoint::new(lse.f32()));
    let entropies = entropies.map(|e| Disjoint::new(e.f32()));
    for block in head.blocks() {
        head.with_partials(block.len(), |partials| {
            let partials = Disjoint::new(partials);
            let beta = Beta::All(inv_temperature);
            let picked = Some((targets, &logps));
            let chunks =
                cpu::Chunks { head: &head, rows: block.clone(), beta, partials: &partials, picked, logits: None };
            ctx.run(chunks.tasks(), &chunks);
            let combine = cpu::Combine {
                head: &head,
                rows: block,
                partials: &partials,
                logps: &logps,
                lse: &lse,
                entropies: entropies.as_ref(),
            };
            ctx.run(combine.tasks(), &combine);
        });
    }
    Ok(())
}

/// Gradients of hidden rows and weight. Beside its outputs it holds gradients of at most 512 rows × 4096 logits (8 MiB, in
/// bf16 half of it) and 240 KiB of logits per thread (512 KiB on tiles).
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "lm_head::backward";
    let Backward { hidden, weight, targets, inv_temperature, lse, d_logps, d_entropies, entropies, .. } = args;
    let (d_hidden, d_weight, segments) = (args.d_hidden, args.d_weight, args.segments);
    let head = Head::new(ctx, OP, hidden, weight)?;
    let (rows, h) = (head.rows(), head.width);
    expect(OP, "targets", targets, DType::U32, &[rows])?;
    expect(OP, "lse", lse, DType::F32, &[rows])?;
    expect(OP, "d_logps", d_logps, DType::F32, &[rows])?;
    expect(OP, "d_hidden", d_hidden.view(), DType::F32, &[rows, h])?;
    let entropies = match (d_entropies, entropies) {
        (None, _) => None,
        (Some(_), None) => {
            return Err(Error::Value { op: OP, message: "d_entropies is given without entropies".into() });
        }
        (Some(d), Some(e)) => {
            expect(OP, "d_entropies", d, DType::F32, &[rows])?;
            expect(OP, "entropies", e, DType::F32, &[rows])?;
            Some((d.f32(), e.f32()))
        }
    };
    if let Some(d_weight) = &d_weight {
        expect_shape(OP, "d_weight", &[d_weight.rows(), d_weight.cols()], &[head.vocab, h])?;
    }
    let targets = targets.u32();
    expect_below(OP, "targets", targets, head.vocab)?;
    if let Some(segments) = segments {
        expect_offsets(OP, "segments", segments, rows)?;
    }
    head.count_product(if d_weight.is_some() { 3 } else { 2 }, if d_weight.is_some() { 4 } else { 2 });
    let slopes = cpu::Slopes { targets, beta: inv_temperature, lse: lse.f32(), d_logps: d_logps.f32(), entropies };
    let d_weight = d_weight.map(|w| w.data_mut().view_mut().f32());
    cpu::backward(ctx, &head, &slopes, d_hidden.f32(), d_weight, segments.map(|s| s.u32()));
    Ok(())
}
