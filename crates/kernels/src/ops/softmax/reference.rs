//! Reference masked softmax for tests, slow and simple.

use crate::check::Float;

/// Returns the probabilities for the scores `x: [R, C]`; row r sees the columns `first[r]..end[r]`.
pub fn forward<F: Float>(x: &[F], columns: usize, scale: F, first: &[u32], end: &[u32]) -> Vec<F> {
    let mut y = vec![F::default(); x.len()];
    for r in 0..first.len() {
        let seen = r * columns + (first[r].min(end[r])) as usize..r * columns + end[r] as usize;
        let z: Vec<F> = x[seen.clone()].iter().map(|&x| x * scale).collect();
        let m = z.iter().copied().fold(F::of(f64::NEG_INFINITY), |m, z| if z > m { z } else { m });
        let e: Vec<F> = z.iter().map(|&z| (z - m).exp()).collect();
        let sum: F = e.iter().copied().sum();
        y[seen].iter_mut().zip(e).for_each(|(y, e)| *y = e / sum);
    }
    y
}

/// Returns the gradient of the scores, from the probabilities `y` of the forward pass.
pub fn backward<F: Float>(y: &[F], columns: usize, scale: F, first: &[u32], end: &[u32], d_y: &[F]) -> Vec<F> {
    let mut d_x = vec![F::default(); y.len()];
    for r in 0..first.len() {
        let seen = r * columns + (first[r].min(end[r])) as usize..r * columns + end[r] as usize;
        let mean: F = seen.clone().map(|i| d_y[i] * y[i]).sum();
        for i in seen {
            d_x[i] = scale * y[i] * (d_y[i] - mean);
        }
    }
    d_x
}
