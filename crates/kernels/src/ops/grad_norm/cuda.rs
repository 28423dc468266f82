//! The gradient norm on CUDA: a block of threads sums the squares of each chunk, then one thread adds the sums of all
//! chunks.

use super::cpu::CHUNK;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::{Result, View, ViewMut};

const SOURCE: Source = source!("grad_norm");

pub(super) fn global(cuda: &Cuda, grads: &[View<'_>], mut out: ViewMut<'_>) -> Result<()> {
    let elements = |grad: &View<'_>| grad.shape().iter().product::<usize>();
    let chunks: usize = grads.iter().map(|grad| elements(grad).div_ceil(CHUNK)).sum();
    let sums = cuda.stream().scratch(chunks * size_of::<f64>())?;
    let mut first = 0;
    for grad in grads {
        let (count, at) = (elements(grad), sums.at(first * size_of::<f64>()));
        let arguments = [grad.f32_at(cuda)?, at, count.into(), CHUNK.into()];
        cuda.launch(&SOURCE, "squares_of_chunks", Grid::each(count.div_ceil(CHUNK), 32), &arguments)?;
        first += count.div_ceil(CHUNK);
    }
    let arguments: [Arg; 3] = [sums.at(0), out.f32_at(cuda)?, chunks.into()];
    cuda.launch(&SOURCE, "norm_of_chunks", Grid::each(1, 32), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [&[][..], &[1], &[5, 0, 33], &[(1 << 16) + 7, 3, 1 << 16]].into_iter();
        let cases = cases.flat_map(|lens| [0.5, f32::INFINITY, 3e38].map(|last| (lens, last)));
        same(cases, |&(lens, last), ctx| {
            let mut grads: Vec<Tensor> = lens.iter().map(|&len| random(ctx, len as u64, &[len])).collect();
            if let Some(grad) = grads.last_mut() {
                grad.rows_mut(0..1).fill(last);
            }
            let views: Vec<View<'_>> = grads.iter().map(Tensor::view).collect();
            let mut out = Tensor::zeros(ctx.memory(), &[2], DType::F32);
            global(ctx, &views, out.view_mut())?;
            Ok(results![out])
        });
    }
}
