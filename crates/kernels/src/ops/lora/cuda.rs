//! The products of an adapter, those of `linear`, and its scale.

use super::{Adapter, Backward, Forward};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::linear::cuda::{Rows, Sizes, product, product_of_inputs, product_of_weight};

const SOURCE: Source = source!("lora");

fn scale(cuda: &Cuda, x: Arg, scale: f32, count: usize) -> Result<()> {
    cuda.launch(&SOURCE, "lora_scale", Grid::over(count), &[x, scale.into(), count.into()])
}

impl Adapter<'_> {
    /// The sizes of its first product.
    fn sizes(&self, m: usize) -> Sizes {
        Sizes { m, n: self.a.rows(), k: self.a.cols() }
    }
    /// `xa = s · x Aᵀ`
    fn lowered(&self, cuda: &Cuda, m: usize, x: Rows, xa: Rows) -> Result<()> {
        let a = self.a.data().view().f32_at(cuda)?;
        product(cuda, self.sizes(m), x, [a, Arg::NULL], xa, false)?;
        scale(cuda, xa.at, self.scale, m * self.a.rows())
    }
}

/// Columns of rows, from `first` on.
fn columns(rows: Rows, first: usize) -> Rows {
    Rows { at: rows.at.after::<f32>(first), ..rows }
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    if args.dropout.is_some() {
        return Err(cuda.lacks("dropout of an adapter"));
    }
    let (adapter, [m, k], n) = (args.adapter, [args.x.shape()[0], args.x.shape()[1]], args.y.shape()[1]);
    let (x, y) = (Rows { at: args.x.f32_at(cuda)?, width: k }, Rows { at: args.y.f32_at(cuda)?, width: n });
    let rank = adapter.a.rows();
    let workspace = cuda.queue().scratch(m * rank * size_of::<f32>())?;
    let xa = Rows { at: workspace.at(0), width: rank };
    adapter.lowered(cuda, m, x, xa)?;
    for (b, first, at) in adapter.blocks() {
        let (sizes, b) = (Sizes { m, n: b.rows(), k: b.cols() }, b.data().view().f32_at(cuda)?);
        product(cuda, sizes, columns(xa, at), [b, Arg::NULL], columns(y, first), true)?;
    }
    Ok(())
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    if args.dropout.is_some() {
        return Err(cuda.lacks("dropout of an adapter"));
    }
    let (adapter, [m, k], n) = (args.adapter, [args.x.shape()[0], args.x.shape()[1]], args.d_y.shape()[1]);
    let (x, d_y) = (Rows { at: args.x.f32_at(cuda)?, width: k }, Rows { at: args.d_y.f32_at(cuda)?, width: n });
    let d_x = Rows { at: args.d_x.f32_at(cuda)?, width: k };
    let rank = adapter.a.rows();
    let workspace = cuda.queue().scratch(2 * m * rank * size_of::<f32>())?;
    let xa = Rows { at: workspace.at(0), width: rank };
    let d_xa = columns(xa, m * rank);
    for (b, first, at) in adapter.blocks() {
        let (sizes, b) = (Sizes { m, n: b.rows(), k: b.cols() }, b.data().view().f32_at(cuda)?);
        product_of_inputs(cuda, sizes, columns(d_y, first), b, columns(d_xa, at), false)?;
    }
    scale(cuda, d_xa.at, adapter.scale, m * rank)?;
    adapter.lowered(cuda, m, x, xa)?;
    let d_a = args.d_a.data_mut().view_mut().f32_at(cuda)?;
    product_of_weight(cuda, adapter.sizes(m), x, d_xa, d_a)?;
    product_of_inputs(cuda, adapter.sizes(m), d_xa, adapter.a.data().view().f32_at(cuda)?, d_x, true)?;
    for ((b, first, at), d_b) in adapter.blocks().zip(args.d_b) {
        let (sizes, d_b) = (Sizes { m, n: b.rows(), k: b.cols() }, d_b.data_mut().view_mut().f32_at(cuda)?);
        product_of_weight(cuda, sizes, columns(xa, at), columns(d_y, first), d_b)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::check::normal;
    use crate::device::cuda::tests::{bits, random, same};

    #[test]
    fn the_bits_are_the_cpu_s() {
        // [first column, columns, rank] of each block; columns that none reaches.
        for (m, k, n, blocks) in
            [(1, 1, 1, &[[0, 1, 1]][..]), (5, 9, 50, &[[0, 20, 3], [33, 17, 5]]), (70, 20, 12, &[[4, 8, 2]])]
        {
            same(|ctx| {
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
                forward(ctx, Forward { x: x.view(), adapter, dropout: None, y: y.view_mut() })?;
                let args = Backward {
                    x: x.view(),
                    adapter,
                    dropout: None,
                    d_y: d_y.view(),
                    d_x: d_x.view_mut(),
                    d_a: &mut d_a,
                    d_b: &mut d_b,
                };
                backward(ctx, args)?;
                let mut all = bits(&[&y, &d_x, d_a.data()]);
                d_b.iter().for_each(|d_b| all.extend(bits(&[d_b.data()])));
                Ok(all)
            });
        }
    }
}
