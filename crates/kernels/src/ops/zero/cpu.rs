//! Fills a tensor with zeros on the CPU, with all threads.

use crate::ViewMut;
use crate::device::Cpu;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::Simd;

/// Elements that one task fills.
pub(super) const ELEMENTS: usize = 1 << 18;

pub(super) fn zero(cpu: &Cpu, x: ViewMut<'_>) {
    let x = x.f32(cpu);
    cpu.run(x.len().div_ceil(ELEMENTS), &Zero { len: x.len(), x: Disjoint::new(x) });
}

struct Zero<'a> {
    len: usize,
    x: Disjoint<'a, f32>,
}

impl Tasks for Zero<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        // SAFETY: no other task accesses this range.
        unsafe { self.x.slice(index * ELEMENTS..self.len.min((index + 1) * ELEMENTS)) }.fill(0.0);
    }
}
