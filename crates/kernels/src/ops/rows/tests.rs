use super::*;
use crate::check::{directional_error, normal};
use crate::{Device, Isa, Memory, Tensor};

const SHAPES: [(usize, usize, usize); 5] = [(1, 1, 1), (5, 3, 7), (9, 70, 129), (4, 0, 3), (3, 40, 300)];

fn chosen(from: usize, count: usize) -> Vec<u32> {
    (0..count).map(|r| (r * 5 % from) as u32).collect()
}

#[test]
fn the_result_equals_the_oracle_for_any_threads_and_split() {
    let memory = Memory::new(Device::Cpu);
    for (from, count, hidden) in SHAPES {
        let (x, d_out): (Vec<f32>, Vec<f32>) = (normal(1, from * hidden), normal(2, count * hidden));
        let rows = chosen(from, count);
        let mut sums = normal::<f32>(3, from * hidden);
        reference::scatter_add(hidden, &d_out, &rows, &mut sums);
        for isa in Isa::present() {
            for threads in 1..=3 {
                let ctx = Context::cpu(isa, threads);
                let x = Tensor::from_f32(&memory, &[from, hidden], &x);
                let index = Tensor::from_u32(&memory, &[count], &rows);
                let mut out = Tensor::from_f32(&memory, &[count, hidden], &vec![f32::NAN; count * hidden]);
                gather(&ctx, Gather { x: x.view(), rows: index.view(), out: out.view_mut() }).unwrap();
                assert_eq!(out.to_vec_f32(), reference::gather(hidden, &x.to_vec_f32(), &rows));
                let d_out = Tensor::from_f32(&memory, &[count, hidden], &d_out);
                let mut d_x = Tensor::from_f32(&memory, &[from, hidden], &normal::<f32>(3, from * hidden));
                for r in [0..count / 2, count / 2..count] {
                    let args = ScatterAdd { d_out: d_out.rows(r.clone()), rows: index.rows(r), d_x: d_x.view_mut() };
                    scatter_add(&ctx, args).unwrap();
                }
                assert_eq!(d_x.to_vec_f32(), sums);
            }
        }
    }
}

#[test]
fn the_oracles_gradient_matches_finite_differences() {
    let (from, count, hidden) = (4, 7, 3);
    let (x, d_out): (Vec<f64>, Vec<f64>) = (normal(1, from * hidden), normal(2, count * hidden));
    let rows = chosen(from, count);
    let loss = |x: &[f64]| reference::gather(hidden, x, &rows).iter().zip(&d_out).map(|(y, d)| y * d).sum();
    let mut gradient = vec![0.0; from * hidden];
    reference::scatter_add(hidden, &d_out, &rows, &mut gradient);
    assert!(directional_error(&x, &gradient, loss) < 1e-7);
    let mut spoiled = vec![0.0; from * hidden];
    reference::scatter_add(hidden, &d_out, &rows[..count - 1], &mut spoiled);
    assert!(directional_error(&x, &spoiled, loss) > 1e-3, "the check must detect a missing row");
}

#[test]
fn gathering_a_row_past_the_end_is_an_error() {
    let memory = Memory::new(Device::Cpu);
    let x = Tensor::zeros(&memory, &[2, 3], DType::F32);
    let rows = Tensor::from_u32(&memory, &[1], &[2]);
    let mut out = Tensor::zeros(&memory, &[1, 3], DType::F32);
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let error = gather(&ctx, Gather { x: x.view(), rows: rows.view(), out: out.view_mut() }).unwrap_err();
    assert_eq!(error.to_string(), "rows::gather: rows[0] is 2, expected below 2");
}
