//! Interpolation, slow and obvious.

use crate::check::Float;

/// `y ← (1 − α) y + α x`.
pub fn lerp<F: Float>(y: &mut [F], x: &[F], alpha: f64) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = F::of(alpha).mul_add(*x, F::of(1.0 - alpha) * *y);
    }
}
