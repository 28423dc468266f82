//! Sampling tokens on the CPU. Each row is drawn by one task.

use super::inverse::{exp_below, inverse_cdf, uniform};
use super::truncate::{self, Drawn};
use super::{Forward, RowParams};
use crate::device::Cpu;
use crate::math;
use crate::ops::lm_head::CHUNK;
use crate::ops::lm_head::cpu::{Beta, Chunks, Head, KEPT, Row, blocks, combine, statistics, with_workspace};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::Simd;
use std::ops::Range;

/// Number of rows with truncation or penalty whose logits are in memory at once.
const TRUNCATED_ROWS: usize = 16;
/// Maximum number of logits of all rows (16 MiB) that are kept until tokens are drawn. If there are more, the logits of
/// the chosen chunk are recomputed, with the same bits. (Small in tests, so that both cases occur.)
const KEPT_LOGITS: usize = if cfg!(test) { 1 << 12 } else { 1 << 22 };

/// Outputs of the draws; each is `[R]`.
struct Outputs<'a> {
    ids: Disjoint<'a, u32>,
    logps: Disjoint<'a, f32>,
    truncated_logps: Option<Disjoint<'a, f32>>,
    lse: Option<Disjoint<'a, f32>>,
    entropies: Option<Disjoint<'a, f32>>,
}

impl Outputs<'_> {
    /// Writes the drawn token with its log-probabilities [untruncated, truncated], and the row's statistics `whole`.
    ///
    /// # Safety
    /// No other task accesses this row.
    #[inline(always)]
    unsafe fn write(&self, row: usize, id: usize, [logp, truncated_logp]: [f32; 2], whole: &Row) {
        let truncated = (&self.truncated_logps, truncated_logp);
        // SAFETY: the caller upholds this function's safety contract.
        unsafe {
            self.ids.slice(row..row + 1)[0] = id as u32;
            self.logps.slice(row..row + 1)[0] = logp;
            for (to, x) in [truncated, (&self.lse, whole.lse), (&self.entropies, whole.entropy)] {
                if let Some(to) = to {
                    to.slice(row..row + 1)[0] = x;
                }
            }
        }
    }
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let outputs = Outputs {
        ids: Disjoint::new(args.ids.u32(cpu)),
        logps: Disjoint::new(args.logps.f32(cpu)),
        truncated_logps: args.truncated_logps.map(|t| Disjoint::new(t.f32(cpu))),
        lse: args.lse.map(|lse| Disjoint::new(lse.f32(cpu))),
        entropies: args.entropies.map(|entropies| Disjoint::new(entropies.f32(cpu))),
    };
    Draws { head: Head::new(cpu, args.hidden, args.weight), rows: args.rows, outputs }.run(cpu);
}

/// All draws of one call of the operation.
struct Draws<'a> {
    head: Head<'a>,
    rows: &'a [RowParams<'a>],
    outputs: Outputs<'a>,
}

impl Draws<'_> {
    /// Draws all rows. Consecutive rows are drawn together if all of them need whole rows of logits, or none of them
    /// does.
    fn run(&self, cpu: &Cpu) {
        let mut start = 0;
        for run in self.rows.chunk_by(|a, b| a.needs_logits() == b.needs_logits()) {
            let rows = start..start + run.len();
            start = rows.end;
            if run[0].needs_logits() {
                blocks(rows, TRUNCATED_ROWS).for_each(|rows| self.truncated(cpu, rows));
            } else {
                blocks(rows, 256).for_each(|rows| self.plain(cpu, rows));
            }
        }
    }

    fn plain(&self, cpu: &Cpu, rows: Range<usize>) {
        let partials_len = rows.len() * self.head.chunks() * KEPT;
        let logits_len = Some(rows.len() * self.head.vocab).filter(|&len| len <= KEPT_LOGITS);
        with_workspace(partials_len + logits_len.unwrap_or(0), |workspace| {
            let (partials, logits) = workspace.split_at_mut(partials_len);
            let (partials, logits) = (Disjoint::new(partials), Disjoint::new(logits));
            let beta = |row: usize| self.rows[row].inv_temperature();
            let (head, beta, logits) = (&self.head, Beta::Each(&beta), logits_len.map(|_| &logits));
            let chunks = Chunks { head, rows: rows.clone(), beta, partials: &partials, picked: None, logits };
            cpu.run(chunks.tasks(), &chunks);
            cpu.run(rows.len(), &Plain { draws: self, rows, partials: &partials, logits });
        });
    }

    fn truncated(&self, cpu: &Cpu, rows: Range<usize>) {
        let vocab = self.head.vocab;
        with_workspace(rows.len() * vocab, |logits| {
            self.head.matmul(rows.clone(), 0..vocab, logits).run(cpu);
            cpu.run(rows.len(), &Truncated { draws: self, first: rows.start, logits: &Disjoint::new(logits) });
        });
    }
}

/// Tasks that draw a token from the statistics of all chunks and the logits of one chunk.
struct Plain<'a> {
    draws: &'a Draws<'a>,
    rows: Range<usize>,
    partials: &'a Disjoint<'a, f32>,
    /// Scaled logits that [`Chunks`] kept, or `None` to recompute the logits of the chosen chunk.
    logits: Option<&'a Disjoint<'a, f32>>,
}

impl Tasks for Plain<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let head = &self.draws.head;
        let row = self.rows.start + index;
        let params = &self.draws.rows[row];
        let beta = params.inv_temperature();
        let kept = head.chunks() * KEPT;
        // SAFETY: no other task accesses this row.
        let partials = unsafe { self.partials.slice(index * kept..(index + 1) * kept) };
        let whole = combine::<V>(partials);
        let (z, scratch) = scratch.split(CHUNK);
        let greedy = params.temperature == 0.0;
        let (chunk, left) = if greedy {
            (partials.chunks_exact(KEPT).position(|chunk| chunk[0] == whole.max).unwrap_or(0), 0.0)
        } else {
            // The third statistic is not needed after `combine`, so the chunk's weight overwrites it.
            for chunk in partials.chunks_exact_mut(KEPT) {
                chunk[2] = chunk[1] * math::exp1::<V>(chunk[0] - whole.max);
            }
            inverse_cdf(partials.chunks_exact(KEPT).map(|chunk| chunk[2]), uniform(params))
        };
        let (ids, max) = (head.ids(chunk), partials[chunk * KEPT]);
        let z = match self.logits {
            Some(logits) => {
                let at = ids.start * self.rows.len() + index * ids.len();
                // SAFETY: no other task accesses this row.
                &*unsafe { logits.slice(at..at + ids.len()) }
            }
            None => {
                head.logits(row..row + 1, chunk, z, scratch);
                statistics::<V>(&mut z[..ids.len()], beta);
                &z[..ids.len()]
            }
        };
        let at = if greedy {
            z.iter().position(|&z| z == max).unwrap_or(0)
        } else {
            let weights = scratch.f32(CHUNK);
            exp_below::<V>(z, max, weights);
            inverse_cdf(weights[..z.len()].iter().copied(), left).0
        };
        let logp = z[at] - whole.lse;
        // SAFETY: no other task accesses this row.
        unsafe { self.draws.outputs.write(row, ids.start + at, [logp, if greedy { 0.0 } else { logp }], &whole) };
    }
}

/// Tasks that draw a token from a whole row of logits, with truncation or penalty.
struct Truncated<'a> {
    draws: &'a Draws<'a>,
    first: usize,
    /// Unscaled logits `[rows][V]`.
    logits: &'a Disjoint<'a, f32>,
}

impl Tasks for Truncated<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let vocab = self.draws.head.vocab;
        let row = self.first + index;
        let params = &self.draws.rows[row];
        let beta = params.inv_temperature();
        // SAFETY: no other task accesses this row.
        let z = unsafe { self.logits.slice(index * vocab..(index + 1) * vocab) };
        let (buffer, ids) = scratch.with_ids(3 * vocab + self.draws.head.chunks() * KEPT);
        let (warped, buffer) = buffer.split_at_mut(vocab);
        let (weights, buffer) = buffer.split_at_mut(vocab);
        let (sorted, partials) = buffer.split_at_mut(vocab);
        truncate::penalise(z, beta, params, warped);
        for (chunk, kept) in z.chunks_mut(CHUNK).zip(partials.chunks_exact_mut(KEPT)) {
            kept.copy_from_slice(&statistics::<V>(chunk, beta));
        }
        let whole = combine::<V>(partials);
        let Drawn { id, logp } = truncate::draw::<V>(params, warped, weights, sorted, ids, || uniform(params));
        // SAFETY: no other task accesses this row.
        unsafe { self.draws.outputs.write(row, id, [z[id] - whole.lse, logp], &whole) };
    }
}
