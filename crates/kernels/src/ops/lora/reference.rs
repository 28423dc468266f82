//! The low-rank adapter, slow and obvious.

use crate::check::Float;
use crate::ops::linear::reference as linear;

/// `(xa, y)`: `xa = s · x Aᵀ`, `y = y0 + xa Bᵀ`. `a: [r, K]`, `b: [N, r]`.
pub fn forward<F: Float>(k: usize, x: &[F], a: &[F], b: &[F], scale: F, y0: &[F]) -> (Vec<F>, Vec<F>) {
    let xa: Vec<F> = linear::forward(k, x, a, None, None).into_iter().map(|x| x * scale).collect();
    let y = linear::forward(a.len() / k, &xa, b, None, Some(y0));
    (xa, y)
}

/// What the backward accumulates into.
pub struct Gradients<F> {
    /// `[M, K]`
    pub d_x: Vec<F>,
    /// `[r, K]`
    pub d_a: Vec<F>,
    /// `[N, r]`
    pub d_b: Vec<F>,
}

/// Adds the gradients of `x`, `A` and `B`.
#[allow(clippy::too_many_arguments)]
pub fn backward<F: Float>(k: usize, x: &[F], a: &[F], b: &[F], scale: F, xa: &[F], d_y: &[F], g: &mut Gradients<F>) {
    let r = a.len() / k;
    let d_xa: Vec<F> = linear::backward_input(r, d_y, b, None).into_iter().map(|x| x * scale).collect();
    linear::backward_weight(r, xa, d_y, &mut g.d_b, &mut vec![F::default(); b.len() / r]);
    linear::backward_weight(k, x, &d_xa, &mut g.d_a, &mut vec![F::default(); r]);
    g.d_x = linear::backward_input(k, &d_xa, a, Some(&g.d_x));
}
