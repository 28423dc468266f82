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
    let (grad, norm, rounding) = (grad.view(), norm.view(), Rounding::default());
    let args = Step {
        param: param_view,
        from: None,
        rounded: None,
        grad,
        m: m_view,
        v: v_view,
        hyper,
        norm,
        max_norm,
        rounding,
    };
    step(ctx, args).unwrap();
    *state = State { param: param.to_vec_f32(), m: m.to_vec_f32(), v: v.to_vec_f32() };
}

/// Three steps of `torch.optim.AdamW` 2.15 in f64 after `clip_grad_norm_(…, 10)`.
#[test]
fn adamw_steps_equal_torch() {
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
            if isa == Isa::PORTABLE {
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
fn adamw_gives_the_same_bits_everywhere_and_is_near_the_oracle() {
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
        fast(&Context::cpu(Isa::PORTABLE, 1), &mut first, &grad, hyper, [4.0, 1.0], 1.0);
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
fn a_step_clips_only_above_max_norm_and_skips_non_finite_gradients() {
    let ctx = Context::cpu(Isa::best(), 1);
    let start = || State { param: vec![1.0; 3], m: vec![0.0; 3], v: vec![0.0; 3] };
    let after = |norm: [f32; 2], max_norm| {
        let mut state = start();
        fast(&ctx, &mut state, &[0.5, -1.0, 2.0], HYPER, norm, max_norm);
        state
    };
    let plain = after([2.29, 1.0], 0.0);
    assert_eq!(plain.m, after([2.29, 1.0], 3.0).m, "a norm below max_norm must not be clipped");
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
fn adamw_steps_are_counted_from_one() {
    let memory = Memory::new(Device::Cpu);
    let [mut p, g, mut m, mut v] = [0; 4].map(|_| Tensor::zeros(&memory, &[1], DType::F32));
    let norm = Tensor::zeros(&memory, &[2], DType::F32);
    let args = Step {
        param: p.view_mut(),
        from: None,
        rounded: None,
        grad: g.view(),
        m: m.view_mut(),
        v: v.view_mut(),
        hyper: Hyper { step: 0, ..HYPER },
        norm: norm.view(),
        max_norm: 0.0,
        rounding: Rounding::default(),
    };
    assert!(step(&Context::cpu(Isa::PORTABLE, 1), args).is_err());
}

/// Steps of one tensor whose moments are bf16, without clipping.
fn bf16_steps(ctx: &Context, state: &State, grads: &[Vec<f32>], rounding: Rounding) -> State {
    let memory = Memory::new(Device::Cpu);
    let n = state.param.len();
    let mut param = Tensor::from_f32(&memory, &[n], &state.param);
    let [mut m, mut v] = [&state.m, &state.v].map(|from| {
        let mut tensor = Tensor::zeros(&memory, &[n], DType::Bf16);
        tensor.view_mut().copy_from_f32(from);
        tensor
    });
    let norm = Tensor::from_f32(&memory, &[2], &[1.0, 1.0]);
    for (i, grad) in grads.iter().enumerate() {
        let grad = Tensor::from_f32(&memory, &[n], grad);
        let (param, m, v) = (param.view_mut(), m.view_mut(), v.view_mut());
        let hyper = Hyper { step: i as u64 + 7, ..HYPER };
        let (grad, norm) = (grad.view(), norm.view());
        step(ctx, Step { param, from: None, rounded: None, grad, m, v, hyper, norm, max_norm: 0.0, rounding }).unwrap();
    }
    State { param: param.to_vec_f32(), m: m.to_vec_f32(), v: v.to_vec_f32() }
}

/// Values that bf16 can represent.
fn narrow(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|x| half::bf16::from_f32(x).to_f32()).collect()
}

#[test]
fn bf16_moments_match_the_formula_on_every_instruction_set() {
    let rounding = Rounding { key: 0x1234_5678_9abc, first_block: (1 << 32) - 3 };
    for len in [0, 1, 15, 129, 2 * cpu::ELEMENTS + 3] {
        let start = || State {
            param: normal(1, len),
            m: narrow(normal(2, len)),
            v: narrow(normal::<f32>(3, len).into_iter().map(|v| v * v).collect()),
        };
        let grads: Vec<Vec<f32>> = (0..2).map(|i| normal(4 + i, len)).collect();
        let State { param: mut p, mut m, mut v } = start();
        for (i, grad) in grads.iter().enumerate() {
            let step = i as u64 + 7;
            reference::step(&mut p, grad, &mut m, &mut v, &Hyper { step, ..HYPER }, 1.0);
            for e in 0..len {
                let block = rounding.first_block + e as u64 / 4;
                let counter = [block as u32, (block >> 32) as u32, step as u32, 0];
                let word = crate::rng::philox(rounding.key, counter)[e % 4];
                let round = |x: f32, bits: u32| f32::from_bits((x.to_bits() + bits) & 0xffff_0000);
                (m[e], v[e]) = (round(m[e], word & 0xffff), round(v[e], word >> 16));
            }
        }
        for isa in Isa::present() {
            for threads in 1..=3 {
                let got = bf16_steps(&Context::cpu(isa, threads), &start(), &grads, rounding);
                assert!(got.param == p && got.m == m && got.v == v, "{isa:?}, {threads} threads, {len} elements");
            }
        }
        if len > 100 {
            let other = Rounding { key: rounding.key + 1, ..rounding };
            let got = bf16_steps(&Context::cpu(Isa::PORTABLE, 1), &start(), &grads, other);
            assert!(got.m != m && got.v != v, "a different key must give different bits");
        }
    }
}

#[test]
fn stochastic_rounding_is_unbiased_and_keeps_exact_bf16_values() {
    let up = half::bf16::from_f32(1.0 + 1.0 / 128.0);
    let quarter = 1.0 + 1.0 / 512.0;
    let ups = (0..1 << 16).filter(|&random| cpu::rounded(quarter, random) == up).count();
    assert_eq!(ups, 1 << 14, "a quarter of the way is rounded up a quarter of the time");
    for x in [0.0, -0.0, 1.0, -3.5, f32::INFINITY, f32::NEG_INFINITY] {
        assert!([0, 1, 0xffff].iter().all(|&random| cpu::rounded(x, random).to_f32().to_bits() == x.to_bits()), "{x}");
    }
    assert!(cpu::rounded(f32::NAN, 0xffff).is_nan());
}

/// With β2 = 0.999 a step changes v by less than half a bf16 step, so rounding to nearest would never change it.
#[test]
fn small_changes_of_bf16_moments_are_kept_on_average() {
    let ctx = Context::cpu(Isa::best(), 1);
    let (len, steps) = (4096, 400);
    let memory = Memory::new(Device::Cpu);
    let mut param = Tensor::zeros(&memory, &[len], DType::F32);
    let [mut m, mut v] = [0, 1].map(|_| Tensor::zeros(&memory, &[len], DType::Bf16));
    v.view_mut().fill(1.0);
    let (grad, norm) = (Tensor::zeros(&memory, &[len], DType::F32), Tensor::from_f32(&memory, &[2], &[0.0, 1.0]));
    for t in 1..=steps {
        let (param, m, v) = (param.view_mut(), m.view_mut(), v.view_mut());
        let hyper = Hyper { beta2: 0.999, step: t, ..HYPER };
        let (grad, norm, rounding) = (grad.view(), norm.view(), Rounding { key: 3, first_block: 0 });
        step(&ctx, Step { param, from: None, rounded: None, grad, m, v, hyper, norm, max_norm: 0.0, rounding })
            .unwrap();
    }
    let mean = v.to_vec_f32().iter().map(|&x| f64::from(x)).sum::<f64>() / len as f64;
    let expected = 0.999f64.powi(steps as i32);
    assert!((mean / expected - 1.0).abs() < 2e-3, "{mean} for {expected}");
}

/// A step from slot to slot gives the bits of a step in place, for f32 and bf16 moments, and does not change its
/// source.
#[test]
fn a_step_to_another_slot_has_the_bits_of_a_step_in_place() {
    let memory = Memory::new(Device::Cpu);
    for (moments, len) in
        [DType::F32, DType::Bf16].into_iter().flat_map(|m| [1, 15, 129, 2 * cpu::ELEMENTS + 3].map(|len| (m, len)))
    {
        let tensor = |seed| Tensor::from_f32(&memory, &[len], &normal::<f32>(seed, len));
        let grad = tensor(4);
        let run = |isa, threads, apart: bool, norm: [f32; 2]| {
            let (mut param, mut next) = (tensor(1), tensor(9));
            let [mut m, mut v] = [2, 3].map(|seed| {
                let mut tensor = Tensor::zeros(&memory, &[len], moments);
                let data: Vec<f32> = normal::<f32>(seed, len).iter().map(|x| x * x).collect();
                tensor.view_mut().copy_from_f32(&data);
                tensor
            });
            let norm = Tensor::from_f32(&memory, &[2], &norm);
            let (to, from) = if apart { (&mut next, Some(param.view())) } else { (&mut param, None) };
            let args = Step {
                param: to.view_mut(),
                from,
                rounded: None,
                grad: grad.view(),
                m: m.view_mut(),
                v: v.view_mut(),
                hyper: HYPER,
                norm: norm.view(),
                max_norm: 1.0,
                rounding: Rounding { key: 5, first_block: 7 },
            };
            step(&Context::cpu(isa, threads), args).unwrap();
            let kept = if apart { param.to_vec_f32() } else { tensor(1).to_vec_f32() };
            let written = if apart { &next } else { &param };
            (written.to_vec_f32(), m.to_vec_f32(), v.to_vec_f32(), kept)
        };
        let in_place = run(Isa::PORTABLE, 1, false, [2.0, 1.0]);
        assert!(in_place.0 != in_place.3, "the step changes the parameter");
        for isa in Isa::present() {
            for threads in 1..=3 {
                assert!(run(isa, threads, true, [2.0, 1.0]) == in_place, "{isa:?} {threads} {moments:?} {len}");
            }
        }
        // Non-finite gradients change nothing.
        assert!(run(Isa::best(), 1, true, [f32::NAN, 0.0]).0 == tensor(9).to_vec_f32());
    }
}

/// Step numbers that differ only above 32 bits get different random words, and so do tensors without a common block.
#[test]
fn stochastic_rounding_uses_all_bits_of_the_step() {
    let memory = Memory::new(Device::Cpu);
    let (len, number) = (21, (5 << 32) + 9);
    let (start, grad): (Vec<f32>, Vec<f32>) = (normal(1, len), normal(2, len));
    let hyper = Hyper { step: number, ..HYPER };
    let (mut p, mut m, mut v) = (start.clone(), vec![0.0; len], vec![0.0; len]);
    reference::step(&mut p, &grad, &mut m, &mut v, &hyper, 1.0);
    for e in 0..len {
        let word = crate::rng::philox(11, [e as u32 / 4, 0, 9, 5])[e % 4];
        let round = |x: f32, bits: u32| f32::from_bits((x.to_bits() + bits) & 0xffff_0000);
        (m[e], v[e]) = (round(m[e], word & 0xffff), round(v[e], word >> 16));
    }
    let mut param = Tensor::from_f32(&memory, &[len], &start);
    let [mut m_fast, mut v_fast] = [(); 2].map(|()| Tensor::zeros(&memory, &[len], DType::Bf16));
    let (grad, norm) = (Tensor::from_f32(&memory, &[len], &grad), Tensor::from_f32(&memory, &[2], &[1.0, 1.0]));
    let args = Step {
        param: param.view_mut(),
        from: None,
        rounded: None,
        grad: grad.view(),
        m: m_fast.view_mut(),
        v: v_fast.view_mut(),
        hyper,
        norm: norm.view(),
        max_norm: 0.0,
        rounding: Rounding { key: 11, first_block: 0 },
    };
    step(&Context::cpu(Isa::PORTABLE, 1), args).unwrap();
    assert_eq!((param.to_vec_f32(), m_fast.to_vec_f32(), v_fast.to_vec_f32()), (p, m, v));
    assert_eq!([0, 1, 4, 5, 8].map(Rounding::blocks), [0, 1, 1, 2, 2]);
}

/// Like `clip_grad_norm_`, the step adds 1e-6 to the norm, which here is half of the divisor.
#[test]
fn a_norm_near_zero_is_clipped_as_in_torch() {
    let after = |norm: f32, max_norm: f32| {
        let mut state = State { param: vec![1.0], m: vec![0.0], v: vec![0.0] };
        fast(&Context::cpu(Isa::PORTABLE, 1), &mut state, &[1.0], HYPER, [norm, 1.0], max_norm);
        state.m[0]
    };
    let whole = after(1.0, 0.0);
    assert!((after(1e-6, 1e-6) / whole - 0.5).abs() < 1e-6);
    // The clip factor is at most 1.
    assert_eq!(after(1e-6, 2e-6), whole);
    assert_eq!(after(0.0, 1.0), whole);
}
