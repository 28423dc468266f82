//! Attention in bf16 compared with the documented formula, in chains and on tiles. Every machine tests tiles in plain
//! Rust, and a machine with AMX also tests the instructions.

use super::formula::{Arithmetic, BF16, TILES, emulated, emulated_backward};
use super::*;
use crate::check::flushed::planted;
use crate::tensor::rounded_to_bf16;

fn arithmetic(isa: Isa) -> Arithmetic {
    if isa.has_tiles() { TILES } else { BF16 }
}

/// All instruction sets of this machine, and emulated words and tiles. If `LOCKSTEP_ISA` is set (on slow machines),
/// only that instruction set.
fn isas() -> Vec<Isa> {
    match std::env::var("LOCKSTEP_ISA") {
        Ok(name) if !name.is_empty() => vec![Isa::from_name(&name).expect("LOCKSTEP_ISA")],
        _ => Isa::present().into_iter().chain([Isa::DOTS_EMULATED, Isa::AMX_EMULATED]).collect(),
    }
}

/// One vector instruction set of [`isas`], and all of them that have tiles.
fn few_isas() -> Vec<Isa> {
    let mut isas = isas();
    let vectors = isas.iter().copied().rfind(|isa| !isa.has_tiles());
    isas.retain(|isa| isa.has_tiles() || Some(*isa) == vectors);
    isas
}

/// Head dims below, at and above multiples of 32, some with pages stored as tiles; more pairs (row, query head) than
/// fit a task or a step, and fewer; shared pages, full pages, and windows that begin inside a page.
fn cases() -> Vec<(Geometry, OwnedGroups)> {
    vec![
        (geometry(1, 1, 8, None), vec![(0, vec![1])]),
        (geometry(3, 1, 24, None), vec![(5, vec![3, 1, 9]), (0, vec![2])]),
        (geometry(4, 2, 32, None), vec![(77, vec![4, 60, 1]), (12, vec![5])]),
        (geometry(14, 2, 64, None), vec![(66, vec![7, 3])]),
        (geometry(2, 2, 16, Some(1)), vec![(70, vec![3])]),
        (geometry(6, 3, 32, Some(5)), vec![(62, vec![9, 4])]),
        (geometry(2, 1, 64, Some(64)), vec![(130, vec![70, 2])]),
        (geometry(3, 3, 32, Some(100)), vec![(64, vec![150, 64])]),
        (geometry(2, 1, 80, None), vec![(64, vec![1, 2])]),
        (geometry(2, 1, 128, None), vec![(30, vec![40, 2])]),
    ]
}

fn inputs(g: &Geometry, l: &Layout) -> (Vec<f32>, Vec<f32>) {
    let (qkv, d_out) = super::inputs(g, l);
    (rounded_to_bf16(&qkv), d_out)
}

fn formula(g: &Geometry, l: &Layout, qkv: &[f32], a: Arithmetic) -> (Vec<f32>, Vec<f32>) {
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for (keys, head) in l.keys.iter().flat_map(|keys| (0..g.heads).map(move |head| (keys, head))) {
        let (o, s) = emulated(g, qkv, keys, head, a);
        out.extend(rounded_to_bf16(&o));
        lse.push(s);
    }
    (out, lse)
}

fn same(got: &[f32], expected: &[f32], what: &str) {
    let at = got.iter().zip(expected).position(|(a, b)| a != b && !(a.is_nan() && b.is_nan()));
    if let Some(at) = at {
        panic!("{what}: element {at} is {:?}, expected {:?}", got[at], expected[at]);
    }
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
}

#[test]
fn forward_matches_the_formula_bit_for_bit() {
    for (g, groups) in cases() {
        let l = super::of(&groups, 1);
        let (qkv, _) = inputs(&g, &l);
        let wide: Vec<f64> = qkv.iter().map(|&x| x.into()).collect();
        let (exact, exact_lse) = reference::forward(&g, &wide, &l.keys);
        for isa in isas() {
            let (out, lse) = formula(&g, &l, &qkv, arithmetic(isa));
            assert!(relative_error(&out, &exact) < 4e-3 && relative_error(&lse, &exact_lse) < 1e-6, "{g:?}");
            for threads in [1, 3] {
                let (o, s) = Run::of(DType::Bf16, &Context::cpu(isa, threads), g, &l, &qkv).all();
                same(&o, &out, &format!("{isa:?} {threads} {g:?} {groups:?}"));
                same(&s, &lse, &format!("lse {isa:?} {threads} {g:?}"));
            }
        }
    }
}

/// The comparison fails if sums are split differently or probabilities are not rounded.
#[test]
fn another_formula_gives_other_bits() {
    let g = geometry(2, 1, 64, None);
    let l = layout(&[(70, &[9, 3])], 1);
    let (qkv, d_out) = inputs(&g, &l);
    let late = |start: f32, mut terms: Vec<(f32, f32)>| {
        terms.insert(0, (0.0, 0.0));
        (TILES.sum)(start, terms)
    };
    let run = Run::of(DType::Bf16, &Context::cpu(Isa::AMX_EMULATED, 1), g, &l, &qkv);
    let ((out, lse), d) = (run.all(), run.backward(&d_out));
    for wrong in [Arithmetic { sum: late, ..TILES }, Arithmetic { round: |x| x, ..TILES }, BF16] {
        let other = formula(&g, &l, &qkv, wrong);
        assert!(other != (out.clone(), lse.clone()));
        assert!(emulated_backward(&run, &qkv, [&out, &lse, &d_out], wrong) != d);
    }
    let wrong = Arithmetic { step: 31, ..TILES };
    assert!(emulated_backward(&run, &qkv, [&out, &lse, &d_out], wrong) != d);
    same(&emulated_backward(&run, &qkv, [&out, &lse, &d_out], TILES), &d, "the documented formula");
}

#[test]
fn a_rows_bits_do_not_depend_on_other_rows() {
    for (g, groups) in cases().into_iter().skip(1).step_by(2) {
        let l = super::of(&groups, 1);
        let (qkv, _) = inputs(&g, &l);
        for isa in few_isas() {
            let ctx = Context::cpu(isa, 2);
            let run = Run::of(DType::Bf16, &ctx, g, &l, &qkv);
            let (out, lse) = run.all();
            let (rows, width) = (l.positions.len(), g.heads * g.head_dim);
            let pieces =
                (0..rows).step_by(5).map(|row| row..row + 1).chain((0..rows).step_by(7).map(|r| r..rows.min(r + 7)));
            for rows in pieces {
                let (o, s) = run.forward(rows.clone());
                same(&o, &out[rows.start * width..rows.end * width], &format!("{rows:?} {isa:?} {g:?}"));
                same(&s, &lse[rows.start * g.heads..rows.end * g.heads], "lse");
            }
            let elsewhere = Run::of(DType::Bf16, &ctx, g, &super::of(&groups, 2), &qkv).all();
            assert!(elsewhere == (out, lse), "other pages, {isa:?} {g:?}");
        }
    }
}

#[test]
fn backward_matches_the_formula_bit_for_bit() {
    for (g, groups) in cases() {
        let l = super::of(&groups, 1);
        let (qkv, d_out) = inputs(&g, &l);
        for isa in isas() {
            let mut first = None;
            for threads in [1, 3] {
                let run = Run::of(DType::Bf16, &Context::cpu(isa, threads), g, &l, &qkv);
                let (out, lse) = run.all();
                let d = run.backward(&d_out);
                let formula = || emulated_backward(&run, &qkv, [&out, &lse, &d_out], arithmetic(isa));
                same(&d, first.get_or_insert_with(formula), &format!("{isa:?} {threads} {g:?} {groups:?}"));
            }
        }
    }
}

/// Operands near the denormals: rows whose products are about 2⁻¹²⁶, rows with denormals, and rows of −0.
#[test]
fn denormals_are_flushed_as_in_the_formula() {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (g, groups) in cases() {
        let l = super::of(&groups, 1);
        let (qkv, d_out) =
            (planted(3, l.positions.len(), g.width()), planted(4, l.positions.len(), g.heads * g.head_dim));
        let (out, lse) = formula(&g, &l, &qkv, BF16);
        let mut first = None;
        for isa in isas().into_iter().filter(|isa| !isa.has_tiles()) {
            for threads in [1, 3] {
                let run = Run::of(DType::Bf16, &Context::cpu(isa, threads), g, &l, &qkv);
                let (o, s) = run.all();
                assert!((bits(&o), bits(&s)) == (bits(&out), bits(&lse)), "{isa:?} {threads} {g:?}");
                let formula = || emulated_backward(&run, &qkv, [&out, &lse, &d_out], BF16);
                same(&run.backward(&d_out), first.get_or_insert_with(formula), &format!("{isa:?} {threads} {g:?}"));
            }
        }
    }
    // A formula that keeps denormals gives other bits for these inputs.
    let (g, groups) = &cases()[2];
    let l = super::of(groups, 1);
    let qkv = planted(3, l.positions.len(), g.width());
    let kept =
        Arithmetic { sum: |start, terms| terms.into_iter().fold(start, |sum, (a, b)| a.mul_add(b, sum)), ..BF16 };
    assert!(formula(g, &l, &qkv, kept) != formula(g, &l, &qkv, BF16));
}

/// Results are as close to the f64 oracle as bf16 allows. A wrong gradient exceeds the bound.
#[test]
fn backward_is_near_the_f64_oracle() {
    for (g, groups) in cases().into_iter().skip(1) {
        let l = super::of(&groups, 1);
        let (qkv, d_out) = inputs(&g, &l);
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let oracle = reference::backward(&g, &wide(&qkv), &l.keys, &wide(&d_out));
        for isa in few_isas() {
            let mut d = Run::of(DType::Bf16, &Context::cpu(isa, 2), g, &l, &qkv).backward(&d_out);
            let error = relative_error(&d, &oracle);
            assert!(error < 6e-3, "{error} {isa:?} {g:?} {groups:?}");
            let last = d.len() - 1;
            d[last] += 0.01 * oracle.iter().map(|x| x * x).sum::<f64>().sqrt() as f32;
            assert!(relative_error(&d, &oracle) > 6e-3, "a wrong gradient passes");
        }
    }
}

#[test]
fn a_groups_gradient_does_not_depend_on_its_batch() {
    let g = geometry(6, 2, 32, None);
    let all: Groups<'_> = &[(70, &[3, 9]), (4, &[2]), (65, &[1, 1, 5])];
    let l = layout(all, 1);
    let (qkv, d_out) = inputs(&g, &l);
    for isa in few_isas() {
        let ctx = Context::cpu(isa, 2);
        let together = Run::of(DType::Bf16, &ctx, g, &l, &qkv).backward(&d_out);
        for (i, group) in all.iter().enumerate() {
            let rows = l.groups[i] as usize..l.groups[i + 1] as usize;
            let cut = |x: &[f32], w: usize| x[rows.start * w..rows.end * w].to_vec();
            let run = Run::of(DType::Bf16, &ctx, g, &layout(&[*group], 5), &cut(&qkv, g.width()));
            let alone = run.backward(&cut(&d_out, g.heads * g.head_dim));
            same(&alone, &cut(&together, g.width()), &format!("group {i} {isa:?}"));
        }
    }
}
