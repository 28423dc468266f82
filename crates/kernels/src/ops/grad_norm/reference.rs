//! The global norm, slow and obvious.

use crate::check::Float;

/// `√ Σ g²`, and whether every element is finite.
pub fn global<F: Float>(grads: &[&[F]]) -> (f64, bool) {
    let all = || grads.iter().flat_map(|g| g.iter().map(|x| x.f64()));
    (all().map(|x| x * x).sum::<f64>().sqrt(), all().all(f64::is_finite))
}
