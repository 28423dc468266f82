//! Reference lm head: a slow and simple version.

pub use super::emulated::{Outputs, chain, emulated};
use crate::check::Float;
use crate::ops::linear::reference as linear;

/// Scaled logits `[V]` of one hidden row: dot products by fused multiply-adds in ascending order, times β.
fn scaled_logits<F: Float>(hidden: &[F], weight: &[F], beta: F) -> Vec<F> {
    weight.chunks_exact(hidden.len()).map(|w| chain(hidden, w) * beta).collect()
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
