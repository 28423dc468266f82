use super::*;
use crate::check::{directional_error, normal, relative_error};
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
    backward(ctx, Backward { gate_up: gate_up.view(), d_y: d_y.view(), d_gate_up: d.view_mut() }).unwrap();
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
