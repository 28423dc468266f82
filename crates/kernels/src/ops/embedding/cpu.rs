//! Gather from, and ordered scatter-add into, the packed layouts of [`crate::matrix`].

use crate::matrix::{Layout, PANEL};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, Simd};

/// Tokens of a forward task.
pub(super) const TOKENS: usize = 32;
/// Columns of a backward task.
pub(super) const COLUMNS: usize = 64;

pub(super) struct Forward<'a, E> {
    pub ids: &'a [u32],
    pub table: &'a [E],
    pub layout: Layout,
    pub hidden: usize,
    pub out: Disjoint<'a, f32>,
}

impl<E: Element> Tasks for Forward<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        for token in index * TOKENS..self.ids.len().min((index + 1) * TOKENS) {
            let (id, hidden) = (self.ids[token] as usize, self.hidden);
            // SAFETY: a token is in one task.
            let out = unsafe { self.out.slice(token * hidden..(token + 1) * hidden) };
            for (h, out) in out.iter_mut().enumerate() {
                *out = self.table[self.layout.at(hidden, id, h)].widen();
            }
        }
    }
}

pub(super) struct Backward<'a> {
    pub ids: &'a [u32],
    pub d_out: &'a [f32],
    pub hidden: usize,
    pub d_table: Disjoint<'a, f32>,
}

impl Tasks for Backward<'_> {
    /// All tokens in order for some columns, so that tasks write disjoint columns and each sum has one order.
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let hidden = self.hidden;
        let columns = index * COLUMNS..hidden.min((index + 1) * COLUMNS);
        for (&id, d_out) in self.ids.iter().zip(self.d_out.chunks_exact(hidden)) {
            let id = id as usize;
            let panel = id / PANEL * hidden;
            // SAFETY: these columns, of every panel, belong to this task.
            let d_table = unsafe { self.d_table.slice((panel + columns.start) * PANEL..(panel + columns.end) * PANEL) };
            for (sums, &d) in d_table.chunks_exact_mut(PANEL).zip(&d_out[columns.clone()]) {
                sums[id % PANEL] += d;
            }
        }
    }
}
