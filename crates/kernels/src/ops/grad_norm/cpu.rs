//! The sum of squares of each chunk: 16 partial sums (element index mod 16), ascending, folded 8, 4, 2, 1.

use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

/// Elements of a chunk; it decides bits.
pub(super) const CHUNK: usize = 1 << 16;

pub(super) struct Squares<'a> {
    pub chunks: &'a [&'a [f32]],
    pub sums: Disjoint<'a, f64>,
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
        // SAFETY: a chunk has its own sum.
        let sum = unsafe { self.sums.slice(index..index + 1) };
        sum[0] = lanes[0];
    }
}
