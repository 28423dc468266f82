//! Reference gradient norm for tests, slow and simple.

use crate::check::Float;

/// Returns `√ Σ g²` over all gradients, and whether every element is finite.
pub fn global<F: Float>(grads: &[&[F]]) -> (f64, bool) {
    let all = || grads.iter().flat_map(|g| g.iter().map(|x| x.f64()));
    (all().map(|x| x * x).sum::<f64>().sqrt(), all().all(f64::is_finite))
}
