//! Reference row gather for tests, slow and simple.

use crate::check::Float;

/// Returns row `rows[r]` of `x: [T, H]` for each r.
pub fn gather<F: Float>(hidden: usize, x: &[F], rows: &[u32]) -> Vec<F> {
    rows.iter().flat_map(|&row| x[row as usize * hidden..(row as usize + 1) * hidden].to_vec()).collect()
}

/// For ascending r, adds row `r` of `d_out` to row `rows[r]` of `d_x`.
pub fn scatter_add<F: Float>(hidden: usize, d_out: &[F], rows: &[u32], d_x: &mut [F]) {
    for (r, &row) in rows.iter().enumerate() {
        for h in 0..hidden {
            d_x[row as usize * hidden + h] += d_out[r * hidden + h];
        }
    }
}
