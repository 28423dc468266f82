//! RMS norm, slow and obvious.

use crate::check::Float;

/// y and rstd of `x: [T, H]` (already summed).
pub fn forward<F: Float>(x: &[F], weight: &[F], eps: f64) -> (Vec<F>, Vec<F>) {
    let h = weight.len();
    let (mut y, mut rstds) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(h) {
        let mean: F = row.iter().map(|&x| x * x).sum::<F>() / F::of(h as f64);
        let rstd = F::of(1.0) / (mean + F::of(eps)).sqrt();
        y.extend(row.iter().zip(weight).map(|(&x, &w)| w * (x * rstd)));
        rstds.push(rstd);
    }
    (y, rstds)
}

/// d_x and d_weight, from 0.
pub fn backward<F: Float>(x: &[F], weight: &[F], rstd: &[F], d_y: &[F]) -> (Vec<F>, Vec<F>) {
    let h = weight.len();
    let mut d_x = Vec::new();
    let mut d_weight = vec![F::default(); h];
    for ((x, d_y), &r) in x.chunks_exact(h).zip(d_y.chunks_exact(h)).zip(rstd) {
        let c = (0..h).map(|i| d_y[i] * weight[i] * x[i]).sum::<F>() * r * r * r / F::of(h as f64);
        for i in 0..h {
            d_x.push(d_y[i] * weight[i] * r - c * x[i]);
            d_weight[i] += d_y[i] * (x[i] * r);
        }
    }
    (d_x, d_weight)
}
