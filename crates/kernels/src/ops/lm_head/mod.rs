//! The head: log-probability of a given token and entropy, from hidden rows, without the logits ever being in memory.
//!
//! Shapes: `R` rows, `H` hidden, `V` vocabulary; `β` = 1/T, T the temperature.
//!
//! ```text
//! z[r,v]    = β · Σ_h hidden[r,h] W[v,h]
//! lse[r]    = ln Σ_v exp z[r,v]                 p[r,v] = exp(z[r,v] − lse[r])
//! logp[r]   = z[r, target[r]] − lse[r]
//! ent[r]    = −Σ_v p[r,v] ln p[r,v]
//!
//! dz[r,v]      = dlogp[r] (1[v = target[r]] − p[r,v]) − dent[r] p[r,v] (z[r,v] − lse[r] + ent[r])
//! dhidden[r,:] = Σ_v β dz[r,v] W[v,:]           ascending v
//! dW[v,:]     += Σ_r β dz[r,v] hidden[r,:]      ascending r
//! ```
//!
//! The vocabulary is cut into chunks of [`CHUNK`] whatever the threads. A chunk's logits live in a thread's scratch; what
//! is kept of them is (m, Σ exp(z−m), Σ exp(z−m)(z−m)), m their maximum, and the chunks of a row are combined in ascending
//! order. The bits of a row depend on that row and the weights alone. The sampler ([`super::sample`]) calls the same
//! functions, which is why its log-probabilities are the trainer's. The way back recomputes the logits window by window.

use crate::{Context, Matrix, Result, View, ViewMut};

/// Vocabulary entries of a chunk: 16 panels of the weight.
pub const CHUNK: usize = 512;

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[R, H]`
    pub hidden: View<'a>,
    /// `[V, H]`
    pub weight: &'a Matrix,
    /// u32 `[R]`, each below V.
    pub targets: View<'a>,
    /// β = 1/T.
    pub inv_temperature: f32,
    /// `[R]`: *overwrites*.
    pub logps: ViewMut<'a>,
    /// `[R]`: *overwrites*.
    pub lse: ViewMut<'a>,
    /// `[R]`, in nats: *overwrites*.
    pub entropies: Option<ViewMut<'a>>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[R, H]`
    pub hidden: View<'a>,
    /// `[V, H]`
    pub weight: &'a Matrix,
    /// u32 `[R]`, each below V.
    pub targets: View<'a>,
    /// β = 1/T, as in the forward.
    pub inv_temperature: f32,
    /// `[R]`, as the forward wrote it.
    pub lse: View<'a>,
    /// `[R]`
    pub d_logps: View<'a>,
    /// `[R]`; needs `entropies`.
    pub d_entropies: Option<View<'a>>,
    /// `[R]`, as the forward wrote it.
    pub entropies: Option<View<'a>>,
    /// `[R, H]`: *overwrites*.
    pub d_hidden: ViewMut<'a>,
    /// `[V, H]`: *accumulates into*; the padding of the last panel is left alone.
    pub d_weight: Option<&'a mut Matrix>,
}

/// Log-probabilities, log-sum-exps and entropies.
pub fn forward(_ctx: &Context, _args: Forward<'_>) -> Result<()> {
    unimplemented!()
}

/// Gradients of hidden rows and weight.
pub fn backward(_ctx: &Context, _args: Backward<'_>) -> Result<()> {
    unimplemented!()
}
