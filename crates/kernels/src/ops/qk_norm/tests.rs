use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::device::cuda::tests::contexts;
use crate::ops::lanes::segments_of;
use crate::{DType, Isa, Tensor};

const EPS: f32 = 1e-6;

struct Case {
    t: usize,
    heads: usize,
    kv_heads: usize,
    hd: usize,
}

impl Case {
    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.hd
    }
    fn normed(&self) -> usize {
        self.heads + self.kv_heads
    }
}

const CASES: [Case; 5] = [
    Case { t: 1, heads: 1, kv_heads: 1, hd: 1 },
    Case { t: 3, heads: 4, kv_heads: 2, hd: 5 },
    Case { t: 17, heads: 14, kv_heads: 2, hd: 64 },
    Case { t: 0, heads: 2, kv_heads: 1, hd: 20 },
    Case { t: 150, heads: 3, kv_heads: 1, hd: 20 },
];

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// Returns y, rstd, d_x, d_q_weight and d_k_weight. The last two are added to `start`.
fn run(ctx: &Context, c: &Case, x: &[f32], w: [&[f32]; 2], d_y: &[f32], start: [&[f32]; 2]) -> [Vec<f32>; 5] {
    run_segments(ctx, c, x, w, d_y, start, &[0, c.t as u32])
}

fn run_segments(
    ctx: &Context,
    c: &Case,
    x: &[f32],
    w: [&[f32]; 2],
    d_y: &[f32],
    start: [&[f32]; 2],
    segments: &[u32],
) -> [Vec<f32>; 5] {
    run_with(ctx, c, x, (w, 0.0), d_y, start, segments)
}

fn run_with(
    ctx: &Context,
    c: &Case,
    x: &[f32],
    (w, offset): ([&[f32]; 2], f32),
    d_y: &[f32],
    start: [&[f32]; 2],
    segments: &[u32],
) -> [Vec<f32>; 5] {
    let m = ctx.memory();
    let segments = Tensor::from_u32(m, &[segments.len()], segments);
    let tensor = |x: &[f32]| Tensor::from_f32(m, &[c.t, c.width()], x);
    let vector = |x: &[f32]| Tensor::from_f32(m, &[c.hd], x);
    let poisoned = |columns: usize| {
        let mut t = Tensor::zeros(m, &[c.t, columns], DType::F32);
        t.view_mut().fill(f32::NAN);
        t
    };
    let (x, d_y, q_weight, k_weight) = (tensor(x), tensor(d_y), vector(w[0]), vector(w[1]));
    let (mut y, mut rstd, mut d_x) = (poisoned(c.width()), poisoned(c.normed()), poisoned(c.width()));
    let (mut d_q, mut d_k) = (vector(start[0]), vector(start[1]));
    let (heads, kv_heads, head_dim) = (c.heads, c.kv_heads, c.hd);
    let args = Forward {
        x: x.view(),
        heads,
        kv_heads,
        head_dim,
        q_weight: q_weight.view(),
        k_weight: k_weight.view(),
        offset,
        eps: EPS,
        y: y.view_mut(),
        rstd: rstd.view_mut(),
    };
    forward(ctx, args).unwrap();
    let args = Backward {
        x: x.view(),
        heads,
        kv_heads,
        head_dim,
        q_weight: q_weight.view(),
        k_weight: k_weight.view(),
        offset,
        rstd: rstd.view(),
        d_y: d_y.view(),
        d_x: d_x.view_mut(),
        d_weights: Some((d_q.view_mut(), d_k.view_mut())),
        segments: Some(segments.view()),
    };
    backward(ctx, args).unwrap();
    [y, rstd, d_x, d_q, d_k].map(|t| t.to_vec_f32())
}

#[test]
fn the_result_is_near_the_oracle_on_every_isa() {
    for c in CASES {
        let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, c.t * c.width()), normal(2, c.t * c.width()));
        let (q, k): (Vec<f32>, Vec<f32>) = (normal(3, c.hd), normal(4, c.hd));
        let (q0, k0): (Vec<f32>, Vec<f32>) = (normal(5, c.hd), normal(6, c.hd));
        let (xw, qw, kw) = (wide(&x), wide(&q), wide(&k));
        let (y, rstd) = reference::forward(&xw, c.heads, c.kv_heads, &qw, &kw, EPS.into());
        let (d_x, mut d_q, mut d_k) = reference::backward(&xw, c.heads, c.kv_heads, &qw, &kw, &rstd, &wide(&d_y));
        d_q.iter_mut().zip(&q0).for_each(|(d, &x)| *d += f64::from(x));
        d_k.iter_mut().zip(&k0).for_each(|(d, &x)| *d += f64::from(x));
        let mut bits = None;
        for ctx in contexts(&[1, 3]) {
            let got = run(&ctx, &c, &x, [&q, &k], &d_y, [&q0, &k0]);
            for (i, (got, oracle)) in got.iter().zip([&y, &rstd, &d_x, &d_q, &d_k]).enumerate() {
                // With one element per head, the terms of d_x cancel completely, so its error is relative to these
                // terms.
                let size = if c.hd == 1 && i == 2 { f64::from(q[0].abs()) * rstd[0] } else { 0.0 };
                let error = relative_error(got, oracle);
                let difference: f64 = got.iter().zip(oracle).map(|(&a, b)| (f64::from(a) - b).abs()).sum();
                assert!(error < 1e-5 || difference < 1e-5 * size, "{error}: {} heads of {}", c.heads, c.hd);
            }
            assert!(*bits.get_or_insert(got.clone()) == got, "{} {}", ctx.describe(), ctx.threads());
            let t = c.t as u32;
            for segments in [vec![0, t], vec![0, t / 3, t / 3, t]] {
                let fast = run_segments(&ctx, &c, &x, [&q, &k], &d_y, [&q0, &k0], &segments);
                let [mut d_q, mut d_k] = [q0.clone(), k0.clone()];
                let d_w = [d_q.as_mut_slice(), &mut d_k];
                reference::weight_gradients(&x, c.heads, c.kv_heads, &fast[1], &d_y, &segments, d_w);
                assert!(fast[3..] == [d_q, d_k], "{} {segments:?}", ctx.describe());
            }
        }
    }
}

/// An offset has the same effect as larger weights, which the test against the oracle covers.
#[test]
fn an_offset_is_added_to_both_weights() {
    for c in CASES {
        let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, c.t * c.width()), normal(2, c.t * c.width()));
        let (q, k, zeros): (Vec<f32>, Vec<f32>, _) = (normal(3, c.hd), normal(4, c.hd), vec![0.0; c.hd]);
        let [larger_q, larger_k] = [&q, &k].map(|w| w.iter().map(|w| w + 1.0).collect::<Vec<_>>());
        for (isa, threads) in Isa::present().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let ctx = Context::cpu(isa, threads);
            let of = |w| run_with(&ctx, &c, &x, w, &d_y, [&zeros, &zeros], &[0, c.t as u32]);
            let got = of(([&q, &k], 1.0));
            assert!(got == of(([&larger_q, &larger_k], 0.0)), "{isa:?} {threads}");
            let without = of(([&q, &k], 0.0));
            assert!(c.t == 0 || got[0] != without[0] && got[2] != without[2], "{isa:?} {threads}");
        }
    }
}

#[test]
fn the_weight_gradients_do_not_depend_on_the_split_between_segments() {
    let c = &CASES[4];
    let segments = [0, 1, 70, 70, 150];
    let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, c.t * c.width()), normal(2, c.t * c.width()));
    let (q, k): (Vec<f32>, Vec<f32>) = (normal(3, c.hd), normal(4, c.hd));
    let (ctx, zeros) = (Context::cpu(Isa::best(), 2), vec![0.0; c.hd]);
    let whole = run_segments(&ctx, c, &x, [&q, &k], &d_y, [&zeros, &zeros], &segments);
    for cut in segments.map(|s| s as usize) {
        let (at, own) = (cut * c.width(), [0..cut, cut..c.t].map(|rows| segments_of(&segments, rows)));
        let part = Case { t: cut, ..*c };
        let first = run_segments(&ctx, &part, &x[..at], [&q, &k], &d_y[..at], [&zeros, &zeros], &own[0]);
        let start = [&first[3][..], &first[4][..]];
        let part = Case { t: c.t - cut, ..*c };
        let second = run_segments(&ctx, &part, &x[at..], [&q, &k], &d_y[at..], start, &own[1]);
        assert!(second[3..] == whole[3..], "cut at {cut}");
        assert!([&first[2][..], &second[2]].concat() == whole[2]);
    }
}

#[test]
fn the_oracles_gradients_match_finite_differences() {
    let c = &CASES[1];
    let (x, d_y): (Vec<f64>, Vec<f64>) = (normal(1, c.t * c.width()), normal(2, c.t * c.width()));
    let (q, k): (Vec<f64>, Vec<f64>) = (normal(3, c.hd), normal(4, c.hd));
    let loss = |x: &[f64], q: &[f64], k: &[f64]| {
        let (y, _) = reference::forward(x, c.heads, c.kv_heads, q, k, EPS.into());
        y.iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>()
    };
    let (_, rstd) = reference::forward(&x, c.heads, c.kv_heads, &q, &k, EPS.into());
    let (d_x, d_q, mut d_k) = reference::backward(&x, c.heads, c.kv_heads, &q, &k, &rstd, &d_y);
    assert!(directional_error(&x, &d_x, |x| loss(x, &q, &k)) < 1e-7);
    assert!(directional_error(&q, &d_q, |q| loss(&x, q, &k)) < 1e-7);
    assert!(directional_error(&k, &d_k, |k| loss(&x, &q, k)) < 1e-7);
    d_k[0] *= 1.01;
    assert!(directional_error(&k, &d_k, |k| loss(&x, &q, k)) > 1e-7, "a wrong gradient passes");
}

#[test]
fn a_wrong_fast_backward_is_detected() {
    let c = &CASES[1];
    let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, c.t * c.width()), normal(2, c.t * c.width()));
    let (q, k, zeros): (Vec<f32>, Vec<f32>, _) = (normal(3, c.hd), normal(4, c.hd), vec![0.0; c.hd]);
    let (xw, qw, kw) = (wide(&x), wide(&q), wide(&k));
    let (_, rstd) = reference::forward(&xw, c.heads, c.kv_heads, &qw, &kw, EPS.into());
    let (d_x, d_q, d_k) = reference::backward(&xw, c.heads, c.kv_heads, &qw, &kw, &rstd, &wide(&d_y));
    for isa in Isa::present() {
        let good = run(&Context::cpu(isa, 2), c, &x, [&q, &k], &d_y, [&zeros, &zeros]);
        // Three errors: exchanged weights, normalised value heads, and a weight gradient without one token.
        let exchanged = run(&Context::cpu(isa, 2), c, &x, [&k, &q], &d_y, [&zeros, &zeros]);
        let mut values = good[2].clone();
        values.iter_mut().skip(c.normed() * c.hd).take(c.hd).for_each(|d| *d *= 1.5);
        let short = Case { t: c.t - 1, ..*c };
        let n = short.t * c.width();
        let left_out = run(&Context::cpu(isa, 2), &short, &x[..n], [&q, &k], &d_y[..n], [&zeros, &zeros]);
        for (name, spoiled, oracle) in [
            ("exchanged", &exchanged[2], &d_x),
            ("values", &values, &d_x),
            ("query weight", &left_out[3], &d_q),
            ("key weight", &left_out[4], &d_k),
        ] {
            assert!(relative_error(spoiled, oracle) > 1e-3, "{name} on {isa:?}");
        }
        for (i, oracle) in [(2, &d_x), (3, &d_q), (4, &d_k)] {
            assert!(relative_error(&good[i], oracle) < 1e-5);
        }
    }
}

/// Compares one norm over all query heads, and one over all key heads, with the oracle of `rmsnorm` on these columns.
#[test]
fn weights_for_all_heads_normalise_all_heads_together() {
    use crate::ops::rmsnorm::reference as rmsnorm;
    for c in [Case { t: 70, heads: 4, kv_heads: 2, hd: 5 }, Case { t: 3, heads: 2, kv_heads: 1, hd: 10 }] {
        let (q_dim, k_dim) = (c.heads * c.hd, c.kv_heads * c.hd);
        let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, c.t * c.width()), normal(2, c.t * c.width()));
        let (q, k): (Vec<f32>, Vec<f32>) = (normal(3, q_dim), normal(4, k_dim));
        let columns = |x: &[f32], from: usize, to: usize| -> Vec<f64> {
            x.chunks_exact(c.width()).flat_map(|row| wide(&row[from..to])).collect()
        };
        for (isa, threads) in Isa::present().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let ctx = Context::cpu(isa, threads);
            let m = ctx.memory();
            let vector = |x: &[f32]| Tensor::from_f32(m, &[x.len()], x);
            let tensor = |x: &[f32]| Tensor::from_f32(m, &[c.t, c.width()], x);
            let (x_in, d_in, q_weight, k_weight) = (tensor(&x), tensor(&d_y), vector(&q), vector(&k));
            let (mut y, mut d_x) = (tensor(&vec![f32::NAN; x.len()]), tensor(&vec![f32::NAN; x.len()]));
            let mut rstd = Tensor::zeros(m, &[c.t, 2], DType::F32);
            let (mut d_q, mut d_k) = (vector(&vec![0.0; q_dim]), vector(&vec![0.0; k_dim]));
            let (heads, kv_heads, head_dim) = (c.heads, c.kv_heads, c.hd);
            let args = Forward {
                x: x_in.view(),
                heads,
                kv_heads,
                head_dim,
                q_weight: q_weight.view(),
                k_weight: k_weight.view(),
                offset: 0.0,
                eps: EPS,
                y: y.view_mut(),
                rstd: rstd.view_mut(),
            };
            forward(&ctx, args).unwrap();
            let args = Backward {
                x: x_in.view(),
                heads,
                kv_heads,
                head_dim,
                q_weight: q_weight.view(),
                k_weight: k_weight.view(),
                offset: 0.0,
                rstd: rstd.view(),
                d_y: d_in.view(),
                d_x: d_x.view_mut(),
                d_weights: Some((d_q.view_mut(), d_k.view_mut())),
                segments: None,
            };
            backward(&ctx, args).unwrap();
            let (y, d_x) = (y.to_vec_f32(), d_x.to_vec_f32());
            let parts = [(0, q_dim, &q, d_q.to_vec_f32()), (q_dim, q_dim + k_dim, &k, d_k.to_vec_f32())];
            for (from, to, weight, d_weight) in parts {
                let (x, d_y, weight) = (columns(&x, from, to), columns(&d_y, from, to), wide(weight));
                let (oracle, r) = rmsnorm::forward(&x, &weight, EPS.into());
                let (oracle_d_x, oracle_d_w) = rmsnorm::backward(&x, &weight, &r, &d_y);
                let near = |got: &[f64], oracle: &[f64]| {
                    let narrow: Vec<f32> = got.iter().map(|&x| x as f32).collect();
                    assert!(relative_error(&narrow, oracle) < 1e-5, "{isa:?} {from}");
                };
                near(&columns(&y, from, to), &oracle);
                near(&columns(&d_x, from, to), &oracle_d_x);
                near(&wide(&d_weight), &oracle_d_w);
            }
            let rest = q_dim + k_dim;
            assert!(columns(&y, rest, c.width()) == columns(&x, rest, c.width()));
            assert!(columns(&d_x, rest, c.width()) == columns(&d_y, rest, c.width()));
        }
    }
}
