use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::device::cuda::tests::contexts;
use crate::ops::lanes::segments_of;
use crate::{DType, Isa, Tensor};

const EPS: f32 = 1e-5;

fn poisoned(ctx: &Context, shape: &[usize]) -> Tensor {
    let mut t = Tensor::zeros(ctx.memory(), shape, DType::F32);
    t.view_mut().fill(f32::NAN);
    t
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// Returns y, rstd and sum.
fn run(ctx: &Context, x: &[f32], delta: Option<&[f32]>, w: &[f32]) -> [Vec<f32>; 3] {
    run_with(ctx, x, delta, w, 0.0)
}

fn run_with(ctx: &Context, x: &[f32], delta: Option<&[f32]>, w: &[f32], offset: f32) -> [Vec<f32>; 3] {
    let (h, m) = (w.len(), ctx.memory());
    let t = x.len() / h;
    let tensor = |x: &[f32]| Tensor::from_f32(m, &[t, h], x);
    let (x, w) = (tensor(x), Tensor::from_f32(m, &[h], w));
    let delta = delta.map(tensor);
    let (mut y, mut rstd, mut sum) = (poisoned(ctx, &[t, h]), poisoned(ctx, &[t]), poisoned(ctx, &[t, h]));
    let args = Forward {
        x: x.view(),
        sum: delta.is_some().then(|| sum.view_mut()),
        delta: delta.as_ref().map(|d| d.view()),
        weight: w.view(),
        offset,
        eps: EPS,
        y: y.view_mut(),
        rstd: rstd.view_mut(),
    };
    forward(ctx, args).unwrap();
    let mut once_more = poisoned(ctx, &[t, h]);
    let x = if delta.is_some() { sum.view() } else { x.view() };
    recompute(ctx, Recompute { x, weight: w.view(), offset, rstd: rstd.view(), y: once_more.view_mut() }).unwrap();
    assert!(once_more.to_vec_f32() == y.to_vec_f32());
    [y.to_vec_f32(), rstd.to_vec_f32(), sum.to_vec_f32()]
}

/// Returns d_x and d_weight, which are added to `start`.
fn run_back(
    ctx: &Context,
    x: &[f32],
    w: &[f32],
    rstd: &[f32],
    d_y: &[f32],
    start: [&[f32]; 2],
    segments: &[u32],
) -> [Vec<f32>; 2] {
    run_back_with(ctx, x, (w, 0.0), rstd, d_y, start, segments)
}

fn run_back_with(
    ctx: &Context,
    x: &[f32],
    (w, offset): (&[f32], f32),
    rstd: &[f32],
    d_y: &[f32],
    [d_x, d_w]: [&[f32]; 2],
    segments: &[u32],
) -> [Vec<f32>; 2] {
    let (h, m) = (w.len(), ctx.memory());
    let segments = Tensor::from_u32(m, &[segments.len()], segments);
    let tensor = |x: &[f32]| Tensor::from_f32(m, &[rstd.len(), h], x);
    let (x, d_y, mut d_x) = (tensor(x), tensor(d_y), tensor(d_x));
    let (w, mut d_w) = (Tensor::from_f32(m, &[h], w), Tensor::from_f32(m, &[h], d_w));
    let rstd = Tensor::from_f32(m, &[rstd.len()], rstd);
    let args = Backward {
        x: x.view(),
        weight: w.view(),
        offset,
        rstd: rstd.view(),
        d_y: d_y.view(),
        d_x: d_x.view_mut(),
        d_weight: Some(d_w.view_mut()),
        segments: Some(segments.view()),
    };
    backward(ctx, args).unwrap();
    [d_x.to_vec_f32(), d_w.to_vec_f32()]
}

const SHAPES: [(usize, usize); 7] = [(1, 1), (3, 5), (2, 129), (7, 64), (40, 896), (0, 8), (251, 33)];

#[test]
fn the_result_is_near_the_oracle_on_every_isa() {
    for (t, h) in SHAPES {
        let (x, delta, d_y): (Vec<f32>, Vec<f32>, Vec<f32>) = (normal(1, t * h), normal(2, t * h), normal(3, t * h));
        let (w, d_x0, d_w0): (Vec<f32>, Vec<f32>, Vec<f32>) = (normal(4, h), normal(5, t * h), normal(6, h));
        let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
        let (y, r) = reference::forward(&wide(&sum), &wide(&w), EPS.into());
        let (d_x, d_w) = reference::backward(&wide(&sum), &wide(&w), &r, &wide(&d_y));
        let plus = |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, &b)| a + f64::from(b)).collect::<Vec<_>>();
        let (d_x, d_w) = (plus(&d_x, &d_x0), plus(&d_w, &d_w0));
        let mut bits = None;
        for ctx in contexts(&[1, 3]) {
            let got = run(&ctx, &x, Some(&delta), &w);
            assert!(got[2] == sum);
            assert!(run(&ctx, &sum, None, &w)[..2] == got[..2]);
            assert!(relative_error(&got[0], &y) < 1e-6 && relative_error(&got[1], &r) < 1e-6, "{t}×{h}");
            let mut back = run_back(&ctx, &sum, &w, &got[1], &d_y, [&d_x0, &d_w0], &[0, t as u32]);
            assert!(relative_error(&back[0], &d_x) < 1e-5 && relative_error(&back[1], &d_w) < 1e-5, "{t}×{h}");
            assert!(
                *bits.get_or_insert((got.clone(), back.clone())) == (got.clone(), back.clone()),
                "{:?}",
                ctx.describe()
            );
            for segments in [vec![0, t as u32], vec![0, t as u32 / 3, t as u32 / 3, t as u32]] {
                let mut formula = d_w0.clone();
                reference::weight_gradient(&sum, &got[1], &d_y, &segments, &mut formula);
                let fast = &run_back(&ctx, &sum, &w, &got[1], &d_y, [&d_x0, &d_w0], &segments)[1];
                assert!(*fast == formula, "{t}×{h} {segments:?} {:?}", ctx.describe());
            }
            if t > 0 {
                back[1][0] += 0.1;
                assert!(relative_error(&back[1], &d_w) > 1e-5, "a wrong gradient passes");
            }
        }
    }
}

#[test]
fn the_weight_gradient_does_not_depend_on_the_split_between_segments() {
    let (t, h, ctx) = (150, 37, Context::cpu(Isa::best(), 2));
    let segments = [0, 1, 70, 70, 149, 150];
    let (x, d_y, w): (Vec<f32>, Vec<f32>, Vec<f32>) = (normal(1, t * h), normal(2, t * h), normal(3, h));
    let zeros = vec![0.0; t * h];
    let [y, rstd, _] = run(&ctx, &x, None, &w);
    let whole = run_back(&ctx, &x, &w, &rstd, &d_y, [&zeros, &zeros[..h]], &segments);
    for cut in segments.map(|s| s as usize) {
        let (at, own) = (cut * h, [0..cut, cut..t].map(|rows| segments_of(&segments, rows)));
        assert!(run(&ctx, &x[at..], None, &w)[0] == y[at..]);
        let first = run_back(&ctx, &x[..at], &w, &rstd[..cut], &d_y[..at], [&zeros[..at], &zeros[..h]], &own[0]);
        let second = run_back(&ctx, &x[at..], &w, &rstd[cut..], &d_y[at..], [&zeros[at..], &first[1]], &own[1]);
        assert!(second[1] == whole[1], "cut at {cut}");
        assert!([&first[0][..], &second[0]].concat() == whole[0]);
    }
}

/// An offset has the same effect as a larger weight, in the forward and in the backward pass.
#[test]
fn an_offset_is_added_to_the_weight() {
    for (t, h) in SHAPES {
        let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, t * h), normal(3, t * h));
        let (w, d_x0, d_w0): (Vec<f32>, Vec<f32>, Vec<f32>) = (normal(4, h), normal(5, t * h), normal(6, h));
        let larger: Vec<f32> = w.iter().map(|w| w + 1.0).collect();
        let exact: Vec<f64> = w.iter().map(|&w| f64::from(w) + 1.0).collect();
        let (y, r) = reference::forward(&wide(&x), &exact, EPS.into());
        let (d_x, d_w) = reference::backward(&wide(&x), &exact, &r, &wide(&d_y));
        let zeros = vec![0.0; t * h + h];
        for ctx in contexts(&[1, 3]) {
            let [got, rstd, _] = run_with(&ctx, &x, None, &w, 1.0);
            assert!(got == run(&ctx, &x, None, &larger)[0], "{t}×{h}");
            assert!(relative_error(&got, &y) < 1e-6);
            let segments = [0, t as u32];
            let back = |w, start| run_back_with(&ctx, &x, w, &rstd, &d_y, start, &segments);
            assert!(back((&w, 1.0), [&d_x0, &d_w0]) == back((&larger, 0.0), [&d_x0, &d_w0]), "{t}×{h}");
            let [got_x, got_w] = back((&w, 1.0), [&zeros[..t * h], &zeros[..h]]);
            // With one element per row, the terms of d_x cancel completely.
            assert!(h == 1 || relative_error(&got_x, &d_x) < 1e-5, "{t}×{h}");
            assert!(relative_error(&got_w, &d_w) < 1e-5, "{t}×{h}");
            if t > 0 && h > 1 {
                assert!(relative_error(&back((&w, 0.0), [&zeros[..t * h], &zeros[..h]])[0], &d_x) > 1e-3, "no offset");
            }
        }
    }
    // An offset of 0 must keep the weight's bits; −0 + 0 would lose the sign.
    let ctx = Context::cpu(Isa::best(), 1);
    let [y, ..] = run(&ctx, &[1.0, 2.0], None, &[-0.0, 1.0]);
    assert!(y[0] == 0.0 && y[0].is_sign_negative());
}

#[test]
fn the_oracles_gradients_match_finite_differences() {
    let (t, h) = (3, 5);
    let (x, w, d_y): (Vec<f64>, Vec<f64>, Vec<f64>) = (normal(1, t * h), normal(2, h), normal(3, t * h));
    let loss = |y: &[f64]| y.iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
    let (_, r) = reference::forward(&x, &w, EPS.into());
    let (mut d_x, d_w) = reference::backward(&x, &w, &r, &d_y);
    assert!(directional_error(&x, &d_x, |x| loss(&reference::forward(x, &w, EPS.into()).0)) < 1e-7);
    assert!(directional_error(&w, &d_w, |w| loss(&reference::forward(&x, w, EPS.into()).0)) < 1e-7);
    d_x[2] *= 1.01;
    assert!(directional_error(&x, &d_x, |x| loss(&reference::forward(x, &w, EPS.into()).0)) > 1e-7);
}

#[test]
fn a_wrong_shape_is_an_error_that_names_it() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let zeros = |shape: &[usize]| Tensor::zeros(ctx.memory(), shape, DType::F32);
    let (x, w, mut y, mut rstd) = (zeros(&[2, 3]), zeros(&[4]), zeros(&[2, 3]), zeros(&[2]));
    let (y, rstd) = (y.view_mut(), rstd.view_mut());
    let args = Forward { x: x.view(), delta: None, sum: None, weight: w.view(), offset: 0.0, eps: EPS, y, rstd };
    let message = forward(&ctx, args).unwrap_err().to_string();
    assert_eq!(message, "rmsnorm::forward: weight has shape [4], expected [3]");
}
