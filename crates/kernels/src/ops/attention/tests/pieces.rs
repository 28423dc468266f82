//! Tests of components of attention on the CPU: page layouts, pages that are used as two blocks, and the small matmul.

use super::formula::Arithmetic;
use super::*;
use crate::ops::attention::matmul::{Matmul, Right};
use crate::ops::attention::pages;
use crate::simd::Element;
use crate::tensor::rounded_to_bf16;
use half::bf16;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn pages_have_the_documented_layouts() {
    assert_eq!([1, 31, 32, 33, 64].map(pages::padded), [32, 32, 32, 64, 64]);
    assert_eq!([16, 31, 32, 33, 64, 80].map(pages::kept), [false, false, true, false, true, false]);
    for (isa, dtype, hd, expected) in [
        (Isa::DOTS_EMULATED, DType::Bf16, 8, true),
        (Isa::DOTS_EMULATED, DType::Bf16, 10, true),
        (Isa::DOTS_EMULATED, DType::Bf16, 9, false),
        (Isa::DOTS_EMULATED, DType::F32, 8, false),
        (Isa::PORTABLE, DType::Bf16, 8, false),
    ] {
        assert_eq!(pages::in_pairs(isa, dtype, hd), expected, "{isa:?} {dtype:?} {hd}");
    }
    let hd = 6;
    for (slot, i) in (0..BLOCK).flat_map(|slot| (0..hd).map(move |i| (slot, i))) {
        // Keys [hd, 64] and values [64, hd]; as pairs [hd/2][64][2] and [64/2][hd][2].
        assert_eq!(pages::key(false, slot, i), i * 64 + slot);
        assert_eq!(pages::value(false, hd, slot, i), slot * hd + i);
        assert_eq!(pages::key(true, slot, i), (i / 2) * 128 + slot * 2 + i % 2);
        assert_eq!(pages::value(true, hd, slot, i), (slot / 2) * 2 * hd + i * 2 + slot % 2);
    }
}

/// An odd head_dim has no pairs, but the formula is the same.
#[test]
fn attention_supports_an_odd_head_dim() {
    let (g, groups) = (geometry(3, 1, 9, None), vec![(70, vec![3, 2])]);
    let l = of(&groups, 1);
    let (qkv, d_out) = inputs(&g, &l);
    let qkv = rounded_to_bf16(&qkv);
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for (keys, head) in l.keys.iter().flat_map(|keys| (0..g.heads).map(move |head| (keys, head))) {
        let (o, s) = emulated(&g, &qkv, keys, head, formula::BF16);
        out.extend(rounded_to_bf16(&o));
        lse.push(s);
    }
    let mut first = None;
    for isa in [Isa::PORTABLE, Isa::DOTS_EMULATED] {
        let run = Run::of(DType::Bf16, &Context::cpu(isa, 2), g, &l, &qkv);
        assert!(run.all() == (out.clone(), lse.clone()), "{isa:?}");
        let formula = || emulated_backward(&run, &qkv, [&out, &lse, &d_out], formula::BF16);
        assert!(run.backward(&d_out) == *first.get_or_insert_with(formula), "{isa:?}");
    }
}

/// One entry for each arithmetic: dtype, instruction set, formula.
const KINDS: [(DType, Isa, Arithmetic); 4] = [
    (DType::F32, Isa::PORTABLE, formula::F32),
    (DType::Bf16, Isa::PORTABLE, formula::BF16),
    (DType::Bf16, Isa::DOTS_EMULATED, formula::BF16),
    (DType::Bf16, Isa::AMX_EMULATED, formula::TILES),
];

/// Two sequences of one group. Page 1 is the first block of one sequence and the second block of the other, whose
/// window does not reach its own first block.
#[test]
fn a_page_may_serve_as_two_blocks() {
    let keys = |row: usize| -> Vec<usize> {
        let written: Vec<usize> = (0..=row).collect();
        if row < 4 { written } else { [vec![0; BLOCK], written].concat() }
    };
    let l = Layout {
        positions: vec![0, 1, 2, 3, 68, 69, 70, 71],
        tables_of_rows: vec![0, 0, 0, 0, 1, 1, 1, 1],
        tables: vec![1, 0, 0, 1],
        table_len: 2,
        write_rows: (0..8).collect(),
        write_slots: (64..72).collect(),
        groups: vec![0, 8],
        blocks: 2,
        keys: (0..8).map(keys).collect(),
    };
    for head_dim in [8, 32] {
        let g = geometry(4, 2, head_dim, Some(5));
        let (qkv, d_out) = inputs(&g, &l);
        let qkv = rounded_to_bf16(&qkv);
        for (dtype, isa, arithmetic) in KINDS {
            let run = Run::of(dtype, &Context::cpu(isa, 2), g, &l, &qkv);
            let (out, lse) = run.all();
            for (row, head) in (0..8).flat_map(|row| (0..g.heads).map(move |head| (row, head))) {
                let (o, s) = emulated(&g, &qkv, &l.keys[row], head, arithmetic);
                let o = if dtype == DType::Bf16 { rounded_to_bf16(&o) } else { o };
                let pair = row * g.heads + head;
                assert!(out[pair * head_dim..][..head_dim] == o && lse[pair] == s, "{isa:?} {dtype:?} {row} {head}");
            }
            let formula = emulated_backward(&run, &qkv, [&out, &lse, &d_out], arithmetic);
            assert!(run.backward(&d_out) == formula, "{isa:?} {dtype:?} {head_dim}");
        }
    }
}

/// If no row attends to a slot, the gradient of the row written to it is 0, even if the workspace contained other
/// values.
#[test]
fn a_slot_that_no_row_attends_to_has_no_gradient() {
    for head_dim in [8, 32] {
        let g = geometry(2, 1, head_dim, None);
        let plain = layout(&[(0, &[3])], 1);
        let (qkv, d_out) = inputs(&g, &plain);
        let qkv = rounded_to_bf16(&qkv);
        let page = plain.tables[0];
        let unseen = (0..plain.blocks as u32).find(|&other| other != page).expect("another page");
        for (dtype, isa, _) in KINDS {
            let ctx = Context::cpu(isa, 2);
            let expected = Run::of(dtype, &ctx, g, &plain, &qkv).backward(&d_out);
            // Unused slots of a page to which the rows attend, and of another page.
            let far = [page * 64 + 20, page * 64 + 63];
            // On tiles, slots between written slots are multiplied by 0, so they must be finite.
            let far = if isa.has_tiles() { &[][..] } else { &far };
            for &slot in [page * 64 + 3, unseen * 64, unseen * 64 + 9].iter().chain(far) {
                let mut l = plain.clone();
                l.write_rows.push(1);
                l.write_slots.push(slot);
                let got = Run::of(dtype, &ctx, g, &l, &qkv).backward(&d_out);
                assert!(got == expected, "{isa:?} {dtype:?} slot {slot} of page {page}");
            }
        }
    }
}

/// Sizes of a matmul: rows, columns, and the terms of a sum.
type Sizes = (usize, usize, Range<usize>);
/// Elements of an operand.
type Of<'a, B> = &'a dyn Fn(usize, usize) -> B;

/// The contents of `out`, initially ones, after the matmul; `None` if the matmul panics. The operands have the required
/// length, or are longer or shorter by `spare`.
fn product<B: Right, E: Element>(
    isa: Isa,
    (rows, columns, k): Sizes,
    accumulate: bool,
    (a, b): (Of<'_, f32>, Of<'_, B>),
    spare: [isize; 3],
) -> Option<Vec<f32>> {
    // The rows of `out` and `b` are longer than their used columns, and `a` is transposed.
    let (b_row, out_row, a_k) = (columns + 2, columns + 3, rows + 1);
    let elements = k.end.div_ceil(B::TERMS);
    let lens = [
        (elements.max(1) - 1) * a_k + rows,
        (elements.max(1) - 1) * b_row + columns,
        (rows.max(1) - 1) * out_row + columns,
    ];
    let [a_len, b_len, out_len] = [0, 1, 2].map(|i| lens[i].checked_add_signed(spare[i]).expect("a length"));
    let a: Vec<f32> = (0..a_len).map(|i| a(i % a_k, i / a_k)).collect();
    let b: Vec<B> = (0..b_len).map(|i| b(i / b_row, i % b_row)).collect();
    let mut out = vec![1.0; out_len];
    let (a, b, to) = (&a[..], &b[..], &mut out[..]);
    let mut matmul = Matmul { a, a_row: 1, a_k, b, b_row, out: to, out_row, rows, columns, k, accumulate };
    catch_unwind(AssertUnwindSafe(|| matmul.compute::<E>(isa))).ok()?;
    Some(out)
}

fn left(m: usize, k: usize) -> f32 {
    (m * 3 + k * 5) as f32 % 7.0 - 3.0
}

fn right(k: usize, n: usize) -> f32 {
    (k * 2 + n * 7) as f32 % 11.0 - 5.0
}

/// The elements are small integers, so the order of sums does not matter.
fn expected((rows, columns, k): Sizes, accumulate: bool) -> Vec<f32> {
    let out_row = columns + 3;
    let mut out = vec![1.0; (rows.max(1) - 1) * out_row + columns];
    for (m, n) in (0..rows).flat_map(|m| (0..columns).map(move |n| (m, n))) {
        let start = if accumulate { 1.0 } else { 0.0 };
        out[m * out_row + n] = k.clone().fold(start, |sum, k| sum + left(m, k) * right(k, n));
    }
    out
}

#[test]
fn the_small_matmul_writes_only_its_rows_and_columns() {
    let isas = || Isa::present().into_iter().filter(|isa| !isa.has_tiles());
    for (rows, columns) in [(1, 1), (2, 16), (6, 31), (7, 32), (8, 70), (13, 5), (19, 64), (0, 4), (3, 0)] {
        for (k, accumulate) in [(0..1, false), (0..6, true), (3..8, false), (2..2, true), (2..2, false)] {
            let sizes = (rows, columns, k.clone());
            let expected = Some(expected(sizes.clone(), accumulate));
            for isa in isas() {
                let of: (Of<'_, f32>, Of<'_, f32>) = (&left, &right);
                let got = product::<f32, f32>(isa, sizes.clone(), accumulate, of, [0; 3]);
                assert_eq!(got, expected, "{isa:?} {rows} by {columns}, {k:?}");
                let narrow = |k, n| bf16::from_f32(right(k, n));
                let got = product::<bf16, bf16>(isa, sizes.clone(), accumulate, (&left, &narrow), [0; 3]);
                assert_eq!(got, expected, "{isa:?} {rows} by {columns}, {k:?} in bf16");
            }
            // An element has two terms. At an odd start or end, only one of them counts.
            let word = |m: usize, k: usize| {
                let [first, second] = [0, 1].map(|i| u32::from(bf16::from_f32(left(m, 2 * k + i)).to_bits()));
                f32::from_bits(first << 16 | second)
            };
            let pair = |k: usize, n: usize| [0, 1].map(|i| bf16::from_f32(right(2 * k + i, n)));
            let got = product::<[bf16; 2], bf16>(Isa::DOTS_EMULATED, sizes.clone(), accumulate, (&word, &pair), [0; 3]);
            assert_eq!(got, expected, "{rows} by {columns}, {k:?} in pairs");
        }
    }
}

/// Unchecked reads and writes rely on these checks.
#[test]
fn the_small_matmul_panics_if_an_operand_is_too_short() {
    let of: (Of<'_, f32>, Of<'_, f32>) = (&left, &right);
    for (rows, columns, k) in [(1, 1, 0..1), (5, 3, 0..4), (2, 40, 3..5)] {
        let with = |spare| product::<f32, f32>(Isa::PORTABLE, (rows, columns, k.clone()), true, of, spare);
        assert!(with([0; 3]).is_some() && with([1; 3]).is_some());
        for short in [[-1, 0, 0], [0, -1, 0], [0, 0, -1]] {
            assert_eq!(with(short), None, "{rows} by {columns}, {k:?}, {short:?}");
        }
    }
    let (word, pair) = (|_: usize, _: usize| 0.0, |_: usize, _: usize| [bf16::ZERO; 2]);
    for (rows, columns, k) in [(1, 1, 0..2), (5, 3, 0..4), (2, 40, 3..7)] {
        let with = |spare| {
            let (isa, sizes) = (Isa::DOTS_EMULATED, (rows, columns, k.clone()));
            product::<[bf16; 2], bf16>(isa, sizes, true, (&word, &pair), spare)
        };
        assert!(with([0; 3]).is_some());
        for short in [[-1, 0, 0], [0, -1, 0], [0, 0, -1]] {
            assert_eq!(with(short), None, "{rows} by {columns}, {k:?}, {short:?}");
        }
    }
}
