use super::*;
use crate::check::{normal, relative_error};
use crate::{Device, Isa, Memory, Tensor};

#[test]
fn every_instruction_set_matches_the_formula() {
    let memory = Memory::new(Device::Cpu);
    for len in [0, 1, 15, 129, cpu::ELEMENTS + 17] {
        let (start, x): (Vec<f32>, Vec<f32>) = (normal(1, len), normal(2, len));
        for alpha in [0.0, 0.6, 1.0] {
            let mut expected = start.clone();
            reference::lerp(&mut expected, &x, alpha);
            let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            let mut exact = wide(&start);
            reference::lerp(&mut exact, &wide(&x), alpha);
            assert!(relative_error(&expected, &exact) < 1e-7);
            for (isa, threads) in Isa::present().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                let mut y = Tensor::from_f32(&memory, &[len], &start);
                let x = Tensor::from_f32(&memory, &[len], &x);
                lerp(&Context::cpu(isa, threads), Lerp { y: y.view_mut(), x: x.view(), alpha }).unwrap();
                assert_eq!(y.to_vec_f32(), expected, "{isa:?} {alpha}");
            }
        }
    }
}

#[test]
fn wrong_lengths_and_alphas_are_refused() {
    let memory = Memory::new(Device::Cpu);
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let (mut y, x) = (Tensor::zeros(&memory, &[2], DType::F32), Tensor::zeros(&memory, &[3], DType::F32));
    assert!(lerp(&ctx, Lerp { y: y.view_mut(), x: x.view(), alpha: 0.5 }).is_err());
    let x = x.rows(0..2);
    assert!(lerp(&ctx, Lerp { y: y.view_mut(), x, alpha: 1.5 }).is_err());
    assert!(lerp(&ctx, Lerp { y: y.view_mut(), x, alpha: f64::NAN }).is_err());
}
