//! Embedding, slow and obvious.

use crate::check::Float;

/// Row `id` of `table: [V, H]` for each id.
pub fn forward<F: Float>(hidden: usize, ids: &[u32], table: &[F]) -> Vec<F> {
    ids.iter().flat_map(|&id| table[id as usize * hidden..(id as usize + 1) * hidden].to_vec()).collect()
}

/// Adds row `t` of `d_out` to row `ids[t]` of `d_table`, ascending t.
pub fn backward<F: Float>(hidden: usize, ids: &[u32], d_out: &[F], d_table: &mut [F]) {
    for (t, &id) in ids.iter().enumerate() {
        for h in 0..hidden {
            d_table[id as usize * hidden + h] += d_out[t * hidden + h];
        }
    }
}
