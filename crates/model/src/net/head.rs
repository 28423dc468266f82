//! The head of a model, which turns hidden states into log-probabilities of given tokens, or into scores; forward and
//! backward.

use super::tape::TapeBackward;
use super::{Rope, Tape};
use crate::batch::{Batch, BatchTensors};
use crate::weights::{Grads, ModelView};
use kernels::ops::{linear, lm_head, rows, sample, zero};
use kernels::{Context, DType, Memory, Result, Tensor, View};

/// The smallest sampling temperature above 0: logits of up to 10¹⁸ divided by it are finite in f32.
pub const LEAST_TEMPERATURE: f64 = 1e-20;

/// The factor on logits at a sampling temperature: 1 / temperature, rounded to f32. Sampler and trainer use the same
/// number.
pub fn inv_temperature(temperature: f64) -> f32 {
    (1.0 / temperature) as f32
}

/// Computes log-probabilities and entropies of the batch's scored tokens after [`forward`](super::forward). Read them
/// with [`Tape::logps`] and [`Tape::entropies`].
///
/// logp = zₜ/T − ln Σᵥ e^(zᵥ/T), with z = hidden Wᵀ the logits, t the token, v over the vocabulary, and T the
/// temperature.
pub fn head_forward<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    batch: &BatchTensors,
    inv_temperature: f32,
    tape: &mut Tape,
) -> crate::Result<()> {
    gather_scored(ctx, batch, tape)?;
    let (head, weight) = (&mut tape.head, model.into().head()?);
    head.inv_temperature = inv_temperature;
    for (piece, _) in batch.head_pieces() {
        tape.stop.check()?;
        lm_head::forward(
            ctx,
            lm_head::Forward {
                hidden: head.hidden.rows(piece.clone()),
                weight,
                targets: batch.targets().rows(piece.clone()),
                inv_temperature,
                logps: head.logps.rows_mut(piece.clone()),
                lse: head.lse.rows_mut(piece.clone()),
                entropies: Some(head.entropies.rows_mut(piece)),
            },
        )?;
    }
    Ok(())
}

/// The results of the head for scored tokens, one of each per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadColumns {
    /// Log-probability of the token at the sampling temperature.
    pub logps: Vec<f32>,
    /// Log-sum-exp of the logits / temperature.
    pub lse: Vec<f32>,
    /// Entropy of the next-token distribution, in nats.
    pub entropies: Vec<f32>,
}

impl HeadColumns {
    /// Empty columns with room for `tokens` tokens.
    pub fn with_capacity(tokens: usize) -> HeadColumns {
        let column = || Vec::with_capacity(tokens);
        HeadColumns { logps: column(), lse: column(), entropies: column() }
    }
}

/// Replaces [`head_forward`] if its results for the batch's scored tokens are already known. It leaves the same
/// contents on the tape.
pub fn head_restore(
    ctx: &Context,
    columns: &HeadColumns,
    batch: &BatchTensors,
    inv_temperature: f32,
    tape: &mut Tape,
) -> Result<()> {
    gather_scored(ctx, batch, tape)?;
    let (r, head) = (batch.capacity.score_rows, &mut tape.head);
    head.inv_temperature = inv_temperature;
    head.logps.rows_mut(0..r).copy_from_f32(&columns.logps);
    head.lse.rows_mut(0..r).copy_from_f32(&columns.lse);
    head.entropies.rows_mut(0..r).copy_from_f32(&columns.entropies);
    Ok(())
}

/// Copies the hidden states that predict the batch's scored tokens to the buffers of the head.
fn gather_scored(ctx: &Context, batch: &BatchTensors, tape: &mut Tape) -> Result<()> {
    let (n, r, head) = (tape.activations.rows, batch.capacity.score_rows, &mut tape.head);
    head.rows = r;
    let (x, rows) = (tape.activations.hidden.rows(0..n), batch.score_rows());
    rows::gather(ctx, rows::Gather { x, rows, out: head.hidden.rows_mut(0..r) })
}

/// The backward pass of [`head_forward`]. It reads the gradients of log-probabilities and entropies, one for each of
/// the R scored tokens `[R]`, overwrites the tape's gradient of the hidden states, and accumulates the gradient of the
/// head into `grads` unless the head is frozen.
pub fn head_backward<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    batch: &BatchTensors,
    d_logps: View<'_>,
    d_entropies: Option<View<'_>>,
    tape: &mut Tape,
    grads: &mut Grads,
) -> crate::Result<()> {
    let back = tape.back.as_mut().ok_or_else(super::no_backward_buffers)?;
    let (n, r, head) = (tape.activations.rows, tape.head.rows, &tape.head);
    let weight = model.into().head()?;
    for (piece, groups) in batch.head_pieces() {
        tape.stop.check()?;
        let entropies = d_entropies.map(|_| head.entropies.rows(piece.clone()));
        lm_head::backward(
            ctx,
            lm_head::Backward {
                hidden: head.hidden.rows(piece.clone()),
                weight,
                targets: batch.targets().rows(piece.clone()),
                inv_temperature: head.inv_temperature,
                lse: head.lse.rows(piece.clone()),
                d_logps: d_logps.rows(piece.clone()),
                d_entropies: d_entropies.map(|d| d.rows(piece.clone())),
                entropies,
                d_hidden: back.d_score_rows.rows_mut(piece),
                d_weight: grads.head_mut(),
                segments: Some(groups),
            },
        )?;
    }
    Ok(spread(ctx, batch, n, r, back)?)
}

/// Computes scores after [`forward`](super::forward) of a model with a score head of one label (a reward or value
/// model). The score for a token comes from the hidden state that predicts it, so it is the score of the text before
/// the token. Read the scores with [`Tape::scores`].
///
/// score = hidden · w, with w the weight of the head.
pub fn score_forward<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    batch: &BatchTensors,
    tape: &mut Tape,
) -> Result<()> {
    gather_scored(ctx, batch, tape)?;
    let (r, head) = (batch.capacity.score_rows, &mut tape.head);
    let (x, y) = (head.hidden.rows(0..r), head.logps.rows_mut(0..r).reshape(&[r, 1]));
    linear::forward(ctx, linear::Forward { x, w: model.into().head()?, bias: None, y, accumulate: false })
}

/// The backward pass of [`score_forward`]. It reads the gradient of the R scores `[R]`, overwrites the tape's gradient
/// of the hidden states, and accumulates the gradient of the head into `grads`.
pub fn score_backward<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    batch: &BatchTensors,
    d_scores: View<'_>,
    tape: &mut Tape,
    grads: &mut Grads,
) -> Result<()> {
    let back = tape.back.as_mut().ok_or_else(super::no_backward_buffers)?;
    let (n, r, head) = (tape.activations.rows, tape.head.rows, &tape.head);
    let (x, d_y) = (head.hidden.rows(0..r), d_scores.reshape(&[r, 1]));
    if let Some(d_w) = grads.head_mut() {
        let segments = Some(batch.score_groups());
        linear::backward_weight(ctx, linear::BackwardWeight { x, d_y, d_w, d_bias: None, segments })?;
    }
    let d_x = back.d_score_rows.rows_mut(0..r);
    linear::backward_input(ctx, linear::BackwardInput { d_y, w: model.into().head()?, d_x, accumulate: false })?;
    spread(ctx, batch, n, r, back)
}

/// Scatters the gradients of the `r` hidden states that predict scored tokens into the gradient of all `n` hidden
/// states, which is overwritten.
fn spread(ctx: &Context, batch: &BatchTensors, n: usize, r: usize, back: &mut TapeBackward) -> Result<()> {
    let (d_out, rows) = (back.d_score_rows.rows(0..r), batch.score_rows());
    zero(ctx, back.d_hidden.rows_mut(0..n));
    rows::scatter_add(ctx, rows::ScatterAdd { d_out, rows, d_x: back.d_hidden.rows_mut(0..n) })
}

/// Log-probabilities and entropies of a batch's scored tokens, in the order of the batch ([`Batch::scores_of_branches`]
/// contains the range of each completion).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Log-probability of each scored token at the sampling temperature.
    pub logps: Vec<f32>,
    /// Entropy of the next-token distribution at each scored token, in nats.
    pub entropies: Vec<f32>,
}

/// Computes log-probabilities and entropies of a batch's scored tokens, without gradients. The batch must fit `tape`.
/// Any tape works; with [`Tape::forward_only`] memory does not grow with the number of layers.
pub fn score<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    rope: &Rope,
    batch: &Batch,
    tape: &mut Tape,
    temperature: f64,
) -> crate::Result<Scores> {
    let batch = BatchTensors::new(ctx.memory(), batch);
    let model = model.into();
    super::forward(ctx, model, rope, &batch, tape)?;
    head_forward(ctx, model, &batch, inv_temperature(temperature), tape)?;
    Ok(Scores { logps: tape.logps().to_vec_f32(), entropies: tape.entropies().to_vec_f32() })
}

/// The most likely token at the position of each scored token; ties go to the lowest id. Call it after
/// [`head_forward`]; it computes all logits a second time.
pub(crate) fn most_likely<'a>(
    ctx: &Context,
    model: impl Into<ModelView<'a>>,
    memory: &Memory,
    tape: &Tape,
) -> Result<Vec<u32>> {
    let (r, memory) = (tape.head.rows, memory.part("workspace"));
    let mut ids = Tensor::zeros(&memory, &[r], DType::U32);
    let mut logps = Tensor::zeros(&memory, &[r], DType::F32);
    sample::forward(
        ctx,
        sample::Forward {
            hidden: tape.head.hidden.rows(0..r),
            weight: model.into().head()?,
            rows: &vec![sample::RowParams::GREEDY; r],
            packed: None,
            ids: ids.view_mut(),
            logps: logps.view_mut(),
            truncated_logps: None,
            lse: None,
            entropies: None,
        },
    )?;
    let mut all = vec![0; r];
    ids.view().copy_to_u32(&mut all);
    Ok(all)
}
