use super::*;
use crate::check::{directional_error, normal};
use crate::tensor::rounded_to_bf16;
use crate::{DType, Isa, Tensor};

#[test]
fn every_instruction_set_matches_the_formula() {
    for (t, h) in [(1, 1), (3, 5), (0, 4), (129, 143)] {
        let (x, delta, start): (Vec<f32>, Vec<f32>, Vec<f32>) = (normal(1, t * h), normal(2, t * h), normal(3, t * h));
        let sum = reference::forward(&x, &delta);
        let mut d_x = start.clone();
        reference::backward(&delta, &mut d_x);
        for (isa, threads) in Isa::present().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let ctx = Context::cpu(isa, threads);
            let tensor = |x: &[f32]| Tensor::from_f32(ctx.memory(), &[t, h], x);
            let (x, delta) = (tensor(&x), tensor(&delta));
            for dtype in [DType::F32, DType::Bf16] {
                let rounded = |x: &[f32]| if dtype == DType::Bf16 { rounded_to_bf16(x) } else { x.to_vec() };
                let (mut y, mut s) = (Tensor::zeros(ctx.memory(), &[t, h], dtype), tensor(&vec![f32::NAN; t * h]));
                let (y_out, s_out) = (y.view_mut(), Some(s.view_mut()));
                forward(&ctx, Forward { x: x.view(), delta: Some(delta.view()), sum: s_out, y: y_out }).unwrap();
                assert_eq!((s.to_vec_f32(), y.to_vec_f32()), (sum.clone(), rounded(&sum)), "{isa:?} {dtype:?}");
                forward(&ctx, Forward { x: x.view(), delta: None, sum: None, y: y.view_mut() }).unwrap();
                assert_eq!(y.to_vec_f32(), rounded(&x.to_vec_f32()), "{isa:?} {dtype:?}");
            }
            let mut d = tensor(&start);
            backward(&ctx, Backward { d_y: delta.view(), d_x: d.view_mut() }).unwrap();
            assert_eq!(d.to_vec_f32(), d_x, "{isa:?}");
        }
    }
}

#[test]
fn the_oracles_gradients_match_finite_differences() {
    let (x, delta, d_y): (Vec<f64>, Vec<f64>, Vec<f64>) = (normal(1, 20), normal(2, 20), normal(3, 20));
    let loss = |x: &[f64]| reference::forward(x, &delta).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
    let mut d_x = vec![0.0; 20];
    reference::backward(&d_y, &mut d_x);
    assert!(directional_error(&x, &d_x, loss) < 1e-7);
    d_x[0] *= 1.01;
    assert!(directional_error(&x, &d_x, loss) > 1e-7, "a wrong gradient passes");
}

#[test]
fn wrong_residual_shapes_are_refused() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let tensor = |t: usize| Tensor::zeros(ctx.memory(), &[t, 2], DType::F32);
    let (x, other, mut y) = (tensor(3), tensor(2), tensor(3));
    assert!(forward(&ctx, Forward { x: other.view(), delta: None, sum: None, y: y.view_mut() }).is_err());
    assert!(forward(&ctx, Forward { x: x.view(), delta: Some(x.view()), sum: None, y: y.view_mut() }).is_err());
    assert!(backward(&ctx, Backward { d_y: other.view(), d_x: y.view_mut() }).is_err());
}
