//! Embedding: rows of a packed matrix, by id.
//!
//! Shapes: `T` tokens, `V` vocabulary, `H` hidden.
//!
//! ```text
//! out[t,:]       = table[ids[t],:]
//! d_table[v,:]  += Σ_{t: ids[t] = v} d_out[t,:]        ascending t
//! ```

use crate::{Context, Matrix, Result, View, ViewMut};

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// u32 `[T]`, each below V.
    pub ids: View<'a>,
    /// `[V, H]`
    pub table: &'a Matrix,
    /// `[T, H]`: *overwrites*.
    pub out: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// u32 `[T]`, each below V.
    pub ids: View<'a>,
    /// `[T, H]`
    pub d_out: View<'a>,
    /// `[V, H]`: *accumulates into*.
    pub d_table: &'a mut Matrix,
}

/// Gathers.
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}

/// Adds each token's gradient to its id's row.
pub fn backward(_ctx: &Context, _args: Backward<'_>) -> Result<()> {
    unimplemented!()
}
