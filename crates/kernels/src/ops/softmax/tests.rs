use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::{DType, Isa, Tensor};

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// Each row sees a window of the columns. If there are several rows, the first row sees none.
fn mask(rows: usize, columns: usize) -> (Vec<u32>, Vec<u32>) {
    let seen = |r: usize| {
        let end = (r * columns / rows + usize::from(rows == 1 || r > 0)).min(columns);
        (end.saturating_sub(1 + 3 * r) as u32, end as u32)
    };
    (0..rows).map(seen).unzip()
}

/// Returns y and d_x.
fn run(ctx: &Context, c: usize, x: &[f32], first: &[u32], end: &[u32], d_y: &[f32]) -> [Vec<f32>; 2] {
    let (m, r) = (ctx.memory(), first.len());
    let tensor = |x: &[f32]| Tensor::from_f32(m, &[r, c], x);
    let (x, d_y) = (tensor(x), tensor(d_y));
    let (first, end) = (Tensor::from_u32(m, &[r], first), Tensor::from_u32(m, &[r], end));
    let nan = vec![f32::NAN; r * c];
    let (mut y, mut d_x) = (tensor(&nan), tensor(&nan));
    let args = Forward { x: x.view(), scale: 0.3, first: first.view(), end: end.view(), y: y.view_mut() };
    forward(ctx, args).unwrap();
    let (first, end) = (first.view(), end.view());
    let args = Backward { y: y.view(), scale: 0.3, first, end, d_y: d_y.view(), d_x: d_x.view_mut() };
    backward(ctx, args).unwrap();
    [y.to_vec_f32(), d_x.to_vec_f32()]
}

#[test]
fn the_result_is_near_the_oracle_on_every_isa() {
    for (r, c) in [(1, 1), (3, 5), (2, 129), (30, 70), (0, 4)] {
        let (first, end) = mask(r, c);
        let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, r * c), normal(2, r * c));
        let y = reference::forward(&wide(&x), c, f64::from(0.3f32), &first, &end);
        let d_x = reference::backward(&y, c, f64::from(0.3f32), &first, &end, &wide(&d_y));
        // Masked columns may contain anything, such as NaN.
        let unseen = |i: usize| !(first[i / c]..end[i / c]).contains(&((i % c) as u32));
        let poison = |x: &[f32]| x.iter().enumerate().map(|(i, &x)| if unseen(i) { f32::NAN } else { x }).collect();
        let (x, d_y): (Vec<f32>, Vec<f32>) = (poison(&x), poison(&d_y));
        let mut bits = None;
        for isa in Isa::present() {
            for threads in [1, 3] {
                let got = run(&Context::cpu(isa, threads), c, &x, &first, &end, &d_y);
                assert!(relative_error(&got[0], &y) < 1e-6 && relative_error(&got[1], &d_x) < 1e-5, "{isa:?} {r}×{c}");
                assert!(*bits.get_or_insert(got.clone()) == got, "{isa:?} {threads} {r}×{c}");
            }
        }
    }
}

#[test]
fn the_oracles_gradients_match_finite_differences() {
    let (r, c) = (4, 7);
    let (first, end) = mask(r, c);
    let (x, d_y): (Vec<f64>, Vec<f64>) = (normal(1, r * c), normal(2, r * c));
    let f = |x: &[f64]| reference::forward(x, c, 0.3, &first, &end);
    let loss = |x: &[f64]| f(x).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
    let mut d = reference::backward(&f(&x), c, 0.3, &first, &end, &d_y);
    assert!(directional_error(&x, &d, loss) < 1e-7);
    let largest = (0..d.len()).fold(0, |m, i| if d[i].abs() > d[m].abs() { i } else { m });
    d[largest] *= 1.01;
    assert!(directional_error(&x, &d, loss) > 1e-7, "a wrong gradient passes");
}

#[test]
fn a_wrong_fast_backward_is_detected() {
    let (r, c) = (3, 21);
    let (first, end) = mask(r, c);
    let (x, d_y): (Vec<f32>, Vec<f32>) = (normal(1, r * c), normal(2, r * c));
    let y = reference::forward(&wide(&x), c, f64::from(0.3f32), &first, &end);
    let oracle = reference::backward(&y, c, f64::from(0.3f32), &first, &end, &wide(&d_y));
    for isa in Isa::present() {
        let [_, mut d_x] = run(&Context::cpu(isa, 2), c, &x, &first, &end, &d_y);
        assert!(relative_error(&d_x, &oracle) < 1e-5);
        // A gradient is wrong if its last row omits the mean that softmax's Jacobian subtracts.
        (0..c).for_each(|i| d_x[(r - 1) * c + i] = (y[(r - 1) * c + i] * f64::from(d_y[(r - 1) * c + i]) * 0.3) as f32);
        assert!(relative_error(&d_x, &oracle) > 1e-3, "{isa:?}");
    }
}

#[test]
fn a_softmax_mask_past_the_last_column_is_an_error() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let m = ctx.memory();
    let (x, mut y) = (Tensor::zeros(m, &[1, 2], DType::F32), Tensor::zeros(m, &[1, 2], DType::F32));
    let (first, end) = (Tensor::from_u32(m, &[1], &[0]), Tensor::from_u32(m, &[1], &[3]));
    let args = Forward { x: x.view(), scale: 1.0, first: first.view(), end: end.view(), y: y.view_mut() };
    assert!(forward(&ctx, args).unwrap_err().to_string().contains("softmax::forward: end[0] is 3"));
}
