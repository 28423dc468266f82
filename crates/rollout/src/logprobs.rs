//! Optional log-probabilities besides those of the sampled tokens: of prompt tokens and of the most likely
//! alternatives. They are computed from full rows of logits, a few rows at a time, and only for requests that ask for
//! them.

use crate::Result;
use crate::scheduler::{Chunk, Scheduler};
use crate::sequence::Draw;
use kernels::ops::{lm_head, rows};
use kernels::{Context, DType, Tensor, View};
use model::ModelView;
use model::net::inv_temperature;

/// The maximum number of rows of logits in memory at once.
const ROWS: usize = 16;

/// The k most likely tokens of a row, in descending order (ties by ascending id), and their log-probabilities.
pub(crate) type Top = (Vec<u32>, Vec<f32>);

/// Buffers for rows of logits, on the device and on the host.
pub(crate) struct LogitRows {
    index: Tensor,
    hidden: Tensor,
    logits: Tensor,
    lse: Tensor,
    vocab: usize,
}

/// The log-probabilities of one row of logits.
struct Row<'a> {
    z: &'a [f32],
    lse: f32,
}

impl Row<'_> {
    fn top(&self, k: usize) -> Top {
        let k = k.min(self.z.len());
        let mut ids: Vec<u32> = (0..self.z.len() as u32).collect();
        let likelier = |&a: &u32, &b: &u32| self.z[b as usize].total_cmp(&self.z[a as usize]).then(a.cmp(&b));
        if k > 0 && k < ids.len() {
            ids.select_nth_unstable_by(k - 1, likelier);
        }
        ids.truncate(k);
        ids.sort_unstable_by(likelier);
        let logps = ids.iter().map(|&id| self.z[id as usize] - self.lse).collect();
        (ids, logps)
    }
}

impl LogitRows {
    pub(crate) fn new(ctx: &Context, model: ModelView<'_>) -> Result<LogitRows> {
        let (memory, config) = (ctx.memory().part("workspace"), model.config());
        let vocab = model.head()?.rows();
        Ok(LogitRows {
            index: Tensor::zeros(&memory, &[ROWS], DType::U32),
            hidden: Tensor::zeros(&memory, &[ROWS, config.hidden_size], config.compute),
            logits: Tensor::zeros(&memory, &[ROWS, vocab], DType::F32),
            lse: Tensor::zeros(&memory, &[ROWS], DType::F32),
            vocab,
        })
    }

    /// Copies these rows of `hidden`, at most [`ROWS`] of them, to the front of the buffer.
    fn gather(&mut self, ctx: &Context, hidden: View<'_>, rows: &[u32]) -> Result<()> {
        let n = rows.len();
        self.index.rows_mut(0..n).copy_from_u32(rows);
        let (index, out) = (self.index.rows(0..n), self.hidden.rows_mut(0..n));
        Ok(rows::gather(ctx, rows::Gather { x: hidden, rows: index, out })?)
    }

    /// Passes the logits of each `wanted` row of `hidden` to `see`.
    fn each(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        hidden: View<'_>,
        wanted: &[u32],
        temperature: f64,
        mut see: impl FnMut(usize, Row<'_>),
    ) -> Result<()> {
        // For greedy sampling (T = 0) the sampler records log-probabilities at T = 1, and so does this function.
        let inv_temperature = inv_temperature(if temperature == 0.0 { 1.0 } else { temperature });
        for (piece, rows) in wanted.chunks(ROWS).enumerate() {
            let n = rows.len();
            self.gather(ctx, hidden, rows)?;
            let args = lm_head::Logits {
                hidden: self.hidden.rows(0..n),
                weight: model.head()?,
                inv_temperature,
                logits: self.logits.rows_mut(0..n),
                lse: self.lse.rows_mut(0..n),
            };
            lm_head::logits(ctx, args)?;
            let (z, lse) = (self.logits.rows(0..n).to_vec_f32(), self.lse.rows(0..n).to_vec_f32());
            for (i, (z, lse)) in z.chunks_exact(self.vocab).zip(lse).enumerate() {
                see(piece * ROWS + i, Row { z, lse });
            }
        }
        Ok(())
    }

    /// The most likely tokens for each draw. Empty for requests that do not want them.
    pub(crate) fn top_tokens(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        hidden: View<'_>,
        scheduler: &Scheduler,
        draws: &[Draw],
    ) -> Result<Vec<Top>> {
        let mut all = Vec::with_capacity(draws.len());
        for draw in draws {
            let sampling = &scheduler.sampling(draw.sequence);
            let (k, mut top) = (sampling.top_logprobs, Top::default());
            if k > 0 {
                self.each(ctx, model, hidden, &[draw.row], sampling.temperature, |_, row| top = row.top(k))?;
            }
            all.push(top);
        }
        Ok(all)
    }

    /// Records the log-probabilities and alternatives of the prompt tokens whose rows are in `chunks`, for requests
    /// that want them.
    pub(crate) fn record_prompts(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        hidden: View<'_>,
        scheduler: &mut Scheduler,
        chunks: &[Chunk],
    ) -> Result<()> {
        let mut first = 0;
        for chunk in chunks {
            let start = first;
            first += chunk.to - chunk.from;
            let s = &scheduler.sequences[chunk.sequence];
            let group = &scheduler.groups[s.group];
            let (request, recorded) = (group.request.clone(), group.prompt_logps.len());
            if !request.sampling.prompt_logprobs || recorded < chunk.from {
                continue;
            }
            // The row at position p predicts token p + 1.
            let positions = recorded..chunk.to.min(s.prompt_len - 1);
            let rows: Vec<u32> = positions.clone().map(|p| (start + p - chunk.from) as u32).collect();
            let group = &mut scheduler.groups[s.group];
            self.each(ctx, model, hidden, &rows, request.sampling.temperature, |i, row| {
                let next = request.prompt.ids[positions.start + i + 1];
                group.prompt_logps.push(row.z[next as usize] - row.lse);
                let (ids, logps) = row.top(request.sampling.top_logprobs);
                group.prompt_top.push(&ids, &logps);
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
