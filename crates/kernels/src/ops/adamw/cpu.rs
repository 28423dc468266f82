//! One pass over parameter, gradient and both moments.

use super::Factors;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

/// Elements of a task.
pub(super) const ELEMENTS: usize = 1 << 14;

pub(super) struct Step<'a> {
    pub len: usize,
    pub grad: &'a [f32],
    pub param: Disjoint<'a, f32>,
    pub m: Disjoint<'a, f32>,
    pub v: Disjoint<'a, f32>,
    pub clip: f32,
    pub factors: Factors,
}

impl Tasks for Step<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let range = index * ELEMENTS..self.len.min((index + 1) * ELEMENTS);
        let grad = &self.grad[range.clone()];
        // SAFETY: tasks have disjoint ranges.
        let (param, m, v) =
            unsafe { (self.param.slice(range.clone()), self.m.slice(range.clone()), self.v.slice(range)) };
        let f = &self.factors;
        for at in (0..grad.len()).step_by(LANES) {
            let n = LANES.min(grad.len() - at);
            let g = V::load_partial(&grad[at..], n).mul(V::splat(self.clip));
            let p = V::load_partial(&param[at..], n).mul(V::splat(f.decay));
            let m0 = V::load_partial(&m[at..], n);
            let m1 = g.sub(m0).fma(V::splat(f.blend), m0);
            let v1 = g.mul(V::splat(f.rest2)).fma(g, V::load_partial(&v[at..], n).mul(V::splat(f.beta2)));
            let denominator = v1.sqrt().div(V::splat(f.root)).add(V::splat(f.eps));
            let p = p.add(m1.mul(V::splat(-f.step)).div(denominator));
            m1.store_partial(&mut m[at..], n);
            v1.store_partial(&mut v[at..], n);
            p.store_partial(&mut param[at..], n);
        }
    }
}
