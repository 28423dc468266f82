//! Attention over pages of keys and values: causal, sliding window, grouped query heads. One kernel for decode, prefill
//! and training, so that the sampler and the trainer see the same bits.
//!
//! Shapes: `T` rows (tokens), `nh` query heads, `nkv` kv heads, `hd` head_dim, `A = nh + 2·nkv` heads of a fused row
//! `[q][k][v]`, `S` block tables, `W` writes. Query head h reads kv head `h / (nh / nkv)`.
//!
//! A page holds [`BLOCK`] positions: keys `[nkv, hd, 64]`, values `[nkv, 64, hd]` (of bf16 where there are tiles in an
//! order of its own: `pages.rs`; [`write_kv`] and what reads its pages must run on one instruction set). Position j of
//! a sequence lies in page
//! `tables[s][j / 64]`, slot `j % 64`, so key blocks are aligned to the sequence's own positions. The row at position p
//! attends `max(0, p + 1 − window) ..= p`, and nothing beyond p is let into a result: later slots may hold anything (on
//! tiles they must be finite once they are written: `tiles.rs`).
//!
//! ```text
//! z[j]   = (Σ_i q[i] · k[j,i]) · scale                     one ascending FMA chain over i
//! out    = Σ_j exp(z[j] − lse) · v[j],   lse = ln Σ_j exp(z[j])
//! ```
//! computed block by block, ascending, in one pass (Milakov and Gimelshein, "Online normalizer calculation for
//! softmax", 2018; Dao et al., "FlashAttention", 2022). Backward recomputes P from `lse`:
//! ```text
//! P[j]   = exp(z[j] − lse)          D = Σ_i d_out[i] · out[i]
//! dP[j]  = Σ_i d_out[i] · v[j,i]    dS[j] = P[j] · (dP[j] − D) · scale
//! d_q    = Σ_j dS[j] · k[j]         d_k[j] = Σ dS[j] · q        d_v[j] = Σ P[j] · d_out     over rows and query heads
//! ```
//! In bf16 exp(z − m), and in backward P, dS and d_out, are rounded where they are multiplied, on every instruction
//! set; with AMX the matmuls are those of tiles. `docs/arithmetic.md` has both.

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
pub mod reference;
mod tiles;
mod visits;
mod writes;

use crate::DType::{F32, U32};
use crate::device::Backend;
use crate::ops::args::{expect, expect_below, expect_floats, two_dims};
use crate::{Context, DType, Error, Result, View, ViewMut};

/// Positions of a page, and keys of a step of the online softmax.
pub const BLOCK: usize = 64;

/// One layer's pages, to read. Keys, values, fused rows and outputs are f32, or all bf16 (widened when read, rounded
/// when written; so are the exp(z − m) that multiply values, but not their sum).
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    /// `[blocks, nkv, hd, 64]`: transposed, so that a matmul is vectorised over keys.
    pub keys: View<'a>,
    /// `[blocks, nkv, 64, hd]`
    pub values: View<'a>,
}

/// One layer's pages, to write.
pub struct PagesMut<'a> {
    /// `[blocks, nkv, hd, 64]`
    pub keys: ViewMut<'a>,
    /// `[blocks, nkv, 64, hd]`
    pub values: ViewMut<'a>,
}

/// What the heads are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// Query heads, nh: a multiple of nkv.
    pub heads: usize,
    /// nkv
    pub kv_heads: usize,
    /// hd
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Window w ≥ 1: key j is visible to the query at p if p − w < j ≤ p. None: all j ≤ p.
    pub window: Option<usize>,
}

/// Which row stands where, and in which pages its sequence lies.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// u32 `[T]`
    pub positions: View<'a>,
    /// u32 `[T]`: the block table of each row, below S.
    pub tables_of_rows: View<'a>,
    /// u32 `[S, max_blocks]`
    pub tables: View<'a>,
}

/// Arguments of [`write_kv`].
pub struct WriteKv<'a> {
    /// `[T, A·hd]`
    pub qkv: View<'a>,
    /// What the heads are.
    pub geometry: Geometry,
    /// u32 `[W]`: rows of `qkv`; a row may be written to several slots.
    pub rows: View<'a>,
    /// u32 `[W]`: page · 64 + slot, no slot twice.
    pub slots: View<'a>,
    /// *Overwrites* the slots, and touches no other.
    pub pages: PagesMut<'a>,
}

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[T, A·hd]`: only the query heads are read.
    pub qkv: View<'a>,
    /// What the heads are.
    pub geometry: Geometry,
    /// Where the rows stand.
    pub rows: Rows<'a>,
    /// Keys and values, those of the rows themselves included.
    pub pages: Pages<'a>,
    /// `[T, nh·hd]`: *overwrites*.
    pub out: ViewMut<'a>,
    /// `[T, nh]`: *overwrites* with the log-sum-exp of the scaled scores, which [`backward`] needs.
    pub lse: Option<ViewMut<'a>>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[T, A·hd]`
    pub qkv: View<'a>,
    /// What the heads are.
    pub geometry: Geometry,
    /// Where the rows stand.
    pub rows: Rows<'a>,
    /// Keys and values as forward saw them.
    pub pages: Pages<'a>,
    /// u32 `[W]`, as in [`WriteKv`].
    pub write_rows: View<'a>,
    /// u32 `[W]`, as in [`WriteKv`].
    pub write_slots: View<'a>,
    /// `[T, nh·hd]`, from forward.
    pub out: View<'a>,
    /// `[T, nh]`, from forward.
    pub lse: View<'a>,
    /// `[T, nh·hd]`
    pub d_out: View<'a>,
    /// `[T, A·hd]`: *overwrites*. A row that was written to several slots gets the sum of their gradients in list
    /// order.
    pub d_qkv: ViewMut<'a>,
    /// Workspace of the pages' shape; zeroed inside, afterwards the gradient of each slot that a row sees (of keys
    /// `[blocks, nkv, 64, hd]` where matmuls run on tiles). Others are left as they were.
    pub d_pages: PagesMut<'a>,
    /// u32 `[G + 1]`: the first row of each independent group, and T at last. No page is shared across groups.
    pub groups: View<'a>,
}

/// Writes key and value heads of rows into slots.
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

/// Copies page `from` over page `to`.
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

/// Attention of every row to its sequence's keys.
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

/// Gradients of queries, keys and values.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "attention::backward";
    let (g, rows) = (args.geometry, check_geometry(OP, &args.geometry, args.qkv)?);
    let pages = check_pages(OP, &g, args.qkv.dtype(), args.pages.keys, args.pages.values)?;
    if check_pages(OP, &g, F32, args.d_pages.keys.view(), args.d_pages.values.view())? < pages {
        return Err(Error::Value { op: OP, message: format!("d_pages has fewer than {pages} pages") });
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

/// Rows of `qkv`.
fn check_geometry(op: &'static str, g: &Geometry, qkv: View<'_>) -> Result<usize> {
    let fail = |message| Err(Error::Value { op, message });
    if g.kv_heads == 0 || g.heads == 0 || g.head_dim == 0 || !g.heads.is_multiple_of(g.kv_heads) {
        return fail(format!("{} query heads on {} kv heads of {}", g.heads, g.kv_heads, g.head_dim));
    }
    if g.window == Some(0) {
        return fail("a window of 0 sees nothing".into());
    }
    let rows = two_dims(op, "qkv", qkv)?[0];
    expect_floats(op, "qkv", qkv, &[rows, g.width()])?;
    Ok(rows)
}

/// The number of pages.
fn check_pages(op: &'static str, g: &Geometry, dtype: DType, keys: View<'_>, values: View<'_>) -> Result<usize> {
    let pages = keys.shape().first().copied().unwrap_or(0);
    expect(op, "keys", keys, dtype, &[pages, g.kv_heads, g.head_dim, BLOCK])?;
    expect(op, "values", values, dtype, &[pages, g.kv_heads, BLOCK, g.head_dim])?;
    Ok(pages)
}

/// Pairs of a query row and a key that it sees.
fn check_rows(op: &'static str, g: &Geometry, at: Rows<'_>, rows: usize, pages: usize) -> Result<usize> {
    expect(op, "positions", at.positions, U32, &[rows])?;
    expect(op, "tables_of_rows", at.tables_of_rows, U32, &[rows])?;
    let [tables, table_len] = two_dims(op, "tables", at.tables)?;
    expect(op, "tables", at.tables, U32, &[tables, table_len])?;
    expect_below(op, "tables_of_rows", at.tables_of_rows.indices(), tables)?;
    expect_below(op, "positions", at.positions.indices(), table_len * BLOCK)?;
    let mut seen = 0;
    // The row before, and the blocks of its table that are known to be pages.
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

fn check_writes(op: &'static str, rows: View<'_>, slots: View<'_>, of_rows: usize, pages: usize) -> Result<()> {
    let writes = rows.shape().first().copied().unwrap_or(0);
    expect(op, "rows", rows, U32, &[writes])?;
    expect(op, "slots", slots, U32, &[writes])?;
    expect_below(op, "rows", rows.indices(), of_rows)?;
    expect_below(op, "slots", slots.indices(), pages * BLOCK)
}

/// Groups cover the rows, and share no page: threads write gradients of different groups at once.
fn check_groups(op: &'static str, g: &Geometry, groups: View<'_>, at: Rows<'_>, pages: usize) -> Result<()> {
    let fail = |message| Err(Error::Value { op, message });
    let offsets = groups.indices();
    let (rows, table_len) = (at.positions.shape()[0], at.tables.shape()[1]);
    let ascending = offsets.windows(2).all(|o| o[0] <= o[1]);
    if !ascending || offsets.first() != Some(&0) || offsets.last().map(|&o| o as usize) != Some(rows) {
        return fail(format!("groups {offsets:?} do not cover {rows} rows"));
    }
    let mut owner = vec![u32::MAX; pages];
    let (positions, of_rows, tables) = (at.positions.indices(), at.tables_of_rows.indices(), at.tables.indices());
    for (group, o) in offsets.windows(2).enumerate() {
        // The row before's table, and the blocks of it that are known to be this group's.
        let mut known = (u32::MAX, 0..0);
        for row in o[0] as usize..o[1] as usize {
            let keys = g.seen(positions[row] as usize);
            let blocks = keys.start / BLOCK..keys.end.div_ceil(BLOCK);
            if known.0 == of_rows[row] && known.1.start <= blocks.start && blocks.end <= known.1.end {
                continue;
            }
            let start = of_rows[row] as usize * table_len;
            for &page in &tables[start + blocks.start..start + blocks.end] {
                let owner = &mut owner[page as usize];
                if *owner != u32::MAX && *owner != group as u32 {
                    return fail(format!("page {page} is in groups {owner} and {group}"));
                }
                *owner = group as u32;
            }
            known = (of_rows[row], blocks);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
