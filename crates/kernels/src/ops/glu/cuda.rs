//! Gated linear units on CUDA: one thread for each element.

use super::{Activation, Backward, Forward};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};

const SOURCE: Source = source!("glu");

impl Activation {
    fn is_gelu(self) -> Arg {
        u32::from(self == Activation::GeluTanh).into()
    }
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (rows, width) = (args.y.shape()[0], args.y.shape()[1]);
    let kept = args.kept.as_mut().map_or(Ok(Arg::NULL), |kept| kept.f32_at(cuda))?;
    let (gate_up, y) = (args.gate_up.f32_at(cuda)?, args.y.f32_at(cuda)?);
    let arguments = [gate_up, kept, y, args.activation.is_gelu(), rows.into(), width.into()];
    cuda.launch(&SOURCE, "glu_forward", Grid::over(rows * width), &arguments)
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    let (rows, width) = (args.d_y.shape()[0], args.d_y.shape()[1]);
    let y = args.y.as_mut().map_or(Ok(Arg::NULL), |y| y.f32_at(cuda))?;
    let (gate_up, d_y, d_gate_up) = (args.gate_up.f32_at(cuda)?, args.d_y.f32_at(cuda)?, args.d_gate_up.f32_at(cuda)?);
    let from = args.rows.map_or(Arg::NULL, |rows| rows.u32_at(cuda));
    let arguments = [gate_up, from, d_y, d_gate_up, y, args.activation.is_gelu(), rows.into(), width.into()];
    cuda.launch(&SOURCE, "glu_backward", Grid::over(rows * width), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [(1, 1), (3, 5), (40, 131), (0, 4)].into_iter();
        let cases = cases.flat_map(|size| [(size, Activation::Silu), (size, Activation::GeluTanh)]);
        same(cases, |&((t, f), activation), ctx| {
            let wide = |seed| random(ctx, seed, &[t, 2 * f]);
            let (mut gate_up, mut kept, mut d_gate_up) = (wide(1), wide(2), wide(3));
            if t * f > 0 {
                // Gates this large give sigmoids of 0 or 1.
                gate_up.rows_mut(0..1).fill(-90.0);
            }
            let [d_y, mut y, mut again] = [4, 5, 6].map(|seed| random(ctx, seed, &[t, f]));
            let gate_up = gate_up.view();
            forward(ctx, Forward { activation, gate_up, kept: Some(kept.view_mut()), y: y.view_mut() })?;
            let (d_out, y_again) = (d_gate_up.view_mut(), Some(again.view_mut()));
            let args = Backward { activation, gate_up, rows: None, d_y: d_y.view(), d_gate_up: d_out, y: y_again };
            backward(ctx, args)?;
            // The rows in descending order.
            let rows: Vec<u32> = (0..t as u32).rev().collect();
            let (rows, mut chosen) = (Tensor::from_u32(ctx.memory(), &[t], &rows), wide(7));
            let (d_out, rows) = (chosen.view_mut(), Some(rows.view()));
            backward(ctx, Backward { activation, gate_up, rows, d_y: d_y.view(), d_gate_up: d_out, y: None })?;
            Ok(results![kept, y, d_gate_up, again, chosen])
        });
    }
}
