//! Prefetching of matmul operands into the cache. Prefetching one cache line at each step of a register tile is free,
//! because it overlaps the multiply-adds. Interrupting the loop to prefetch is not free, and many prefetches at once
//! stall each other.

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
    /// step, and the number of bytes between steps. Rows that are not contiguous with the first are prefetched
    /// immediately.
    #[inline(always)]
    pub(super) fn begin<V: Simd>(&self, steps: usize) -> (*const u8, usize) {
        let Range { start, end } = self.rows;
        let beside = match (self.pitch == self.width, self.jump == PANEL * self.pitch) {
            (true, true) => end,
            (true, false) => end.min((start / PANEL + 1) * PANEL),
            (false, _) => start,
        };
        for row in beside..end {
            // A row spans at most two cache lines, so its first and last byte are prefetched.
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

    /// Part `part` of these rows, split into `parts` parts.
    #[inline(always)]
    pub(super) fn part(&self, part: usize, parts: usize) -> Prefetch {
        let len = self.rows.len();
        Prefetch { rows: len * part / parts..len * (part + 1) / parts, ..*self }
    }
}

impl Matmul<'_> {
    /// The memory of the terms `depth` of panel `panel` of the right operand; nothing if the panel does not exist.
    #[inline(always)]
    pub(super) fn prefetch(&self, panel: usize, depth: Range<usize>) -> Prefetch {
        if panel >= self.n.div_ceil(PANEL) {
            return Prefetch::NOTHING;
        }
        // Index of the panel's first element, and the distances in elements from one row to the next and from 32 rows
        // to the next 32.
        let (data, at, pitch, jump) = match self.right {
            Right::Panels(data) => (data, (panel * self.depth + depth.start) * PANEL, PANEL, PANEL * PANEL),
            Right::Transposed(data) => {
                // `depth` starts at a multiple of 32, so at the start of a panel of the weight.
                (data, (depth.start * self.n) + panel * PANEL * PANEL, PANEL, self.n * PANEL)
            }
            Right::Rows(data, stride) => (data, depth.start * stride + panel * PANEL, stride, stride * PANEL),
            Right::Words(data) => {
                let panel_len = self.depth.div_ceil(2) * PANEL;
                (Elements::F32(data), panel * panel_len + depth.start / 2 * PANEL, PANEL, PANEL * PANEL)
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
