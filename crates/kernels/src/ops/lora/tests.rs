use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::{Device, Isa, Memory, Tensor};

/// `[M, N, K, r]`
const SHAPES: [[usize; 4]; 5] = [[1, 1, 1, 1], [3, 5, 7, 2], [2, 129, 33, 8], [21, 40, 50, 16], [0, 4, 3, 2]];
const SCALE: f32 = 0.375;

struct Out {
    xa: Vec<f32>,
    y: Vec<f32>,
    g: reference::Gradients<f32>,
}

fn fast(ctx: &Context, [m, n, k, r]: [usize; 4]) -> Out {
    let memory = Memory::new(Device::Cpu);
    let tensor =
        |seed, rows, columns| Tensor::from_f32(&memory, &[rows, columns], &normal::<f32>(seed, rows * columns));
    let matrix = |seed, rows, columns| Matrix::from_f32(&memory, rows, columns, &normal::<f32>(seed, rows * columns));
    let (x, a, b, d_y) = (tensor(1, m, k), matrix(2, r, k), matrix(3, n, r), tensor(4, m, n));
    let (mut y, mut d_x, mut d_a, mut d_b) = (tensor(5, m, n), tensor(6, m, k), matrix(7, r, k), matrix(8, n, r));
    let mut xa = Tensor::from_f32(&memory, &[m, r], &vec![f32::NAN; m * r]);
    let mut d_xa = Tensor::from_f32(&memory, &[m, r], &vec![f32::NAN; m * r]);
    let args = Forward { x: x.view(), a: &a, b: &b, scale: SCALE, xa: xa.view_mut(), y: y.view_mut() };
    forward(ctx, args).unwrap();
    // Two calls: the gradients of a batch may be cut anywhere.
    for rows in [0..m / 3, m / 3..m] {
        let args = Backward {
            x: x.rows(rows.clone()),
            a: &a,
            b: &b,
            scale: SCALE,
            xa: xa.rows(rows.clone()),
            d_y: d_y.rows(rows.clone()),
            d_xa: d_xa.rows_mut(rows.clone()),
            d_x: d_x.rows_mut(rows),
            d_a: &mut d_a,
            d_b: &mut d_b,
        };
        backward(ctx, args).unwrap();
    }
    let g = reference::Gradients { d_x: d_x.to_vec_f32(), d_a: d_a.unpack_rows(0..r), d_b: d_b.unpack_rows(0..n) };
    Out { xa: xa.to_vec_f32(), y: y.to_vec_f32(), g }
}

#[test]
fn equals_the_oracle_bit_for_bit() {
    for shape in SHAPES {
        let [m, n, k, r] = shape;
        let (x, a, b) = (normal::<f32>(1, m * k), normal::<f32>(2, r * k), normal::<f32>(3, n * r));
        let (xa, y) = reference::forward(k, &x, &a, &b, SCALE, &normal::<f32>(5, m * n));
        let (d_x, d_a, d_b) = (normal(6, m * k), normal(7, r * k), normal(8, n * r));
        let mut g = reference::Gradients { d_x, d_a, d_b };
        reference::backward(k, &x, &a, &b, SCALE, &xa, &normal::<f32>(4, m * n), &mut g);
        for isa in Isa::present() {
            for threads in 1..=3 {
                let out = fast(&Context::cpu(isa, threads), shape);
                assert_eq!((&out.xa, &out.y), (&xa, &y), "{isa:?} {shape:?}");
                assert_eq!((&out.g.d_x, &out.g.d_a, &out.g.d_b), (&g.d_x, &g.d_a, &g.d_b), "{isa:?} {shape:?}");
            }
        }
    }
}

#[test]
fn oracle_gradients_in_f64_and_the_fast_ones_near_them() {
    let [m, n, k, r] = [3, 5, 7, 2];
    let wide = |seed, len| normal::<f32>(seed, len).into_iter().map(f64::from).collect::<Vec<_>>();
    let (x, a, b, d_y) = (wide(1, m * k), wide(2, r * k), wide(3, n * r), wide(4, m * n));
    let scale = f64::from(SCALE);
    let loss = |all: &[f64]| {
        let (x, rest) = all.split_at(m * k);
        let (a, b) = rest.split_at(r * k);
        let (_, y) = reference::forward(k, x, a, b, scale, &vec![0.0; m * n]);
        y.iter().zip(&d_y).map(|(y, d)| y * d).sum()
    };
    let gradients = |start: [Vec<f64>; 3]| {
        let [d_x, d_a, d_b] = start;
        let mut g = reference::Gradients { d_x, d_a, d_b };
        let (xa, _) = reference::forward(k, &x, &a, &b, scale, &vec![0.0; m * n]);
        reference::backward(k, &x, &a, &b, scale, &xa, &d_y, &mut g);
        [g.d_x, g.d_a, g.d_b]
    };
    let gradient = gradients([vec![0.0; m * k], vec![0.0; r * k], vec![0.0; n * r]]).concat();
    let all = [x.clone(), a.clone(), b.clone()].concat();
    assert!(directional_error(&all, &gradient, loss) < 1e-7);
    for part in [0..m * k, m * k..m * k + r * k, m * k + r * k..all.len()] {
        // The scale forgotten in one of the three.
        let mut spoiled = gradient.clone();
        spoiled[part].iter_mut().for_each(|g| *g /= scale);
        assert!(directional_error(&all, &spoiled, loss) > 1e-3);
    }
    let oracle = gradients([wide(6, m * k), wide(7, r * k), wide(8, n * r)]).concat();
    for isa in Isa::present() {
        let g = fast(&Context::cpu(isa, 1), [m, n, k, r]).g;
        let mut fast = [g.d_x, g.d_a, g.d_b].concat();
        assert!(relative_error(&fast, &oracle) < 1e-5);
        fast[m * k] *= 1.1;
        assert!(relative_error(&fast, &oracle) > 1e-5, "one spoiled element is seen");
    }
}
