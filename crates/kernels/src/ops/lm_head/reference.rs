//! Reference lm head for tests: a slow and simple version, and the fast forward pass written with scalars, whose bits
//! every instruction set must give.

use crate::check::Float;
use crate::math;
use crate::ops::linear::reference as linear;
use crate::simd::{LANES, portable::F32x16};

/// Outputs of the forward pass, `[R]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs<F> {
    /// Log-probability of each target, `z[target] − lse`.
    pub logps: Vec<F>,
    /// Log-sum-exp of the scaled logits, ln Σ exp z.
    pub lse: Vec<F>,
    /// Entropy −Σ p ln p, in nats.
    pub entropies: Vec<F>,
}

/// Scaled logits `[V]` of one hidden row: dot products by fused multiply-adds in ascending order, times β.
fn scaled_logits<F: Float>(hidden: &[F], weight: &[F], beta: F) -> Vec<F> {
    weight.chunks_exact(hidden.len()).map(|w| chain(hidden, w) * beta).collect()
}

/// Dot product by fused multiply-adds in ascending order, from 0.
pub fn chain<F: Float>(x: &[F], w: &[F]) -> F {
    x.iter().zip(w).fold(F::default(), |sum, (&x, &w)| x.mul_add(w, sum))
}

/// Dot product in the order of AMX tiles, for inputs that are exact in bf16.
pub fn dot_on_tiles(x: &[f32], w: &[f32]) -> f32 {
    linear::on_tiles(0.0, x.iter().copied().zip(w.iter().copied()).collect())
}

fn log_sum_exp<F: Float>(z: &[F]) -> F {
    let max = z.iter().copied().fold(z[0], |m, z| if z > m { z } else { m });
    max + z.iter().map(|&z| (z - max).exp()).sum::<F>().ln()
}

/// Forward pass. `hidden: [R, H]` and `weight: [V, H]` are row-major; `targets: [R]`; `beta` is 1/T.
pub fn forward<F: Float>(h: usize, hidden: &[F], weight: &[F], targets: &[u32], beta: F) -> Outputs<F> {
    let mut out = Outputs { logps: vec![], lse: vec![], entropies: vec![] };
    for (hidden, &target) in hidden.chunks_exact(h).zip(targets) {
        let z = scaled_logits(hidden, weight, beta);
        let lse = log_sum_exp(&z);
        out.logps.push(z[target as usize] - lse);
        out.lse.push(lse);
        out.entropies.push(z.iter().map(|&z| -((z - lse).exp() * (z - lse))).sum());
    }
    out
}

/// Backward pass: returns the gradients of `hidden` and `weight`, from those of `logps` and `entropies`.
pub fn backward<F: Float>(
    h: usize,
    hidden: &[F],
    weight: &[F],
    targets: &[u32],
    beta: F,
    d_logps: &[F],
    d_entropies: &[F],
) -> (Vec<F>, Vec<F>) {
    let (mut d_hidden, mut d_weight) = (vec![F::default(); hidden.len()], vec![F::default(); weight.len()]);
    let out = forward(h, hidden, weight, targets, beta);
    for (r, hidden) in hidden.chunks_exact(h).enumerate() {
        for (v, z) in scaled_logits(hidden, weight, beta).into_iter().enumerate() {
            let ln_p = z - out.lse[r];
            let p = ln_p.exp();
            let hit = F::of(f64::from(u8::from(v == targets[r] as usize)));
            let d_z = d_logps[r] * (hit - p) - d_entropies[r] * p * (ln_p + out.entropies[r]);
            for i in 0..h {
                d_hidden[r * h + i] += beta * d_z * weight[v * h + i];
                d_weight[v * h + i] += beta * d_z * hidden[i];
            }
        }
    }
    (d_hidden, d_weight)
}

/// The fast forward pass in f32 scalars, chunk by chunk and lane by lane. With `chunk` = [`super::CHUNK`] it gives the
/// same bits, if `dot` is [`chain`], or [`dot_on_tiles`] where the matmuls run on AMX tiles.
pub fn emulated(
    h: usize,
    hidden: &[f32],
    weight: &[f32],
    targets: &[u32],
    beta: f32,
    chunk: usize,
    dot: fn(&[f32], &[f32]) -> f32,
) -> Outputs<f32> {
    let exp = math::exp1::<F32x16>;
    let mut out = Outputs { logps: vec![], lse: vec![], entropies: vec![] };
    for (hidden, &target) in hidden.chunks_exact(h).zip(targets) {
        let z: Vec<f32> = weight.chunks_exact(h).map(|w| dot(hidden, w) * beta).collect();
        let largest = |z: &[f32]| z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let max = largest(&z);
        let (mut sum, mut slope) = (0.0f32, 0.0f32);
        for chunk in z.chunks(chunk) {
            let m = largest(chunk);
            let (mut sums, mut slopes) = ([0.0f32; LANES], [0.0f32; LANES]);
            for (i, z) in chunk.iter().enumerate() {
                let e = exp(z - m);
                sums[i % LANES] += e;
                slopes[i % LANES] = e.mul_add(z - m, slopes[i % LANES]);
            }
            let factor = exp(m - max);
            sum = tree(sums).mul_add(factor, sum);
            slope = tree(sums).mul_add(m - max, tree(slopes)).mul_add(factor, slope);
        }
        let ln = math::ln1::<F32x16>(sum);
        out.logps.push(z[target as usize] - (max + ln));
        out.lse.push(max + ln);
        out.entropies.push(ln - slope / sum);
    }
    out
}

/// Sum of 16 lanes, added in the tree order that all instruction sets share.
fn tree(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}
