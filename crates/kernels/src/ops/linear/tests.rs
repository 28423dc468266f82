use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::device::cuda::tests::contexts;
use crate::ops::lanes::segments_of;
use crate::{Device, Isa, Memory, Tensor};

/// Odd shapes `[M, N, K]`: ones, tails of every kind, several blocks of depth, several blocks of rows, and empty
/// matrices.
const SHAPES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [3, 5, 7],
    [2, 129, 33],
    [13, 31, 64],
    [1, 300, 45],
    [5, 70, 20],
    [25, 33, 520],
    [251, 34, 3],
    [4, 64, 1],
    [6, 1, 200],
    [0, 7, 5],
    [17, 16, 32],
    [600, 5, 12],
    [45, 140, 29],
];

struct Case {
    m: usize,
    n: usize,
    k: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Vec<f32>,
    d_y: Vec<f32>,
    y0: Vec<f32>,
    x0: Vec<f32>,
    w0: Vec<f32>,
    b0: Vec<f32>,
}

impl Case {
    fn new([m, n, k]: [usize; 3]) -> Case {
        Case {
            m,
            n,
            k,
            x: normal(1, m * k),
            w: normal(2, n * k),
            bias: normal(3, n),
            d_y: normal(4, m * n),
            y0: normal(5, m * n),
            x0: normal(6, m * k),
            w0: normal(7, n * k),
            b0: normal(8, n),
        }
    }
    /// Runs the forward pass and returns `y`, which starts as NaN unless it is accumulated into.
    fn forward(&self, ctx: &Context, rows: std::ops::Range<usize>, bias: bool, accumulate: bool) -> Vec<f32> {
        let Case { m, n, k, .. } = *self;
        let tensor = |shape: &[usize], data: &[f32]| Tensor::from_f32(ctx.memory(), shape, data);
        let (x, w) = (tensor(&[m, k], &self.x), Matrix::from_f32(ctx.memory(), n, k, &self.w));
        let b = tensor(&[n], &self.bias);
        let mut y = tensor(&[m, n], &if accumulate { self.y0.clone() } else { vec![f32::NAN; m * n] });
        let bias = bias.then(|| b.view());
        forward(ctx, Forward { x: x.rows(rows.clone()), w: &w, bias, y: y.rows_mut(rows.clone()), accumulate })
            .unwrap();
        y.rows(rows).to_vec_f32()
    }
    fn backward_input(&self, ctx: &Context, accumulate: bool) -> Vec<f32> {
        let Case { m, n, k, .. } = *self;
        let tensor = |shape: &[usize], data: &[f32]| Tensor::from_f32(ctx.memory(), shape, data);
        let (d_y, w) = (tensor(&[m, n], &self.d_y), Matrix::from_f32(ctx.memory(), n, k, &self.w));
        let mut d_x = tensor(&[m, k], &if accumulate { self.x0.clone() } else { vec![f32::NAN; m * k] });
        backward_input(ctx, BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate }).unwrap();
        d_x.to_vec_f32()
    }
    /// Computes `d_w` and `d_bias` in two calls, with the rows split at `cut`, where a segment begins.
    fn backward_weight(&self, ctx: &Context, segments: &[u32], cut: usize) -> (Vec<f32>, Vec<f32>) {
        let Case { m, n, k, .. } = *self;
        let tensor = |shape: &[usize], data: &[f32]| Tensor::from_f32(ctx.memory(), shape, data);
        let (x, d_y) = (tensor(&[m, k], &self.x), tensor(&[m, n], &self.d_y));
        let mut d_w = Matrix::from_f32(ctx.memory(), n, k, &self.w0);
        let mut d_b = tensor(&[n], &self.b0);
        for rows in [0..cut, cut..m] {
            let own = segments_of(segments, rows.clone());
            let own = Tensor::from_u32(ctx.memory(), &[own.len()], &own);
            let args = BackwardWeight {
                x: x.rows(rows.clone()),
                d_y: d_y.rows(rows),
                d_w: &mut d_w,
                d_bias: Some(d_b.view_mut()),
                segments: Some(own.view()),
            };
            backward_weight(ctx, args).unwrap();
        }
        let used = d_w.unpack_rows(0..n);
        // The padding of the last panel stays 0.
        let all: f32 = d_w.data().to_vec_f32().iter().map(|x| x.abs()).sum();
        let sum: f32 = used.iter().map(|x| x.abs()).sum();
        assert!((all - sum).abs() <= 1e-4 * sum, "padding was written");
        (used, d_b.to_vec_f32())
    }
}

fn memory() -> Memory {
    Memory::new(Device::Cpu)
}

fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

#[test]
fn forward_matches_the_formula_bit_for_bit() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 1);
        for shape in SHAPES {
            let case = Case::new(shape);
            let plain = reference::forward(case.k, &case.x, &case.w, Some(&case.bias), None);
            assert_eq!(case.forward(&ctx, 0..case.m, true, false), plain, "{isa:?} {shape:?}");
            let continued = reference::forward(case.k, &case.x, &case.w, None, Some(&case.y0));
            assert_eq!(case.forward(&ctx, 0..case.m, false, true), continued, "{isa:?} {shape:?} accumulate");
        }
    }
}

#[test]
fn backward_matches_the_formula_bit_for_bit() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 1);
        for shape in SHAPES {
            let case = Case::new(shape);
            let d_x = reference::backward_input(case.k, &case.d_y, &case.w, None);
            assert_eq!(case.backward_input(&ctx, false), d_x, "{isa:?} {shape:?}");
            let d_x = reference::backward_input(case.k, &case.d_y, &case.w, Some(&case.x0));
            assert_eq!(case.backward_input(&ctx, true), d_x, "{isa:?} {shape:?} accumulate");
            let m = case.m as u32;
            for segments in [vec![0, m], vec![0, m / 3, m / 3, m]] {
                let (mut d_w, mut d_b) = (case.w0.clone(), case.b0.clone());
                reference::backward_weight(case.k, &case.x, &case.d_y, &mut d_w);
                reference::backward_bias(&case.d_y, &mut d_b, &segments);
                assert_eq!(case.backward_weight(&ctx, &segments, 0), (d_w, d_b), "{isa:?} {shape:?} {segments:?}");
            }
        }
    }
}

/// The bits must not depend on the threads, on the other rows, or on where a batch is split.
#[test]
fn bits_do_not_depend_on_threads_or_batch() {
    for shape in [[250, 70, 45], [9, 300, 77], [64, 257, 70]] {
        let case = Case::new(shape);
        let one = Context::cpu(Isa::best(), 1);
        let y = case.forward(&one, 0..case.m, true, false);
        let d_x = case.backward_input(&one, false);
        let d_w = case.backward_weight(&one, &[0, case.m as u32], 0);
        for threads in [2, 3] {
            let ctx = Context::cpu(Isa::best(), threads);
            assert_eq!(case.forward(&ctx, 0..case.m, true, false), y);
            assert_eq!(case.backward_input(&ctx, false), d_x);
            assert_eq!(case.backward_weight(&ctx, &[0, case.m as u32], 0), d_w);
        }
        for row in 0..case.m.min(14) {
            let alone = case.forward(&one, row..row + 1, true, false);
            assert_eq!(alone, y[row * case.n..(row + 1) * case.n], "row {row} alone");
            let many = case.forward(&one, 0..row + 1, true, false);
            assert_eq!(many, y[..(row + 1) * case.n], "the first {} rows", row + 1);
        }
        for cut in [1, 5, case.m / 2] {
            let segments = [0, cut as u32, case.m as u32];
            let whole = case.backward_weight(&one, &segments, 0);
            assert_eq!(case.backward_weight(&one, &segments, cut), whole, "cut at {cut}");
            assert_eq!(whole.0, d_w.0, "segments must not change d_w of chains");
        }
    }
}

/// Checks the oracle's gradients of x, w and b together, in f64 along random directions.
#[test]
fn the_oracles_gradients_match_finite_differences() {
    for [m, n, k] in [[1, 1, 1], [3, 5, 4], [2, 7, 3]] {
        let (x, w, b): (Vec<f64>, Vec<f64>, Vec<f64>) = (normal(1, m * k), normal(2, n * k), normal(3, n));
        let d_y: Vec<f64> = normal(4, m * n);
        let all = [x.clone(), w.clone(), b].concat();
        let loss = |all: &[f64]| {
            let (x, rest) = all.split_at(m * k);
            let (w, b) = rest.split_at(n * k);
            let y = reference::forward(k, x, w, Some(b), None);
            y.iter().zip(&d_y).map(|(y, d)| y * d).sum()
        };
        let d_x = reference::backward_input(k, &d_y, &w, None);
        let (mut d_w, mut d_b) = (vec![0.0; n * k], vec![0.0; n]);
        reference::backward_weight(k, &x, &d_y, &mut d_w);
        reference::backward_bias(&d_y, &mut d_b, &[0, m as u32]);
        let gradient = [d_x, d_w, d_b].concat();
        assert!(directional_error(&all, &gradient, loss) < 1e-7);
        // The check must detect a 1 % error in one element.
        for spoiled in [0, m * k, m * k + n * k] {
            let mut g = gradient.clone();
            g[spoiled] = g[spoiled] * 1.01 + 1e-3;
            assert!(directional_error(&all, &g, loss) > 1e-6, "a wrong element {spoiled} passes");
        }
    }
}

#[test]
fn backward_is_near_the_f64_oracle_and_a_wrong_gradient_is_not() {
    let case = Case::new([33, 70, 45]);
    let (x, w, d_y) = (f64s(&case.x), f64s(&case.w), f64s(&case.d_y));
    let d_x = reference::backward_input(case.k, &d_y, &w, None);
    let (mut d_w, mut d_b) = (f64s(&case.w0), f64s(&case.b0));
    reference::backward_weight(case.k, &x, &d_y, &mut d_w);
    reference::backward_bias(&d_y, &mut d_b, &[0, 33]);
    for ctx in contexts(&[1]) {
        let fast = case.backward_input(&ctx, false);
        assert!(relative_error(&fast, &d_x) < 1e-5);
        let (fast_w, fast_b) = case.backward_weight(&ctx, &[0, 33], 0);
        assert!(relative_error(&fast_w, &d_w) < 1e-5);
        assert!(relative_error(&fast_b, &d_b) < 1e-5);
        // A backward pass that ignores the last row of d_y is detected.
        let mut forgetful = Case::new([33, 70, 45]);
        forgetful.d_y[32 * 70..].fill(0.0);
        assert!(relative_error(&forgetful.backward_weight(&ctx, &[0, 33], 0).0, &d_w) > 1e-2);
        assert!(relative_error(&forgetful.backward_input(&ctx, false), &d_x) > 1e-2);
    }
}

/// A NaN affects only its own row of `y` and its own column of `d_w`.
#[test]
fn a_nan_affects_only_its_own_row_and_column() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 1);
        let mut case = Case::new([5, 37, 9]);
        case.x[2 * 9 + 4] = f32::NAN;
        let y = case.forward(&ctx, 0..5, true, false);
        for (row, y) in y.chunks_exact(37).enumerate() {
            assert!(y.iter().all(|y| y.is_nan() == (row == 2)));
        }
        let (m, n, k) = (case.m, case.n, case.k);
        let tensor = |shape: &[usize], data: &[f32]| Tensor::from_f32(&memory(), shape, data);
        let (x, d_y) = (tensor(&[m, k], &case.x), tensor(&[m, n], &case.d_y));
        let mut d_w = Matrix::zeros(&memory(), n, k);
        let args = BackwardWeight { x: x.view(), d_y: d_y.view(), d_w: &mut d_w, d_bias: None, segments: None };
        backward_weight(&ctx, args).unwrap();
        let nans = d_w.data().to_vec_f32().iter().filter(|x| x.is_nan()).count();
        assert_eq!(nans, n, "one input of every output must be NaN, and no padding");
    }
}

#[test]
fn the_error_names_a_wrong_shape() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let m = memory();
    let (x, w) = (Tensor::zeros(&m, &[2, 3], DType::F32), Matrix::zeros(&m, 5, 4));
    let mut y = Tensor::zeros(&m, &[2, 5], DType::F32);
    let args = Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false };
    let message = forward(&ctx, args).unwrap_err().to_string();
    assert_eq!(message, "linear::forward: x has shape [2, 3], expected [2, 4]");
}

#[test]
fn matmuls_count_their_operations_and_bytes() {
    let before = crate::context::counted();
    let case = Case::new([3, 5, 7]);
    case.forward(&Context::cpu(Isa::PORTABLE, 1), 0..3, false, false);
    let after = crate::context::counted();
    assert_eq!(after.0 - before.0, 2 * 3 * 5 * 7);
    assert_eq!(after.1 - before.1, (32 * 7 + 3 * (5 + 7)) * 4);
}
