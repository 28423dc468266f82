//! Compares matmuls on tiles with their formula, bit for bit. Every machine tests the unit in plain Rust, and a machine
//! with AMX also tests its instructions.

use super::*;
use crate::check::{normal, relative_error};
use crate::device::Cpu;
use crate::gemm::{Left, Matmul, MatmulDType, Operands, Order, Right};
use crate::pool::Scratch;
use crate::simd::{Kernel, Simd};
use crate::tensor::rounded_to_bf16;
use crate::{Device, Isa, Memory, Tensor};

/// Shapes `[M, N, K]`: ones, tails of rows, columns and depth around the size of a tile, and, with the small blocks of
/// tests, several blocks of depth, chunks of panels and blocks of rows.
pub(super) const SHAPES: [[usize; 3]; 15] = [
    [1, 1, 2],
    [3, 5, 6],
    [2, 129, 34],
    [13, 31, 64],
    [1, 33, 100],
    [16, 32, 32],
    [17, 33, 30],
    [33, 64, 32],
    [5, 70, 520],
    [47, 16, 130],
    [32, 200, 96],
    [40, 170, 330],
    [129, 34, 66],
    [70, 5, 12],
    [200, 3, 4],
];

/// The instruction sets with tiles that this machine can run, emulated tiles included.
fn isas() -> impl Iterator<Item = Isa> {
    [Isa::AMX_EMULATED].into_iter().chain(Isa::from_name("amx"))
}

fn contexts() -> impl Iterator<Item = Context> {
    isas().flat_map(|isa| [1, 3].map(|threads| Context::cpu(isa, threads)))
}

fn memory() -> Memory {
    Memory::new(Device::Cpu)
}

fn narrow(shape: &[usize], data: &[f32]) -> Tensor {
    let mut t = Tensor::zeros(&memory(), shape, DType::Bf16);
    t.view_mut().copy_from_f32(data);
    t
}

fn wide(shape: &[usize], data: &[f32]) -> Tensor {
    Tensor::from_f32(&memory(), shape, data)
}

pub(super) struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Numbers that bf16 can represent.
    pub x: Vec<f32>,
    /// Numbers that bf16 can represent.
    pub w: Vec<f32>,
    pub bias: Vec<f32>,
    pub d_y: Vec<f32>,
    pub y0: Vec<f32>,
    pub x0: Vec<f32>,
    pub w0: Vec<f32>,
}

impl Case {
    pub fn new([m, n, k]: [usize; 3]) -> Case {
        Case {
            m,
            n,
            k,
            x: rounded_to_bf16(&normal(1, m * k)),
            w: rounded_to_bf16(&normal(2, n * k)),
            bias: normal(3, n),
            d_y: normal(4, m * n),
            y0: normal(5, m * n),
            x0: normal(6, m * k),
            w0: normal(7, n * k),
        }
    }
    fn weight(&self) -> Matrix {
        let mut w = Matrix::zeros_of(&memory(), self.n, self.k, DType::Bf16);
        w.pack_rows(0, &self.w);
        w
    }
    /// Computes `rows` and returns all of `y`, which starts as NaN unless it is accumulated into.
    pub fn forward(&self, ctx: &Context, rows: std::ops::Range<usize>, bias: bool, accumulate: bool) -> Vec<f32> {
        let Case { m, n, k, .. } = *self;
        let (x, w, b) = (narrow(&[m, k], &self.x), self.weight(), wide(&[n], &self.bias));
        let mut y = wide(&[m, n], &if accumulate { self.y0.clone() } else { vec![f32::NAN; m * n] });
        let bias = bias.then(|| b.view());
        let args = Forward { x: x.rows(rows.clone()), w: &w, bias, y: y.rows_mut(rows), accumulate };
        forward(ctx, args).unwrap();
        y.to_vec_f32()
    }
    pub fn backward_input(&self, ctx: &Context, accumulate: bool) -> Vec<f32> {
        let Case { m, n, k, .. } = *self;
        let (d_y, w) = (wide(&[m, n], &self.d_y), self.weight());
        let mut d_x = wide(&[m, k], &if accumulate { self.x0.clone() } else { vec![f32::NAN; m * k] });
        backward_input(ctx, BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate }).unwrap();
        d_x.to_vec_f32()
    }
    /// Computes `d_w` in several calls, with the rows split at `cuts`.
    pub fn backward_weight(&self, ctx: &Context, segments: &[u32], cuts: &[usize]) -> Vec<f32> {
        let Case { m, n, k, .. } = *self;
        let (x, d_y) = (narrow(&[m, k], &self.x), wide(&[m, n], &self.d_y));
        let mut d_w = Matrix::from_f32(&memory(), n, k, &self.w0);
        for ends in cuts.windows(2) {
            let rows = ends[0]..ends[1];
            let inside = segments.iter().filter(|&&s| (ends[0]..=ends[1]).contains(&(s as usize)));
            let own: Vec<u32> = inside.map(|s| s - ends[0] as u32).collect();
            let own = Tensor::from_u32(&memory(), &[own.len()], &own);
            let (x, d_y, segments) = (x.rows(rows.clone()), d_y.rows(rows), Some(own.view()));
            backward_weight(ctx, BackwardWeight { x, d_y, d_w: &mut d_w, d_bias: None, segments }).unwrap();
        }
        let used = d_w.unpack_rows(0..n);
        let sum = |x: &[f32]| x.iter().map(|x| f64::from(x.abs())).sum::<f64>();
        let (all, used_sum) = (sum(&d_w.data().to_vec_f32()), sum(&used));
        assert!((all - used_sum).abs() <= 1e-9 * all, "padding was written");
        used
    }
}

pub(super) fn same(got: &[f32], expected: &[f32], what: &str) {
    let at = got.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    assert!(
        got.len() == expected.len() && at.is_none(),
        "{what}: element {at:?}: {:?}",
        at.map(|i| (got[i], expected[i]))
    );
}

#[test]
fn forward_matches_the_formula_bit_for_bit() {
    for shape in SHAPES {
        let case = Case::new(shape);
        let plain = reference::forward_on_tiles(case.k, &case.x, &case.w, Some(&case.bias), None);
        let continued = reference::forward_on_tiles(case.k, &case.x, &case.w, None, Some(&case.y0));
        for ctx in contexts() {
            let what = format!("{:?} {} {shape:?}", ctx.describe(), ctx.threads());
            same(&case.forward(&ctx, 0..case.m, true, false), &plain, &what);
            same(&case.forward(&ctx, 0..case.m, false, true), &continued, &what);
        }
    }
}

#[test]
fn backward_matches_the_formula_bit_for_bit() {
    for shape in SHAPES {
        let case = Case::new(shape);
        let fresh = reference::backward_input_on_tiles(case.k, &case.d_y, &case.w, None);
        let continued = reference::backward_input_on_tiles(case.k, &case.d_y, &case.w, Some(&case.x0));
        let m = case.m as u32;
        for segments in [vec![0, m], vec![0, m / 3, m / 3, m / 2 + 1, m]] {
            let mut d_w = case.w0.clone();
            reference::backward_weight_on_tiles(case.k, &case.x, &case.d_y, &mut d_w, &segments);
            for ctx in contexts() {
                let what = format!("d_w {:?} {} {shape:?} {segments:?}", ctx.describe(), ctx.threads());
                same(&case.backward_weight(&ctx, &segments, &[0, case.m]), &d_w, &what);
                // A split at the end of a segment must not change a bit.
                let cuts = [0, segments[1] as usize, case.m];
                same(&case.backward_weight(&ctx, &segments, &cuts), &d_w, &format!("{what} cut"));
            }
        }
        for ctx in contexts() {
            let what = format!("d_x {:?} {} {shape:?}", ctx.describe(), ctx.threads());
            same(&case.backward_input(&ctx, false), &fresh, &what);
            same(&case.backward_input(&ctx, true), &continued, &what);
        }
    }
}

/// The code that packs tiles is generic over vector types; this test runs it with each of them.
#[test]
fn every_vector_type_packs_tiles_alike() {
    struct Block<'a, 'b>(&'a Matmul<'b>, usize, usize);
    impl Kernel for Block<'_, '_> {
        type Output = ();
        #[inline(always)]
        fn run<V: Simd>(self) {
            let mut scratch = Scratch::default();
            scratch.f32(1 << 16).fill(f32::NAN);
            // SAFETY: the matmul borrows the output exclusively, and only this thread writes to it.
            unsafe { self.0.block_with::<V>(0..self.1, 0..self.2.div_ceil(crate::matrix::PANEL), &mut scratch) };
        }
    }
    for [m, n, k] in [[37, 45, 70], [37, 45, 64]] {
        let case = Case::new([m, n, k]);
        let (x, w, d_y) = (narrow(&[m, k], &case.x), case.weight(), wide(&[m, n], &case.d_y));
        let cpu = Cpu::new(Isa::PORTABLE, 1, Device::Cpu).unwrap();
        let data = || w.elements(&cpu);
        for isa in Isa::present() {
            for matmul in 0..3 {
                let (left, right, order, [m, n, depth]) = match matmul {
                    0 => (Left::Rows(x.view().elements(&cpu), k), Right::Panels(data()), Order::Rows(n), [m, n, k]),
                    1 => {
                        (Left::Rows(d_y.view().elements(&cpu), n), Right::Transposed(data()), Order::Rows(k), [m, k, n])
                    }
                    _ => (
                        Left::Columns(x.view().elements(&cpu), k),
                        Right::Rows(d_y.view().elements(&cpu), n),
                        Order::Panels,
                        [k, n, m],
                    ),
                };
                let mut c = vec![f32::NAN; if matmul == 2 { 2 * 32 * k } else { m * n }];
                let (dtype, accumulate, c_mut) = (MatmulDType::Bf16, false, c.as_mut_slice());
                let operands = Operands {
                    m,
                    n,
                    depth,
                    left,
                    right,
                    c: c_mut,
                    order,
                    accumulate,
                    bias: None,
                    dtype,
                    segments: None,
                };
                isa.run(Block(&Matmul::new(Isa::AMX_EMULATED, operands), m, n));
                let expected = match matmul {
                    0 => reference::forward_on_tiles(k, &case.x, &case.w, None, None),
                    1 => reference::backward_input_on_tiles(k, &case.d_y, &case.w, None),
                    _ => {
                        let mut d_w = vec![0.0; case.n * k];
                        reference::backward_weight_on_tiles(k, &case.x, &case.d_y, &mut d_w, &[0, case.m as u32]);
                        let at = |i: usize| (i % k, i / k);
                        c = (0..d_w.len()).map(at).map(|(i, j)| c[(j / 32 * k + i) * 32 + j % 32]).collect();
                        d_w
                    }
                };
                same(&c, &expected, &format!("{isa:?} matmul {matmul}"));
            }
        }
    }
}

/// A row's bits do not depend on the other rows or on its index, and rows outside the range are not changed.
#[test]
fn bits_do_not_depend_on_the_batch() {
    let case = Case::new([70, 45, 140]);
    for ctx in contexts() {
        let y = case.forward(&ctx, 0..70, true, false);
        for rows in [0..1, 16..17, 31..49, 3..70, 69..70] {
            let got = case.forward(&ctx, rows.clone(), true, false);
            let inside = rows.start * 45..rows.end * 45;
            same(&got[inside.clone()], &y[inside.clone()], &format!("rows {rows:?}"));
            assert!(got.iter().enumerate().all(|(i, y)| inside.contains(&i) || y.is_nan()), "rows {rows:?}");
        }
    }
}

#[test]
fn a_nan_affects_only_its_own_row_and_column() {
    let (m, n, k) = (35, 37, 42);
    let mut case = Case::new([m, n, k]);
    case.x[2 * k + 4] = f32::NAN;
    for ctx in contexts() {
        let y = case.forward(&ctx, 0..m, true, false);
        assert!(y.chunks_exact(n).enumerate().all(|(row, y)| y.iter().all(|y| y.is_nan() == (row == 2))));
        let (x, d_y) = (narrow(&[m, k], &case.x), wide(&[m, n], &case.d_y));
        let mut d_w = Matrix::zeros(&memory(), n, k);
        let args = BackwardWeight { x: x.view(), d_y: d_y.view(), d_w: &mut d_w, d_bias: None, segments: None };
        backward_weight(&ctx, args).unwrap();
        let nans = d_w.data().to_vec_f32().iter().filter(|x| x.is_nan()).count();
        assert_eq!(nans, n, "one input of every output must be NaN, and no padding");
    }
}

/// Results are close to the f64 oracle; without one row of `d_y`, they are not.
#[test]
fn backward_is_near_the_f64_oracle_and_a_wrong_gradient_is_not() {
    let mut case = Case::new([33, 70, 46]);
    let f64s = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let (x, w, d_y) = (f64s(&case.x), f64s(&case.w), f64s(&rounded_to_bf16(&case.d_y)));
    let d_x = reference::backward_input(case.k, &d_y, &w, None);
    let mut d_w = f64s(&case.w0);
    reference::backward_weight(case.k, &x, &d_y, &mut d_w);
    let (right, all) = (case.d_y.clone(), [0, case.m]);
    for ctx in contexts() {
        case.d_y = right.clone();
        assert!(relative_error(&case.backward_input(&ctx, false), &d_x) < 1e-5);
        assert!(relative_error(&case.backward_weight(&ctx, &[0, 33], &all), &d_w) < 1e-5);
        case.d_y[32 * 70..].fill(0.0);
        assert!(relative_error(&case.backward_input(&ctx, false), &d_x) > 1e-2);
        assert!(relative_error(&case.backward_weight(&ctx, &[0, 33], &all), &d_w) > 1e-2);
    }
}

#[test]
fn f32_matmuls_do_not_run_on_tiles() {
    let case = Case::new([17, 33, 100]);
    for ctx in contexts() {
        let (x, w) = (wide(&[17, 100], &case.x), Matrix::from_f32(&memory(), 33, 100, &case.w));
        let mut y = wide(&[17, 33], &[f32::NAN; 17 * 33]);
        forward(&ctx, Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false }).unwrap();
        let chains = reference::forward(100, &case.x, &case.w, None, None);
        same(&y.to_vec_f32(), &chains, "chains");
        assert!(chains != reference::forward_on_tiles(100, &case.x, &case.w, None, None));
    }
}

#[test]
fn the_error_names_invalid_segments() {
    let (x, d_y) = (wide(&[4, 3], &[0.0; 12]), wide(&[4, 2], &[0.0; 8]));
    let mut d_w = Matrix::zeros(&memory(), 2, 3);
    for wrong in [&[0, 3][..], &[1, 4], &[0, 3, 2, 4], &[], &[4]] {
        let segments = Tensor::from_u32(&memory(), &[wrong.len()], wrong);
        let segments = Some(segments.view());
        let args = BackwardWeight { x: x.view(), d_y: d_y.view(), d_w: &mut d_w, d_bias: None, segments };
        let message = backward_weight(&Context::cpu(Isa::PORTABLE, 1), args).unwrap_err().to_string();
        assert_eq!(message, "linear::backward_weight: segments must ascend from 0 to 4");
    }
}
