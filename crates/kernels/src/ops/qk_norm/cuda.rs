//! QK norm on CUDA: 16 threads for each head of a row, value heads included. The gradients of the weights are parallel
//! over columns.

use super::{Backward, Forward, Parts};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::args::segments_at;

const SOURCE: Source = source!("qk_norm");

impl Parts {
    fn arguments(self, rows: usize) -> [Arg; 6] {
        [rows, self.q, self.k, self.q_dim, self.k_dim, self.width].map(Arg::from)
    }
}

pub(super) fn forward(cuda: &Cuda, parts: Parts, mut args: Forward<'_>) -> Result<()> {
    let rows = args.x.shape()[0];
    let (x, q, k) = (args.x.f32_at(cuda)?, args.q_weight.f32_at(cuda)?, args.k_weight.f32_at(cuda)?);
    let mut arguments = vec![x, q, k, args.offset.into(), args.eps.into()];
    arguments.extend([args.y.f32_at(cuda)?, args.rstd.f32_at(cuda)?]);
    arguments.extend(parts.arguments(rows));
    cuda.launch(&SOURCE, "qk_norm_forward", Grid::lanes(rows * (parts.normed() + 1)), &arguments)
}

pub(super) fn backward(cuda: &Cuda, parts: Parts, mut args: Backward<'_>) -> Result<()> {
    let rows = args.x.shape()[0];
    let (x, rstd, d_y) = (args.x.f32_at(cuda)?, args.rstd.f32_at(cuda)?, args.d_y.f32_at(cuda)?);
    let mut arguments = vec![x, args.q_weight.f32_at(cuda)?, args.k_weight.f32_at(cuda)?, args.offset.into()];
    arguments.extend([rstd, d_y, args.d_x.f32_at(cuda)?]);
    arguments.extend(parts.arguments(rows));
    cuda.launch(&SOURCE, "qk_norm_backward", Grid::lanes(rows * (parts.normed() + 1)), &arguments)?;
    let Some((mut d_q_weight, mut d_k_weight)) = args.d_weights else { return Ok(()) };
    let (segments, count) = segments_at(cuda, args.segments);
    let Parts { q, k, q_dim, k_dim, width } = parts;
    let q_gradient = (d_q_weight.f32_at(cuda)?, [rows, q, q_dim, 0, 0, q + k, width]);
    let k_gradient = (d_k_weight.f32_at(cuda)?, [rows, k, k_dim, q, q * q_dim, q + k, width]);
    for (d_weight, sizes) in [q_gradient, k_gradient] {
        let dim = sizes[2];
        let mut arguments = vec![x, rstd, d_y, segments, d_weight, count];
        arguments.extend(sizes.map(Arg::from));
        cuda.launch(&SOURCE, "qk_norm_backward_weight", Grid::chunks(dim), &arguments)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        // Norms of each head, and of all heads together.
        let cases =
            [(1, 1, 1, 2, false), (5, 3, 1, 20, false), (70, 2, 2, 16, false), (9, 4, 2, 6, true), (0, 1, 1, 4, false)];
        same(cases, |&(t, heads, kv_heads, head_dim, whole), ctx| {
            let width = (heads + 2 * kv_heads) * head_dim;
            let dims = if whole { [heads * head_dim, kv_heads * head_dim] } else { [head_dim; 2] };
            let normed = if whole { 2 } else { heads + kv_heads };
            let row = |seed| random(ctx, seed, &[t, width]);
            let (x, d_y, mut y, mut d_x) = (row(1), row(2), row(3), row(4));
            let [q, k] = [5, 6].map(|seed| random(ctx, seed, &[dims[seed as usize - 5]]));
            let [mut d_q, mut d_k] = [7, 8].map(|seed| random(ctx, seed, &[dims[seed as usize - 7]]));
            let (mut rstd, offset) = (random(ctx, 9, &[t, normed]), 1.0);
            let (q_weight, k_weight) = (q.view(), k.view());
            let (out, r) = (y.view_mut(), rstd.view_mut());
            let eps = 1e-6;
            let args =
                Forward { x: x.view(), heads, kv_heads, head_dim, q_weight, k_weight, offset, eps, y: out, rstd: r };
            forward(ctx, args)?;
            let segments = Tensor::from_u32(ctx.memory(), &[3], &[0, t as u32 / 3, t as u32]);
            let args = Backward {
                x: x.view(),
                heads,
                kv_heads,
                head_dim,
                q_weight,
                k_weight,
                offset,
                rstd: rstd.view(),
                d_y: d_y.view(),
                d_x: d_x.view_mut(),
                d_weights: Some((d_q.view_mut(), d_k.view_mut())),
                segments: Some(segments.view()),
            };
            backward(ctx, args)?;
            Ok(results![y, rstd, d_x, d_q, d_k])
        });
    }
}
