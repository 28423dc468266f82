//! LoRA adapters on CUDA: launches the matmuls of `linear`, and the multiplication by the scale. With dropout, each
//! block of the adapter has its own kernels, launched for some rows at a time.

use super::{Adapter, Backward, Dropout, Forward};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::linear::cuda::{Rows, Sizes, matmul, matmul_of_inputs, matmul_of_weight};
use crate::ops::lm_head::cpu::blocks;

const SOURCE: Source = source!("lora");

/// Maximum number of elements of the dropped-out input in memory at once, and of dropout factors: 64 MiB each. (Small
/// in tests, to cover several pieces.)
pub(crate) const DROPPED: usize = if cfg!(test) { 1 << 9 } else { 1 << 24 };

fn scale(cuda: &Cuda, x: Arg, scale: f32, count: usize) -> Result<()> {
    cuda.launch(&SOURCE, "lora_scale", Grid::over(count), &[x, scale.into(), count.into()])
}

impl Adapter<'_> {
    /// Sizes of the matmul with A.
    fn sizes(&self, m: usize) -> Sizes {
        Sizes { m, n: self.a.rows(), k: self.a.cols() }
    }
    /// Computes `xa = s · x Aᵀ`, without dropout.
    fn lowered(&self, cuda: &Cuda, m: usize, x: Rows, xa: Rows) -> Result<()> {
        let a = self.a.data().view().f32_at(cuda)?;
        matmul(cuda, self.sizes(m), x, [a, Arg::NULL], xa, false)?;
        scale(cuda, xa.at, self.scale, m * self.a.rows())
    }
    /// Computes `xa = s · x Aᵀ` with dropout of `x`. If `back` (d_xa, d_a, d_x) is set, in the backward pass, this
    /// function also accumulates the gradients of A and `x`; `d_xa` includes the scale.
    fn lowered_dropped(
        &self,
        cuda: &Cuda,
        m: usize,
        dropout: &Dropout<'_>,
        [x, xa]: [Arg; 2],
        back: Option<[Arg; 3]>,
    ) -> Result<()> {
        let (k, rank, a) = (self.a.cols(), self.a.rows(), self.a.data().view().f32_at(cuda)?);
        let most = (DROPPED / k.max(1)).clamp(1, m);
        let [factors, dropped] = [(); 2].map(|()| cuda.stream().scratch(most * k * size_of::<f32>()));
        let (factors, dropped) = (factors?, dropped?);
        let (factors, dropped) = (factors.at(0), dropped.at(0));
        let (samples, positions) = (dropout.samples.u32_at(cuda), dropout.positions.u32_at(cuda));
        for rows in blocks(0..m, most) {
            let from = |at: Arg, width: usize| at.after::<f32>(rows.start * width);
            for (i, (b, _, at)) in self.blocks().enumerate() {
                let sizes = [rank, at, rows.len(), b.cols(), k].map(Arg::from);
                let mut arguments = vec![from(x, k), from(samples, 1), from(positions, 1), factors, dropped];
                arguments.extend([Arg::from(dropout.key), dropout.threshold().into(), dropout.kept().into()]);
                arguments.extend([Arg::from(i as u32), rows.len().into(), k.into()]);
                let threads = Grid::over(rows.len() * k.div_ceil(64) * 16);
                cuda.launch(&SOURCE, "lora_drop", threads, &arguments)?;
                let arguments = [&[dropped, a, from(xa, rank)][..], &sizes].concat();
                cuda.launch(&SOURCE, "lora_lower", Grid::matmul(rows.len(), b.cols()), &arguments)?;
                let Some([d_xa, d_a, d_x]) = back else { continue };
                let arguments = [&[dropped, from(d_xa, rank), d_a][..], &sizes].concat();
                cuda.launch(&SOURCE, "lora_lower_weight", Grid::matmul(k, b.cols()), &arguments)?;
                let arguments = [&[from(d_xa, rank), a, dropped][..], &sizes].concat();
                cuda.launch(&SOURCE, "lora_lower_backward", Grid::matmul(rows.len(), k), &arguments)?;
                let arguments = [factors, dropped, from(d_x, k), (rows.len() * k).into()];
                cuda.launch(&SOURCE, "lora_undrop", Grid::over(rows.len() * k), &arguments)?;
            }
        }
        scale(cuda, xa, self.scale, m * rank)
    }
}

/// The same rows, starting at column `first`.
fn columns(rows: Rows, first: usize) -> Rows {
    Rows { at: rows.at.after::<f32>(first), ..rows }
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (adapter, [m, k], n) = (args.adapter, [args.x.shape()[0], args.x.shape()[1]], args.y.shape()[1]);
    let (x, y) = (Rows { at: args.x.f32_at(cuda)?, width: k }, Rows { at: args.y.f32_at(cuda)?, width: n });
    let rank = adapter.a.rows();
    let workspace = cuda.stream().scratch(m * rank * size_of::<f32>())?;
    let xa = Rows { at: workspace.at(0), width: rank };
    match &args.dropout {
        None => adapter.lowered(cuda, m, x, xa)?,
        Some(dropout) => adapter.lowered_dropped(cuda, m, dropout, [x.at, xa.at], None)?,
    }
    for (b, first, at) in adapter.blocks() {
        let (sizes, b) = (Sizes { m, n: b.rows(), k: b.cols() }, b.data().view().f32_at(cuda)?);
        matmul(cuda, sizes, columns(xa, at), [b, Arg::NULL], columns(y, first), true)?;
    }
    Ok(())
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    let (adapter, [m, k], n) = (args.adapter, [args.x.shape()[0], args.x.shape()[1]], args.d_y.shape()[1]);
    let (x, d_y) = (Rows { at: args.x.f32_at(cuda)?, width: k }, Rows { at: args.d_y.f32_at(cuda)?, width: n });
    let d_x = Rows { at: args.d_x.f32_at(cuda)?, width: k };
    let rank = adapter.a.rows();
    let workspace = cuda.stream().scratch(2 * m * rank * size_of::<f32>())?;
    let xa = Rows { at: workspace.at(0), width: rank };
    let d_xa = columns(xa, m * rank);
    for (b, first, at) in adapter.blocks() {
        let (sizes, b) = (Sizes { m, n: b.rows(), k: b.cols() }, b.data().view().f32_at(cuda)?);
        matmul_of_inputs(cuda, sizes, columns(d_y, first), b, columns(d_xa, at), false)?;
    }
    scale(cuda, d_xa.at, adapter.scale, m * rank)?;
    let d_a = args.d_a.data_mut().view_mut().f32_at(cuda)?;
    match &args.dropout {
        None => {
            adapter.lowered(cuda, m, x, xa)?;
            matmul_of_weight(cuda, adapter.sizes(m), x, d_xa, d_a)?;
            matmul_of_inputs(cuda, adapter.sizes(m), d_xa, adapter.a.data().view().f32_at(cuda)?, d_x, true)?;
        }
        Some(dropout) => {
            adapter.lowered_dropped(cuda, m, dropout, [x.at, xa.at], Some([d_xa.at, d_a, d_x.at]))?;
        }
    }
    for ((b, first, at), d_b) in adapter.blocks().zip(args.d_b) {
        let (sizes, d_b) = (Sizes { m, n: b.rows(), k: b.cols() }, d_b.data_mut().view_mut().f32_at(cuda)?);
        matmul_of_weight(cuda, sizes, columns(xa, at), columns(d_y, first), d_b)?;
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
        // Each block is [first column, columns, rank]. Some columns belong to no block.
        let cases = [
            (1, 1, 1, None, &[[0, 1, 1]][..]),
            (5, 9, 50, None, &[[0, 20, 3], [33, 17, 5]]),
            (70, 20, 12, None, &[[4, 8, 2]]),
            (1, 1, 1, Some(0.5), &[[0, 1, 1]]),
            (150, 70, 50, Some(0.3), &[[0, 20, 3], [20, 9, 31], [33, 17, 5]]),
            (9, 130, 6, Some(0.0), &[[1, 5, 2]]),
        ];
        same(cases, |&(m, k, n, p, blocks), ctx| {
            let matrix = |seed: usize, rows: usize, cols: usize| {
                Matrix::from_f32(ctx.memory(), rows, cols, &normal(seed as u64, rows * cols))
            };
            let rank = blocks.iter().map(|b| b[2]).sum();
            let b: Vec<Matrix> = blocks.iter().map(|b| matrix(b[2], b[1], b[2])).collect();
            let mut d_b: Vec<Matrix> = blocks.iter().map(|b| matrix(b[1], b[1], b[2])).collect();
            let (a, mut d_a) = (matrix(100, rank, k), matrix(101, rank, k));
            let first: Vec<usize> = blocks.iter().map(|b| b[0]).collect();
            let adapter = Adapter { a: &a, b: &b, first: &first, scale: 0.375 };
            let (x, mut y) = (random(ctx, 1, &[m, k]), random(ctx, 2, &[m, n]));
            let (d_y, mut d_x) = (random(ctx, 3, &[m, n]), random(ctx, 4, &[m, k]));
            let ids =
                |f: fn(u32) -> u32| Tensor::from_u32(ctx.memory(), &[m], &(0..m as u32).map(f).collect::<Vec<_>>());
            let (samples, positions) = (ids(|row| row / 7), ids(|row| row % 7));
            let view = |p| Dropout { p, key: 77, samples: samples.view(), positions: positions.view() };
            let dropout = p.map(view);
            forward(ctx, Forward { x: x.view(), adapter, dropout, y: y.view_mut() })?;
            let args = Backward {
                x: x.view(),
                adapter,
                dropout,
                d_y: d_y.view(),
                d_x: d_x.view_mut(),
                d_a: &mut d_a,
                d_b: &mut d_b,
            };
            backward(ctx, args)?;
            let mut all = results![y, d_x, d_a.data()];
            for d_b in &d_b {
                all.extend(results![d_b.data()]);
            }
            Ok(all)
        });
    }
}
