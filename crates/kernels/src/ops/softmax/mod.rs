//! Masked softmax in one pass over a row: scale, mask, softmax. The unfused attention, which is the oracle of the fused
//! one, is built from it.
//!
//! Shapes: `R` rows, `C` columns. Row r sees columns `first[r]..end[r]` (a causal, sliding-window or length mask).
//!
//! ```text
//! z[r,c]   = x[r,c] · scale
//! m[r]     = max_c z[r,c]
//! y[r,c]   = exp(z[r,c] − m[r]) / Σ_c exp(z[r,c] − m[r])     seen columns; 0 in the others, and in a row that sees none
//!
//! d_x[r,c] = scale · y[r,c] · (d_y[r,c] − Σ_k d_y[r,k] · y[r,k])
//! ```
//! Unseen columns are not read: they may hold anything.

use crate::{Context, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[R, C]`
    pub x: View<'a>,
    /// Multiplies the scores.
    pub scale: f32,
    /// u32 `[R]`: the first column that the row sees.
    pub first: View<'a>,
    /// u32 `[R]`: the column after the last that it sees, at most C.
    pub end: View<'a>,
    /// `[R, C]`: *overwrites*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[R, C]`: forward's output.
    pub y: View<'a>,
    /// Forward's scale.
    pub scale: f32,
    /// u32 `[R]`
    pub first: View<'a>,
    /// u32 `[R]`
    pub end: View<'a>,
    /// `[R, C]`
    pub d_y: View<'a>,
    /// `[R, C]`: *overwrites*.
    pub d_x: ViewMut<'a>,
}

/// Probabilities.
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}

/// Gradient of the scores.
pub fn backward(_ctx: &Context, _args: Backward<'_>) -> Result<()> {
    unimplemented!()
}
