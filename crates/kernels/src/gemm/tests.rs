//! Tests of the checks of a matmul's arguments, and of the choice of its algorithm. Tests in `ops/linear` compare
//! results.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The left operand of a test's matmul.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum L {
    F32,
    Bf16,
}

/// The right operand of a test's matmul.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum R {
    Panels,
    Panels16,
    Transposed,
    Transposed16,
    Rows,
}

/// The settings other than the shape that decide how a matmul is computed.
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
    // Buffers are allocated only if needed: filling bf16 zeros is slow, while the system provides f32 zeros.
    let x16 = vec![bf16::ZERO; if kind.left == L::Bf16 { lens[0] } else { 0 }];
    let w16 = vec![bf16::ZERO; if matches!(kind.right, R::Panels16 | R::Transposed16) { lens[1] } else { 0 }];
    let mut c = vec![0.0; m * n];
    let left = match kind.left {
        L::F32 => Left::Rows(Elements::F32(&x), depth),
        L::Bf16 => Left::Rows(Elements::Bf16(&x16), depth),
    };
    let right = match kind.right {
        R::Panels => Right::Panels(Elements::F32(&w)),
        R::Panels16 => Right::Panels(Elements::Bf16(&w16)),
        R::Transposed => Right::Transposed(Elements::F32(&w)),
        R::Transposed16 => Right::Transposed(Elements::Bf16(&w16)),
        R::Rows => Right::Rows(Elements::F32(&w), n),
    };
    let (order, dtype) = (Order::Rows(n), kind.dtype);
    let operands =
        Operands { m, n, depth, left, right, c: &mut c, order, accumulate: false, bias: None, dtype, segments: None };
    f(&Matmul::new(kind.isa, operands))
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

/// The kernels read and write without checks, so an operand that is too short by one element must be rejected.
#[test]
fn a_matmul_operand_that_is_too_short_is_refused() {
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
    let segmented = Lens { segments: Some(&[0, 2, 5]), ..columns };
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
        ("segments of columns", segmented, true),
        ("segments of rows", Lens { segments: Some(&[0, 2, 5]), ..right }, false),
        ("segments that end early", Lens { segments: Some(&[0, 2, 4]), ..columns }, false),
        ("no segments", Lens { segments: Some(&[]), ..columns }, false),
    ] {
        assert_eq!(is_accepted(lens), accepted, "{what}");
    }
}

#[test]
fn steps_of_32_terms_restart_at_each_segment() {
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
        assert_eq!(memory.len(), before.max(len + LANES), "the scratch must grow and never shrink");
    }
    // For any start address, the first aligned element is chosen.
    let mut all = vec![0.0; 100];
    for from in 0..LANES {
        let part = &mut all[from..];
        let skip = part.as_ptr().align_offset(64);
        let start = part.as_ptr();
        let found = at_line(part, 50);
        assert_eq!((found.len(), found.as_ptr()), (50, start.wrapping_add(skip)));
    }
}
