//! Buffers of fixed capacity, allocated once: what a forward leaves for the way back, or only what it works in.

use crate::ModelConfig;
use crate::batch::Capacity;
use kernels::{Memory, View, ViewMut};

/// Buffers of inference: one layer's, used by all. Booked under "workspace".
pub struct Workspace {}

impl Workspace {
    /// Buffers for up to `max_rows` rows.
    pub fn new(memory: &Memory, config: &ModelConfig, max_rows: usize) -> Workspace {
        let _ = (memory, config, max_rows);
        unimplemented!()
    }
    /// The hidden rows `[T, H]` of the last [`infer`](super::infer), after the final norm.
    pub fn hidden(&self) -> View<'_> {
        unimplemented!()
    }
}

/// Buffers of training: the activations of every layer (or, with checkpointing, the input of every layer and the
/// activations of one), the pages of one layer, and the gradients on their way back. Booked under "activations" and "workspace".
pub struct Tape {}

impl Tape {
    /// Buffers for batches up to `capacity`. With `checkpointing` the way back computes every layer a second time, to the
    /// same bits.
    pub fn new(memory: &Memory, config: &ModelConfig, capacity: Capacity, checkpointing: bool) -> Tape {
        let _ = (memory, config, capacity, checkpointing);
        unimplemented!()
    }
    /// Buffers for [`forward`](super::forward) and [`score`](super::score) alone: there is no way back.
    pub fn forward_only(memory: &Memory, config: &ModelConfig, capacity: Capacity) -> Tape {
        let _ = (memory, config, capacity);
        unimplemented!()
    }
    /// What it has room for.
    pub fn capacity(&self) -> Capacity {
        unimplemented!()
    }
    /// The hidden rows `[T, H]` of the last forward, after the final norm.
    pub fn hidden(&self) -> View<'_> {
        unimplemented!()
    }
    /// The gradient of the hidden rows `[T, H]`, from which [`backward`](super::backward) starts.
    pub fn d_hidden_mut(&mut self) -> ViewMut<'_> {
        unimplemented!()
    }
    /// Log-probabilities of the scored tokens `[R]`, of the last [`head_forward`](super::head_forward).
    pub fn logps(&self) -> View<'_> {
        unimplemented!()
    }
    /// Entropies of the distributions that scored tokens come from `[R]`, in nats.
    pub fn entropies(&self) -> View<'_> {
        unimplemented!()
    }
}
