//! Prefetching operands. A line at each step of a tile costs nothing between multiply-adds; a loop that is left now and
//! then to prefetch does, and so do many lines at once, which wait for each other.

use super::{Matmul, Right};
use crate::matrix::PANEL;
use crate::simd::Simd;
use crate::tensor::Elements;
use std::ops::Range;

/// Some rows of a panel as they lie in memory: row `r` at `from + r / 32 · jump + r % 32 · pitch`, in bytes.
#[derive(Clone)]
pub(super) struct Prefetch {
    from: *const u8,
    /// Bytes of a row.
    width: usize,
    pitch: usize,
    jump: usize,
    pub rows: Range<usize>,
}

impl Prefetch {
    /// For nothing.
    pub(super) const NOTHING: Prefetch = Prefetch { from: std::ptr::null(), width: 0, pitch: 0, jump: 0, rows: 0..0 };

    /// For a tile of `steps` steps: where it prefetches a line at the first of them, and the bytes from step to step.
    /// Rows that do not lie beside the first are prefetched at once.
    #[inline(always)]
    pub(super) fn begin<V: Simd>(&self, steps: usize) -> (*const u8, usize) {
        let Range { start, end } = self.rows;
        let beside = match (self.pitch == self.width, self.jump == PANEL * self.pitch) {
            (true, true) => end,
            (true, false) => end.min((start / PANEL + 1) * PANEL),
            (false, _) => start,
        };
        for row in beside..end {
            // The first line and the last one: there are no others.
            V::prefetch(self.row(row));
            V::prefetch(self.row(row).wrapping_add(self.width - 1));
        }
        (self.row(start), (beside - start) * self.width / steps.max(1))
    }

    /// Where row `row` lies, which need not exist.
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.from.wrapping_add(row / PANEL * self.jump + row % PANEL * self.pitch)
    }

    /// Part `part` of `parts` of it.
    #[inline(always)]
    pub(super) fn part(&self, part: usize, parts: usize) -> Prefetch {
        let len = self.rows.len();
        Prefetch { rows: len * part / parts..len * (part + 1) / parts, ..*self }
    }
}

impl Matmul<'_> {
    /// Steps `depth` of panel `panel` of the right operand, as memory holds them; of a panel that does not exist,
    /// nothing.
    #[inline(always)]
    pub(super) fn prefetch(&self, panel: usize, depth: Range<usize>) -> Prefetch {
        if panel >= self.n.div_ceil(PANEL) {
            return Prefetch::NOTHING;
        }
        // The panel's first element, and the elements from a row to the next and from 32 rows to the next.
        let (data, at, pitch, jump) = match self.right {
            Right::Panels(data) => (data, (panel * self.depth + depth.start) * PANEL, PANEL, PANEL * PANEL),
            Right::Transposed(data) => {
                // `depth` starts at a panel of the weight.
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
