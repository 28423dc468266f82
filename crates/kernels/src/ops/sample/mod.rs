//! Sampling: the next token of each row, drawn from its hidden row, and the log-probability that is recorded for it.
//!
//! Shapes: `R` rows, `H` hidden, `V` vocabulary.
//!
//! ```text
//! l[v]      = Σ_h hidden[h] W[v,h]
//! recorded  = log-softmax(l / T)[id]                    (T = 1 when greedy): the bits of lm_head::forward
//! drawn     : l → repetition penalty → 1/T → top-k → top-p → min-p → softmax, inverse CDF of one uniform
//! ```
//!
//! The order is that of transformers' warpers. The uniform is Philox4x32-10 of the row's key and counter, so a draw
//! depends on the row's own identity, never on the batch. Greedy (T = 0) takes the largest, on ties the lowest id.
//!
//! A row with neither penalty nor truncation keeps no logits: chunk statistics first ([`super::lm_head`]), the chunk by
//! the uniform, then the logits of that chunk again and the token in it. Other rows take a tile of up to 16 rows of logits.

use crate::{Context, Matrix, Result, View, ViewMut};

/// How one row is drawn.
#[derive(Clone, Copy, Debug)]
pub struct RowParams<'a> {
    /// T; 0 is greedy.
    pub temperature: f64,
    /// Keep the k most likely (and what ties with the k-th); 0 keeps all.
    pub top_k: usize,
    /// Keep the most likely that together have this probability; 1 keeps all.
    pub top_p: f64,
    /// Keep what is at least this times as likely as the most likely; 0 keeps all.
    pub min_p: f64,
    /// Logits of tokens in `history` are divided by it if positive, else multiplied; 1 changes nothing.
    pub repetition_penalty: f64,
    /// Tokens so far, prompt included, for the penalty; each below V.
    pub history: &'a [u32],
    /// The run's seed.
    pub key: u64,
    /// Names the draw: unique in the run.
    pub counter: [u32; 4],
}

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[R, H]`
    pub hidden: View<'a>,
    /// `[V, H]`
    pub weight: &'a Matrix,
    /// R of them.
    pub rows: &'a [RowParams<'a>],
    /// u32 `[R]`: *overwrites*.
    pub ids: ViewMut<'a>,
    /// `[R]`, before penalty and truncation: *overwrites*.
    pub logps: ViewMut<'a>,
    /// `[R]`, in the distribution drawn from (0 when greedy): *overwrites*.
    pub truncated_logps: Option<ViewMut<'a>>,
}

/// Draws a token for each row.
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}
