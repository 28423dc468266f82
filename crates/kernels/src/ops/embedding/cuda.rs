//! Token embedding on CUDA. The forward pass uses one thread per element. The backward pass uses one thread per column
//! and residue of the token id mod 16, so that each sum runs over the tokens in order.

use super::{Backward, Forward};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Grid, Source, source};

const SOURCE: Source = source!("embedding");
/// Threads that share a column of the gradient. Each thread reads all tokens, and adds the tokens whose id has the
/// thread's residue.
const RESIDUES: u32 = 16;

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (tokens, hidden) = (args.ids.shape()[0], args.table.cols());
    let (ids, table, out) = (args.ids.u32_at(cuda), args.table.data().view().f32_at(cuda)?, args.out.f32_at(cuda)?);
    let arguments = [ids, table, args.scale.into(), out, tokens.into(), hidden.into()];
    cuda.launch(&SOURCE, "embedding_forward", Grid::over(tokens * hidden), &arguments)
}

pub(super) fn backward(cuda: &Cuda, args: Backward<'_>) -> Result<()> {
    let (tokens, hidden) = (args.ids.shape()[0], args.d_table.cols());
    let (ids, d_out) = (args.ids.u32_at(cuda), args.d_out.f32_at(cuda)?);
    let d_table = args.d_table.data_mut().view_mut().f32_at(cuda)?;
    let arguments = [ids, d_out, args.scale.into(), d_table, tokens.into(), hidden.into()];
    cuda.launch(&SOURCE, "embedding_backward", Grid::columns(hidden, RESIDUES), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::check::normal;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [(1, 1, &[0, 0][..]), (70, 33, &[69, 0, 31, 32, 69, 69, 5]), (33, 150, &[32]), (4, 3, &[])];
        same(cases, |&(v, h, ids), ctx| {
            let table = Matrix::from_f32(ctx.memory(), v, h, &normal(1, v * h));
            let mut d_table = Matrix::from_f32(ctx.memory(), v, h, &normal(2, v * h));
            let (d_out, mut out) = (random(ctx, 3, &[ids.len(), h]), random(ctx, 4, &[ids.len(), h]));
            let ids = Tensor::from_u32(ctx.memory(), &[ids.len()], ids);
            forward(ctx, Forward { ids: ids.view(), table: &table, scale: 1.7, out: out.view_mut() })?;
            backward(ctx, Backward { ids: ids.view(), d_out: d_out.view(), scale: 1.7, d_table: &mut d_table })?;
            Ok(results![out, d_table.data()])
        });
    }
}
