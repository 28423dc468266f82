//! The residual addition, slow and obvious.

use crate::check::Float;

/// s = x + delta; y is s.
pub fn forward<F: Float>(x: &[F], delta: &[F]) -> Vec<F> {
    x.iter().zip(delta).map(|(&x, &delta)| x + delta).collect()
}

/// d_x += d_y.
pub fn backward<F: Float>(d_y: &[F], d_x: &mut [F]) {
    d_x.iter_mut().zip(d_y).for_each(|(d_x, &d_y)| *d_x += d_y);
}
