//! `lockstep bench gemm`: times the three matmuls of a linear layer (forward, input gradient, weight gradient) with the
//! shapes of a 0.5 B model.

use super::report::column;
use super::{Machine, Report, median, repeat};
use kernels::ops::linear::{self, BackwardInput, BackwardWeight, Forward};
use kernels::{Context, DType, Matrix, Tensor};
use serde_json::json;

/// The shapes `[M, K, N]`: decoding one token, decoding a batch, then micro-batches through different layers of the
/// model.
const SHAPES: [[usize; 3]; 6] =
    [[1, 896, 4864], [16, 896, 4864], [64, 896, 4864], [512, 896, 4864], [2048, 896, 896], [512, 4864, 896]];

/// Times every matmul for about `seconds`. Inputs and weight have type `dtype`; gradients and outputs are f32.
pub fn run(ctx: &Context, dtype: DType, seconds: f64) -> anyhow::Result<Report> {
    let machine = Machine::measure(ctx)?.with_dtype(dtype);
    let columns = [
        column("shape", "M × K × N", 0),
        column("forward_gflops", "forward GFLOP/s", 1),
        column("forward_percent", "of peak %", 0),
        column("weight_gb_per_s", "weights GB/s", 1),
        column("d_x_gflops", "dX GFLOP/s", 1),
        column("d_x_percent", "of peak %", 0),
        column("d_w_gflops", "dW GFLOP/s", 1),
        column("d_w_percent", "of peak %", 0),
    ];
    let mut report = Report::new("gemm", machine.clone(), &columns);
    let memory = ctx.memory();
    let numbers = |len: usize| (0..len).map(|i| (i % 13) as f32 - 6.0).collect::<Vec<_>>();
    for [m, k, n] in SHAPES {
        let mut x = Tensor::zeros(memory, &[m, k], dtype);
        x.view_mut().copy_from_f32(&numbers(m * k));
        let mut w = Matrix::zeros_of(memory, n, k, dtype);
        w.pack_rows(0, &numbers(n * k));
        let d_y = Tensor::from_f32(memory, &[m, n], &numbers(m * n));
        let mut y = Tensor::zeros(memory, &[m, n], DType::F32);
        let mut d_x = Tensor::zeros(memory, &[m, k], DType::F32);
        let mut d_w = Matrix::zeros(memory, n, k);
        let forward = median(&repeat(5, seconds, || {
            let args = Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false };
            Ok(linear::forward(ctx, args)?)
        })?);
        let back = median(&repeat(5, seconds, || {
            let args = BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate: false };
            Ok(linear::backward_input(ctx, args)?)
        })?);
        let weight = median(&repeat(5, seconds, || {
            let args = BackwardWeight { x: x.view(), d_y: d_y.view(), d_w: &mut d_w, d_bias: None, segments: None };
            Ok(linear::backward_weight(ctx, args)?)
        })?);
        let flops = 2.0 * (m * n * k) as f64;
        let mut row = vec![json!(format!("{m} × {k} × {n}"))];
        for (i, time) in [forward, back, weight].into_iter().enumerate() {
            row.extend([json!(flops / time / 1e9), json!(machine.flops_percent(flops / time))]);
            if i == 0 {
                row.push(json!((dtype.bytes() * n * k) as f64 / time / 1e9));
            }
        }
        report.row(row);
    }
    report.note(
        "weights that fit into a cache are read from the cache: only large weights measure memory bandwidth".to_owned(),
    );
    Ok(report)
}
