//! Linear interpolation on the CPU: one pass over both tensors.

use super::Lerp;
use crate::device::Cpu;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

/// Elements that one task interpolates.
pub(super) const ELEMENTS: usize = 1 << 15;

pub(super) fn lerp(cpu: &Cpu, args: Lerp<'_>) {
    let (x, y) = (args.x.f32(cpu), Disjoint::new(args.y.f32(cpu)));
    let (keep, take) = ((1.0 - args.alpha) as f32, args.alpha as f32);
    cpu.run(x.len().div_ceil(ELEMENTS), &LerpTasks { len: x.len(), x, y, keep, take });
}

struct LerpTasks<'a> {
    len: usize,
    x: &'a [f32],
    y: Disjoint<'a, f32>,
    keep: f32,
    take: f32,
}

impl Tasks for LerpTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let range = index * ELEMENTS..self.len.min((index + 1) * ELEMENTS);
        let x = &self.x[range.clone()];
        // SAFETY: no other task accesses this range.
        let y = unsafe { self.y.slice(range) };
        for at in (0..x.len()).step_by(LANES) {
            let n = LANES.min(x.len() - at);
            let kept = V::load_partial(&y[at..], n).mul(V::splat(self.keep));
            V::splat(self.take).fma(V::load_partial(&x[at..], n), kept).store_partial(&mut y[at..], n);
        }
    }
}
