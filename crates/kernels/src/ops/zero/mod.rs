//! Fills a tensor with zeros, on all threads: the gradients of a large model take gigabytes.

mod cpu;

use crate::context::count;
use crate::device::Backend;
use crate::{Context, ViewMut};

/// *Overwrites* `x`, an f32 tensor of any shape, with 0.
pub fn zero(ctx: &Context, mut x: ViewMut<'_>) {
    count(0, (x.dtype().bytes() * x.shape().iter().product::<usize>()) as u64);
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::zero(cpu, x),
        Backend::Cuda(_) => x.fill(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::cpu::ELEMENTS;
    use super::*;
    use crate::{DType, Isa, Tensor};

    #[test]
    fn zero_clears_exactly_the_elements_of_its_view() {
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
