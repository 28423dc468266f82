//! A thread for each element.

use super::Step;
use super::cpu::Factors;
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};

const SOURCE: Source = source!("adamw");

pub(super) fn step(cuda: &Cuda, mut args: Step<'_>) -> Result<()> {
    let count: usize = args.grad.shape().iter().product();
    let rounded = args.rounded.as_mut().map_or(Ok(Arg::NULL), |rounded| rounded.f32_at(cuda))?;
    let (param, grad) = (args.param.f32_at(cuda)?, args.grad.f32_at(cuda)?);
    let (m, v, norm) = (args.m.f32_at(cuda)?, args.v.f32_at(cuda)?, args.norm.f32_at(cuda)?);
    let Factors { decay, blend, beta2, rest2, root, eps, step } = Factors::new(&args.hyper);
    let mut arguments = vec![param, rounded, grad, m, v, norm];
    arguments.extend([args.max_norm, decay, blend, beta2, rest2, root, eps, step].map(Arg::from));
    arguments.push(count.into());
    cuda.launch(&SOURCE, "adamw_step", Grid::over(count), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{bits, random, same};

    #[test]
    fn the_bits_are_the_cpu_s() {
        for (len, norm, max_norm) in
            [(1, [3.0, 1.0], 1.0), (1000, [0.5, 1.0], 1.0), (37, [9.0, 1.0], 0.0), (5, [1.0, 0.0], 1.0)]
        {
            same(|ctx| {
                let [mut param, grad, mut m, mut v, mut rounded] =
                    [1, 2, 3, 4, 5].map(|seed| random(ctx, seed, &[len]));
                let squares: Vec<f32> = v.to_vec_f32().iter().map(|v| v * v).collect();
                v.view_mut().copy_from_f32(&squares);
                let norm = Tensor::from_f32(ctx.memory(), &[2], &norm);
                for t in 1..=3 {
                    let hyper = Hyper { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, step: t };
                    let args = Step {
                        param: param.view_mut(),
                        rounded: (t > 1).then(|| rounded.view_mut()),
                        grad: grad.view(),
                        m: m.view_mut(),
                        v: v.view_mut(),
                        hyper,
                        norm: norm.view(),
                        max_norm,
                        rounding: Rounding::default(),
                    };
                    step(ctx, args)?;
                }
                Ok(bits(&[&param, &m, &v, &rounded]))
            });
        }
    }
}
