//! What the products leave over: the scale.

use crate::Context;
use crate::context::count;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

const ELEMENTS: usize = 1 << 14;

/// `x ← s · x`
pub(super) fn scale(ctx: &Context, x: &mut [f32], scale: f32) {
    let len = x.len();
    count(len as u64, (2 * size_of::<f32>() * len) as u64);
    ctx.run(len.div_ceil(ELEMENTS), &Scale { len, x: Disjoint::new(x), scale });
}

struct Scale<'a> {
    len: usize,
    x: Disjoint<'a, f32>,
    scale: f32,
}

impl Tasks for Scale<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        // SAFETY: tasks have disjoint ranges.
        let x = unsafe { self.x.slice(index * ELEMENTS..self.len.min((index + 1) * ELEMENTS)) };
        for x in x.chunks_mut(LANES) {
            let n = x.len();
            V::load_partial(x, n).mul(V::splat(self.scale)).store_partial(x, n);
        }
    }
}
