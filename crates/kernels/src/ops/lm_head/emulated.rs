//! The fast forward pass of the lm head, written with scalars. Every instruction set must give its bits; tests of other
//! crates use it, too.

use crate::check::Float;
use crate::math;
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

/// Dot product by fused multiply-adds in ascending order, from 0.
pub fn chain<F: Float>(x: &[F], w: &[F]) -> F {
    x.iter().zip(w).fold(F::default(), |sum, (&x, &w)| x.mul_add(w, sum))
}

/// The fast forward pass in f32 scalars, chunk by chunk and lane by lane. With `chunk` = [`super::CHUNK`], the bits
/// equal those of the fast code if `dot` is [`chain`], or `reference::dot_on_tiles` where matmuls run on AMX tiles.
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
