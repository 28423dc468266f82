//! Reference linear interpolation for tests, slow and simple.

use crate::check::Float;

/// Computes `y ← (1 − α) y + α x` for every element.
pub fn lerp<F: Float>(y: &mut [F], x: &[F], alpha: f64) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = F::of(alpha).mul_add(*x, F::of(1.0 - alpha) * *y);
    }
}
