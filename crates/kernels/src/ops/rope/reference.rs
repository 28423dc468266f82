//! Reference rotary position embedding for tests, slow and simple.

#![allow(clippy::disallowed_methods)]

use crate::check::Float;

/// Rotates the first `heads` heads of each row of `x: [T, width]` in place, by the angles f32(position) · inv_freq, or
/// by the opposite angles if `sign` is −1. The angle is computed in f32, also if `F` is f64.
pub fn rotate<F: Float>(
    x: &mut [F],
    width: usize,
    heads: usize,
    positions: &[u32],
    inv_freq: &[f32],
    attention_scaling: f64,
    sign: f64,
) {
    let half = inv_freq.len();
    for (row, &p) in x.chunks_exact_mut(width).zip(positions) {
        for head in row.chunks_exact_mut(2 * half).take(heads) {
            for i in 0..half {
                let angle = f64::from(p as f32 * inv_freq[i]);
                let (c, s) = (F::of(angle.cos() * attention_scaling), F::of(angle.sin() * attention_scaling * sign));
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * c - b * s;
                head[i + half] = b * c + a * s;
            }
        }
    }
}
