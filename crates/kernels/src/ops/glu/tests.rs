use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::device::cuda::tests::contexts;
use crate::ops::linear;
use crate::tensor::rounded_to_bf16;
use crate::{DType, Isa, Tensor};

const ACTIVATIONS: [Activation; 2] = [Activation::Silu, Activation::GeluTanh];

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// The output `y` and the gradient of `gate_up`.
fn run(ctx: &Context, activation: Activation, [t, f]: [usize; 2], gate_up: &[f32], d_y: &[f32]) -> [Vec<f32>; 2] {
    let m = ctx.memory();
    let poisoned = |shape: &[usize]| {
        let mut t = Tensor::zeros(m, shape, DType::F32);
        t.view_mut().fill(f32::NAN);
        t
    };
    let (gate_up, d_y) = (Tensor::from_f32(m, &[t, 2 * f], gate_up), Tensor::from_f32(m, &[t, f], d_y));
    let (mut y, mut d) = (poisoned(&[t, f]), poisoned(&[t, 2 * f]));
    forward(ctx, Forward { activation, gate_up: gate_up.view(), kept: None, y: y.view_mut() }).unwrap();
    let mut again = poisoned(&[t, f]);
    let (gate_up, d_gate_up, y_again) = (gate_up.view(), d.view_mut(), Some(again.view_mut()));
    backward(ctx, Backward { activation, gate_up, rows: None, d_y: d_y.view(), d_gate_up, y: y_again }).unwrap();
    let bits = |t: &Tensor| t.to_vec_f32().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert!(bits(&again) == bits(&y));
    [y.to_vec_f32(), d.to_vec_f32()]
}

#[test]
fn the_result_is_near_the_oracle_on_every_isa() {
    let shapes = [[1, 1], [3, 5], [2, 129], [70, 300], [0, 4]];
    for (activation, shape) in ACTIVATIONS.into_iter().flat_map(|a| shapes.map(|shape| (a, shape))) {
        let [t, f] = shape;
        let (gate_up, d_y): (Vec<f32>, Vec<f32>) = (normal(1, t * 2 * f), normal(2, t * f));
        let gate_up: Vec<f32> = gate_up.iter().map(|x| 4.0 * x).collect();
        let y = reference::forward(activation, &wide(&gate_up), f);
        let d = reference::backward(activation, &wide(&gate_up), f, &wide(&d_y));
        let mut bits = None;
        for ctx in contexts(&[1, 3]) {
            let got = run(&ctx, activation, shape, &gate_up, &d_y);
            let errors = [relative_error(&got[0], &y), relative_error(&got[1], &d)];
            // GELU is less accurate for a single gate far down its tail (see the next test).
            let bound = if activation == Activation::Silu { 1e-6 } else { 5e-6 };
            assert!(errors[0] < bound && errors[1] < 1e-5, "{activation:?} {} {t}×{f}: {errors:?}", ctx.describe());
            assert!(*bits.get_or_insert(got.clone()) == got, "{activation:?} {} {t}×{f}", ctx.describe());
            if let [_, mut spoiled] = got
                && t > 0
            {
                spoiled[0] += 0.1;
                assert!(relative_error(&spoiled, &d) > 1e-5, "a wrong gradient passes");
            }
        }
    }
}

/// Compares element by element, because a norm over all elements would hide small ones. A relative error in the
/// argument of σ becomes an error that grows with −x.
#[test]
fn gelu_is_accurate_down_its_tail() {
    let gates: Vec<f32> = (-1000..1000).map(|i| i as f32 / 100.0).collect();
    let f = gates.len();
    let row: Vec<f32> = gates.iter().copied().chain(vec![1.0; f]).collect();
    let exact = reference::forward(Activation::GeluTanh, &wide(&row), f);
    let [y, _] = run(&Context::cpu(Isa::best(), 1), Activation::GeluTanh, [1, f], &row, &vec![1.0; f]);
    for (x, (y, exact)) in gates.iter().zip(y.iter().zip(&exact)).filter(|(x, _)| **x > -5.0) {
        assert!((f64::from(*y) - exact).abs() <= 5e-6 * exact.abs() + 1e-15, "{x}: {y} not {exact}");
    }
    assert!(y.iter().all(|y| (-0.17005..10.0).contains(y)));
}

#[test]
fn the_oracles_gradients_match_finite_differences() {
    let (t, f) = (3, 5);
    let (x, d_y): (Vec<f64>, Vec<f64>) = (normal(1, t * 2 * f), normal(2, t * f));
    for a in ACTIVATIONS {
        let loss = |x: &[f64]| reference::forward(a, x, f).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
        let mut d = reference::backward(a, &x, f, &d_y);
        assert!(directional_error(&x, &d, loss) < 1e-7, "{a:?}");
        d[3] *= 1.01;
        assert!(directional_error(&x, &d, loss) > 1e-7, "a wrong gradient of {a:?} passes");
    }
}

#[test]
fn large_gates_neither_overflow_nor_vanish() {
    let ctx = Context::cpu(Isa::best(), 1);
    for (activation, gate) in [(Activation::Silu, 200.0), (Activation::GeluTanh, 200.0), (Activation::GeluTanh, 1e30)] {
        let [y, d] = run(&ctx, activation, [1, 2], &[gate, -gate, 3.0, 3.0], &[1.0, 1.0]);
        assert_eq!(y, [3.0 * gate, -0.0], "{activation:?}");
        assert_eq!(d, [3.0, 0.0, gate, -0.0], "{activation:?}");
    }
    let [y, d] = run(&ctx, Activation::GeluTanh, [1, 1], &[f32::NAN, 1.0], &[1.0]);
    assert!(y[0].is_nan() && d[0].is_nan());
}

/// The output `y` and the kept gate and up of a matmul with gates, in one pass or in two.
fn matmul_outputs(
    ctx: &Context,
    activation: Activation,
    dtype: DType,
    [t, k, f]: [usize; 3],
    bias: bool,
    in_one: bool,
) -> [Vec<f32>; 2] {
    let m = ctx.memory();
    let filled = |shape: &[usize], dtype: DType, data: &[f32]| {
        let mut t = Tensor::zeros(m, shape, dtype);
        t.view_mut().copy_from_f32(data);
        t
    };
    let [mut y, mut kept] = [f, 2 * f].map(|width| filled(&[t, width], dtype, &vec![f32::NAN; t * width]));
    let x = filled(&[t, k], dtype, &rounded_to_bf16(&normal(1, t * k)));
    let mut w = Matrix::zeros_of(m, 2 * f, k, dtype);
    w.pack_rows(0, &rounded_to_bf16(&normal(2, 2 * f * k)));
    let b = Tensor::from_f32(m, &[2 * f], &normal(3, 2 * f));
    let bias = bias.then(|| b.view());
    let x = x.view();
    if in_one {
        fused(ctx, Fused { activation, x, w: &w, bias, kept: Some(kept.view_mut()), y: y.view_mut() }).unwrap();
        let mut alone = filled(&[t, f], dtype, &vec![f32::NAN; t * f]);
        fused(ctx, Fused { activation, x, w: &w, bias, kept: None, y: alone.view_mut() }).unwrap();
        assert_eq!(alone.to_vec_f32(), y.to_vec_f32());
    } else {
        let mut gate_up = filled(&[t, 2 * f], DType::F32, &vec![f32::NAN; 2 * t * f]);
        let args = linear::Forward { x, w: &w, bias, y: gate_up.view_mut(), accumulate: false };
        linear::forward(ctx, args).unwrap();
        let (gate_up, kept) = (gate_up.view(), Some(kept.view_mut()));
        forward(ctx, Forward { activation, gate_up, kept, y: y.view_mut() }).unwrap();
    }
    [y.to_vec_f32(), kept.to_vec_f32()]
}

#[test]
fn the_fused_pass_gives_the_bits_of_two_passes() {
    let isas = || Isa::present().into_iter().chain([Isa::AMX_EMULATED]);
    for (isa, dtype) in isas().flat_map(|isa| [DType::F32, DType::Bf16].map(|dtype| (isa, dtype))) {
        for shape in [[1, 2, 32], [3, 10, 64], [5, 64, 160], [130, 34, 96], [300, 8, 32]] {
            for (threads, bias, activation) in [(1, false, ACTIVATIONS[0]), (3, true, ACTIVATIONS[1])] {
                let ctx = Context::cpu(isa, threads);
                let [one, two] =
                    [true, false].map(|in_one| matmul_outputs(&ctx, activation, dtype, shape, bias, in_one));
                assert!(one == two, "{isa:?} {dtype:?} {shape:?} {threads} {activation:?}");
            }
        }
    }
}

#[test]
fn fusing_refuses_columns_that_are_not_whole_panels() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let m = ctx.memory();
    let (x, w, mut y) =
        (Tensor::zeros(m, &[1, 4], DType::F32), Matrix::zeros(m, 66, 4), Tensor::zeros(m, &[1, 33], DType::F32));
    let (x, y) = (x.view(), y.view_mut());
    let args = Fused { activation: Activation::Silu, x, w: &w, bias: None, kept: None, y };
    let refused = fused(&ctx, args).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "glu::fused: the weight has 66 rows, but 33 outputs need twice as many, in whole panels of 32"
    );
    assert!(!ctx.fuses_gates(&w));
}

/// A bf16 gradient is the rounded f32 gradient.
#[test]
fn a_gradient_can_be_written_in_bf16() {
    let (t, f) = (5, 70);
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        let m = ctx.memory();
        let mut gate_up = Tensor::zeros(m, &[t, 2 * f], DType::Bf16);
        gate_up.view_mut().copy_from_f32(&normal(1, t * 2 * f));
        let d_y = Tensor::from_f32(m, &[t, f], &normal(2, t * f));
        let [wide, narrow] = [DType::F32, DType::Bf16].map(|dtype| {
            let mut d = Tensor::zeros(m, &[t, 2 * f], dtype);
            d.view_mut().fill(f32::NAN);
            let (activation, gate_up, d_y) = (Activation::GeluTanh, gate_up.view(), d_y.view());
            backward(&ctx, Backward { activation, gate_up, rows: None, d_y, d_gate_up: d.view_mut(), y: None })
                .unwrap();
            d.to_vec_f32()
        });
        assert!(narrow == rounded_to_bf16(&wide), "{isa:?}");
    }
}

/// With `rows`, row t reads the gates of row `rows[t]`; no other rows are read.
#[test]
fn rows_choose_the_gates_of_each_gradient() {
    let (t, from, f) = (37, 50, 24);
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        let (all, d_y) = (normal(1, from * 2 * f), normal(2, t * f));
        let rows: Vec<u32> = (0..t).map(|i| (i * 13 % from) as u32).collect();
        let own: Vec<f32> = rows.iter().flat_map(|&r| all[r as usize * 2 * f..][..2 * f].to_vec()).collect();
        let d_y = Tensor::from_f32(ctx.memory(), &[t, f], &d_y);
        let rows = Tensor::from_u32(ctx.memory(), &[t], &rows);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let of = |gates: &[f32], rows: Option<View<'_>>| {
                let gate_up = Tensor::from_f32(ctx.memory(), &[gates.len() / (2 * f), 2 * f], gates);
                let mut d = Tensor::zeros(ctx.memory(), &[t, 2 * f], DType::F32);
                let mut y = Tensor::zeros(ctx.memory(), &[t, f], DType::F32);
                let (gate_up, d_gate_up, out) = (gate_up.view(), d.view_mut(), Some(y.view_mut()));
                backward(&ctx, Backward { activation, gate_up, rows, d_y: d_y.view(), d_gate_up, y: out }).unwrap();
                [d.to_vec_f32(), y.to_vec_f32()]
            };
            assert!(of(&all, Some(rows.view())) == of(&own, None), "{isa:?}");
        }
    }
}
