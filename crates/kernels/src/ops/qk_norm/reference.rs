//! Reference QK norm for tests, slow and simple: the reference of `rmsnorm` applied to each head.

use crate::check::Float;
use crate::ops::lanes::CHUNK;
use crate::ops::rmsnorm::reference as rmsnorm;

/// Returns y `[T, A·hd]` and rstd `[T, nh + nkv]` for `x: [T, A·hd]`, with `heads` query and `kv_heads` kv heads.
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

/// Returns the gradients of x, q_weight and k_weight, for one segment.
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
    for (i, (head, d_head)) in x.chunks_exact(hd).zip(d_y.chunks_exact(hd)).enumerate() {
        let (t, a) = (i / all, i % all);
        if a >= heads + kv_heads {
            d_x.extend_from_slice(d_head);
            continue;
        }
        let r = rstd[t * (heads + kv_heads) + a];
        d_x.extend(rmsnorm::backward(head, if a < heads { q_w } else { k_w }, &[r], d_head).0);
    }
    let [mut d_q, mut d_k] = [vec![F::default(); hd], vec![F::default(); hd]];
    let segments = [0, (rstd.len() / (heads + kv_heads)) as u32];
    weight_gradients(x, heads, kv_heads, rstd, d_y, &segments, [&mut d_q, &mut d_k]);
    (d_x, d_q, d_k)
}

/// Adds the gradients of both weights to `d_w`. In f32 this defines the bits that every instruction set must give.
pub fn weight_gradients<F: Float>(
    x: &[F],
    heads: usize,
    kv_heads: usize,
    rstd: &[F],
    d_y: &[F],
    segments: &[u32],
    d_w: [&mut [F]; 2],
) {
    let (hd, all, normed) = (d_w[0].len(), heads + 2 * kv_heads, heads + kv_heads);
    for (d_w, heads) in d_w.into_iter().zip([0..heads, heads..normed]) {
        for segment in segments.windows(2) {
            let rows: Vec<usize> = (segment[0] as usize..segment[1] as usize).collect();
            for chunk in rows.chunks(CHUNK) {
                for (i, d_w) in d_w.iter_mut().enumerate() {
                    let terms = chunk.iter().flat_map(|&t| heads.clone().map(move |a| (t, a)));
                    *d_w += terms.fold(F::default(), |sum, (t, a)| {
                        let at = (t * all + a) * hd + i;
                        d_y[at].mul_add(x[at] * rstd[t * normed + a], sum)
                    });
                }
            }
        }
    }
}
