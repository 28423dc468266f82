//! Linear interpolation on CUDA: one thread for each element.

use super::Lerp;
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Grid, Source, source};

const SOURCE: Source = source!("lerp");

pub(super) fn lerp(cuda: &Cuda, mut args: Lerp<'_>) -> Result<()> {
    let count: usize = args.y.shape().iter().product();
    let (keep, take) = ((1.0 - args.alpha) as f32, args.alpha as f32);
    let arguments = [args.x.f32_at(cuda)?, args.y.f32_at(cuda)?, keep.into(), take.into(), count.into()];
    cuda.launch(&SOURCE, "lerp", Grid::over(count), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::{Lerp, lerp};
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        same([0, 1, 5, 1000], |&len, ctx| {
            let (x, mut y) = (random(ctx, 1, &[len]), random(ctx, 2, &[len]));
            lerp(ctx, Lerp { y: y.view_mut(), x: x.view(), alpha: 0.3 })?;
            Ok(results![y])
        });
    }
}
