//! Rotary position embedding on CUDA: one thread for each rotated pair of elements.

use super::{Rotate, RotateInto};
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::{Result, View};

const SOURCE: Source = source!("rope");

pub(super) fn rotate(cuda: &Cuda, mut args: Rotate<'_>, sign: f32) -> Result<()> {
    let shape = [args.x.shape()[0], args.x.shape()[1], args.heads, args.head_dim];
    let x = args.x.f32_at(cuda)?;
    launch(cuda, x, x, args.positions, [args.table.cos(), args.table.sin()], sign, shape)
}

pub(super) fn rotate_into(cuda: &Cuda, mut args: RotateInto<'_>) -> Result<()> {
    let shape = [args.x.shape()[0], args.x.shape()[1], args.heads, args.head_dim];
    let (x, y) = (args.x.f32_at(cuda)?, args.y.f32_at(cuda)?);
    launch(cuda, x, y, args.positions, [args.table.cos(), args.table.sin()], 1.0, shape)
}

fn launch(
    cuda: &Cuda,
    x: Arg,
    y: Arg,
    positions: View<'_>,
    [cos, sin]: [View<'_>; 2],
    sign: f32,
    shape: [usize; 4],
) -> Result<()> {
    let mut arguments = vec![x, y, positions.u32_at(cuda), cos.f32_at(cuda)?, sin.f32_at(cuda)?, sign.into()];
    arguments.extend(shape.map(Arg::from));
    cuda.launch(&SOURCE, "rope", Grid::over(shape[0] * shape[1] / 2), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [(1, 1, 1, 2), (5, 3, 4, 6), (70, 2, 3, 34), (0, 1, 1, 4)];
        same(cases, |&(t, heads, all, head_dim), ctx| {
            let freq: Vec<f32> = (0..head_dim / 2).map(|i| 0.7f32 / (1 + i) as f32).collect();
            let table = &Table::new(ctx.memory(), &freq, 1.1, 100);
            let positions: Vec<u32> = (0..t as u32).map(|i| i * 37 % 100).collect();
            let positions = Tensor::from_u32(ctx.memory(), &[t], &positions);
            let [mut x, mut y, mut d] = [1, 2, 3].map(|seed| random(ctx, seed, &[t, all * head_dim]));
            let positions = positions.view();
            let (from, to) = (x.view(), y.view_mut());
            forward_into(ctx, RotateInto { x: from, y: to, heads, head_dim, positions, table })?;
            forward(ctx, Rotate { x: x.view_mut(), heads, head_dim, positions, table })?;
            backward(ctx, Rotate { x: d.view_mut(), heads, head_dim, positions, table })?;
            Ok(results![x, y, d])
        });
    }
}
