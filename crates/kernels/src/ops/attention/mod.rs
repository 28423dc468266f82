//! Paged attention: causal, with an optional sliding window, and with grouped query heads. Decode, prefill and training
//! use the same kernel, so that the sampler and the trainer compute the same bits.
//!
//! Letters in shapes: `T` rows (tokens), `nh` query heads, `nkv` kv heads, `hd` head_dim, `A = nh + 2·nkv` heads in a
//! fused row `[q][k][v]`, `S` block tables, `W` writes into the KV cache. Query head h reads kv head `h / (nh / nkv)`.
//!
//! A KV-cache page stores [`BLOCK`] = 64 positions: keys `[nkv, hd, 64]`, values `[nkv, 64, hd]`. (In bf16, some
//! instruction sets use a different order inside a page; see `pages.rs`. So [`write_kv`] and the ops that read its
//! pages must run on the same instruction set.) Position j of a sequence is in page `tables[s][j / 64]`, slot `j % 64`:
//! blocks of keys are aligned to the sequence's own positions. The row at position p attends to positions `max(0, p + 1
//! − window) ..= p`. Slots of later positions may contain anything, because no result depends on them. (On AMX tiles,
//! written slots must be finite: `tiles.rs`.)
//!
//! ```text
//! z[j]   = (Σ_i q[i] · k[j,i]) · scale                     one ascending FMA chain over i
//! out    = Σ_j exp(z[j] − lse) · v[j],   lse = ln Σ_j exp(z[j])
//! ```
//! The forward pass computes this block by block in ascending order, with an online softmax (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). The backward pass recomputes
//! the probabilities P from `lse`:
//! ```text
//! P[j]   = exp(z[j] − lse)          D = Σ_i d_out[i] · out[i]
//! dP[j]  = Σ_i d_out[i] · v[j,i]    dS[j] = P[j] · (dP[j] − D) · scale
//! d_q    = Σ_j dS[j] · k[j]         d_k[j] = Σ dS[j] · q        d_v[j] = Σ P[j] · d_out     over rows and query heads
//! ```
//! In bf16, the factors of the matmuls are rounded to bf16 on every instruction set: exp(z − m) in the forward pass,
//! and P, dS and d_out in the backward pass. On AMX, sums follow the order of tiles. `docs/arithmetic.md` describes
//! both.

mod backward;
mod backward_amx;
mod backward_pairs;
mod cpu;
mod cuda;
mod gradients;
mod matmul;
mod pages;
mod parts;
mod places;
#[cfg(test)]
pub(crate) mod reference;
mod tiles;
mod visits;
mod writes;

use crate::DType::{F32, U32};
use crate::device::Backend;
use crate::ops::args::{expect, expect_below, expect_floats, two_dims};
use crate::{Context, DType, Error, Result, View, ViewMut};

/// Positions per KV-cache page, and keys per step of the online softmax.
pub const BLOCK: usize = 64;

/// KV-cache pages of one layer, read-only. Keys, values, fused rows and outputs are all f32 or all bf16. With bf16,
/// inputs are widened to f32 when read and outputs rounded when written. The weights exp(z − m) of the values are
/// rounded too; the sum of these weights is not.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    /// Keys `[blocks, nkv, hd, 64]`: transposed, so that a matmul is vectorised over keys.
    pub keys: View<'a>,
    /// Values `[blocks, nkv, 64, hd]`.
    pub values: View<'a>,
}

/// KV-cache pages of one layer, writable.
pub struct PagesMut<'a> {
    /// Keys `[blocks, nkv, hd, 64]`.
    pub keys: ViewMut<'a>,
    /// Values `[blocks, nkv, 64, hd]`.
    pub values: ViewMut<'a>,
}

/// Shape of an attention layer: number and size of heads, scale of the scores, sliding window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// Number of query heads (nh), a multiple of the number of kv heads.
    pub heads: usize,
    /// Number of key/value heads (nkv).
    pub kv_heads: usize,
    /// Size of a head (hd).
    pub head_dim: usize,
    /// Factor on the scores q · k, usually 1/√hd.
    pub scale: f32,
    /// Sliding window w ≥ 1: the query at position p attends to the positions j with p − w < j ≤ p. `None`: to all j ≤
    /// p.
    pub window: Option<usize>,
}

/// Position of each row in its sequence, and the block table of the sequence.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Position of each row in its sequence: u32 `[T]`.
    pub positions: View<'a>,
    /// Index of each row's block table: u32 `[T]`, less than S.
    pub tables_of_rows: View<'a>,
    /// Block tables, one for each sequence: u32 `[S, max_blocks]`, indices of KV-cache pages.
    pub tables: View<'a>,
}

/// Arguments of [`write_kv`].
pub struct WriteKv<'a> {
    /// Fused rows of queries, keys and values: `[T, A·hd]`. Only keys and values are read.
    pub qkv: View<'a>,
    /// Shape of the layer's heads.
    pub geometry: Geometry,
    /// The rows of `qkv` to write: u32 `[W]`. A row may be written to several slots.
    pub rows: View<'a>,
    /// The destination of each row: u32 `[W]`, page · 64 + slot in the page. No slot occurs twice.
    pub slots: View<'a>,
    /// The KV cache. *Overwrites* the listed slots, and changes no other slot.
    pub pages: PagesMut<'a>,
}

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// Fused rows of queries, keys and values: `[T, A·hd]`. Only the queries are read.
    pub qkv: View<'a>,
    /// Shape of the layer's heads.
    pub geometry: Geometry,
    /// Positions and block tables of the rows.
    pub rows: Rows<'a>,
    /// The KV cache. The rows' own keys and values must have been written to it.
    pub pages: Pages<'a>,
    /// Attention output `[T, nh·hd]`: *overwrites*.
    pub out: ViewMut<'a>,
    /// Log-sum-exp of the scaled scores, which [`backward`] needs. `[T, nh]`: *overwrites*.
    pub lse: Option<ViewMut<'a>>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// Fused rows of queries, keys and values: `[T, A·hd]`. Only the queries are read.
    pub qkv: View<'a>,
    /// Shape of the layer's heads.
    pub geometry: Geometry,
    /// Positions and block tables of the rows.
    pub rows: Rows<'a>,
    /// The KV cache as the forward pass read it.
    pub pages: Pages<'a>,
    /// The rows that were written into the KV cache: u32 `[W]`, as in [`WriteKv`].
    pub write_rows: View<'a>,
    /// The slots to which the rows were written: u32 `[W]`, as in [`WriteKv`].
    pub write_slots: View<'a>,
    /// Output of the forward pass: `[T, nh·hd]`.
    pub out: View<'a>,
    /// Log-sum-exp from the forward pass: `[T, nh]`.
    pub lse: View<'a>,
    /// Gradient of the output: `[T, nh·hd]`.
    pub d_out: View<'a>,
    /// Gradient of `qkv`: `[T, A·hd]`, *overwrites*. A row that was written to several slots gets the sum of their
    /// gradients, in the order of the list of writes.
    pub d_qkv: ViewMut<'a>,
    /// Workspace with the shape of the KV cache, zeroed by the op. Afterwards it contains the gradient of each slot
    /// that a row attends to; other slots are undefined. On AMX tiles the gradient of keys is `[blocks, nkv, 64, hd]`.
    pub d_pages: PagesMut<'a>,
    /// Offsets of the groups of rows that share no KV-cache page with each other: u32 `[G + 1]`, the first row of each
    /// of the G groups, followed by T.
    pub groups: View<'a>,
}

/// Writes the keys and values of the listed rows into slots of the KV cache.
pub fn write_kv(ctx: &Context, args: WriteKv<'_>) -> Result<()> {
    const OP: &str = "attention::write_kv";
    let rows = check_geometry(OP, &args.geometry, args.qkv)?;
    let pages = check_pages(OP, &args.geometry, args.qkv.dtype(), args.pages.keys.view(), args.pages.values.view())?;
    check_writes(OP, args.rows, args.slots, rows, pages)?;
    let written = args.rows.shape()[0] * args.geometry.kv_heads * args.geometry.head_dim;
    crate::context::count(0, 16 * written as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => writes::write_kv(cpu, args),
        Backend::Cuda(cuda) => cuda::write_kv(cuda, args)?,
    }
    Ok(())
}

/// Copies KV-cache page `from` over page `to`, both keys and values.
pub fn copy_block(ctx: &Context, from: u32, to: u32, pages: PagesMut<'_>) -> Result<()> {
    const OP: &str = "attention::copy_block";
    let blocks = pages.keys.shape()[0].min(pages.values.shape()[0]);
    expect_below(OP, "pages", &[from, to], blocks)?;
    crate::context::count(0, 8 * pages.keys.shape().iter().product::<usize>() as u64 / blocks as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::copy_block(cpu, from as usize, to as usize, pages),
        Backend::Cuda(cuda) => cuda::copy_block(cuda, from as usize, to as usize, pages)?,
    }
    Ok(())
}

/// Forward pass: the attention of every row to the keys and values of its sequence.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "attention::forward";
    let (g, rows) = (args.geometry, check_geometry(OP, &args.geometry, args.qkv)?);
    let pages = check_pages(OP, &g, args.qkv.dtype(), args.pages.keys, args.pages.values)?;
    let seen = check_rows(OP, &g, args.rows, rows, pages)?;
    expect(OP, "out", args.out.view(), args.qkv.dtype(), &[rows, g.heads * g.head_dim])?;
    if let Some(lse) = &args.lse {
        expect(OP, "lse", lse.view(), F32, &[rows, g.heads])?;
    }
    crate::context::count(4 * (seen * g.heads * g.head_dim) as u64, 8 * (rows * g.heads * g.head_dim) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// Backward pass: the gradients of queries, keys and values.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "attention::backward";
    let (g, rows) = (args.geometry, check_geometry(OP, &args.geometry, args.qkv)?);
    let pages = check_pages(OP, &g, args.qkv.dtype(), args.pages.keys, args.pages.values)?;
    if check_pages(OP, &g, F32, args.d_pages.keys.view(), args.d_pages.values.view())? < pages {
        return Err(Error::Value { op: OP, message: format!("d_pages must have at least {pages} pages") });
    }
    let seen = check_rows(OP, &g, args.rows, rows, pages)?;
    check_writes(OP, args.write_rows, args.write_slots, rows, pages)?;
    expect(OP, "out", args.out, args.qkv.dtype(), &[rows, g.heads * g.head_dim])?;
    expect(OP, "d_out", args.d_out, F32, &[rows, g.heads * g.head_dim])?;
    expect(OP, "lse", args.lse, F32, &[rows, g.heads])?;
    expect(OP, "d_qkv", args.d_qkv.view(), F32, &[rows, g.width()])?;
    check_groups(OP, &g, args.groups, args.rows, pages)?;
    crate::context::count(10 * (seen * g.heads * g.head_dim) as u64, 32 * (rows * g.heads * g.head_dim) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => backward::backward(cpu, args),
        Backend::Cuda(cuda) => cuda::backward(cuda, args)?,
    }
    Ok(())
}

/// Checks the geometry and the shape of `qkv`. Returns the number of rows T.
fn check_geometry(op: &'static str, g: &Geometry, qkv: View<'_>) -> Result<usize> {
    let fail = |message| Err(Error::Value { op, message });
    if g.kv_heads == 0 || g.heads == 0 || g.head_dim == 0 || !g.heads.is_multiple_of(g.kv_heads) {
        return fail(format!(
            "invalid heads: {} query heads, {} kv heads, head_dim {}",
            g.heads, g.kv_heads, g.head_dim
        ));
    }
    if g.window == Some(0) {
        return fail("the sliding window must be at least 1, got 0".into());
    }
    let rows = two_dims(op, "qkv", qkv)?[0];
    expect_floats(op, "qkv", qkv, &[rows, g.width()])?;
    Ok(rows)
}

/// Checks the shapes of the KV-cache pages. Returns the number of pages.
fn check_pages(op: &'static str, g: &Geometry, dtype: DType, keys: View<'_>, values: View<'_>) -> Result<usize> {
    let pages = keys.shape().first().copied().unwrap_or(0);
    expect(op, "keys", keys, dtype, &[pages, g.kv_heads, g.head_dim, BLOCK])?;
    expect(op, "values", values, dtype, &[pages, g.kv_heads, BLOCK, g.head_dim])?;
    Ok(pages)
}

/// Checks positions and block tables. Returns the total number of attended (query row, key) pairs.
fn check_rows(op: &'static str, g: &Geometry, at: Rows<'_>, rows: usize, pages: usize) -> Result<usize> {
    expect(op, "positions", at.positions, U32, &[rows])?;
    expect(op, "tables_of_rows", at.tables_of_rows, U32, &[rows])?;
    let [tables, table_len] = two_dims(op, "tables", at.tables)?;
    expect(op, "tables", at.tables, U32, &[tables, table_len])?;
    expect_below(op, "tables_of_rows", at.tables_of_rows.indices(), tables)?;
    expect_below(op, "positions", at.positions.indices(), table_len * BLOCK)?;
    let mut seen = 0;
    // Block table of the previous row, and its range of blocks that are known to be valid pages.
    let mut known = (u32::MAX, 0..0);
    for (&p, &table) in at.positions.indices().iter().zip(at.tables_of_rows.indices()) {
        let keys = g.seen(p as usize);
        seen += keys.len();
        let blocks = keys.start / BLOCK..keys.end.div_ceil(BLOCK);
        if known.0 != table || blocks.start < known.1.start || blocks.end > known.1.end {
            let start = table as usize * table_len;
            expect_below(op, "tables", &at.tables.indices()[start + blocks.start..start + blocks.end], pages)?;
            known = (table, blocks);
        }
    }
    Ok(seen)
}

fn check_writes(op: &'static str, rows: View<'_>, slots: View<'_>, row_count: usize, pages: usize) -> Result<()> {
    let writes = rows.shape().first().copied().unwrap_or(0);
    expect(op, "rows", rows, U32, &[writes])?;
    expect(op, "slots", slots, U32, &[writes])?;
    expect_below(op, "rows", rows.indices(), row_count)?;
    expect_below(op, "slots", slots.indices(), pages * BLOCK)
}

/// Checks that the groups cover all rows and share no KV-cache page, because threads write gradients of different
/// groups at the same time.
fn check_groups(op: &'static str, g: &Geometry, groups: View<'_>, at: Rows<'_>, pages: usize) -> Result<()> {
    let fail = |message| Err(Error::Value { op, message });
    expect(op, "groups", groups, U32, &[groups.shape().iter().product()])?;
    let offsets = groups.indices();
    let (rows, table_len) = (at.positions.shape()[0], at.tables.shape()[1]);
    let ascending = offsets.windows(2).all(|o| o[0] <= o[1]);
    if !ascending || offsets.first() != Some(&0) || offsets.last().map(|&o| o as usize) != Some(rows) {
        return fail(format!("groups {offsets:?} must cover {rows} rows"));
    }
    let mut owner = vec![u32::MAX; pages];
    let (positions, row_tables, tables) = (at.positions.indices(), at.tables_of_rows.indices(), at.tables.indices());
    for (group, o) in offsets.windows(2).enumerate() {
        // Block table of the previous row, and its range of blocks that are known to belong to this group.
        let mut known = (u32::MAX, 0..0);
        for row in o[0] as usize..o[1] as usize {
            let keys = g.seen(positions[row] as usize);
            let blocks = keys.start / BLOCK..keys.end.div_ceil(BLOCK);
            if known.0 == row_tables[row] && known.1.start <= blocks.start && blocks.end <= known.1.end {
                continue;
            }
            let start = row_tables[row] as usize * table_len;
            for &page in &tables[start + blocks.start..start + blocks.end] {
                let owner = &mut owner[page as usize];
                if *owner != u32::MAX && *owner != group as u32 {
                    return fail(format!("groups {owner} and {group} must not share page {page}"));
                }
                *owner = group as u32;
            }
            known = (row_tables[row], blocks);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
