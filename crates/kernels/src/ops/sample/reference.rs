//! Reference of sampling for tests, slow and simple: the distribution from which a row is drawn.

#![allow(clippy::disallowed_methods)]

use super::RowParams;

/// Returns the probabilities `[V]` after penalty, temperature, top-k, top-p and min-p. Greedy gives all probability to
/// the largest logit; ties go to the lowest id.
pub fn distribution(logits: &[f64], params: &RowParams<'_>) -> Vec<f64> {
    let mut z = logits.to_vec();
    let mut seen: Vec<u32> = params.history.to_vec();
    seen.sort_unstable();
    seen.dedup();
    for id in seen {
        let z = &mut z[id as usize];
        *z = if *z < 0.0 { *z * params.repetition_penalty } else { *z / params.repetition_penalty };
    }
    // The most likely token comes first. The sort is stable, so equal logits are in ascending order of id.
    let descending = |z: &[f64]| {
        let mut ids: Vec<usize> = (0..z.len()).collect();
        ids.sort_by(|&a, &b| z[b].total_cmp(&z[a]));
        ids
    };
    if params.temperature == 0.0 {
        let best = descending(&z)[0];
        return (0..z.len()).map(|id| f64::from(u8::from(id == best))).collect();
    }
    for z in &mut z {
        *z /= params.temperature;
    }
    if params.top_k > 0 && params.top_k < z.len() {
        let least = z[descending(&z)[params.top_k - 1]];
        z.iter_mut().filter(|z| **z < least).for_each(|z| *z = f64::NEG_INFINITY);
    }
    if params.top_p < 1.0 {
        let p = softmax(&z);
        let mut before = 0.0;
        for (rank, id) in descending(&z).into_iter().enumerate() {
            if before >= params.top_p && rank > 0 {
                z[id] = f64::NEG_INFINITY;
            }
            before += p[id];
        }
    }
    let p = softmax(&z);
    let most = p.iter().copied().fold(0.0, f64::max);
    for (z, p) in z.iter_mut().zip(p) {
        if p < params.min_p * most {
            *z = f64::NEG_INFINITY;
        }
    }
    softmax(&z)
}

fn softmax(z: &[f64]) -> Vec<f64> {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = z.iter().map(|z| (z - max).exp()).sum();
    z.iter().map(|z| (z - max).exp() / sum).collect()
}
