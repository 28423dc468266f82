//! Compares the optimizer's arithmetic with torch: four steps, two of them clipped, one with a zero gradient.

use crate::common::{Fixture, get, model::context};
use kernels::ops::{adamw, grad_norm};
use kernels::{DType, Tensor};

#[test]
fn four_adamw_steps_match_torch() {
    let fixture = Fixture::load();
    let (ctx, json) = (context(1), &fixture.json["adamw"]);
    let start: Vec<f32> = get(&json["start"]);
    let n = start.len();
    let mut param = Tensor::from_f32(ctx.memory(), &[n], &start);
    let [mut m, mut v] = [(); 2].map(|()| Tensor::zeros(ctx.memory(), &[n], DType::F32));
    let mut norm = Tensor::zeros(ctx.memory(), &[2], DType::F32);
    let grads: Vec<Vec<f32>> = get(&json["grads"]);
    for (i, (grad, expected)) in grads.iter().zip(get::<Vec<Vec<f32>>>(&json["params"])).enumerate() {
        let grad = Tensor::from_f32(ctx.memory(), &[n], grad);
        grad_norm::global(&ctx, &[grad.view()], norm.view_mut()).expect("norm");
        let step = adamw::Step {
            from: None,
            rounded: None,
            param: param.view_mut(),
            grad: grad.view(),
            m: m.view_mut(),
            v: v.view_mut(),
            hyper: adamw::Hyper { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-6, weight_decay: 0.1, step: i as u64 + 1 },
            norm: norm.view(),
            max_norm: 1.0,
            rounding: adamw::Rounding::default(),
        };
        adamw::step(&ctx, step).expect("step");
        let error = kernels::check::relative_error(&param.to_vec_f32(), &expected);
        assert!(error < 1e-6, "step {i}: {error}");
    }
}
