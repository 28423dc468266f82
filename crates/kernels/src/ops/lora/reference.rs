//! Reference LoRA adapter for tests, slow and simple: one block after another.

use crate::check::Float;
use crate::ops::linear::reference as linear;
use crate::rng::philox;

/// One block of an adapter, the LoRA of one of several fused matmuls: added to the columns `first ..` of `y`.
#[derive(Clone)]
pub struct Block<F> {
    /// Matrix A, `[r, K]`.
    pub a: Vec<F>,
    /// Matrix B, `[N_i, r]`.
    pub b: Vec<F>,
    /// The block's first column in `y`.
    pub first: usize,
    /// The rank r.
    pub rank: usize,
    /// Dropout factors of the inputs, `[M, K]`; empty for no dropout.
    pub factors: Vec<F>,
}

/// Returns the dropout factors of block `block`, `[M, k]`, for rows of these samples and positions.
pub fn factors<F: Float>(p: f64, key: u64, samples: &[u32], positions: &[u32], block: u32, k: usize) -> Vec<F> {
    let mut all = Vec::new();
    for (&sample, &position) in samples.iter().zip(positions) {
        for k in 0..k as u32 {
            let words = philox(key, [16 * (k / 64) + k % 16, position, sample, block]);
            let drops = f64::from(words[(k / 16 % 4) as usize]) < (p * 2f64.powi(32)).round();
            all.push(F::of(if drops { 0.0 } else { f64::from((1.0 / (1.0 - p)) as f32) }));
        }
    }
    all
}

impl<F: Float> Block<F> {
    fn dropped(&self, x: &[F]) -> Vec<F> {
        if self.factors.is_empty() { x.to_vec() } else { self.factors.iter().zip(x).map(|(&f, &x)| f * x).collect() }
    }
}

/// Copies the columns `first .. first + width` of rows that have `n` columns.
fn columns<F: Float>(rows: &[F], n: usize, first: usize, width: usize) -> Vec<F> {
    rows.chunks_exact(n).flat_map(|row| row[first..first + width].to_vec()).collect()
}

fn xa<F: Float>(k: usize, x: &[F], block: &Block<F>, scale: F) -> Vec<F> {
    linear::forward(k, &block.dropped(x), &block.a, None, None).into_iter().map(|x| x * scale).collect()
}

/// Forward pass: returns `y = y0 + s · (x Aᵀ) Bᵀ`, block by block, with `y0: [M, n]`.
pub fn forward<F: Float>(k: usize, n: usize, x: &[F], blocks: &[Block<F>], scale: F, y0: &[F]) -> Vec<F> {
    let mut y = y0.to_vec();
    for block in blocks {
        let width = block.b.len() / block.rank;
        let start = columns(&y, n, block.first, width);
        let sum = linear::forward(block.rank, &xa(k, x, block, scale), &block.b, None, Some(&start));
        for (row, sum) in y.chunks_exact_mut(n).zip(sum.chunks_exact(width)) {
            row[block.first..block.first + width].copy_from_slice(sum);
        }
    }
    y
}

/// Backward pass: adds the gradients of `x`, and of the `A` and `B` of each block (in `g`, which has the shapes of the
/// blocks).
#[allow(clippy::too_many_arguments)]
pub fn backward<F: Float>(
    k: usize,
    n: usize,
    x: &[F],
    blocks: &[Block<F>],
    scale: F,
    d_y: &[F],
    d_x: &mut Vec<F>,
    g: &mut [Block<F>],
) {
    for (block, g) in blocks.iter().zip(g) {
        let (r, width) = (block.rank, block.b.len() / block.rank);
        let d_y = columns(d_y, n, block.first, width);
        let d_xa: Vec<F> = linear::backward_input(r, &d_y, &block.b, None).into_iter().map(|x| x * scale).collect();
        linear::backward_weight(r, &xa(k, x, block, scale), &d_y, &mut g.b);
        linear::backward_weight(k, &block.dropped(x), &d_xa, &mut g.a);
        if block.factors.is_empty() {
            *d_x = linear::backward_input(k, &d_xa, &block.a, Some(d_x));
        } else {
            let d_dropped = linear::backward_input(k, &d_xa, &block.a, None);
            for ((d_x, &f), &d) in d_x.iter_mut().zip(&block.factors).zip(&d_dropped) {
                *d_x = f.mul_add(d, *d_x);
            }
        }
    }
}
