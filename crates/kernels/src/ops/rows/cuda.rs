//! Gathering rows on CUDA. The gather uses one thread per element. The backward pass uses one thread per column and
//! residue of the row index mod 16, so that each sum runs over the chosen rows in order.

use super::{Gather, ScatterAdd};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Grid, Source, source};

const SOURCE: Source = source!("rows");
/// Threads that share a column of the gradient. Each thread reads all chosen rows, and adds the rows whose index has
/// the thread's residue.
const RESIDUES: u32 = 16;

pub(super) fn gather(cuda: &Cuda, mut args: Gather<'_>) -> Result<()> {
    let (chosen, hidden) = (args.rows.shape()[0], args.x.shape()[1]);
    let rows = args.rows.u32_at(cuda);
    let arguments = [args.x.f32_at(cuda)?, rows, args.out.f32_at(cuda)?, chosen.into(), hidden.into()];
    cuda.launch(&SOURCE, "rows_gather", Grid::over(chosen * hidden), &arguments)
}

pub(super) fn scatter_add(cuda: &Cuda, mut args: ScatterAdd<'_>) -> Result<()> {
    let (chosen, hidden) = (args.rows.shape()[0], args.d_x.shape()[1]);
    let rows = args.rows.u32_at(cuda);
    let arguments = [args.d_out.f32_at(cuda)?, rows, args.d_x.f32_at(cuda)?, chosen.into(), hidden.into()];
    let grid = Grid::columns(hidden, RESIDUES);
    cuda.launch(&SOURCE, "rows_scatter_add", grid, &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [(1, 1, &[0, 0, 0][..]), (3, 5, &[2, 0, 2, 1, 2]), (40, 131, &[39, 0, 39, 16, 32, 0]), (2, 3, &[])];
        same(cases, |&(t, h, chosen), ctx| {
            let (x, mut d_x) = (random(ctx, 1, &[t, h]), random(ctx, 2, &[t, h]));
            let (mut out, rows) =
                (random(ctx, 3, &[chosen.len(), h]), Tensor::from_u32(ctx.memory(), &[chosen.len()], chosen));
            gather(ctx, Gather { x: x.view(), rows: rows.view(), out: out.view_mut() })?;
            let d_out = random(ctx, 4, &[chosen.len(), h]);
            scatter_add(ctx, ScatterAdd { d_out: d_out.view(), rows: rows.view(), d_x: d_x.view_mut() })?;
            Ok(results![out, d_x])
        });
    }
}
