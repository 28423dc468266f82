//! Sampling: draws the next token of each sequence from its last hidden row, and records the token's log-probability.
//!
//! Letters in shapes: `R` rows (sequences), `H` hidden size, `V` vocabulary size; T is the temperature.
//!
//! ```text
//! l[v]      = Σ_h hidden[h] W[v,h]
//! recorded  = log-softmax(l / T)[id]                    (T = 1 when greedy): the bits of lm_head::forward
//! drawn     : l → repetition penalty → 1/T → top-k → top-p → min-p → softmax, inverse CDF of one uniform
//! ```
//!
//! Penalty and truncation are applied in the order of transformers' logits warpers. The uniform random number is
//! Philox4x32-10 of the row's key and counter, so a draw depends only on its row and never on the rest of the batch.
//! Greedy sampling (T = 0) takes the token with the largest logit; ties go to the lowest id.
//!
//! A row without penalty and truncation never needs all of its logits at once. The statistics of the vocabulary's
//! chunks are computed first ([`super::lm_head`]); the random number chooses a chunk; then the token is drawn from that
//! chunk's logits, which are recomputed if they were not kept. The other rows are drawn from whole rows of logits, up
//! to 16 rows at a time.

mod cpu;
pub(super) mod cuda;
mod inverse;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;
mod truncate;

use super::args::{expect, expect_below, expect_shape};
use super::lm_head;
use crate::device::Backend;
use crate::{Context, DType, Device, Error, Matrix, Result, View, ViewMut};

/// Sampling parameters of one row.
#[derive(Clone, Copy, Debug)]
pub struct RowParams<'a> {
    /// Temperature T; 0 means greedy.
    pub temperature: f64,
    /// top-k: keep the k most likely tokens, and all tokens that tie with the k-th; 0 keeps all.
    pub top_k: usize,
    /// top-p: keep the most likely tokens that together have this probability; 1 keeps all.
    pub top_p: f64,
    /// min-p: keep the tokens with at least this fraction of the largest probability; 0 keeps all.
    pub min_p: f64,
    /// Repetition penalty: positive logits of tokens in `history` are divided by this number, and other logits of these
    /// tokens are multiplied by it; 1 changes nothing.
    pub repetition_penalty: f64,
    /// The sequence's tokens so far, prompt included, for the repetition penalty; each below V.
    pub history: &'a [u32],
    /// Random key: the seed of the training run.
    pub key: u64,
    /// Counter of the random generator, different for every draw of the training run.
    pub counter: [u32; 4],
}

impl RowParams<'static> {
    /// Parameters that take the most likely token, without a random number.
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
    /// Hidden rows `[R, H]`.
    pub hidden: View<'a>,
    /// Weight of the lm head: `[V, H]`.
    pub weight: &'a Matrix,
    /// Sampling parameters of each of the R rows.
    pub rows: &'a [RowParams<'a>],
    /// The output of [`pack`] for `rows`, if it was already copied to the device with other inputs of a decode step. If
    /// `None`, this call copies it.
    pub packed: Option<View<'a>>,
    /// The drawn token ids: u32 `[R]`, *overwrites*.
    pub ids: ViewMut<'a>,
    /// Log-probability of each drawn token before penalty and truncation: `[R]`, *overwrites*.
    pub logps: ViewMut<'a>,
    /// Log-probability of each drawn token after penalty and truncation (0 when greedy): `[R]`, *overwrites*.
    pub truncated_logps: Option<ViewMut<'a>>,
    /// Log-sum-exp of each row's logits / T before penalty and truncation, the bits of [`lm_head::forward`]: `[R]`,
    /// *overwrites*.
    pub lse: Option<ViewMut<'a>>,
    /// Entropy of each row's distribution before penalty and truncation, in nats, the bits of [`lm_head::forward`]:
    /// `[R]`, *overwrites*.
    pub entropies: Option<ViewMut<'a>>,
}

/// Draws a token for each row. Memory in addition to the outputs: that of [`super::lm_head::forward`] and, for rows
/// with a penalty or truncation, 16 rows of logits, and 16 bytes per vocabulary entry and thread.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "sample::forward";
    let Forward { hidden, weight, rows, ref ids, ref logps, ref truncated_logps, ref lse, ref entropies, .. } = args;
    let hidden_rows = lm_head::check(OP, hidden, weight)?;
    expect_shape(OP, "rows", &[rows.len()], &[hidden_rows])?;
    expect(OP, "ids", ids.view(), DType::U32, &[rows.len()])?;
    expect(OP, "logps", logps.view(), DType::F32, &[rows.len()])?;
    for (name, column) in [("truncated_logps", truncated_logps), ("lse", lse), ("entropies", entropies)] {
        column.iter().try_for_each(|column| expect(OP, name, column.view(), DType::F32, &[rows.len()]))?;
    }
    if weight.rows() == 0 && !rows.is_empty() {
        return Err(Error::Value { op: OP, message: "the vocabulary is empty".into() });
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

/// Appends the sampling parameters of `rows` to `words`, in the form that a CUDA device needs. A decode step copies
/// these words to the device with its other inputs. On the CPU nothing is appended.
pub fn pack<'a>(device: Device, rows: impl ExactSizeIterator<Item = RowParams<'a>>, words: &mut Vec<u32>) {
    if packs(device) {
        cuda::pack(rows, words);
    }
}

/// Maximum number of words that [`pack`] appends for this number of rows, each with a history of at most `history`
/// tokens.
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
    /// Number of words that [`pack`] appends for this row.
    fn words(&self) -> usize {
        cuda::COLUMNS + self.penalised().len()
    }
    /// Tokens that the repetition penalty applies to; none if the penalty is 1.
    fn penalised(&self) -> &[u32] {
        if self.repetition_penalty == 1.0 { &[] } else { self.history }
    }
    /// The factor on logits, which the trainer uses too: 1/T rounded to f32; 1 when greedy.
    fn inv_temperature(&self) -> f32 {
        if self.temperature == 0.0 { 1.0 } else { (1.0 / self.temperature) as f32 }
    }
    /// Whether drawing needs the whole row of logits at once: with a penalty or truncation.
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
        if self.repetition_penalty != 1.0 { expect_below(op, "history", self.history, vocab) } else { Ok(()) }
    }
}
