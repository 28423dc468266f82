//! Reference gated linear units for tests, slow and simple. GELU uses tanh, as in its paper and in PyTorch.

use super::Activation;
use crate::check::Float;

/// Returns the activation of x and its derivative.
fn activation<F: Float>(activation: Activation, x: F) -> (F, F) {
    let one = F::of(1.0);
    match activation {
        Activation::Silu => {
            let s = one / (one + (-x).exp());
            (x * s, s * (one + x * (one - s)))
        }
        Activation::GeluTanh => {
            let (half, root, cubic) = (F::of(0.5), F::of((2.0 / std::f64::consts::PI).sqrt()), F::of(0.044715));
            let (z, slope) = (root * (x + cubic * x * x * x), root * (one + F::of(3.0) * cubic * x * x));
            let e = (z + z).exp();
            let tanh = one - F::of(2.0) / (e + one);
            (half * x * (one + tanh), half * (one + tanh) + half * x * (one - tanh * tanh) * slope)
        }
    }
}

/// Forward pass: returns the output `[T, F]` for `gate_up: [T, 2F]`.
pub fn forward<F: Float>(of: Activation, gate_up: &[F], f: usize) -> Vec<F> {
    let rows = gate_up.chunks_exact(2 * f);
    rows.flat_map(|row| (0..f).map(move |i| activation(of, row[i]).0 * row[f + i])).collect()
}

/// Backward pass: returns the gradient of `gate_up`, `[T, 2F]`.
pub fn backward<F: Float>(of: Activation, gate_up: &[F], f: usize, d_y: &[F]) -> Vec<F> {
    let mut d = Vec::new();
    for (row, d_y) in gate_up.chunks_exact(2 * f).zip(d_y.chunks_exact(f)) {
        d.extend((0..f).map(|i| d_y[i] * row[f + i] * activation(of, row[i]).1));
        d.extend((0..f).map(|i| d_y[i] * activation(of, row[i]).0));
    }
    d
}
