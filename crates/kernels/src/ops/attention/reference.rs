//! Unfused attention, slow and obvious, from the masked softmax: scores of a row against every key, softmax, weighted
//! sum of values. Keys and values are looked up in the rows that wrote them, so it knows no page but through the
//! writes.

use super::Geometry;
use crate::check::Float;
use crate::ops::softmax::reference as softmax;

/// Which row of the batch holds the key and value of each position that each row sees: `[T]` lists, position by
/// position from 0 to the row's own.
pub type Keys = [Vec<usize>];

fn part(g: &Geometry, row: usize, head: usize) -> usize {
    (row * (g.heads + 2 * g.kv_heads) + head) * g.head_dim
}

/// Probabilities of row `row` under query head `head` over its positions (0 outside the window), and their log-sum-exp.
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
    // p = exp(z − lse), at the largest.
    let best = (first..x.len()).fold(first, |best, j| if x[j] > x[best] { j } else { best });
    let lse = x[best] * scale - p[best].ln();
    (p, lse)
}

/// out `[T, nh·hd]` and lse `[T, nh]`.
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

/// d_qkv `[T, A·hd]`.
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
