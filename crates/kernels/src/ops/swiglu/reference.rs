//! SwiGLU, slow and obvious.

use crate::check::Float;

fn sigmoid<F: Float>(x: F) -> F {
    F::of(1.0) / (F::of(1.0) + (-x).exp())
}

/// y `[T, F]` of `gate_up: [T, 2F]`.
pub fn forward<F: Float>(gate_up: &[F], f: usize) -> Vec<F> {
    let rows = gate_up.chunks_exact(2 * f);
    rows.flat_map(|row| (0..f).map(move |i| row[i] * sigmoid(row[i]) * row[f + i])).collect()
}

/// d_gate_up `[T, 2F]`.
pub fn backward<F: Float>(gate_up: &[F], f: usize, d_y: &[F]) -> Vec<F> {
    let one = F::of(1.0);
    let mut d = Vec::new();
    for (row, d_y) in gate_up.chunks_exact(2 * f).zip(d_y.chunks_exact(f)) {
        for i in 0..f {
            let (g, s) = (row[i], sigmoid(row[i]));
            d.push(d_y[i] * row[f + i] * s * (one + g * (one - s)));
        }
        d.extend((0..f).map(|i| d_y[i] * row[i] * sigmoid(row[i])));
    }
    d
}
