//! The residual addition on CUDA: one thread for each element.

use super::{Backward, Forward};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};

const SOURCE: Source = source!("residual");

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let count: usize = args.x.shape().iter().product();
    let delta = args.delta.map_or(Ok(Arg::NULL), |delta| delta.f32_at(cuda))?;
    let sum = args.sum.as_mut().map_or(Ok(Arg::NULL), |sum| sum.f32_at(cuda))?;
    let arguments = [args.x.f32_at(cuda)?, delta, sum, args.y.f32_at(cuda)?, count.into()];
    cuda.launch(&SOURCE, "residual_forward", Grid::over(count), &arguments)
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    let count: usize = args.d_y.shape().iter().product();
    let arguments = [args.d_y.f32_at(cuda)?, args.d_x.f32_at(cuda)?, count.into()];
    cuda.launch(&SOURCE, "residual_backward", Grid::over(count), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        same([(1, 1), (3, 5), (0, 4), (129, 143)], |&(t, h), ctx| {
            let (x, delta) = (random(ctx, 1, &[t, h]), random(ctx, 2, &[t, h]));
            let (mut y, mut sum, mut d_x) = (random(ctx, 3, &[t, h]), random(ctx, 4, &[t, h]), random(ctx, 5, &[t, h]));
            let args = Forward { x: x.view(), delta: None, sum: None, y: y.view_mut() };
            forward(ctx, args)?;
            let mut all = results![y];
            let args = Forward { x: x.view(), delta: Some(delta.view()), sum: Some(sum.view_mut()), y: y.view_mut() };
            forward(ctx, args)?;
            backward(ctx, Backward { d_y: delta.view(), d_x: d_x.view_mut() })?;
            all.extend(results![y, sum, d_x]);
            Ok(all)
        });
    }
}
