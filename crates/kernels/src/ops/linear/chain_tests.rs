//! Tests the formula of bf16 matmuls in chains, which flushes denormals, bit for bit on all instruction sets without
//! tiles.

use super::tiles_tests::{Case, SHAPES, same};
use super::*;
use crate::Isa;
use crate::check::flushed::{Flushed, planted};
use crate::tensor::rounded_to_bf16;

fn contexts() -> impl Iterator<Item = Context> {
    let chains = Isa::present().into_iter().filter(|isa| !isa.has_tiles()).chain([Isa::DOTS_EMULATED]);
    chains.flat_map(|isa| [1, 3].map(|threads| Context::cpu(isa, threads)))
}

/// Cases with ordinary operands, and cases with operands and accumulators near the denormals.
fn cases() -> impl Iterator<Item = Case> {
    SHAPES.into_iter().chain([[100, 96, 1100], [40, 37, 2]]).flat_map(|[m, n, k]| {
        let plain = Case::new([m, n, k]);
        let x0 = planted(6, m, k);
        let hard = Case {
            x: planted(1, m, k),
            w: planted(2, n, k),
            bias: planted(3, 3, n)[2 * n..].to_vec(),
            d_y: planted(4, m, n),
            y0: planted(5, m, n),
            w0: planted(7, n, k).iter().map(|x| x * 2.0f32.powi(-60)).collect(),
            x0,
            ..plain
        };
        [Case::new([m, n, k]), hard]
    })
}

#[test]
fn forward_matches_the_formula_bit_for_bit() {
    for case in cases() {
        let of = |bias: Option<&[f32]>, start: Option<&[f32]>| {
            let (bias, start) = (bias.map(Flushed::all), start.map(Flushed::all));
            let (x, w) = (Flushed::all(&case.x), Flushed::all(&case.w));
            Flushed::values(&reference::forward(case.k, &x, &w, bias.as_deref(), start.as_deref()))
        };
        let (plain, continued) = (of(Some(&case.bias), None), of(None, Some(&case.y0)));
        for ctx in contexts() {
            let what = format!("{:?} {} {:?}", ctx.describe(), ctx.threads(), [case.m, case.n, case.k]);
            same(&case.forward(&ctx, 0..case.m, true, false), &plain, &what);
            same(&case.forward(&ctx, 0..case.m, false, true), &continued, &what);
        }
    }
}

#[test]
fn backward_matches_the_formula_bit_for_bit() {
    for case in cases() {
        let (x, w) = (Flushed::all(&case.x), Flushed::all(&case.w));
        let d_y = Flushed::all(&rounded_to_bf16(&case.d_y));
        let fresh = Flushed::values(&reference::backward_input(case.k, &d_y, &w, None));
        let start = Flushed::all(&case.x0);
        let continued = Flushed::values(&reference::backward_input(case.k, &d_y, &w, Some(&start)));
        let mut d_w = Flushed::all(&case.w0);
        reference::backward_weight(case.k, &x, &d_y, &mut d_w);
        let d_w = Flushed::values(&d_w);
        let m = case.m as u32;
        for ctx in contexts() {
            let what = format!("{:?} {} {:?}", ctx.describe(), ctx.threads(), [case.m, case.n, case.k]);
            same(&case.backward_input(&ctx, false), &fresh, &what);
            same(&case.backward_input(&ctx, true), &continued, &what);
            // Segments may start, and batches may be split, at any row, also after an odd number of rows.
            for segments in [vec![0, m], vec![0, m / 3, m / 3, m / 2 + 1, m]] {
                for cuts in [vec![0, case.m], vec![0, segments[1] as usize, case.m]] {
                    same(&case.backward_weight(&ctx, &segments, &cuts), &d_w, &format!("d_w {cuts:?} {what}"));
                }
            }
        }
    }
}

/// The cases can distinguish formulas: chains that keep denormals, or that add the odd term first, give other bits.
#[test]
fn another_formula_gives_other_bits() {
    let case = cases().last().expect("some");
    let flushed = reference::forward(case.k, &Flushed::all(&case.x), &Flushed::all(&case.w), None, None);
    let kept = reference::forward(case.k, &case.x, &case.w, None, None);
    let differ = |a: &[f32], b: &[f32]| a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert!(differ(&Flushed::values(&flushed), &kept) > 20);
    let swapped = |x: &[f32]| x.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect::<Vec<f32>>();
    let (x, w) = (swapped(&case.x), swapped(&case.w));
    let odd_first = reference::forward(case.k, &Flushed::all(&x), &Flushed::all(&w), None, None);
    assert!(differ(&Flushed::values(&flushed), &Flushed::values(&odd_first)) > 20);
}
