//! Reference residual addition for tests, slow and simple.

use crate::check::Float;

/// Returns the sum x + delta, which is also the output y.
pub fn forward<F: Float>(x: &[F], delta: &[F]) -> Vec<F> {
    x.iter().zip(delta).map(|(&x, &delta)| x + delta).collect()
}

/// Adds the gradient `d_y` to `d_x`.
pub fn backward<F: Float>(d_y: &[F], d_x: &mut [F]) {
    d_x.iter_mut().zip(d_y).for_each(|(d_x, &d_y)| *d_x += d_y);
}
