//! Reference attention for tests, unfused and slow. It computes the scores of a row against every key, the masked
//! softmax, and the weighted sum of values. It has no KV-cache pages: it reads the keys and values from the rows of the
//! batch that computed them.

use super::Geometry;
use crate::check::Float;
use crate::ops::softmax::reference as softmax;

/// For each of the `T` rows: the list of the batch's rows that contain the key and value of positions 0, 1, … up to the
/// row's own position.
pub type Keys = [Vec<usize>];

fn part(g: &Geometry, row: usize, head: usize) -> usize {
    (row * (g.heads + 2 * g.kv_heads) + head) * g.head_dim
}

/// Attention probabilities of row `row` for query head `head` over positions 0 to its own (0 outside the sliding
/// window), and the log-sum-exp of the scores.
fn probabilities<F: Float>(g: &Geometry, qkv: &[F], keys: &Keys, row: usize, head: usize) -> (Vec<F>, F) {
    let (hd, kv) = (g.head_dim, g.heads + head / (g.heads / g.kv_heads));
    let q = &qkv[part(g, row, head)..][..hd];
    let dot = |key: &usize| {
        let k = &qkv[part(g, *key, kv)..][..hd];
        q.iter().zip(k).fold(F::default(), |sum, (&q, &k)| q.mul_add(k, sum))
    };
    let x: Vec<F> = keys[row].iter().map(dot).collect();
    let first = g.window.map_or(0, |w| x.len().saturating_sub(w));
    let scale = F::of(f64::from(g.scale));
    let p = softmax::forward(&x, x.len(), scale, &[first as u32], &[x.len() as u32]);
    // At the largest score z, p = exp(z − lse), so lse = z − ln p.
    let best = (first..x.len()).fold(first, |best, j| if x[j] > x[best] { j } else { best });
    let lse = x[best] * scale - p[best].ln();
    (p, lse)
}

/// Forward pass: returns the output `[T, nh·hd]` and the log-sum-exp of the scores `[T, nh]`.
pub fn forward<F: Float>(g: &Geometry, qkv: &[F], keys: &Keys) -> (Vec<F>, Vec<F>) {
    let (hd, group) = (g.head_dim, g.heads / g.kv_heads);
    let (mut out, mut lses) = (Vec::new(), Vec::new());
    for row in 0..keys.len() {
        for head in 0..g.heads {
            let (p, lse) = probabilities(g, qkv, keys, row, head);
            let value = |key: usize, i: usize| qkv[part(g, key, g.heads + g.kv_heads + head / group) + i];
            out.extend((0..hd).map(|i| p.iter().zip(&keys[row]).map(|(&p, &key)| p * value(key, i)).sum::<F>()));
            lses.push(lse);
        }
    }
    (out, lses)
}

/// Backward pass: returns the gradient of `qkv`, `[T, (nh + 2·nkv)·hd]`.
pub fn backward<F: Float>(g: &Geometry, qkv: &[F], keys: &Keys, d_out: &[F]) -> Vec<F> {
    let (hd, group) = (g.head_dim, g.heads / g.kv_heads);
    let mut d_qkv = vec![F::default(); qkv.len()];
    for row in 0..keys.len() {
        for head in 0..g.heads {
            let (p, _) = probabilities(g, qkv, keys, row, head);
            let d_out = &d_out[(row * g.heads + head) * hd..][..hd];
            let (k_head, v_head) = (g.heads + head / group, g.heads + g.kv_heads + head / group);
            let mut d_p = Vec::new();
            for (&p, &key) in p.iter().zip(&keys[row]) {
                let v = part(g, key, v_head);
                d_p.push((0..hd).map(|i| d_out[i] * qkv[v + i]).sum::<F>());
                (0..hd).for_each(|i| d_qkv[v + i] += p * d_out[i]);
            }
            let scale = F::of(f64::from(g.scale));
            let d_x = softmax::backward(&p, p.len(), scale, &[0], &[p.len() as u32], &d_p);
            let q = part(g, row, head);
            for (&d_x, &key) in d_x.iter().zip(&keys[row]) {
                let k = part(g, key, k_head);
                for i in 0..hd {
                    d_qkv[q + i] += d_x * qkv[k + i];
                    d_qkv[k + i] += d_x * qkv[q + i];
                }
            }
        }
    }
    d_qkv
}
