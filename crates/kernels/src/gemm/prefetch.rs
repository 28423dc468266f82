//! Prefetching of matmul operands into the cache. Prefetching one cache line at each step of a register tile is free,
//! because it overlaps the multiply-adds. Interrupting the loop to prefetch is not free, and many prefetches at once
//! wait for each other.

use super::{Matmul, Right};
use crate::matrix::PANEL;
use crate::simd::Simd;
use crate::tensor::Elements;
use std::ops::Range;

/// Rows of a panel that should be prefetched. Row `r` is at byte `from + r / 32 · jump + r % 32 · pitch`.
#[derive(Clone)]
pub(super) struct Prefetch {
    from: *const u8,
    /// Number of bytes in a row.
    width: usize,
    pitch: usize,
    jump: usize,
    pub rows: Range<usize>,
}

impl Prefetch {
    /// Nothing to prefetch.
    pub(super) const NOTHING: Prefetch = Prefetch { from: std::ptr::null(), width: 0, pitch: 0, jump: 0, rows: 0..0 };

    /// Starts prefetching during a tile of `steps` steps. Returns the address that the tile prefetches at its first
    /// step, and the bytes from step to step. Rows that are not contiguous with the first are prefetched at once.
    #[inline(always)]
    pub(super) fn begin<V: Simd>(&self, steps: usize) -> (*const u8, usize) {
        let Range { start, end } = self.rows;
        let beside = match (self.pitch == self.width, self.jump == PANEL * self.pitch) {
            (true, true) => end,
            (true, false) => end.min((start / PANEL + 1) * PANEL),
            (false, _) => start,
        };
        for row in beside..end {
            // A row has at most two cache lines: the first and the last.
            V::prefetch(self.row(row));
            V::prefetch(self.row(row).wrapping_add(self.width - 1));
        }
        (self.row(start), (beside - start) * self.width / steps.max(1))
    }

    /// Address of row `row`, which may be past the end.
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.from.wrapping_add(row / PANEL * self.jump + row % PANEL * self.pitch)
    }

    /// Part `part` of these rows cut into `parts` parts.
    #[inline(always)]
    pub(super) fn part(&self, part: usize, parts: usize) -> Prefetch {
        let len = self.rows.len();
        Prefetch { rows: len * part / parts..len * (part + 1) / parts, ..*self }
    }
}

impl Matmul<'_> {
    /// The memory of the terms `depth` of panel `panel` of the right operand. Nothing if there is no such panel.
    #[inline(always)]
    pub(super) fn prefetch(&self, panel: usize, depth: Range<usize>) -> Prefetch {
        if panel >= self.n.div_ceil(PANEL) {
            return Prefetch::NOTHING;
        }
        // Index of the panel's first element; elements from one row to the next, and from 32 rows to the next 32.
        let (data, at, pitch, jump) = match self.right {
            Right::Panels(data) => (data, (panel * self.depth + depth.start) * PANEL, PANEL, PANEL * PANEL),
            Right::Transposed(data) => {
                // `depth` starts at a multiple of 32, which is a panel of the weight.
                (data, (depth.start * self.n) + panel * PANEL * PANEL, PANEL, self.n * PANEL)
            }
            Right::Rows(data, stride) => (data, depth.start * stride + panel * PANEL, stride, stride * PANEL),
            Right::Words(data) => {
                let of_panel = self.depth.div_ceil(2) * PANEL;
                (Elements::F32(data), panel * of_panel + depth.start / 2 * PANEL, PANEL, PANEL * PANEL)
            }
            Right::Tiles(_) => unreachable!("tiles are not read by chains"),
        };
        let (from, size) = match data {
            Elements::F32(data) => (data.as_ptr().cast::<u8>(), size_of::<f32>()),
            Elements::Bf16(data) => (data.as_ptr().cast(), size_of::<half::bf16>()),
        };
        Prefetch {
            from: from.wrapping_add(at * size),
            width: PANEL * size,
            pitch: pitch * size,
            jump: jump * size,
            rows: 0..if let Right::Words(_) = self.right { depth.len().div_ceil(2) } else { depth.len() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::gemm::Operands;
    use crate::gemm::tests::{Kind, R, with};
    use crate::simd::portable::F32x16;

    /// Byte offsets of the rows of what is prefetched, from the right operand's first element, and bytes in a row.
    fn rows(matmul: &Matmul<'_>, panel: usize, depth: Range<usize>) -> (Vec<usize>, usize) {
        let start = match matmul.right {
            Right::Panels(Elements::F32(data)) | Right::Transposed(Elements::F32(data)) => data.as_ptr().cast::<u8>(),
            Right::Rows(Elements::F32(data), _) | Right::Words(data) => data.as_ptr().cast(),
            Right::Panels(Elements::Bf16(data)) | Right::Transposed(Elements::Bf16(data)) => data.as_ptr().cast(),
            Right::Rows(Elements::Bf16(data), _) => data.as_ptr().cast(),
            Right::Tiles(_) => unreachable!("not read by chains"),
        };
        let found = matmul.prefetch(panel, depth);
        (found.rows.clone().map(|row| found.row(row).addr() - start.addr()).collect(), found.width)
    }

    #[test]
    fn what_is_prefetched_is_what_is_read() {
        let of = |right| Kind { right, ..Kind::default() };
        // Rows 32 to 80 of the depth (100) of panel 1 of three, element by element as the layout says.
        let (depth, n) = (100, 90);
        let expected = |at: &dyn Fn(usize) -> usize, size: usize| (0..48).map(|row| at(row) * size).collect::<Vec<_>>();
        for (kind, size) in [(of(R::Panels), 4), (of(R::Panels16), 2)] {
            let found = with(kind, [2, n, depth], |matmul| rows(matmul, 1, 32..80));
            assert_eq!(found, (expected(&|row| (depth + 32 + row) * 32, size), 32 * size));
        }
        for (kind, size) in [(of(R::Transposed), 4), (of(R::Transposed16), 2)] {
            let found = with(kind, [2, n, depth], |matmul| rows(matmul, 1, 32..80));
            let at = |row: usize| ((1 + row / 32) * n + 32 + row % 32) * 32;
            assert_eq!(found, (expected(&at, size), 32 * size));
        }
        for (kind, size) in [(of(R::Rows), 4), (of(R::Rows16), 2)] {
            let found = with(kind, [2, n, depth], |matmul| rows(matmul, 2, 32..80));
            assert_eq!(found, (expected(&|row| (32 + row) * n + 64, size), 32 * size));
        }
        // There is no fourth panel.
        for (panel, rows) in [(2, 48), (3, 0), (9, 0)] {
            let found = with(of(R::Panels), [2, n, depth], |matmul| matmul.prefetch(panel, 32..80));
            assert_eq!(found.rows.len(), rows);
        }
        // Words: half as many rows, two terms each.
        let (x, words, mut c) = (vec![0.0; 2 * 99], vec![0.0; 3 * 50 * 32], vec![0.0; 2 * 90]);
        let operands = Operands::of_outputs((Elements::F32(&x), Elements::F32(&[])), 99, 0..2, 0..0, None, &mut c);
        let matmul = Matmul { n, right: Right::Words(&words), ..Matmul::new(Isa::PORTABLE, operands) };
        let expected: Vec<usize> = (0..24).map(|row| (2 * 50 + 16 + row) * 32 * 4).collect();
        assert_eq!(rows(&matmul, 2, 32..79), (expected, 128));
    }

    #[test]
    fn a_tile_prefetches_what_is_contiguous_at_an_even_pace() {
        let data = [0u8; 64];
        let begin = |width, pitch, jump, rows: Range<usize>, steps| {
            let from = data.as_ptr();
            let (at, pace) = Prefetch { from, width, pitch, jump, rows }.begin::<F32x16>(steps);
            (at.addr() - from.addr(), pace)
        };
        // All rows, those up to the next 32, or one.
        assert_eq!(begin(64, 64, 32 * 64, 8..40, 16), (8 * 64, 32 * 64 / 16));
        assert_eq!(begin(64, 64, 9000, 8..40, 16), (8 * 64, 24 * 64 / 16));
        assert_eq!(begin(64, 64, 9000, 40..44, 2), (9000 + 8 * 64, 4 * 64 / 2));
        assert_eq!(begin(64, 100, 3200, 8..40, 16), (800, 0));
        assert_eq!(begin(64, 64, 2048, 0..2, 0), (0, 128));
        let nothing = Prefetch::NOTHING;
        assert!(nothing.rows.is_empty());
        let all = Prefetch { from: data.as_ptr(), width: 1, pitch: 2, jump: 3, rows: 0..10 };
        let parts: Vec<_> = (0..4).map(|part| all.part(part, 4)).collect();
        assert_eq!(parts.iter().map(|part| part.rows.clone()).collect::<Vec<_>>(), [0..2, 2..5, 5..7, 7..10]);
        assert!(parts.iter().all(|part| (part.width, part.pitch, part.jump) == (1, 2, 3) && part.from == all.from));
    }
}
