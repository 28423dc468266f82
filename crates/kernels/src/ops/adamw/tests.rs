use super::*;
use crate::check::{normal, relative_error};
use crate::{Device, Isa, Memory, Tensor};

const HYPER: Hyper = Hyper { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-6, weight_decay: 0.1, step: 1 };

struct State {
    param: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
}

fn fast(ctx: &Context, state: &mut State, grad: &[f32], hyper: Hyper, norm: [f32; 2], max_norm: f32) {
    let memory = Memory::new(Device::Cpu);
    let tensor = |data: &[f32]| Tensor::from_f32(&memory, &[data.len()], data);
    let (mut param, mut m, mut v) = (tensor(&state.param), tensor(&state.m), tensor(&state.v));
    let (grad, norm) = (tensor(grad), tensor(&norm));
    let (param_view, m_view, v_view) = (param.view_mut(), m.view_mut(), v.view_mut());
    let args = Step { param: param_view, grad: grad.view(), m: m_view, v: v_view, hyper, norm: norm.view(), max_norm };
    step(ctx, args).unwrap();
    *state = State { param: param.to_vec_f32(), m: m.to_vec_f32(), v: v.to_vec_f32() };
}

/// Three steps of `torch.optim.AdamW` 2.15 in f64 after `clip_grad_norm_(…, 10)`.
#[test]
fn equals_torch() {
    let param = [0.5, -1.25, 2.0, 1e-3, -0.75];
    let expected = [0.4699452454665246, -1.2163560290519404, 1.994005998, -0.027535767985453645, -0.776712308871872];
    let moment = [1.5735717301744865, -0.9855190462920855, 0.0, 0.0005245239100581622, 1.6639805449356935];
    let square = [5.534380449176128, 1.8951832788413145, 0.0, 6.149311610195699e-07, 6.262934212100024];
    let grads = |t: f64| [3.0 * t, -4.0, 0.0, 1e-3 * t, 12.0 / t];
    let (mut p, mut m, mut v) = (param.to_vec(), vec![0.0; 5], vec![0.0; 5]);
    let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
    for isa in Isa::present() {
        let mut state = State { param: narrow(&param), m: vec![0.0; 5], v: vec![0.0; 5] };
        for t in 1..=3u8 {
            let (grad, hyper) = (grads(f64::from(t)), Hyper { step: u64::from(t), ..HYPER });
            let norm = grad.iter().map(|g| g * g).sum::<f64>().sqrt();
            if isa == Isa::Portable {
                reference::step(&mut p, &grad, &mut m, &mut v, &hyper, (10.0 / (norm + 1e-6)).min(1.0));
            }
            fast(&Context::cpu(isa, 1), &mut state, &narrow(&grad), hyper, [norm as f32, 1.0], 10.0);
        }
        for (got, expected) in [(&p, expected), (&m, moment), (&v, square)] {
            assert!(relative_error(got, &expected) < 1e-12, "the oracle: {got:?}");
        }
        for (got, expected) in [(state.param, expected), (state.m, moment), (state.v, square)] {
            assert!(relative_error(&got, &expected) < 2e-7, "{isa:?}: {got:?}");
        }
    }
}

#[test]
fn same_bits_everywhere_and_near_the_oracle() {
    for len in [0, 1, 15, 129, 2 * cpu::ELEMENTS + 3] {
        let start = || State {
            param: normal(1, len),
            m: normal(2, len),
            v: normal::<f32>(3, len).into_iter().map(|v| v * v).collect(),
        };
        let grad: Vec<f32> = normal(4, len);
        let hyper = Hyper { step: 7, ..HYPER };
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        let oracle = {
            let s = start();
            let (mut p, mut m, mut v) = (wide(s.param), wide(s.m), wide(s.v));
            reference::step(&mut p, &wide(grad.clone()), &mut m, &mut v, &hyper, 1.0 / 4.0);
            [p, m, v]
        };
        let mut first = start();
        fast(&Context::cpu(Isa::Portable, 1), &mut first, &grad, hyper, [4.0, 1.0], 1.0);
        for (fast, oracle) in [(&first.param, &oracle[0]), (&first.m, &oracle[1]), (&first.v, &oracle[2])] {
            assert!(relative_error(fast, oracle) < 1e-6);
        }
        for isa in Isa::present() {
            for threads in 1..=3 {
                let mut state = start();
                fast(&Context::cpu(isa, threads), &mut state, &grad, hyper, [4.0, 1.0], 1.0);
                assert_eq!((&state.param, &state.m, &state.v), (&first.param, &first.m, &first.v));
            }
        }
    }
}

#[test]
fn clips_only_above_the_norm_and_skips_what_is_not_finite() {
    let ctx = Context::cpu(Isa::best(), 1);
    let start = || State { param: vec![1.0; 3], m: vec![0.0; 3], v: vec![0.0; 3] };
    let after = |norm: [f32; 2], max_norm| {
        let mut state = start();
        fast(&ctx, &mut state, &[0.5, -1.0, 2.0], HYPER, norm, max_norm);
        state
    };
    let plain = after([2.29, 1.0], 0.0);
    assert_eq!(plain.m, after([2.29, 1.0], 3.0).m, "below the largest norm");
    let ratio = after([2.0, 1.0], 1.0).m[0] / plain.m[0];
    assert!((ratio - 0.5).abs() < 1e-6, "{ratio}");
    let skipped = after([f32::NAN, 0.0], 1.0);
    assert_eq!((skipped.param, skipped.m, skipped.v), (start().param, start().m, start().v));
}

#[test]
fn padding_of_a_packed_matrix_stays_zero() {
    let mut state = State { param: vec![0.0; 20], m: vec![0.0; 20], v: vec![0.0; 20] };
    fast(&Context::cpu(Isa::best(), 1), &mut state, &[0.0; 20], HYPER, [1.0, 1.0], 1.0);
    assert_eq!((state.param, state.m, state.v), (vec![0.0; 20], vec![0.0; 20], vec![0.0; 20]));
}

#[test]
fn a_step_counts_from_one() {
    let memory = Memory::new(Device::Cpu);
    let [mut p, g, mut m, mut v] = [0; 4].map(|_| Tensor::zeros(&memory, &[1], DType::F32));
    let norm = Tensor::zeros(&memory, &[2], DType::F32);
    let args = Step {
        param: p.view_mut(),
        grad: g.view(),
        m: m.view_mut(),
        v: v.view_mut(),
        hyper: Hyper { step: 0, ..HYPER },
        norm: norm.view(),
        max_norm: 0.0,
    };
    assert!(step(&Context::cpu(Isa::Portable, 1), args).is_err());
}
