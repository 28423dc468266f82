//! Zeros, written by all threads: the gradients of a large model are gigabytes.

use crate::context::count;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::Simd;
use crate::{Context, ViewMut};

/// Elements of a task.
const ELEMENTS: usize = 1 << 18;

/// f32, of any shape: *overwrites* with 0.
pub fn zero(ctx: &Context, x: ViewMut<'_>) {
    let x = x.f32();
    let len = x.len();
    count(0, size_of_val(x) as u64);
    ctx.run(len.div_ceil(ELEMENTS), &Zero { len, x: Disjoint::new(x) });
}

struct Zero<'a> {
    len: usize,
    x: Disjoint<'a, f32>,
}

impl Tasks for Zero<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        // SAFETY: tasks have disjoint ranges.
        unsafe { self.x.slice(index * ELEMENTS..self.len.min((index + 1) * ELEMENTS)) }.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Isa, Tensor};

    #[test]
    fn every_element_is_zero_and_no_other() {
        for (len, threads) in [(0, 1), (1, 2), (ELEMENTS, 3), (2 * ELEMENTS + 5, 3)] {
            let ctx = Context::cpu(Isa::best(), threads);
            let mut x = Tensor::zeros(ctx.memory(), &[len + 2], DType::F32);
            x.view_mut().fill(f32::NAN);
            zero(&ctx, x.rows_mut(1..len + 1));
            let x = x.to_vec_f32();
            assert!(x[1..=len].iter().all(|&x| x == 0.0) && x[0].is_nan() && x[len + 1].is_nan());
        }
    }
}
