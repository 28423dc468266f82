//! Per-head RMS norm, slow and obvious: `rmsnorm`'s oracle on each head.

use crate::check::Float;
use crate::ops::rmsnorm::reference as rmsnorm;

/// y `[T, A·hd]` and rstd `[T, nh + nkv]` of `x: [T, A·hd]` with `heads` query and `kv_heads` kv heads.
pub fn forward<F: Float>(x: &[F], heads: usize, kv_heads: usize, q_w: &[F], k_w: &[F], eps: f64) -> (Vec<F>, Vec<F>) {
    let hd = q_w.len();
    let (mut y, mut rstd) = (Vec::new(), Vec::new());
    for (i, head) in x.chunks_exact(hd).enumerate() {
        let a = i % (heads + 2 * kv_heads);
        if a >= heads + kv_heads {
            y.extend_from_slice(head);
            continue;
        }
        let (head_y, head_rstd) = rmsnorm::forward(head, if a < heads { q_w } else { k_w }, eps);
        y.extend(head_y);
        rstd.extend(head_rstd);
    }
    (y, rstd)
}

/// d_x, d_q_weight and d_k_weight, from 0.
#[allow(clippy::too_many_arguments)]
pub fn backward<F: Float>(
    x: &[F],
    heads: usize,
    kv_heads: usize,
    q_w: &[F],
    k_w: &[F],
    rstd: &[F],
    d_y: &[F],
) -> (Vec<F>, Vec<F>, Vec<F>) {
    let (hd, all) = (q_w.len(), heads + 2 * kv_heads);
    let mut d_x = Vec::new();
    let mut d_w = [vec![F::default(); hd], vec![F::default(); hd]];
    for (i, (head, d_head)) in x.chunks_exact(hd).zip(d_y.chunks_exact(hd)).enumerate() {
        let (t, a) = (i / all, i % all);
        if a >= heads + kv_heads {
            d_x.extend_from_slice(d_head);
            continue;
        }
        let r = rstd[t * (heads + kv_heads) + a];
        let (d_head_x, d_head_w) = rmsnorm::backward(head, if a < heads { q_w } else { k_w }, &[r], d_head);
        d_x.extend(d_head_x);
        d_w[usize::from(a >= heads)].iter_mut().zip(d_head_w).for_each(|(sum, d)| *sum += d);
    }
    let [d_q, d_k] = d_w;
    (d_x, d_q, d_k)
}
