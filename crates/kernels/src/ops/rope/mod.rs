//! Rotary position embedding, in place (Su et al., "RoFormer", 2021), with the halves paired as Hugging Face pairs them.
//!
//! Shapes: `T` tokens, `A` heads of a row, `hd` head_dim, `P` positions of the table.
//!
//! For head a of the first `heads`, i < hd/2, p = positions[t], θ = f32(p) · inv_freq[i] rounded to f32:
//! ```text
//! c, s            = cos θ · attention_scaling, sin θ · attention_scaling
//! x'[t,a,i]       = x[t,a,i]        · c − x[t,a,i+hd/2] · s
//! x'[t,a,i+hd/2]  = x[t,a,i+hd/2]   · c + x[t,a,i]      · s
//! ```
//! The way back is the transpose: s with the other sign.

use crate::{Context, DType, Memory, Result, Tensor, View, ViewMut};

/// Cosines and sines of every position up to a limit.
#[derive(Debug)]
pub struct Table {
    /// `[P, hd/2]`
    cos: Tensor,
    /// `[P, hd/2]`
    sin: Tensor,
}

impl Table {
    /// The table of frequencies `inv_freq: [hd/2]` for positions `0..max_positions`, both times `attention_scaling`.
    pub fn new(memory: &Memory, inv_freq: &[f32], attention_scaling: f32, max_positions: usize) -> Table {
        let _ = (inv_freq, attention_scaling);
        let zeros = || Tensor::zeros(memory, &[max_positions, inv_freq.len()], DType::F32);
        Table { cos: zeros(), sin: zeros() }
    }
    /// `[P, hd/2]`
    pub fn cos(&self) -> View<'_> {
        self.cos.view()
    }
    /// `[P, hd/2]`
    pub fn sin(&self) -> View<'_> {
        self.sin.view()
    }
}

/// Arguments of [`forward`] and [`backward`].
pub struct Rotate<'a> {
    /// `[T, A·hd]`: rotated in place.
    pub x: ViewMut<'a>,
    /// Heads to rotate, the first ones of a row: queries and keys.
    pub heads: usize,
    /// hd
    pub head_dim: usize,
    /// u32 `[T]`, each below P.
    pub positions: View<'a>,
    /// The angles.
    pub table: &'a Table,
}

/// Rotates.
pub fn forward(_ctx: &Context, _args: Rotate<'_>) -> Result<()> {
    unimplemented!()
}

/// Rotates a gradient back.
pub fn backward(_ctx: &Context, _args: Rotate<'_>) -> Result<()> {
    unimplemented!()
}
