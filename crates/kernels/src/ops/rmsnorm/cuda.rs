//! RMS norm on CUDA: a block of threads for each row; 16 threads in the backward pass. The gradient of the weight is
//! parallel over columns.

use super::{Backward, Forward, Recompute};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::args::segments_at;

const SOURCE: Source = source!("rmsnorm");

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (rows, width) = (args.x.shape()[0], args.x.shape()[1]);
    let delta = args.delta.map_or(Ok(Arg::NULL), |delta| delta.f32_at(cuda))?;
    let sum = args.sum.as_mut().map_or(Ok(Arg::NULL), |sum| sum.f32_at(cuda))?;
    let (x, weight) = (args.x.f32_at(cuda)?, args.weight.f32_at(cuda)?);
    let (y, rstd) = (args.y.f32_at(cuda)?, args.rstd.f32_at(cuda)?);
    let (offset, eps) = (args.offset.into(), args.eps.into());
    let arguments = [x, delta, sum, weight, offset, eps, y, rstd, width.into()];
    cuda.launch(&SOURCE, "rmsnorm_forward", Grid::each(rows, 128), &arguments)
}

pub(super) fn recompute(cuda: &Cuda, mut args: Recompute<'_>) -> Result<()> {
    let (rows, width) = (args.x.shape()[0], args.x.shape()[1]);
    let (x, weight) = (args.x.f32_at(cuda)?, args.weight.f32_at(cuda)?);
    let (rstd, y) = (args.rstd.f32_at(cuda)?, args.y.f32_at(cuda)?);
    let arguments = [x, weight, args.offset.into(), rstd, y, rows.into(), width.into()];
    cuda.launch(&SOURCE, "rmsnorm_recompute", Grid::over(rows * width), &arguments)
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    let (rows, width) = (args.x.shape()[0], args.x.shape()[1]);
    let (x, weight, rstd) = (args.x.f32_at(cuda)?, args.weight.f32_at(cuda)?, args.rstd.f32_at(cuda)?);
    let (d_y, d_x) = (args.d_y.f32_at(cuda)?, args.d_x.f32_at(cuda)?);
    let arguments = [x, weight, args.offset.into(), rstd, d_y, d_x, rows.into(), width.into()];
    cuda.launch(&SOURCE, "rmsnorm_backward", Grid::lanes(rows), &arguments)?;
    let Some(mut d_weight) = args.d_weight else { return Ok(()) };
    let (segments, count) = segments_at(cuda, args.segments);
    let arguments = [x, rstd, d_y, segments, d_weight.f32_at(cuda)?, count, rows.into(), width.into()];
    cuda.launch(&SOURCE, "rmsnorm_backward_weight", Grid::chunks(width), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [
            (1, 1, 0.0, &[0, 1][..]),
            (3, 5, 1.0, &[0, 2, 3]),
            (9, 64, 0.0, &[0, 9]),
            (150, 35, 1.0, &[0, 70, 70, 150]),
            (2, 2100, 0.0, &[0, 2]),
            (0, 4, 0.0, &[0]),
        ];
        same(cases, |&(t, h, offset, segments), ctx| {
            let row = |seed| random(ctx, seed, &[t, h]);
            let (x, delta, d_y, weight) = (row(1), row(2), row(3), random(ctx, 4, &[h]));
            let (mut y, mut sum, mut d_x, mut again) = (row(5), row(6), row(7), row(8));
            let (mut rstd, mut d_weight) = (random(ctx, 9, &[t]), random(ctx, 10, &[h]));
            let (weight, eps) = (weight.view(), 1e-5);
            for delta in [None, Some(delta.view())] {
                let sum = delta.map(|_| sum.view_mut());
                let (y, rstd) = (y.view_mut(), rstd.view_mut());
                forward(ctx, Forward { x: x.view(), delta, sum, weight, offset, eps, y, rstd })?;
            }
            let y_again = again.view_mut();
            recompute(ctx, Recompute { x: sum.view(), weight, offset, rstd: rstd.view(), y: y_again })?;
            let segments = Tensor::from_u32(ctx.memory(), &[segments.len()], segments);
            let args = Backward {
                x: sum.view(),
                weight,
                offset,
                rstd: rstd.view(),
                d_y: d_y.view(),
                d_x: d_x.view_mut(),
                d_weight: Some(d_weight.view_mut()),
                segments: Some(segments.view()),
            };
            backward(ctx, args)?;
            Ok(results![y, sum, rstd, again, d_x, d_weight])
        });
    }
}
