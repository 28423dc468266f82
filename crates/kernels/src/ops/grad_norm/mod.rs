//! The global L2 norm of the gradients, and whether all of them are finite.
//!
//! ```text
//! out[0] = √ Σ_tensors Σ_i g_i²        summed in f64
//! out[1] = 1 if every g_i is finite, else 0
//! ```
//!
//! The sum of a fixed-length chunk is formed in one order and chunks are added in ascending order, so the bits do not
//! depend on the threads. Both results stay in a tensor: no host waits for them.

use crate::{Context, Result, View, ViewMut};

/// The norm over all `grads` (f32, any shapes); `out: [2]` *overwrites*.
pub fn global(_ctx: &Context, _grads: &[View<'_>], _out: ViewMut<'_>) -> Result<()> {
    unimplemented!()
}
