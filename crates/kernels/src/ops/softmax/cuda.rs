//! Masked softmax on CUDA: 16 threads for each row.

use super::{Backward, Forward};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Grid, Source, source};

const SOURCE: Source = source!("softmax");

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (rows, columns) = (args.x.shape()[0], args.x.shape()[1]);
    let (first, end) = (args.first.u32_at(cuda), args.end.u32_at(cuda));
    let (x, y) = (args.x.f32_at(cuda)?, args.y.f32_at(cuda)?);
    let arguments = [x, args.scale.into(), first, end, y, rows.into(), columns.into()];
    cuda.launch(&SOURCE, "softmax_forward", Grid::lanes(rows), &arguments)
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    let (rows, columns) = (args.y.shape()[0], args.y.shape()[1]);
    let (first, end) = (args.first.u32_at(cuda), args.end.u32_at(cuda));
    let (y, d_y, d_x) = (args.y.f32_at(cuda)?, args.d_y.f32_at(cuda)?, args.d_x.f32_at(cuda)?);
    let arguments = [y, args.scale.into(), first, end, d_y, d_x, rows.into(), columns.into()];
    cuda.launch(&SOURCE, "softmax_backward", Grid::lanes(rows), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        same([(1, 1), (3, 5), (20, 131), (9, 16), (0, 4)], |&(r, c), ctx| {
            // Rows that see no column, one, some or all; for some rows, the first column is after the end.
            let end: Vec<u32> = (0..r).map(|i| (i * 7 % (c + 1)) as u32).collect();
            let first: Vec<u32> = (0..r).map(|i| (i * 3 % (c + 2)) as u32 / 2).collect();
            let list = |list: &[u32]| Tensor::from_u32(ctx.memory(), &[r], list);
            let (end, first, scale) = (list(&end), list(&first), 0.3);
            let [x, d_y, mut y, mut d_x] = [1, 2, 3, 4].map(|seed| random(ctx, seed, &[r, c]));
            let (first, end) = (first.view(), end.view());
            forward(ctx, Forward { x: x.view(), scale, first, end, y: y.view_mut() })?;
            let d_x_out = d_x.view_mut();
            backward(ctx, Backward { y: y.view(), scale, first, end, d_y: d_y.view(), d_x: d_x_out })?;
            Ok(results![y, d_x])
        });
    }
}
