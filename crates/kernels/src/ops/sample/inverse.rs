//! Inverse transform sampling: draws a uniform number, and finds the token at which the cumulative weight exceeds it.

use super::RowParams;
use crate::math;
use crate::rng::{philox, unit_f64};
use crate::simd::{LANES, Simd};

/// The uniform random number of a row, in [0, 1).
pub(super) fn uniform(row: &RowParams<'_>) -> f64 {
    let words = philox(row.key, row.counter);
    unit_f64(words[0], words[1])
}

/// Inverse CDF: returns the first index at which the cumulative weight exceeds the fraction `u` of the total, and the
/// position of that point inside the index's weight (0 to 1). Returns index 0 if no weight is positive (non-finite
/// logits).
#[inline(always)]
pub(super) fn inverse_cdf(weights: impl Iterator<Item = f32> + Clone, u: f64) -> (usize, f64) {
    let goal = u * weights.clone().map(f64::from).sum::<f64>();
    let (mut below, mut last) = (0.0, 0);
    for (i, weight) in weights.enumerate() {
        let weight = f64::from(weight);
        if goal < below + weight {
            return (i, (goal - below) / weight);
        }
        if weight > 0.0 {
            last = i;
        }
        below += weight;
    }
    // Rounding can put the target past the end.
    (last, 1.0 - f64::EPSILON)
}

/// Computes `to = exp(z − max)` for every element.
#[inline(always)]
pub(super) fn exp_below<V: Simd>(z: &[f32], max: f32, to: &mut [f32]) {
    for (z, to) in z.chunks(LANES).zip(to.chunks_mut(LANES)) {
        math::exp(V::load_partial(z, z.len()).sub(V::splat(max))).store_partial(to, z.len());
    }
}
