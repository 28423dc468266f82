use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::ops::linear;
use crate::tensor::rounded_to_bf16;
use crate::{DType, Isa, Tensor};

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// y and d_gate_up.
fn run(ctx: &Context, t: usize, f: usize, gate_up: &[f32], d_y: &[f32]) -> [Vec<f32>; 2] {
    let m = ctx.memory();
    let poisoned = |shape: &[usize]| {
        let mut t = Tensor::zeros(m, shape, DType::F32);
        t.view_mut().fill(f32::NAN);
        t
    };
    let (gate_up, d_y) = (Tensor::from_f32(m, &[t, 2 * f], gate_up), Tensor::from_f32(m, &[t, f], d_y));
    let (mut y, mut d) = (poisoned(&[t, f]), poisoned(&[t, 2 * f]));
    forward(ctx, Forward { gate_up: gate_up.view(), kept: None, y: y.view_mut() }).unwrap();
    let mut again = poisoned(&[t, f]);
    let args =
        Backward { gate_up: gate_up.view(), d_y: d_y.view(), d_gate_up: d.view_mut(), y: Some(again.view_mut()) };
    backward(ctx, args).unwrap();
    assert!(again.to_vec_f32() == y.to_vec_f32());
    [y.to_vec_f32(), d.to_vec_f32()]
}

#[test]
fn equals_the_oracle_on_every_isa() {
    for (t, f) in [(1, 1), (3, 5), (2, 129), (70, 300), (0, 4)] {
        let (gate_up, d_y): (Vec<f32>, Vec<f32>) = (normal(1, t * 2 * f), normal(2, t * f));
        let gate_up: Vec<f32> = gate_up.iter().map(|x| 4.0 * x).collect();
        let y = reference::forward(&wide(&gate_up), f);
        let d = reference::backward(&wide(&gate_up), f, &wide(&d_y));
        let mut bits = None;
        for isa in Isa::present() {
            for threads in [1, 3] {
                let got = run(&Context::cpu(isa, threads), t, f, &gate_up, &d_y);
                assert!(relative_error(&got[0], &y) < 1e-6 && relative_error(&got[1], &d) < 1e-5, "{isa:?} {t}×{f}");
                assert!(*bits.get_or_insert(got.clone()) == got, "{isa:?} {threads} {t}×{f}");
                if let [_, mut spoiled] = got
                    && t > 0
                {
                    spoiled[0] += 0.1;
                    assert!(relative_error(&spoiled, &d) > 1e-5, "a spoiled gradient passes");
                }
            }
        }
    }
}

#[test]
fn the_oracle_is_its_own_gradient() {
    let (t, f) = (3, 5);
    let (x, d_y): (Vec<f64>, Vec<f64>) = (normal(1, t * 2 * f), normal(2, t * f));
    let loss = |x: &[f64]| reference::forward(x, f).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
    let mut d = reference::backward(&x, f, &d_y);
    assert!(directional_error(&x, &d, loss) < 1e-7);
    d[3] *= 1.01;
    assert!(directional_error(&x, &d, loss) > 1e-7, "a spoiled gradient passes");
}

#[test]
fn large_gates_neither_overflow_nor_vanish() {
    let ctx = Context::cpu(Isa::best(), 1);
    let [y, d] = run(&ctx, 1, 2, &[200.0, -200.0, 3.0, 3.0], &[1.0, 1.0]);
    assert_eq!(y, [600.0, -0.0]);
    assert_eq!(d, [3.0, 0.0, 200.0, -0.0]);
}

/// y and kept of a product and SwiGLU, in one pass or in two.
fn of_product(ctx: &Context, dtype: DType, [t, k, f]: [usize; 3], bias: bool, in_one: bool) -> [Vec<f32>; 2] {
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
        fused(ctx, Fused { x, w: &w, bias, kept: Some(kept.view_mut()), y: y.view_mut() }).unwrap();
        let mut alone = filled(&[t, f], dtype, &vec![f32::NAN; t * f]);
        fused(ctx, Fused { x, w: &w, bias, kept: None, y: alone.view_mut() }).unwrap();
        assert_eq!(alone.to_vec_f32(), y.to_vec_f32());
    } else {
        let mut gate_up = filled(&[t, 2 * f], DType::F32, &vec![f32::NAN; 2 * t * f]);
        let args = linear::Forward { x, w: &w, bias, y: gate_up.view_mut(), accumulate: false };
        linear::forward(ctx, args).unwrap();
        forward(ctx, Forward { gate_up: gate_up.view(), kept: Some(kept.view_mut()), y: y.view_mut() }).unwrap();
    }
    [y.to_vec_f32(), kept.to_vec_f32()]
}

#[test]
fn in_one_pass_the_bits_are_those_of_two() {
    let isas = || Isa::present().into_iter().chain([Isa::AMX_EMULATED]);
    for (isa, dtype) in isas().flat_map(|isa| [DType::F32, DType::Bf16].map(|dtype| (isa, dtype))) {
        for shape in [[1, 2, 32], [3, 10, 64], [5, 64, 160], [130, 34, 96], [300, 8, 32]] {
            for (threads, bias) in [(1, false), (3, true)] {
                let ctx = Context::cpu(isa, threads);
                let [one, two] = [true, false].map(|in_one| of_product(&ctx, dtype, shape, bias, in_one));
                assert!(one == two, "{isa:?} {dtype:?} {shape:?} {threads}");
            }
        }
    }
}

#[test]
fn columns_that_are_no_panels_are_not_fused() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let m = ctx.memory();
    let (x, w, mut y) =
        (Tensor::zeros(m, &[1, 4], DType::F32), Matrix::zeros(m, 66, 4), Tensor::zeros(m, &[1, 33], DType::F32));
    let refused = fused(&ctx, Fused { x: x.view(), w: &w, bias: None, kept: None, y: y.view_mut() }).unwrap_err();
    assert_eq!(refused.to_string(), "swiglu::fused: a weight of 66 rows for 33 columns, which come in panels of 32");
    assert!(!ctx.fuses_gates(&w));
}

/// A gradient in bf16 is that in f32, rounded.
#[test]
fn a_gradient_may_be_rounded_as_it_is_written() {
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
            let args = Backward { gate_up: gate_up.view(), d_y: d_y.view(), d_gate_up: d.view_mut(), y: None };
            backward(&ctx, args).unwrap();
            d.to_vec_f32()
        });
        assert!(narrow == rounded_to_bf16(&wide), "{isa:?}");
    }
}
