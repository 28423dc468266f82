//! Rows by index: a gather and its transpose.
//!
//! Shapes: `T` source rows, `R` chosen rows, `H` elements of a row.
//!
//! ```text
//! out[r,:]        = x[rows[r],:]
//! d_x[rows[r],:] += d_out[r,:]        ascending r
//! ```

use crate::{Context, Result, View, ViewMut};

/// Arguments of [`gather`].
pub struct Gather<'a> {
    /// `[T, H]`
    pub x: View<'a>,
    /// u32 `[R]`, each below T; a row may be chosen several times.
    pub rows: View<'a>,
    /// `[R, H]`: *overwrites*.
    pub out: ViewMut<'a>,
}

/// Arguments of [`scatter_add`].
pub struct ScatterAdd<'a> {
    /// `[R, H]`
    pub d_out: View<'a>,
    /// u32 `[R]`, each below T.
    pub rows: View<'a>,
    /// `[T, H]`: *accumulates into*.
    pub d_x: ViewMut<'a>,
}

/// Copies the chosen rows.
pub fn gather(_ctx: &Context, _args: Gather<'_>) -> Result<()> {
    unimplemented!()
}

/// Adds each chosen row's gradient to its source.
pub fn scatter_add(_ctx: &Context, _args: ScatterAdd<'_>) -> Result<()> {
    unimplemented!()
}
