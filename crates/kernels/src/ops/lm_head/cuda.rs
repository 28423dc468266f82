//! The lm head on CUDA. For each block of rows and window of the vocabulary, a matmul computes the logits. Another
//! kernel then computes their statistics (forward) or gradients (backward).

use super::cpu::{KEPT, blocks};
use super::{BLOCK_ROWS, Backward, CHUNK, Forward, Logits};
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::linear::cuda::{Rows, Sizes, matmul, matmul_of_inputs, matmul_of_weight};
use crate::{Matrix, Result};
use std::ops::Range;

const SOURCE: Source = source!("lm_head");

/// Number of vocabulary entries whose logits are in memory at once.
pub(crate) const WINDOW: usize = 8 * CHUNK;

/// The operands of the lm head on the device: hidden rows and weight.
pub(crate) struct Head {
    hidden: Arg,
    weight: Arg,
    width: usize,
    pub(crate) vocab: usize,
}

/// The factor 1/T of the logits, the same for all rows or one per row.
pub(crate) enum Beta {
    All(f32),
    Each(Arg),
}

impl Head {
    pub(crate) fn new(cuda: &Cuda, hidden: crate::View<'_>, weight: &Matrix) -> Result<Head> {
        let (width, vocab) = (weight.cols(), weight.rows());
        Ok(Head { hidden: hidden.f32_at(cuda)?, weight: weight.data().view().f32_at(cuda)?, width, vocab })
    }
    fn rows(&self, rows: &Range<usize>) -> Rows {
        Rows { at: self.hidden.after::<f32>(rows.start * self.width), width: self.width }
    }
    fn sizes(&self, rows: &Range<usize>, ids: &Range<usize>) -> Sizes {
        Sizes { m: rows.len(), n: ids.len(), k: self.width }
    }
    /// Address of the weight rows of `ids`, which start at a panel.
    fn weight_rows(&self, weight: Arg, ids: &Range<usize>) -> Arg {
        weight.after::<f32>(ids.start * self.width)
    }
    /// Computes unscaled logits into `to`: `[rows][ids]`.
    pub(crate) fn logits(&self, cuda: &Cuda, rows: &Range<usize>, ids: &Range<usize>, to: Arg) -> Result<()> {
        let (weight, to) = (self.weight_rows(self.weight, ids), Rows { at: to, width: ids.len() });
        matmul(cuda, self.sizes(rows, ids), self.rows(rows), [weight, Arg::NULL], to, false)
    }
    pub(crate) fn chunks(&self) -> usize {
        self.vocab.div_ceil(CHUNK)
    }
    /// Scales logits `[rows][ids]` in place, stores the statistics of each chunk in `partials`, and each target's
    /// scaled logit in `picked`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn statistics(
        &self,
        cuda: &Cuda,
        rows: usize,
        ids: &Range<usize>,
        logits: Arg,
        partials: Arg,
        [targets, picked]: [Arg; 2],
        beta: Beta,
    ) -> Result<()> {
        let (betas, beta) = match beta {
            Beta::All(beta) => (Arg::NULL, beta),
            Beta::Each(betas) => (betas, 0.0),
        };
        let mut arguments = vec![logits, partials, targets, picked, betas, beta.into()];
        arguments.extend([rows, ids.len(), ids.start, CHUNK, self.chunks()].map(Arg::from));
        let grid = Grid::lanes(rows * ids.len().div_ceil(CHUNK));
        cuda.launch(&SOURCE, "lm_head_statistics", grid, &arguments)
    }
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (head, all) = (Head::new(cuda, args.hidden, args.weight)?, args.hidden.shape()[0]);
    let (logps, lse, targets) = (args.logps.f32_at(cuda)?, args.lse.f32_at(cuda)?, args.targets.u32_at(cuda));
    let entropies = args.entropies.as_mut().map_or(Ok(Arg::NULL), |entropies| entropies.f32_at(cuda))?;
    let (most, chunks) = (all.min(BLOCK_ROWS), head.chunks());
    let logits = cuda.stream().scratch(most * head.vocab.min(WINDOW) * size_of::<f32>())?;
    let partials = cuda.stream().scratch(most * chunks * KEPT * size_of::<f32>())?;
    let (logits, partials) = (logits.at(0), partials.at(0));
    for rows in blocks(0..all, BLOCK_ROWS) {
        let block_column = |column: Arg| if column == Arg::NULL { column } else { column.after::<f32>(rows.start) };
        for ids in blocks(0..head.vocab, WINDOW) {
            head.logits(cuda, &rows, &ids, logits)?;
            let (beta, picked) = (Beta::All(args.inv_temperature), [block_column(targets), block_column(logps)]);
            head.statistics(cuda, rows.len(), &ids, logits, partials, picked, beta)?;
        }
        let mut arguments = vec![partials, block_column(logps), block_column(lse), block_column(entropies)];
        arguments.extend([rows.len(), chunks].map(Arg::from));
        cuda.launch(&SOURCE, "lm_head_combine", Grid::each(rows.len().div_ceil(128), 128), &arguments)?;
    }
    Ok(())
}

pub(super) fn logits(cuda: &Cuda, mut args: Logits<'_>) -> Result<()> {
    let (head, rows) = (Head::new(cuda, args.hidden, args.weight)?, args.hidden.shape()[0]);
    let (logits, lse, chunks) = (args.logits.f32_at(cuda)?, args.lse.f32_at(cuda)?, head.chunks());
    let partials = cuda.stream().scratch(rows * chunks * KEPT * size_of::<f32>())?;
    // The combining kernel also computes log-probabilities, which are not used here.
    let unused = cuda.stream().scratch(rows * size_of::<f32>())?;
    head.logits(cuda, &(0..rows), &(0..head.vocab), logits)?;
    let beta = Beta::All(args.inv_temperature);
    head.statistics(cuda, rows, &(0..head.vocab), logits, partials.at(0), [Arg::NULL; 2], beta)?;
    let mut arguments = vec![partials.at(0), unused.at(0), lse, Arg::NULL];
    arguments.extend([rows, chunks].map(Arg::from));
    cuda.launch(&SOURCE, "lm_head_combine", Grid::each(rows.div_ceil(128), 128), &arguments)
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    let (head, all) = (Head::new(cuda, args.hidden, args.weight)?, args.hidden.shape()[0]);
    let (targets, beta) = (args.targets.u32_at(cuda), args.inv_temperature);
    let column = |column: Option<crate::View<'_>>| column.map_or(Ok(Arg::NULL), |column| column.f32_at(cuda));
    let (lse, d_logps) = (args.lse.f32_at(cuda)?, args.d_logps.f32_at(cuda)?);
    let (d_entropies, entropies) = (column(args.d_entropies)?, column(args.entropies)?);
    let d_hidden = args.d_hidden.f32_at(cuda)?;
    let d_weight = args.d_weight.map(|d_weight| d_weight.data_mut().view_mut().f32_at(cuda)).transpose()?;
    let logits = cuda.stream().scratch(all.min(BLOCK_ROWS) * head.vocab.min(WINDOW) * size_of::<f32>())?;
    let logits = logits.at(0);
    for rows in blocks(0..all, BLOCK_ROWS) {
        let block_column = |column: Arg| if column == Arg::NULL { column } else { column.after::<f32>(rows.start) };
        for ids in blocks(0..head.vocab, WINDOW) {
            head.logits(cuda, &rows, &ids, logits)?;
            let mut arguments = vec![logits, block_column(targets), beta.into()];
            arguments.extend([lse, d_logps, d_entropies, entropies].map(block_column));
            arguments.extend([rows.len(), ids.len(), ids.start].map(Arg::from));
            cuda.launch(&SOURCE, "lm_head_slopes", Grid::over(rows.len() * ids.len()), &arguments)?;
            let (sizes, d_logits) = (head.sizes(&rows, &ids), Rows { at: logits, width: ids.len() });
            let to = Rows { at: d_hidden.after::<f32>(rows.start * head.width), width: head.width };
            matmul_of_inputs(cuda, sizes, d_logits, head.weight_rows(head.weight, &ids), to, ids.start > 0)?;
            if let Some(d_weight) = d_weight {
                matmul_of_weight(cuda, sizes, head.rows(&rows), d_logits, head.weight_rows(d_weight, &ids))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::check::normal;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        // Cases with one chunk, several chunks, several windows, and more rows than a block.
        let cases = [(1, 1, 1), (3, 5, 40), (5, 9, 1100), (2, 3, 4200), (514, 2, 33), (0, 2, 3)];
        same(cases, |&(r, h, v), ctx| {
            let weight = Matrix::from_f32(ctx.memory(), v, h, &normal(1, v * h));
            let mut d_weight = Matrix::from_f32(ctx.memory(), v, h, &normal(2, v * h));
            let hidden = random(ctx, 3, &[r, h]);
            let targets: Vec<u32> = (0..r as u32).map(|i| (i * 997 + 5) % v as u32).collect();
            let targets = Tensor::from_u32(ctx.memory(), &[r], &targets);
            let [mut logps, mut lse, mut entropies, d_logps, d_entropies] =
                [4, 5, 6, 7, 8].map(|seed| random(ctx, seed, &[r]));
            let mut d_hidden = random(ctx, 9, &[r, h]);
            let args = Forward {
                hidden: hidden.view(),
                weight: &weight,
                targets: targets.view(),
                inv_temperature: 1.25,
                logps: logps.view_mut(),
                lse: lse.view_mut(),
                entropies: Some(entropies.view_mut()),
            };
            forward(ctx, args)?;
            let mut all = results![logps, lse, entropies];
            let (mut z, mut own_lse) = (random(ctx, 10, &[r, v]), random(ctx, 11, &[r]));
            let args = Logits {
                hidden: hidden.view(),
                weight: &weight,
                inv_temperature: 1.25,
                logits: z.view_mut(),
                lse: own_lse.view_mut(),
            };
            logits(ctx, args)?;
            all.extend(results![z, own_lse]);
            for with_entropies in [false, true] {
                let args = Backward {
                    hidden: hidden.view(),
                    weight: &weight,
                    targets: targets.view(),
                    inv_temperature: 1.25,
                    lse: lse.view(),
                    d_logps: d_logps.view(),
                    d_entropies: with_entropies.then(|| d_entropies.view()),
                    entropies: with_entropies.then(|| entropies.view()),
                    d_hidden: d_hidden.view_mut(),
                    d_weight: with_entropies.then_some(&mut d_weight),
                    segments: None,
                };
                backward(ctx, args)?;
                all.extend(results![d_hidden]);
            }
            all.extend(results![d_weight.data()]);
            Ok(all)
        });
    }
}
