//! The low-rank adapter, slow and obvious: one block at a time.

use crate::check::Float;
use crate::ops::linear::reference as linear;

/// One block: `a: [r, K]`, `b: [N_i, r]`, added to columns `first ..` of `y`.
#[derive(Clone)]
pub struct Block<F> {
    /// `[r, K]`
    pub a: Vec<F>,
    /// `[N_i, r]`
    pub b: Vec<F>,
    /// Its first column of `y`.
    pub first: usize,
    /// `r`
    pub rank: usize,
}

/// Columns `first .. first + width` of rows of `n`.
fn columns<F: Float>(rows: &[F], n: usize, first: usize, width: usize) -> Vec<F> {
    rows.chunks_exact(n).flat_map(|row| row[first..first + width].to_vec()).collect()
}

fn xa<F: Float>(k: usize, x: &[F], block: &Block<F>, scale: F) -> Vec<F> {
    linear::forward(k, x, &block.a, None, None).into_iter().map(|x| x * scale).collect()
}

/// `y = y0 + s · (x Aᵀ) Bᵀ`, block by block; `y0: [M, n]`.
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

/// Adds the gradients of `x`, and of each block's `A` and `B` (in `g`, of the blocks' shapes).
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
        linear::backward_weight(r, &xa(k, x, block, scale), &d_y, &mut g.b, &mut vec![F::default(); width]);
        linear::backward_weight(k, x, &d_xa, &mut g.a, &mut vec![F::default(); r]);
        *d_x = linear::backward_input(k, &d_xa, &block.a, Some(d_x));
    }
}
