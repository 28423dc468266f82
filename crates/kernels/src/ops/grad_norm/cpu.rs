//! The gradient norm on the CPU. Each chunk has 16 partial sums of squares (by element index mod 16), in ascending
//! order, which are then added pairwise: 16 to 8, 4, 2, 1.

use crate::device::Cpu;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};
use crate::{View, ViewMut};

/// Number of elements in a chunk. Changing it changes the bits of the norm.
pub const CHUNK: usize = 1 << 16;

pub(super) fn global(cpu: &Cpu, grads: &[View<'_>], out: ViewMut<'_>) {
    out.f32(cpu).copy_from_slice(&super::from_chunks(&sums(cpu, grads)));
}

/// The sum of squares of each chunk.
pub(super) fn sums(cpu: &Cpu, grads: &[View<'_>]) -> Vec<f64> {
    let chunks: Vec<&[f32]> = grads.iter().flat_map(|g| g.f32(cpu).chunks(CHUNK)).collect();
    let mut sums = vec![0.0f64; chunks.len()];
    cpu.run(chunks.len(), &Squares { chunks: &chunks, sums: Disjoint::new(&mut sums) });
    sums
}

struct Squares<'a> {
    chunks: &'a [&'a [f32]],
    sums: Disjoint<'a, f64>,
}

impl Tasks for Squares<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let mut lanes = [0.0f64; LANES];
        let (whole, rest) = self.chunks[index].as_chunks::<LANES>();
        for group in whole {
            for (sum, &x) in lanes.iter_mut().zip(group) {
                *sum += f64::from(x) * f64::from(x);
            }
        }
        for (sum, &x) in lanes.iter_mut().zip(rest) {
            *sum += f64::from(x) * f64::from(x);
        }
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
        }
        // SAFETY: no other task accesses this chunk's sum.
        let sum = unsafe { self.sums.slice(index..index + 1) };
        sum[0] = lanes[0];
    }
}
