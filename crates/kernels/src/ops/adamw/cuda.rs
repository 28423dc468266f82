//! AdamW on CUDA: one thread for each element of a tensor.

use super::cpu::Factors;
use super::{Rounding, Step};
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::{DType, Result};

const SOURCE: Source = source!("adamw");

pub(super) fn step(cuda: &Cuda, mut args: Step<'_>) -> Result<()> {
    let count: usize = args.grad.shape().iter().product();
    let rounded = args.rounded.as_mut().map_or(Ok(Arg::NULL), |rounded| rounded.f32_at(cuda))?;
    let (param, grad) = (args.param.f32_at(cuda)?, args.grad.f32_at(cuda)?);
    let from = args.from.unwrap_or_else(|| args.param.view()).f32_at(cuda)?;
    let narrow = args.m.dtype() == DType::Bf16;
    let (m, v) = if narrow {
        (args.m.bf16_at(cuda), args.v.bf16_at(cuda))
    } else {
        (args.m.f32_at(cuda)?, args.v.f32_at(cuda)?)
    };
    let norm = args.norm.f32_at(cuda)?;
    let Factors { decay, blend, beta2, rest2, root, eps, step } = Factors::new(&args.hyper);
    let mut arguments = vec![param, from, rounded, grad, m, v, norm];
    arguments.extend([args.max_norm, decay, blend, beta2, rest2, root, eps, step].map(Arg::from));
    arguments.push(count.into());
    if narrow {
        let Rounding { key, first_block } = args.rounding;
        arguments.extend([key, first_block, args.hyper.step].map(Arg::from));
    }
    let kernel = if narrow { "adamw_step_bf16" } else { "adamw_step" };
    cuda.launch(&SOURCE, kernel, Grid::over(count), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::check::normal;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [(1, [3.0, 1.0], 1.0), (1000, [0.5, 1.0], 1.0), (37, [9.0, 1.0], 0.0), (5, [1.0, 0.0], 1.0)];
        let cases = [DType::F32, DType::Bf16].into_iter().flat_map(|moments| cases.map(|case| (moments, case)));
        same(cases, |&(moments, (len, norm, max_norm)), ctx| {
            let [mut param, grad, mut rounded, mut next] = [1, 2, 5, 6].map(|seed| random(ctx, seed, &[len]));
            let [mut m, mut v] = [3, 4].map(|_| Tensor::zeros(ctx.memory(), &[len], moments));
            // Some values are so large that one becomes infinite in a step.
            let mut before = normal::<f32>(3, len);
            before[len / 2] = f32::MAX;
            m.view_mut().copy_from_f32(&before);
            let squares: Vec<f32> = normal::<f32>(4, len).iter().map(|v| v * v).collect();
            v.view_mut().copy_from_f32(&squares);
            let norm = Tensor::from_f32(ctx.memory(), &[2], &norm);
            for t in 1..=3 {
                let hyper = Hyper { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, step: t };
                // The last step writes to another slot.
                let (param, from) = match t {
                    3 => (next.view_mut(), Some(param.view())),
                    _ => (param.view_mut(), None),
                };
                let args = Step {
                    param,
                    from,
                    rounded: (t > 1).then(|| rounded.view_mut()),
                    grad: grad.view(),
                    m: m.view_mut(),
                    v: v.view_mut(),
                    hyper,
                    norm: norm.view(),
                    max_norm,
                    rounding: Rounding { key: 9, first_block: (1 << 32) - 3 },
                };
                step(ctx, args)?;
            }
            Ok(results![param, m, v, rounded, next])
        });
    }
}
