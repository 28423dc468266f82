//! Matmuls in bf16 on the emulator's tensor cores have the bits of the formula of each family that supports bf16.

use super::*;
use crate::Tensor;
use crate::check::{flushed::planted, normal};
use crate::device::cuda::tensor_core::{Factor, Family, HOPPER, TURING};
use crate::device::cuda::tests::{emulated_as, full, schedules, with_tensor_cores};
use crate::tensor::rounded_to_bf16;

/// Row-major operands. All of them are exact in bf16 except `d_y`, which matmuls round.
struct Case {
    sizes: [usize; 3],
    x: Vec<f32>,
    w: Vec<f32>,
    d_y: Vec<f32>,
    bias: Vec<f32>,
    y: Vec<f32>,
    d_x: Vec<f32>,
    d_w: Vec<f32>,
}

impl Case {
    fn new(sizes: [usize; 3], numbers: fn(u64, usize, usize) -> Vec<f32>) -> Case {
        let [m, n, k] = sizes;
        Case {
            sizes,
            x: rounded_to_bf16(&numbers(1, m, k)),
            w: rounded_to_bf16(&numbers(2, n, k)),
            d_y: numbers(3, m, n),
            bias: numbers(4, n, 1),
            y: numbers(5, m, n),
            d_x: numbers(6, m, k),
            d_w: numbers(7, n, k),
        }
    }
}

/// Numbers whose products are −2⁻¹⁵⁰, which is truncated to −0 unless something is added.
fn tiny(seed: u64, rows: usize, columns: usize) -> Vec<f32> {
    let sign = if seed % 2 == 1 { 1.0 } else { -1.0 };
    (0..rows * columns).map(|i| if i % columns == 0 { sign * 2.0f32.powi(-75) } else { 0.0 }).collect()
}

fn cases() -> impl Iterator<Item = Case> {
    let shapes = [[1, 1, 2], [3, 5, 18], [2, 33, 64], [70, 66, 34], [17, 8, 16], [130, 9, 98], [0, 3, 4], [64, 64, 32]];
    let large: &[[usize; 3]] = if full() { &[[200, 130, 514], [65, 257, 768]] } else { &[] };
    let plain: fn(u64, usize, usize) -> Vec<f32> = |seed, rows, columns| normal(seed, rows * columns);
    shapes
        .into_iter()
        .chain(large.iter().copied())
        .flat_map(move |sizes| [plain, planted, tiny].map(|numbers| Case::new(sizes, numbers)))
}

fn matrix(ctx: &Context, rows: usize, cols: usize, data: &[f32], dtype: DType) -> Matrix {
    let mut matrix = Matrix::zeros_of(ctx.memory(), rows, cols, dtype);
    matrix.pack_rows(0, data);
    matrix
}

fn tensor(ctx: &Context, shape: &[usize], data: &[f32], dtype: DType) -> Tensor {
    let mut tensor = Tensor::zeros(ctx.memory(), shape, dtype);
    tensor.view_mut().copy_from_f32(data);
    tensor
}

#[track_caller]
fn same(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{what}, element {i}: {a:e}, formula {b:e}");
    }
}

/// Checks the bits of all three matmuls, with sums from 0 and with accumulated sums.
fn check(case: &Case, ctx: &Context, family: Family, what: &str) {
    let [m, n, k] = case.sizes;
    let chain = |c: f32, terms: &mut dyn Iterator<Item = (f32, f32)>| family.chain(Factor::Bf16, c, terms);
    let w = matrix(ctx, n, k, &case.w, DType::Bf16);
    let x = tensor(ctx, &[m, k], &case.x, DType::Bf16);
    let rounded = rounded_to_bf16(&case.d_y);
    for accumulate in [false, true] {
        let bias = (!accumulate).then(|| tensor(ctx, &[n], &case.bias, DType::F32));
        let mut y = tensor(ctx, &[m, n], &case.y, DType::F32);
        let args = Forward { x: x.view(), w: &w, bias: bias.as_ref().map(Tensor::view), y: y.view_mut(), accumulate };
        forward(ctx, args).unwrap();
        let expected = elements(m, n, |i, j| {
            let c = if accumulate { case.y[i * n + j] } else { 0.0 };
            let sum = chain(c, &mut (0..k).map(|l| (case.x[i * k + l], case.w[j * k + l])));
            if accumulate { sum } else { sum + case.bias[j] }
        });
        same(&y.to_vec_f32(), &expected, &format!("{what} forward"));
        let expected = elements(m, k, |i, l| {
            let c = if accumulate { case.d_x[i * k + l] } else { 0.0 };
            chain(c, &mut (0..n).map(|j| (rounded[i * n + j], case.w[j * k + l])))
        });
        for dtype in [DType::F32, DType::Bf16] {
            let (d_y, mut d_x) = (tensor(ctx, &[m, n], &case.d_y, dtype), tensor(ctx, &[m, k], &case.d_x, DType::F32));
            backward_input(ctx, BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate }).unwrap();
            same(&d_x.to_vec_f32(), &expected, &format!("{what} d_x of {dtype:?}"));
        }
    }
    // The gradient of the weight: each segment is padded with zeros.
    let cuts = [0, m / 3, m / 3, m];
    let mut expected = case.d_w.clone();
    for rows in cuts.windows(2) {
        expected = elements(n, k, |j, l| {
            chain(expected[j * k + l], &mut (rows[0]..rows[1]).map(|i| (case.x[i * k + l], rounded[i * n + j])))
        });
    }
    let segments = Tensor::from_u32(ctx.memory(), &[cuts.len()], &cuts.map(|cut| cut as u32));
    for dtype in [DType::F32, DType::Bf16] {
        let (d_y, mut d_w) = (tensor(ctx, &[m, n], &case.d_y, dtype), matrix(ctx, n, k, &case.d_w, DType::F32));
        let mut d_bias = Tensor::zeros(ctx.memory(), &[n], DType::F32);
        let (segments, d_b) = (Some(segments.view()), Some(d_bias.view_mut()));
        let args = BackwardWeight { x: x.view(), d_y: d_y.view(), d_w: &mut d_w, d_bias: d_b, segments };
        backward_weight(ctx, args).unwrap();
        same(&d_w.unpack_rows(0..n), &expected, &format!("{what} d_w of {dtype:?}"));
        // The gradient of the bias: sums over chunks of 64 rows of a segment.
        let d_y = d_y.to_vec_f32();
        let sums = elements(n, 1, |j, _| {
            let mut sum = 0.0f32;
            for rows in cuts.windows(2) {
                for from in (rows[0]..rows[1]).step_by(64) {
                    sum += (from..rows[1].min(from + 64)).fold(0.0, |sum, i| sum + d_y[i * n + j]);
                }
            }
            sum
        });
        same(&d_bias.to_vec_f32(), &sums, &format!("{what} d_b of {dtype:?}"));
    }
}

fn elements(rows: usize, columns: usize, element: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..rows * columns).map(|i| element(i / columns, i % columns)).collect()
}

#[test]
fn tensor_core_matmuls_have_the_bits_of_the_formula() {
    for schedule in 0..schedules() {
        for (cuda, family) in with_tensor_cores(schedule) {
            let ctx = Context::cuda(cuda);
            for case in cases() {
                check(&case, &ctx, family, &format!("{} {:?} schedule {schedule}", family.name, case.sizes));
            }
        }
    }
}

/// A row's bits do not depend on the other rows.
#[test]
fn tensor_core_rows_do_not_depend_on_each_other() {
    let Some((cuda, _)) = with_tensor_cores(0).pop() else { return };
    let ctx = Context::cuda(cuda);
    let (n, k) = (40, 50);
    let (x, w) = (normal(1, 150 * k), matrix(&ctx, n, k, &normal(2, n * k), DType::Bf16));
    let matmul = |rows: std::ops::Range<usize>| {
        let x = tensor(&ctx, &[rows.len(), k], &x[rows.start * k..rows.end * k], DType::Bf16);
        let mut y = Tensor::zeros(ctx.memory(), &[rows.len(), n], DType::F32);
        forward(&ctx, Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false }).unwrap();
        y.to_vec_f32()
    };
    let all = matmul(0..150);
    if full() {
        (1..150).for_each(|rows| same(&matmul(0..rows), &all[..rows * n], &format!("{rows} rows")));
    }
    for rows in [0..1, 3..4, 63..65, 17..81, 100..150] {
        same(&matmul(rows.clone()), &all[rows.start * n..rows.end * n], &format!("rows {rows:?}"));
    }
}

/// Tensor cores without bf16 are refused, and so is a matmul of f32 and bf16.
#[test]
fn unsupported_families_and_dtypes_are_refused() {
    let refused = |family: Family, dtype: DType| {
        let ctx = Context::cuda(emulated_as(0, family)?);
        let (x, w) = (tensor(&ctx, &[2, 4], &[1.0; 8], dtype), matrix(&ctx, 3, 4, &[1.0; 12], DType::Bf16));
        let mut y = Tensor::zeros(ctx.memory(), &[2, 3], DType::F32);
        let args = Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false };
        Some(forward(&ctx, args).unwrap_err().to_string())
    };
    let Some(turing) = refused(TURING, DType::Bf16) else { return };
    assert!(turing.ends_with("the device has no tensor cores for bf16"), "{turing}");
    let mixed = refused(HOPPER, DType::F32).unwrap();
    assert!(mixed.contains("a matmul of f32 and bf16 is not supported yet"), "{mixed}");
}
