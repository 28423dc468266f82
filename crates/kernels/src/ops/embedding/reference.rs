//! Reference token embedding for tests, slow and simple.

use crate::check::Float;

/// Returns row `id` of `table: [V, H]`, times `scale`, for each of `ids`.
pub fn forward<F: Float>(hidden: usize, ids: &[u32], table: &[F], scale: F) -> Vec<F> {
    let row = |&id: &u32| &table[id as usize * hidden..(id as usize + 1) * hidden];
    ids.iter().flat_map(row).map(|&x| scale * x).collect()
}

/// For ascending t, adds row `t` of `d_out`, times `scale`, to row `ids[t]` of `d_table`.
pub fn backward<F: Float>(hidden: usize, ids: &[u32], d_out: &[F], scale: F, d_table: &mut [F]) {
    for (t, &id) in ids.iter().enumerate() {
        for h in 0..hidden {
            d_table[id as usize * hidden + h] += scale * d_out[t * hidden + h];
        }
    }
}
