//! One pass over both tensors.

use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

/// Elements of a task.
pub(super) const ELEMENTS: usize = 1 << 15;

pub(super) struct Lerp<'a> {
    pub len: usize,
    pub x: &'a [f32],
    pub y: Disjoint<'a, f32>,
    pub keep: f32,
    pub take: f32,
}

impl Tasks for Lerp<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let range = index * ELEMENTS..self.len.min((index + 1) * ELEMENTS);
        let x = &self.x[range.clone()];
        // SAFETY: tasks have disjoint ranges.
        let y = unsafe { self.y.slice(range) };
        for at in (0..x.len()).step_by(LANES) {
            let n = LANES.min(x.len() - at);
            let kept = V::load_partial(&y[at..], n).mul(V::splat(self.keep));
            V::splat(self.take).fma(V::load_partial(&x[at..], n), kept).store_partial(&mut y[at..], n);
        }
    }
}
