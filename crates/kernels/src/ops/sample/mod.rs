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
//! the uniform, then the logits of that chunk again and the token in it. Other rows take a tile of up to 16 rows of
//! logits.

mod cpu;
pub(super) mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;
mod truncate;

use super::args::{expect, expect_below, expect_shape};
use super::lm_head;
use crate::device::Backend;
use crate::{Context, DType, Device, Error, Matrix, Result, View, ViewMut};

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

impl RowParams<'static> {
    /// The most likely token: nothing is drawn.
    pub const GREEDY: RowParams<'static> = RowParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        history: &[],
        key: 0,
        counter: [0; 4],
    };
}

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[R, H]`
    pub hidden: View<'a>,
    /// `[V, H]`
    pub weight: &'a Matrix,
    /// R of them.
    pub rows: &'a [RowParams<'a>],
    /// What [`pack`] made of `rows`, where it went to the device with what else a step copies; None: it is copied now.
    pub packed: Option<View<'a>>,
    /// u32 `[R]`: *overwrites*.
    pub ids: ViewMut<'a>,
    /// `[R]`, before penalty and truncation: *overwrites*.
    pub logps: ViewMut<'a>,
    /// `[R]`, in the distribution drawn from (0 when greedy): *overwrites*.
    pub truncated_logps: Option<ViewMut<'a>>,
}

/// Draws a token for each row. Beside its outputs it holds what [`super::lm_head::forward`] does, and for rows with a
/// penalty or a truncation 16 rows of logits, and 16 bytes per vocabulary entry and thread.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "sample::forward";
    let Forward { hidden, weight, rows, ref ids, ref logps, ref truncated_logps, .. } = args;
    let of_hidden = lm_head::check(OP, hidden, weight)?;
    expect_shape(OP, "rows", &[rows.len()], &[of_hidden])?;
    expect(OP, "ids", ids.view(), DType::U32, &[rows.len()])?;
    expect(OP, "logps", logps.view(), DType::F32, &[rows.len()])?;
    if let Some(logps) = truncated_logps {
        expect(OP, "truncated_logps", logps.view(), DType::F32, &[rows.len()])?;
    }
    if weight.rows() == 0 && !rows.is_empty() {
        return Err(Error::Value { op: OP, message: "there is no vocabulary to draw from".into() });
    }
    rows.iter().try_for_each(|row| row.check(OP, weight.rows()))?;
    expect_packed(OP, ctx.memory().device(), &args)?;
    lm_head::count_matmuls(hidden, weight, 1, 1);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::forward(cpu, args),
        Backend::Cuda(cuda) => cuda::forward(cuda, args)?,
    }
    Ok(())
}

/// What a device must be told of rows to draw, as words that a step copies with its others: nothing where the host
/// computes. Appends to `words`.
pub fn pack<'a>(device: Device, rows: impl ExactSizeIterator<Item = RowParams<'a>>, words: &mut Vec<u32>) {
    if packs(device) {
        cuda::pack(rows, words);
    }
}

/// The most words that [`pack`] makes of so many rows, each with a history of at most so many tokens.
pub fn packed_len(device: Device, rows: usize, history: usize) -> usize {
    if packs(device) { rows * (cuda::COLUMNS + history) } else { 0 }
}

fn packs(device: Device) -> bool {
    matches!(device, Device::Cuda(_) | Device::CudaEmulated)
}

fn expect_packed(op: &'static str, device: Device, args: &Forward<'_>) -> Result<()> {
    let Some(packed) = args.packed else { return Ok(()) };
    let len = if packs(device) { args.rows.iter().map(RowParams::words).sum() } else { 0 };
    expect(op, "packed", packed, DType::U32, &[len])
}

impl RowParams<'_> {
    /// Words that [`pack`] makes of it.
    fn words(&self) -> usize {
        cuda::COLUMNS + self.penalised().len()
    }
    /// Tokens that are penalised.
    fn penalised(&self) -> &[u32] {
        if self.repetition_penalty == 1.0 { &[] } else { self.history }
    }
    /// 1/T rounded to f32, as the trainer multiplies logits with; 1 when greedy.
    fn inv_temperature(&self) -> f32 {
        if self.temperature == 0.0 { 1.0 } else { (1.0 / self.temperature) as f32 }
    }
    /// Whether the whole row of logits is needed at once.
    pub fn needs_logits(&self) -> bool {
        let truncated = self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0);
        truncated || self.repetition_penalty != 1.0
    }
    fn check(&self, op: &'static str, vocab: usize) -> Result<()> {
        let fail = |message: String| Err(Error::Value { op, message });
        let one = |x: f64| x > 0.0 && x <= 1.0;
        if !(self.temperature >= 0.0 && self.inv_temperature().is_finite()) {
            return fail(format!("temperature is {}, expected 0 or more", self.temperature));
        }
        if !one(self.top_p) {
            return fail(format!("top_p is {}, expected above 0 and at most 1", self.top_p));
        }
        if self.min_p != 0.0 && !one(self.min_p) {
            return fail(format!("min_p is {}, expected 0 to 1", self.min_p));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return fail(format!("repetition_penalty is {}, expected above 0", self.repetition_penalty));
        }
        match self.repetition_penalty != 1.0 {
            true => expect_below(op, "history", self.history, vocab),
            false => Ok(()),
        }
    }
}
