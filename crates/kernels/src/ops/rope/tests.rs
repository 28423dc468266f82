use super::*;
use crate::Isa;
use crate::check::{directional_error, normal, relative_error};

fn inv_freq(half: usize) -> Vec<f32> {
    (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect()
}

fn run(ctx: &Context, x: &[f32], width: usize, heads: usize, positions: &[u32], table: &Table, back: bool) -> Vec<f32> {
    let t = positions.len();
    let mut x = Tensor::from_f32(ctx.memory(), &[t, width], x);
    let positions = Tensor::from_u32(ctx.memory(), &[t], positions);
    let head_dim = 2 * table.cos().shape()[1];
    let args = Rotate { x: x.view_mut(), heads, head_dim, positions: positions.view(), table };
    if back { backward(ctx, args) } else { forward(ctx, args) }.unwrap();
    x.to_vec_f32()
}

#[test]
fn cosines_and_sines_match_f64() {
    for i in 0..200_000u32 {
        // Small and large angles alternate.
        let angle = f64::from(if i % 2 == 0 { i as f32 * 1e-3 } else { i as f32 * 7.9 });
        let (c, s) = cos_sin(angle);
        for (got, expected, of) in [(c, angle.cos(), "cosine"), (s, angle.sin(), "sine")] {
            assert!((got - expected).abs() < 1e-14, "{of} of {angle}: {got}, expected {expected}");
        }
    }
}

#[test]
fn the_result_is_near_the_oracle_on_every_isa() {
    for (t, all, heads, hd) in [(1, 1, 1, 2), (3, 5, 3, 10), (9, 4, 3, 64), (0, 3, 2, 8)] {
        let freq = inv_freq(hd / 2);
        let positions: Vec<u32> = (0..t as u32).map(|i| i * 37 % 301).collect();
        let x: Vec<f32> = normal(1, t * all * hd);
        for sign in [1.0, -1.0] {
            let mut oracle: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            reference::rotate(&mut oracle, all * hd, heads, &positions, &freq, 1.25, sign);
            let mut bits = None;
            for isa in Isa::present() {
                for threads in [1, 3] {
                    let ctx = Context::cpu(isa, threads);
                    let table = Table::new(ctx.memory(), &freq, 1.25, 301);
                    let got = run(&ctx, &x, all * hd, heads, &positions, &table, sign < 0.0);
                    assert!(relative_error(&got, &oracle) < 1e-6, "{isa:?} {t} {hd}");
                    assert!(*bits.get_or_insert(got.clone()) == got, "{isa:?} {threads}");
                }
            }
        }
    }
}

#[test]
fn the_backward_rotation_is_the_transpose() {
    let (width, heads, freq, positions) = (18, 2, inv_freq(3), [5u32, 0, 77]);
    let (x, d_y): (Vec<f64>, Vec<f64>) = (normal(1, 3 * width), normal(2, 3 * width));
    let rotated = |x: &[f64], sign: f64| {
        let mut x = x.to_vec();
        reference::rotate(&mut x, width, heads, &positions, &freq, 1.25, sign);
        x
    };
    let loss = |x: &[f64]| rotated(x, 1.0).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
    assert!(directional_error(&x, &rotated(&d_y, -1.0), loss) < 1e-7);
    assert!(directional_error(&x, &rotated(&d_y, 1.0), loss) > 1e-3, "a rotation in the wrong direction passes");
}

#[test]
fn a_wrong_fast_backward_is_detected() {
    let (width, heads, freq, positions) = (18, 2, inv_freq(3), [5u32, 0, 77]);
    let d_y: Vec<f32> = normal(2, 3 * width);
    let mut oracle: Vec<f64> = d_y.iter().map(|&x| x.into()).collect();
    reference::rotate(&mut oracle, width, heads, &positions, &freq, 1.25, -1.0);
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        let table = Table::new(ctx.memory(), &freq, 1.25, 301);
        assert!(relative_error(&run(&ctx, &d_y, width, heads, &positions, &table, true), &oracle) < 1e-6);
        // A rotation in the wrong direction, or by another position's angle, is wrong.
        assert!(relative_error(&run(&ctx, &d_y, width, heads, &positions, &table, false), &oracle) > 1e-3);
        assert!(relative_error(&run(&ctx, &d_y, width, heads, &[5, 1, 77], &table, true), &oracle) > 1e-3);
    }
}

#[test]
fn wrong_positions_and_rope_shapes_are_errors() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let table = Table::new(ctx.memory(), &inv_freq(4), 1.0, 16);
    let mut x = Tensor::zeros(ctx.memory(), &[1, 24], DType::F32);
    let positions = Tensor::from_u32(ctx.memory(), &[1], &[16]);
    let mut fails = |heads, head_dim| {
        let args = Rotate { x: x.view_mut(), heads, head_dim, positions: positions.view(), table: &table };
        forward(&ctx, args).unwrap_err().to_string()
    };
    assert!(fails(2, 8).contains("positions[0] is 16"));
    assert!(fails(4, 8).contains("4 heads of 8"));
    assert!(fails(2, 6).contains("2 heads of 6"));
    // On `Device::Meta`, a table only counts its bytes.
    let meta = Memory::new(crate::Device::Meta);
    Table::new(&meta, &inv_freq(4), 1.0, 16);
    assert_eq!(meta.usage()["other"].peak_bytes, 2 * 16 * 4 * 4);
}
