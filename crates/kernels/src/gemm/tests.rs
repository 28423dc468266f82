//! What a matmul is given and which way it is computed; results are compared in `ops/linear`.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The left operand of a test's matmul.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum L {
    F32,
    Bf16,
    Columns,
}

/// The right operand of a test's matmul.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum R {
    Panels,
    Panels16,
    Transposed,
    Transposed16,
    Rows,
    Rows16,
}

/// What decides how a matmul is computed, beside its shape.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub isa: Isa,
    pub left: L,
    pub right: R,
    pub dtype: MatmulDType,
}

/// A matmul in f32 with a weight as stored.
impl Default for Kind {
    fn default() -> Kind {
        Kind { isa: Isa::PORTABLE, left: L::F32, right: R::Panels, dtype: MatmulDType::Stored }
    }
}

/// Calls `f` with a matmul `[m, n, depth]` of zeros.
pub(super) fn with<T>(kind: Kind, [m, n, depth]: [usize; 3], f: impl FnOnce(&Matmul<'_>) -> T) -> T {
    let lens = [m * depth, n.next_multiple_of(PANEL) * depth.next_multiple_of(PANEL)];
    let [x, w] = lens.map(|len| vec![0.0f32; len]);
    // (Zeros of bf16 take longer than those of f32, which the system has.)
    let x16 = vec![bf16::ZERO; if kind.left == L::Bf16 { lens[0] } else { 0 }];
    let w16 =
        vec![bf16::ZERO; if matches!(kind.right, R::Panels16 | R::Transposed16 | R::Rows16) { lens[1] } else { 0 }];
    let mut c = vec![0.0; m * n];
    let left = match kind.left {
        L::F32 => Left::Rows(Elements::F32(&x), depth),
        L::Bf16 => Left::Rows(Elements::Bf16(&x16), depth),
        L::Columns => Left::Columns(Elements::F32(&x), m),
    };
    let right = match kind.right {
        R::Panels => Right::Panels(Elements::F32(&w)),
        R::Panels16 => Right::Panels(Elements::Bf16(&w16)),
        R::Transposed => Right::Transposed(Elements::F32(&w)),
        R::Transposed16 => Right::Transposed(Elements::Bf16(&w16)),
        R::Rows => Right::Rows(Elements::F32(&w), n),
        R::Rows16 => Right::Rows(Elements::Bf16(&w16), n),
    };
    let (order, dtype) = (Order::Rows(n), kind.dtype);
    let operands =
        Operands { m, n, depth, left, right, c: &mut c, order, accumulate: false, bias: None, dtype, segments: None };
    f(&Matmul::new(kind.isa, operands))
}

fn tiles(right: R) -> Kind {
    Kind { isa: Isa::AMX_EMULATED, left: L::Bf16, right, dtype: MatmulDType::Bf16 }
}

fn words(right: R) -> Kind {
    Kind { isa: Isa::DOTS_EMULATED, left: L::Bf16, right, dtype: MatmulDType::Bf16 }
}

/// What is packed ahead, at the edges of each rule (with the small limits of tests).
#[test]
fn which_operands_are_packed_ahead() {
    for (kind, shape, prepacks) in [
        (tiles(R::Rows), [32, 32, 32], true),
        (tiles(R::Rows16), [32, 32, 32], true),
        (tiles(R::Rows), [31, 32, 32], false),
        (tiles(R::Transposed16), [97, 32, 32], true),
        (tiles(R::Transposed16), [96, 32, 32], false),
        (tiles(R::Transposed16), [97, 32, 34], false),
        (tiles(R::Panels16), [97, 32, 32], false),
        (words(R::Rows), [32, 32, 32], false),
    ] {
        assert_eq!(with(kind, shape, |matmul| matmul.prepacks()), prepacks, "{shape:?}");
    }
    for (kind, shape, zips) in [
        (words(R::Rows), [2, 128, 1], true),
        (words(R::Rows16), [2, 128, 1], true),
        (words(R::Rows), [2, 127, 9], false),
        (words(R::Rows), [1, 256, 9], false),
        (words(R::Rows), [2, 128, 0], false),
        (words(R::Panels16), [2, 128, 2], false),
        (tiles(R::Rows), [2, 128, 1], false),
        (Kind { dtype: MatmulDType::Stored, ..words(R::Rows) }, [2, 128, 1], false),
    ] {
        assert_eq!(with(kind, shape, |matmul| matmul.zips()), zips, "{shape:?}");
    }
    // Whether tasks share packed rows, and whether there are so few that each task packs them.
    let (plain, columns) = (Kind::default(), Kind { left: L::Columns, ..Kind::default() });
    for (kind, shape, shares, few) in [
        (plain, [2, 32, 32], true, false),
        (columns, [2, 32, 32], true, false),
        (plain, [2, 32, 31], false, true),
        (columns, [3, 32, 21], false, true),
        (plain, [1, 32, 64], false, false),
        (plain, [4096, 1, 1024], true, false),
        (plain, [4097, 1, 1024], false, false),
        (words(R::Rows), [2, 128, 1], true, false),
        (words(R::Rows), [2, 127, 1], false, true),
        (tiles(R::Rows), [2, 32, 32], false, false),
    ] {
        let found = with(kind, shape, |matmul| (matmul.shares_rows(), matmul.packs_few_rows()));
        assert_eq!(found, (shares, few), "{shape:?}");
    }
}

#[test]
fn a_transposed_weight_is_read_as_stored_for_few_rows_in_f32() {
    let few = Kind { right: R::Transposed, ..Kind::default() };
    for (kind, shape, reads) in [
        (few, [64, 32, 1], true),
        (few, [65, 32, 1], false),
        (few, [64, 32, 0], false),
        (Kind::default(), [2, 32, 2], false),
        (Kind { left: L::Columns, ..few }, [2, 32, 2], false),
        (Kind { left: L::Bf16, ..few }, [2, 32, 2], false),
        (Kind { right: R::Transposed16, ..few }, [2, 32, 2], false),
        (Kind { dtype: MatmulDType::Bf16, ..few }, [2, 32, 2], false),
    ] {
        assert_eq!(with(kind, shape, |matmul| matmul.reads_transposed()), reads, "{shape:?}");
    }
    let (x, w, bias) = ([0.0; 4], [0.0; 1024], [0.0; 32]);
    for (order, bias, reads) in
        [(Order::Rows(32), None, true), (Order::Panels, None, false), (Order::Rows(32), Some(&bias[..]), false)]
    {
        let mut c = [0.0; 64];
        let operands = Operands {
            m: 2,
            n: 32,
            depth: 2,
            left: Left::Rows(Elements::F32(&x), 2),
            right: Right::Transposed(Elements::F32(&w)),
            c: &mut c,
            order,
            accumulate: false,
            bias,
            dtype: MatmulDType::Stored,
            segments: None,
        };
        assert_eq!(Matmul::new(Isa::PORTABLE, operands).reads_transposed(), reads);
    }
}

/// Lengths and strides of operands `[m, n, depth]` = `[3, 33, 5]`.
#[derive(Clone, Copy)]
struct Lens {
    left: usize,
    left_stride: usize,
    columns: bool,
    right: R,
    right_len: usize,
    right_stride: usize,
    c: usize,
    c_stride: Option<usize>,
    bias: Option<usize>,
    segments: Option<&'static [u32]>,
    n: usize,
    depth: usize,
}

fn is_accepted(lens: Lens) -> bool {
    let (wide, narrow, mut c) = (vec![0.0f32; 5000], vec![bf16::ZERO; 5000], vec![0.0; 5000]);
    let left = Elements::F32(&wide[..lens.left]);
    let (f32s, bf16s) = (Elements::F32(&wide[..lens.right_len]), Elements::Bf16(&narrow[..lens.right_len]));
    let operands = Operands {
        m: 3,
        n: lens.n,
        depth: lens.depth,
        left: if lens.columns { Left::Columns(left, lens.left_stride) } else { Left::Rows(left, lens.left_stride) },
        right: match lens.right {
            R::Panels => Right::Panels(f32s),
            R::Panels16 => Right::Panels(bf16s),
            R::Transposed => Right::Transposed(f32s),
            R::Transposed16 => Right::Transposed(bf16s),
            R::Rows => Right::Rows(f32s, lens.right_stride),
            R::Rows16 => Right::Rows(bf16s, lens.right_stride),
        },
        c: &mut c[..lens.c],
        order: lens.c_stride.map_or(Order::Panels, Order::Rows),
        accumulate: false,
        bias: lens.bias.map(|len| &wide[..len]),
        dtype: MatmulDType::Stored,
        segments: lens.segments,
    };
    catch_unwind(AssertUnwindSafe(|| drop(Matmul::new(Isa::PORTABLE, operands)))).is_ok()
}

/// The kernels read and write without checks, so an operand that is short by one element must be refused.
#[test]
fn an_operand_that_is_too_short_is_refused() {
    let right = Lens {
        left: 2 * 7 + 5,
        left_stride: 7,
        columns: false,
        right: R::Panels,
        right_len: 2 * 5 * 32,
        right_stride: 0,
        c: 2 * 40 + 33,
        c_stride: Some(40),
        bias: None,
        segments: None,
        n: 33,
        depth: 5,
    };
    let columns = Lens { columns: true, left: 4 * 6 + 3, left_stride: 6, ..right };
    let rows = Lens { right: R::Rows, right_len: 4 * 35 + 33, right_stride: 35, ..right };
    let transposed = Lens { right: R::Transposed, right_len: 33 * 32, ..right };
    let panels = Lens { c: 2 * 3 * 32, c_stride: None, ..right };
    let even = Lens { n: 34, depth: 6, left: 2 * 7 + 6, ..right };
    let pairs = Lens { right: R::Panels16, right_len: 2 * 6 * 32, c: 2 * 40 + 34, ..even };
    let transposed_pairs = Lens { right: R::Transposed16, right_len: 34 * 32, c: 2 * 40 + 34, ..even };
    let of_segments = Lens { segments: Some(&[0, 2, 5]), ..columns };
    for (what, lens, accepted) in [
        ("rows", right, true),
        ("rows, short", Lens { left: right.left - 1, ..right }, false),
        ("rows that overlap", Lens { left: 5000, left_stride: 4, ..right }, false),
        ("rows side by side", Lens { left: 15, left_stride: 5, ..right }, true),
        ("columns", columns, true),
        ("columns, short", Lens { left: columns.left - 1, ..columns }, false),
        ("columns that overlap", Lens { left: 5000, left_stride: 2, ..columns }, false),
        ("panels, short", Lens { right_len: right.right_len - 1, ..right }, false),
        ("rows of the right operand", rows, true),
        ("rows of the right operand, short", Lens { right_len: rows.right_len - 1, ..rows }, false),
        ("a transposed weight", transposed, true),
        ("a transposed weight, short", Lens { right_len: transposed.right_len - 1, ..transposed }, false),
        ("an output, short", Lens { c: right.c - 1, ..right }, false),
        ("an output whose rows overlap", Lens { c: 5000, c_stride: Some(32), ..right }, false),
        ("panels of outputs", panels, true),
        ("panels of outputs, short", Lens { c: panels.c - 1, ..panels }, false),
        ("a bias", Lens { bias: Some(33), ..right }, true),
        ("a bias, short", Lens { bias: Some(32), ..right }, false),
        ("pairs", pairs, true),
        ("pairs, short", Lens { right_len: pairs.right_len - 1, ..pairs }, false),
        ("an odd number of terms in pairs", Lens { depth: 5, ..pairs }, false),
        ("transposed pairs", transposed_pairs, true),
        ("an odd number of outputs in pairs", Lens { n: 33, ..transposed_pairs }, false),
        ("segments of columns", of_segments, true),
        ("segments of rows", Lens { segments: Some(&[0, 2, 5]), ..right }, false),
        ("segments that end early", Lens { segments: Some(&[0, 2, 4]), ..columns }, false),
        ("no segments", Lens { segments: Some(&[]), ..columns }, false),
    ] {
        assert_eq!(is_accepted(lens), accepted, "{what}");
    }
}

#[test]
fn the_operands_of_some_rows_and_outputs() {
    let x: Vec<f32> = (0..5 * 3).map(|i| i as f32).collect();
    let w: Vec<f32> = (0..4 * 32 * 3).map(|i| i as f32).collect();
    let (bias, mut c) = ([1.0; 40], [0.0; 80]);
    let operands = Operands::of_outputs((Elements::F32(&x), Elements::F32(&w)), 3, 2..4, 64..104, Some(&bias), &mut c);
    assert_eq!((operands.m, operands.n, operands.depth, operands.accumulate), (2, 40, 3, false));
    let Left::Rows(Elements::F32(left), 3) = operands.left else { panic!("rows of 3") };
    let Right::Panels(Elements::F32(right)) = operands.right else { panic!("panels") };
    assert_eq!((left, right[0], right.len()), (&x[6..12], 192.0, w.len() - 192));
    assert!(matches!(operands.order, Order::Rows(40)) && operands.bias.is_some_and(|bias| bias.len() == 40));
    assert!(operands.dtype == MatmulDType::Stored && operands.segments.is_none() && operands.c.len() == 80);
    let (wide, narrow) = (Elements::F32(&x), Elements::Bf16(&[]));
    assert!(MatmulDType::of(&[narrow, narrow]) == MatmulDType::Bf16);
    assert!([[wide, narrow], [narrow, wide]].iter().all(|of| MatmulDType::of(of) == MatmulDType::Stored));
}

#[test]
fn matmuls_run_on_tiles_where_these_exist_in_bf16() {
    for (kind, depth, tiles) in [
        (tiles(R::Panels16), 4, true),
        (tiles(R::Panels16), 0, false),
        (Kind { dtype: MatmulDType::Stored, ..tiles(R::Panels16) }, 4, false),
        (words(R::Panels16), 4, false),
    ] {
        assert_eq!(with(kind, [2, 32, depth], |matmul| matmul.tiles.is_some()), tiles);
    }
}

#[test]
fn steps_of_32_terms_begin_anew_at_each_segment() {
    let terms = |steps: &Steps| (0..steps.len()).map(|step| steps.terms(step)).collect::<Vec<_>>();
    assert_eq!(terms(&Steps::new(70, None)), [0..32, 32..64, 64..70]);
    assert_eq!(terms(&Steps::new(64, None)), [0..32, 32..64]);
    assert!(matches!(Steps::new(70, Some(&[0, 70])), Steps::One(70)));
    assert_eq!(terms(&Steps::new(70, Some(&[0, 5, 40, 70]))), [0..5, 5..37, 37..40, 40..70]);
    assert_eq!(terms(&Steps::new(3, Some(&[0, 0, 3]))), std::slice::from_ref(&(0..3)));
    assert_eq!(steps(&[2, 34, 34, 67]).collect::<Vec<_>>(), [2..34, 34..66, 66..67]);
    assert_eq!(steps(&[5]).count(), 0);
}

#[test]
fn scratch_is_aligned_to_cache_lines() {
    let mut scratch = Scratch::default();
    let mut memory = Vec::new();
    for len in [1, 100, 7, 1000] {
        let part = aligned(&mut scratch, len);
        assert_eq!((part.len(), part.as_ptr().align_offset(64)), (len, 0));
        let before = memory.len();
        let part = lines(&mut memory, len);
        assert_eq!((part.len(), part.as_ptr().align_offset(64)), (len, 0));
        assert_eq!(memory.len(), before.max(len + LANES), "it grows and never shrinks");
    }
    // From any address; the first aligned element is taken.
    let mut all = vec![0.0; 100];
    for from in 0..LANES {
        let part = &mut all[from..];
        let skip = part.as_ptr().align_offset(64);
        let start = part.as_ptr();
        let found = at_line(part, 50);
        assert_eq!((found.len(), found.as_ptr()), (50, start.wrapping_add(skip)));
    }
}
