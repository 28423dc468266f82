//! Linear layer on CUDA: launches its three matmuls and the gradient of the bias. In f32, one thread computes each
//! output element as one sum in ascending order; in bf16, matmuls run on tensor cores.

use super::{BackwardInput, BackwardWeight, Forward};
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::args::segments_at;
use crate::{DType, Result, View};

const SOURCE: Source = source!("linear");
const BF16: Source = source!("linear_bf16");

/// A row-major f32 matrix on the device: its address, and the number of elements from one row to the next.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub at: Arg,
    pub width: usize,
}

/// Sizes of a matmul: rows M, outputs N, inputs K.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Sizes {
    fn arguments(self) -> [Arg; 3] {
        [self.m, self.n, self.k].map(Arg::from)
    }
}

/// Number of thread blocks from which on a matmul uses large tiles: less than two for each multiprocessor of a large
/// GPU would leave some of them idle. (Small in tests, which cover both.)
const ENOUGH_BLOCKS: usize = if cfg!(test) { 2 } else { 160 };

/// The grid for an output of `rows` x `cols` elements, and the kernel: one of `kernels` for tiles of 64 x 64 and
/// 128 x 128 elements. Bits do not depend on the choice.
fn tiles(rows: usize, cols: usize, kernels: [&'static str; 2]) -> (Grid, &'static str) {
    let large = Grid::matmul_128(rows, cols);
    if rows > 64 && cols > 64 && large.blocks[0] as usize * large.blocks[1] as usize >= ENOUGH_BLOCKS {
        (large, kernels[1])
    } else {
        (Grid::matmul(rows, cols), kernels[0])
    }
}

/// The grid and the kernel of `y = x Wᵀ + b` for `m` rows and `n` outputs.
fn forward_kernel(m: usize, n: usize) -> (Grid, &'static str) {
    let few = [(1, "linear_decode_1"), (2, "linear_decode_2"), (4, "linear_decode_4"), (8, "linear_decode_8")];
    match few.into_iter().find(|(rows, _)| m <= *rows) {
        // A warp for each panel of 32 outputs, two in a block. No rows: nothing is launched.
        Some((_, kernel)) => (Grid::each(if m == 0 { 0 } else { n.div_ceil(64) }, 64), kernel),
        None => tiles(m, n, ["linear_forward_64", "linear_forward_128"]),
    }
}

/// Launches `y = x Wᵀ + b`. Sums start from 0, or from `y` if `accumulate`.
pub(crate) fn matmul(cuda: &Cuda, sizes: Sizes, x: Rows, [w, bias]: [Arg; 2], y: Rows, accumulate: bool) -> Result<()> {
    let [m, n, k] = sizes.arguments();
    let arguments = [x.at, x.width.into(), w, bias, y.at, y.width.into(), m, n, k, u32::from(accumulate).into()];
    let (grid, kernel) = forward_kernel(sizes.m, sizes.n);
    cuda.launch(&SOURCE, kernel, grid, &arguments)
}

/// Launches `d_x = d_y W`. Sums start from 0, or from `d_x` if `accumulate`.
pub(crate) fn matmul_of_inputs(
    cuda: &Cuda,
    sizes: Sizes,
    d_y: Rows,
    w: Arg,
    d_x: Rows,
    accumulate: bool,
) -> Result<()> {
    let [m, n, k] = sizes.arguments();
    let arguments = [d_y.at, d_y.width.into(), w, d_x.at, d_x.width.into(), m, n, k, u32::from(accumulate).into()];
    let (grid, kernel) = tiles(sizes.m, sizes.k, ["linear_backward_input_64", "linear_backward_input_128"]);
    cuda.launch(&SOURCE, kernel, grid, &arguments)
}

/// Launches `d_W += d_yᵀ x`.
pub(crate) fn matmul_of_weight(cuda: &Cuda, sizes: Sizes, x: Rows, d_y: Rows, d_w: Arg) -> Result<()> {
    let [m, n, k] = sizes.arguments();
    let arguments = [x.at, x.width.into(), d_y.at, d_y.width.into(), d_w, m, n, k];
    let (grid, kernel) = tiles(sizes.k, sizes.n, ["linear_backward_weight_64", "linear_backward_weight_128"]);
    cuda.launch(&SOURCE, kernel, grid, &arguments)
}

/// Whether a matmul runs on tensor cores: both operands are bf16, or the first is bf16 and the second may be rounded
/// (`rounds`). Other mixes of f32 and bf16 are an error. Before the first matmul on tensor cores, the tensor cores are
/// compared with the formula that the CPU emulates.
fn on_tensor_cores(cuda: &Cuda, first: View<'_>, second: View<'_>, rounds: bool) -> Result<bool> {
    match (first.dtype(), second.dtype()) {
        (DType::Bf16, DType::Bf16) => {}
        (DType::Bf16, DType::F32) if rounds => {}
        (DType::Bf16, _) | (_, DType::Bf16) => return Err(cuda.lacks("a matmul of f32 and bf16")),
        _ => return Ok(false),
    }
    cuda.tensor_cores().map(|_| true)
}

/// The address of the gradient `d_y`, and the kernel that handles its dtype.
fn gradient_at(cuda: &Cuda, d_y: View<'_>, kernels: [&'static str; 2]) -> Result<(Arg, &'static str)> {
    match d_y.dtype() {
        DType::Bf16 => Ok((d_y.bf16_at(cuda), kernels[0])),
        _ => Ok((d_y.f32_at(cuda)?, kernels[1])),
    }
}

fn forward_bf16(cuda: &Cuda, mut args: Forward<'_>, sizes: Sizes) -> Result<()> {
    let bias = args.bias.map_or(Ok(Arg::NULL), |bias| bias.f32_at(cuda))?;
    let (x, w, y) = (args.x.bf16_at(cuda), args.w.data().view().bf16_at(cuda), args.y.f32_at(cuda)?);
    let [m, n, k] = sizes.arguments();
    let arguments = [x, w, bias, y, m, n, k, u32::from(args.accumulate).into()];
    cuda.launch(&BF16, "linear_bf16_forward", Grid::matmul(sizes.m, sizes.n), &arguments)
}

fn backward_input_bf16(cuda: &Cuda, mut args: BackwardInput<'_>, sizes: Sizes) -> Result<()> {
    let kernels = ["linear_bf16_backward_input", "linear_bf16_backward_input_of_f32"];
    let (d_y, kernel) = gradient_at(cuda, args.d_y, kernels)?;
    let (w, d_x) = (args.w.data().view().bf16_at(cuda), args.d_x.f32_at(cuda)?);
    let [m, n, k] = sizes.arguments();
    let arguments = [d_y, w, d_x, m, n, k, u32::from(args.accumulate).into()];
    cuda.launch(&BF16, kernel, Grid::matmul(sizes.m, sizes.k), &arguments)
}

fn backward_weight_bf16(cuda: &Cuda, args: BackwardWeight<'_>, sizes: Sizes) -> Result<()> {
    let kernels = ["linear_bf16_backward_weight", "linear_bf16_backward_weight_of_f32"];
    let (d_y, kernel) = gradient_at(cuda, args.d_y, kernels)?;
    let (x, d_w) = (args.x.bf16_at(cuda), args.d_w.data_mut().view_mut().f32_at(cuda)?);
    let (segments, count) = segments_at(cuda, args.segments);
    let [m, n, k] = sizes.arguments();
    let grid = Grid::matmul(sizes.k, sizes.n);
    cuda.launch(&BF16, kernel, grid, &[x, d_y, d_w, segments, count, m, n, k])?;
    let Some(mut d_bias) = args.d_bias else { return Ok(()) };
    let arguments = [d_y, segments, d_bias.f32_at(cuda)?, count, m, n];
    match args.d_y.dtype() {
        DType::Bf16 => cuda.launch(&BF16, "linear_bf16_backward_bias", Grid::chunks(sizes.n), &arguments),
        _ => cuda.launch(&SOURCE, "linear_backward_bias", Grid::chunks(sizes.n), &arguments),
    }
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let sizes = Sizes { m: args.x.shape()[0], n: args.w.rows(), k: args.w.cols() };
    if on_tensor_cores(cuda, args.x, args.w.data().view(), false)? {
        return forward_bf16(cuda, args, sizes);
    }
    let bias = args.bias.map_or(Ok(Arg::NULL), |bias| bias.f32_at(cuda))?;
    let (x, w) = (args.x.f32_at(cuda)?, args.w.data().view().f32_at(cuda)?);
    let (x, y) = (Rows { at: x, width: sizes.k }, Rows { at: args.y.f32_at(cuda)?, width: sizes.n });
    matmul(cuda, sizes, x, [w, bias], y, args.accumulate)
}

pub(super) fn backward_input(cuda: &Cuda, mut args: BackwardInput<'_>) -> Result<()> {
    let sizes = Sizes { m: args.d_y.shape()[0], n: args.w.rows(), k: args.w.cols() };
    if on_tensor_cores(cuda, args.w.data().view(), args.d_y, true)? {
        return backward_input_bf16(cuda, args, sizes);
    }
    let (d_y, w) = (args.d_y.f32_at(cuda)?, args.w.data().view().f32_at(cuda)?);
    let (d_y, d_x) = (Rows { at: d_y, width: sizes.n }, Rows { at: args.d_x.f32_at(cuda)?, width: sizes.k });
    matmul_of_inputs(cuda, sizes, d_y, w, d_x, args.accumulate)
}

pub(super) fn backward_weight(cuda: &Cuda, args: BackwardWeight<'_>) -> Result<()> {
    let sizes = Sizes { m: args.x.shape()[0], n: args.d_w.rows(), k: args.d_w.cols() };
    if on_tensor_cores(cuda, args.x, args.d_y, true)? {
        return backward_weight_bf16(cuda, args, sizes);
    }
    let (x, d_y, d_w) = (args.x.f32_at(cuda)?, args.d_y.f32_at(cuda)?, args.d_w.data_mut().view_mut().f32_at(cuda)?);
    matmul_of_weight(cuda, sizes, Rows { at: x, width: sizes.k }, Rows { at: d_y, width: sizes.n }, d_w)?;
    let Some(mut d_bias) = args.d_bias else { return Ok(()) };
    let (segments, count) = segments_at(cuda, args.segments);
    let arguments = [d_y, segments, d_bias.f32_at(cuda)?, count, sizes.m.into(), sizes.n.into()];
    cuda.launch(&SOURCE, "linear_backward_bias", Grid::chunks(sizes.n), &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::check::normal;
    use crate::device::cuda::tests::{full, random, results, same};

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [
            (1, 1, 1, None),
            (3, 5, 2, Some(&[0, 1, 1, 3][..])),
            (2, 129, 33, None),
            (70, 17, 66, Some(&[0, 70])),
            (300, 9, 31, Some(&[0, 5, 150, 300])),
            (700, 2, 3, None),
            // Few rows: whole groups of loads, and inputs for which shared memory is filled twice.
            (1, 256, 65, None),
            (2, 1300, 33, None),
            (7, 131, 70, None),
            (8, 128, 32, None),
            // Whole tiles that are loaded by fours, in both sizes.
            (9, 40, 64, None),
            (70, 136, 132, None),
            if full() { (300, 520, 130, None) } else { (5, 40, 9, None) },
            (0, 3, 4, Some(&[0])),
            (4, 0, 5, None),
        ];
        same(cases, |&(m, k, n, segments), ctx| {
            let w = Matrix::from_f32(ctx.memory(), n, k, &normal(1, n * k));
            let mut d_w = Matrix::from_f32(ctx.memory(), n, k, &normal(2, n * k));
            let (x, d_y, bias) = (random(ctx, 3, &[m, k]), random(ctx, 4, &[m, n]), random(ctx, 5, &[n]));
            let (mut y, mut d_x, mut d_bias) = (random(ctx, 6, &[m, n]), random(ctx, 7, &[m, k]), random(ctx, 8, &[n]));
            let mut all = Vec::new();
            for accumulate in [true, false] {
                let bias = accumulate.then(|| bias.view());
                forward(ctx, Forward { x: x.view(), w: &w, bias, y: y.view_mut(), accumulate })?;
                backward_input(ctx, BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate })?;
                all.extend(results![y, d_x]);
            }
            let segments = segments.map(|s| Tensor::from_u32(ctx.memory(), &[s.len()], s));
            let args = BackwardWeight {
                x: x.view(),
                d_y: d_y.view(),
                d_w: &mut d_w,
                d_bias: Some(d_bias.view_mut()),
                segments: segments.as_ref().map(Tensor::view),
            };
            backward_weight(ctx, args)?;
            all.extend(results![d_w.data(), d_bias]);
            Ok(all)
        });
    }
}
