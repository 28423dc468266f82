//! Reference RMS norm for tests, slow and simple.

use crate::check::Float;
use crate::ops::lanes::CHUNK;

/// Returns the output y and the reciprocal root mean squares for `x: [T, H]`, to which delta was already added.
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

/// Returns the gradients of x and weight, for one segment.
pub fn backward<F: Float>(x: &[F], weight: &[F], rstd: &[F], d_y: &[F]) -> (Vec<F>, Vec<F>) {
    let h = weight.len();
    let mut d_x = Vec::new();
    let mut d_weight = vec![F::default(); h];
    for ((x, d_y), &r) in x.chunks_exact(h).zip(d_y.chunks_exact(h)).zip(rstd) {
        let c = (0..h).map(|i| d_y[i] * weight[i] * x[i]).sum::<F>() * r * r * r / F::of(h as f64);
        for i in 0..h {
            d_x.push(d_y[i] * weight[i] * r - c * x[i]);
        }
    }
    weight_gradient(x, rstd, d_y, &[0, rstd.len() as u32], &mut d_weight);
    (d_x, d_weight)
}

/// Adds the weight's gradient to `d_weight`. In f32 this defines the bits that every instruction set must give.
pub fn weight_gradient<F: Float>(x: &[F], rstd: &[F], d_y: &[F], segments: &[u32], d_weight: &mut [F]) {
    let h = d_weight.len();
    for segment in segments.windows(2) {
        let rows: Vec<usize> = (segment[0] as usize..segment[1] as usize).collect();
        for chunk in rows.chunks(CHUNK) {
            for (i, d_weight) in d_weight.iter_mut().enumerate() {
                let term = |sum: F, &t: &usize| d_y[t * h + i].mul_add(x[t * h + i] * rstd[t], sum);
                *d_weight += chunk.iter().fold(F::default(), term);
            }
        }
    }
}
