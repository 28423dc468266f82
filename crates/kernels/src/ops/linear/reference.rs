//! Reference linear layer for tests, slow and simple. In f32 it defines the bits that every instruction set must give.

use crate::check::Float;
use crate::ops::lanes::CHUNK;
use crate::simd::tiles::{DEPTH, step};
use half::bf16;

/// Forward pass: `y = (start or 0) + Σ_k x W` by fused multiply-adds in ascending order, then `+ b`. `x: [M, K]` and
/// `w: [N, K]` are row-major.
pub fn forward<F: Float>(k: usize, x: &[F], w: &[F], bias: Option<&[F]>, start: Option<&[F]>) -> Vec<F> {
    let n = w.len() / k;
    let mut y = Vec::with_capacity(x.len() / k * n);
    for (m, x) in x.chunks_exact(k).enumerate() {
        for (j, w) in w.chunks_exact(k).enumerate() {
            let start = start.map_or(F::default(), |s| s[m * n + j]);
            let sum = x.iter().zip(w).fold(start, |sum, (&x, &w)| x.mul_add(w, sum));
            y.push(bias.map_or(sum, |b| sum + b[j]));
        }
    }
    y
}

/// Gradient of the input: `d_x = (start or 0) + Σ_n d_y W`, with `d_y: [M, N]`, `w: [N, K]`.
pub fn backward_input<F: Float>(k: usize, d_y: &[F], w: &[F], start: Option<&[F]>) -> Vec<F> {
    let n = w.len() / k;
    let mut d_x = Vec::with_capacity(d_y.len() / n * k);
    for (m, d_y) in d_y.chunks_exact(n).enumerate() {
        for i in 0..k {
            let start = start.map_or(F::default(), |s| s[m * k + i]);
            d_x.push((0..n).fold(start, |sum, j| d_y[j].mul_add(w[j * k + i], sum)));
        }
    }
    d_x
}

/// Gradient of the weight: `d_w += d_yᵀ x` in ascending order of m, with `d_w: [N, K]`.
pub fn backward_weight<F: Float>(k: usize, x: &[F], d_y: &[F], d_w: &mut [F]) {
    let n = d_w.len() / k;
    for (x, d_y) in x.chunks_exact(k).zip(d_y.chunks_exact(n)) {
        for j in 0..n {
            for i in 0..k {
                d_w[j * k + i] = d_y[j].mul_add(x[i], d_w[j * k + i]);
            }
        }
    }
}

/// Gradient of the bias: `d_bias += Σ_m d_y`, chunk by chunk of each of `segments`, with `d_bias: [N]`.
pub fn backward_bias<F: Float>(d_y: &[F], d_bias: &mut [F], segments: &[u32]) {
    let n = d_bias.len();
    for segment in segments.windows(2) {
        for chunk in d_y[segment[0] as usize * n..segment[1] as usize * n].chunks(CHUNK * n) {
            for (j, d_bias) in d_bias.iter_mut().enumerate() {
                *d_bias += chunk.chunks(n).fold(F::default(), |sum, d_y| sum + d_y[j]);
            }
        }
    }
}

/// [`forward`] in the order of AMX tiles, for operands that are exact in bf16.
pub fn forward_on_tiles(k: usize, x: &[f32], w: &[f32], bias: Option<&[f32]>, start: Option<&[f32]>) -> Vec<f32> {
    let n = w.len() / k;
    let mut y = Vec::with_capacity(x.len() / k * n);
    for (m, x) in x.chunks_exact(k).enumerate() {
        for (j, w) in w.chunks_exact(k).enumerate() {
            let terms = x.iter().copied().zip(w.iter().copied());
            let sum = on_tiles(start.map_or(0.0, |s| s[m * n + j]), terms.collect());
            y.push(bias.map_or(sum, |b| sum + b[j]));
        }
    }
    y
}

/// [`backward_input`] in the order of AMX tiles. `w` is exact in bf16; `d_y` is rounded to bf16.
pub fn backward_input_on_tiles(k: usize, d_y: &[f32], w: &[f32], start: Option<&[f32]>) -> Vec<f32> {
    let n = w.len() / k;
    let mut d_x = Vec::with_capacity(d_y.len() / n * k);
    for (m, d_y) in d_y.chunks_exact(n).enumerate() {
        for i in 0..k {
            let terms = d_y.iter().enumerate().map(|(j, &d_y)| (rounded(d_y), w[j * k + i]));
            d_x.push(on_tiles(start.map_or(0.0, |s| s[m * k + i]), terms.collect()));
        }
    }
    d_x
}

/// `d_w` of [`backward_weight`] in the order of AMX tiles. `x` is exact in bf16; `d_y` is rounded to bf16. `segments`
/// contains the first row of each segment, followed by M.
pub fn backward_weight_on_tiles(k: usize, x: &[f32], d_y: &[f32], d_w: &mut [f32], segments: &[u32]) {
    let n = d_w.len() / k;
    for ends in segments.windows(2) {
        let rows = ends[0] as usize..ends[1] as usize;
        for j in 0..n {
            for i in 0..k {
                let terms = rows.clone().map(|m| (rounded(d_y[m * n + j]), x[m * k + i]));
                d_w[j * k + i] = on_tiles(d_w[j * k + i], terms.collect());
            }
        }
    }
}

/// Returns `start` plus the sum of a·b over the pairs `terms`, in the order of AMX tiles: steps of 32 from the first
/// term.
pub fn on_tiles(start: f32, terms: Vec<(f32, f32)>) -> f32 {
    terms.chunks(DEPTH).fold(start, |sum, terms| step(sum, terms.iter().copied()))
}

pub(crate) fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}
