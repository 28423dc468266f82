//! Attention over pages of keys and values: causal, sliding window, grouped query heads. One kernel for decode, prefill
//! and training, so that the sampler and the trainer see the same bits.
//!
//! Shapes: `T` rows (tokens), `nh` query heads, `nkv` kv heads, `hd` head_dim, `A = nh + 2·nkv` heads of a fused row
//! `[q][k][v]`, `S` block tables, `W` writes. Query head h reads kv head `h / (nh / nkv)`.
//!
//! A page holds [`BLOCK`] positions: keys `[nkv, hd, 64]`, values `[nkv, 64, hd]`. Position j of a sequence lies in page
//! `tables[s][j / 64]`, slot `j % 64`, so key blocks are aligned to the sequence's own positions. The row at position p
//! attends `max(0, p + 1 − window) ..= p`, and nothing beyond p is let into a result: later slots may hold anything.
//!
//! ```text
//! z[j]   = (Σ_i q[i] · k[j,i]) · scale                     one ascending FMA chain over i
//! out    = Σ_j exp(z[j] − lse) · v[j],   lse = ln Σ_j exp(z[j])
//! ```
//! computed block by block, ascending, in one pass (Milakov and Gimelshein, "Online normalizer calculation for softmax",
//! 2018; Dao et al., "FlashAttention", 2022). Backward recomputes P from `lse`:
//! ```text
//! P[j]   = exp(z[j] − lse)          D = Σ_i d_out[i] · out[i]
//! dP[j]  = Σ_i d_out[i] · v[j,i]    dS[j] = P[j] · (dP[j] − D) · scale
//! d_q    = Σ_j dS[j] · k[j]         d_k[j] = Σ dS[j] · q        d_v[j] = Σ P[j] · d_out     over rows and query heads
//! ```

use crate::{Context, Result, View, ViewMut};

/// Positions of a page, and keys of a step of the online softmax.
pub const BLOCK: usize = 64;

/// One layer's pages, to read.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    /// `[blocks, nkv, hd, 64]`: transposed, so that a product is vectorised over keys.
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
    /// `[T, A·hd]`: *overwrites*. A row that was written to several slots gets the sum of their gradients in list order.
    pub d_qkv: ViewMut<'a>,
    /// Workspace of the pages' shape; zeroed inside, afterwards the gradient of each slot.
    pub d_pages: PagesMut<'a>,
    /// u32 `[G + 1]`: the first row of each independent group, and T at last. No page is shared across groups.
    pub groups: View<'a>,
}

/// Writes key and value heads of rows into slots.
pub fn write_kv(_ctx: &Context, _args: WriteKv<'_>) -> Result<()> {
    unimplemented!()
}

/// Copies page `from` over page `to`.
pub fn copy_block(_ctx: &Context, _from: u32, _to: u32, _pages: PagesMut<'_>) -> Result<()> {
    unimplemented!()
}

/// Attends.
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}

/// Gradients of queries, keys and values.
pub fn backward(_ctx: &Context, _args: Backward<'_>) -> Result<()> {
    unimplemented!()
}
