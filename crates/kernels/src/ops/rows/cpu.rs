//! A gather split over rows, and its transpose split over columns, so that each sum runs over the chosen rows in order.

use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};

/// Rows of a gathering task.
pub(super) const ROWS: usize = 32;
/// Columns of a scattering task.
pub(super) const COLUMNS: usize = 128;

pub(super) struct Gather<'a, E> {
    pub x: &'a [E],
    pub rows: &'a [u32],
    pub hidden: usize,
    pub out: Disjoint<'a, E>,
}

impl<E: Element> Tasks for Gather<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        for r in index * ROWS..self.rows.len().min((index + 1) * ROWS) {
            let (row, hidden) = (self.rows[r] as usize, self.hidden);
            // SAFETY: an output row is in one task.
            let out = unsafe { self.out.slice(r * hidden..(r + 1) * hidden) };
            out.copy_from_slice(&self.x[row * hidden..(row + 1) * hidden]);
        }
    }
}

pub(super) struct ScatterAdd<'a> {
    pub d_out: &'a [f32],
    pub rows: &'a [u32],
    pub hidden: usize,
    pub d_x: Disjoint<'a, f32>,
}

impl Tasks for ScatterAdd<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let hidden = self.hidden;
        let columns = index * COLUMNS..hidden.min((index + 1) * COLUMNS);
        for (&row, d_out) in self.rows.iter().zip(self.d_out.chunks_exact(hidden)) {
            let start = row as usize * hidden;
            // SAFETY: these columns of every row belong to this task.
            let d_x = unsafe { self.d_x.slice(start + columns.start..start + columns.end) };
            for (sum, d) in d_x.chunks_mut(LANES).zip(d_out[columns.clone()].chunks(LANES)) {
                let n = d.len();
                V::load_partial(sum, n).add(V::load_partial(d, n)).store_partial(sum, n);
            }
        }
    }
}
