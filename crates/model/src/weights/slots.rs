//! Versioned slots: readers hold a version while the next one is made.

use super::{Adapter, LoraConfig, ModelView, Params, Weights};
use crate::ModelConfig;
use kernels::Memory;
use std::sync::Arc;

/// What has versions: [`Weights`] and [`Adapter`].
pub trait Versioned {
    /// Another one of this shape, whose numbers do not matter.
    fn like(&self, memory: &Memory) -> Self;
    /// Its numbers.
    fn params(&self) -> &Params;
    /// Its numbers, to write.
    fn params_mut(&mut self) -> &mut Params;
    /// Its version.
    fn version(&self) -> u64;
    /// Makes it this version.
    fn set_version(&mut self, version: u64);
}

impl Versioned for Weights {
    fn like(&self, memory: &Memory) -> Weights {
        Weights::zeros(memory, &self.config)
    }
    fn params(&self) -> &Params {
        &self.params
    }
    fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn set_version(&mut self, version: u64) {
        self.version = version;
    }
}

impl Versioned for Adapter {
    fn like(&self, memory: &Memory) -> Adapter {
        let params = Params::adapter(&memory.part("adapter"), &self.config, &self.lora);
        Adapter { lora: self.lora.clone(), params, version: 0, config: self.config.clone() }
    }
    fn params(&self) -> &Params {
        &self.params
    }
    fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn set_version(&mut self, version: u64) {
        self.version = version;
    }
}

/// The current version, and slots of earlier ones.
///
/// An update is made in place where nobody else holds the current version: a synchronous run has one slot and copies
/// nothing. Otherwise it is made in a slot that nobody holds any more, or in a new one, from a copy of the current
/// version; [`slots`](Self::slots) and [`copies`](Self::copies) say how often.
pub struct WeightSlots<T> {
    memory: Memory,
    current: Arc<T>,
    earlier: Vec<Arc<T>>,
    copies: u64,
}

impl<T: Versioned> WeightSlots<T> {
    /// One slot, which holds `first`; others are taken from `memory`.
    pub fn new(memory: &Memory, first: T) -> WeightSlots<T> {
        WeightSlots { memory: memory.clone(), current: Arc::new(first), earlier: Vec::new(), copies: 0 }
    }

    /// The current version, to look at.
    pub fn current(&self) -> &T {
        &self.current
    }

    /// The current version, to keep: it stays as it is until this is dropped.
    pub fn hold(&self) -> Arc<T> {
        self.current.clone()
    }

    /// Slots taken up to now.
    pub fn slots(&self) -> usize {
        1 + self.earlier.len()
    }

    /// Versions that were copied because somebody held them.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Changes the current version's numbers, under its number: when it is loaded.
    pub fn overwrite<R>(&mut self, write: impl FnOnce(&mut T) -> R) -> R {
        write(self.writable())
    }

    /// Makes the next version of the current one.
    pub fn update<R>(&mut self, write: impl FnOnce(&mut Params) -> R) -> R {
        let slot = self.writable();
        let result = write(slot.params_mut());
        slot.set_version(slot.version() + 1);
        result
    }

    /// A slot that holds what the current version does and that nobody else holds; it becomes the current one.
    fn writable(&mut self) -> &mut T {
        if Arc::get_mut(&mut self.current).is_none() {
            let free = self.earlier.iter_mut().position(|slot| Arc::get_mut(slot).is_some());
            let mut slot = match free {
                Some(index) => self.earlier.swap_remove(index),
                None => Arc::new(self.current.like(&self.memory)),
            };
            let other = Arc::get_mut(&mut slot).expect("nobody holds it");
            other.params_mut().copy_from(self.current.params());
            other.set_version(self.current.version());
            self.copies += 1;
            self.earlier.push(std::mem::replace(&mut self.current, slot));
        }
        Arc::get_mut(&mut self.current).expect("nobody else holds it")
    }
}

/// A model that is trained: base weights and, where only that is trained, an adapter, each in its slots.
pub struct AdaptedWeights {
    /// The base, which is frozen where there is an adapter.
    pub base: WeightSlots<Weights>,
    /// The adapter.
    pub adapter: Option<WeightSlots<Adapter>>,
}

/// The versions of a model that somebody keeps.
pub struct HeldWeights {
    /// The base.
    pub base: Arc<Weights>,
    /// The adapter.
    pub adapter: Option<Arc<Adapter>>,
}

impl HeldWeights {
    /// What a pass computes with.
    pub fn view(&self) -> ModelView<'_> {
        ModelView::new(&self.base, self.adapter.as_deref())
    }
}

impl AdaptedWeights {
    /// The current versions, to keep: they stay as they are until this is dropped.
    pub fn hold(&self) -> HeldWeights {
        HeldWeights { base: self.base.hold(), adapter: self.adapter.as_ref().map(WeightSlots::hold) }
    }
    /// The first version of both.
    pub fn new(memory: &Memory, weights: Weights, adapter: Option<Adapter>) -> AdaptedWeights {
        let adapter = adapter.map(|adapter| WeightSlots::new(memory, adapter));
        AdaptedWeights { base: WeightSlots::new(memory, weights), adapter }
    }
    /// The shape of the model.
    pub fn config(&self) -> &Arc<ModelConfig> {
        &self.base.current().config
    }
    /// What its adapter is, if it has one.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.adapter.as_ref().map(|a| &a.current().lora)
    }
    /// The version of what is trained.
    pub fn version(&self) -> u64 {
        self.view().version().trained()
    }
    /// Makes what is trained this version.
    pub fn set_version(&mut self, version: u64) {
        match &mut self.adapter {
            Some(adapter) => adapter.overwrite(|a| a.version = version),
            None => self.base.overwrite(|w| w.version = version),
        }
    }
}

impl<'a> From<&'a AdaptedWeights> for ModelView<'a> {
    fn from(model: &'a AdaptedWeights) -> ModelView<'a> {
        model.view()
    }
}

/// What a trainer reads in its passes, and changes in its steps.
pub trait Trainable {
    /// What its passes compute with.
    fn view(&self) -> ModelView<'_>;
    /// Makes the next version of what is trained.
    fn update<R>(&mut self, write: impl FnOnce(&mut Params) -> R) -> R;
}

impl Trainable for Weights {
    fn view(&self) -> ModelView<'_> {
        self.into()
    }
    fn update<R>(&mut self, write: impl FnOnce(&mut Params) -> R) -> R {
        let result = write(&mut self.params);
        self.publish();
        result
    }
}

impl Trainable for AdaptedWeights {
    fn view(&self) -> ModelView<'_> {
        ModelView::new(self.base.current(), self.adapter.as_ref().map(WeightSlots::current))
    }
    fn update<R>(&mut self, write: impl FnOnce(&mut Params) -> R) -> R {
        match &mut self.adapter {
            Some(adapter) => adapter.update(write),
            None => self.base.update(write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Device;

    fn slots() -> WeightSlots<Weights> {
        let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 5}"#;
        let memory = Memory::new(Device::Cpu);
        let weights = Weights::random(&memory, &Arc::new(ModelConfig::parse(json).unwrap()), 1).unwrap();
        WeightSlots::new(&memory, weights)
    }

    fn set(params: &mut Params, x: f32) {
        params.write("model.norm.weight", &[x; 4]);
    }

    fn norm(weights: &Weights) -> Vec<f32> {
        weights.params.read("model.norm.weight").unwrap()
    }

    #[test]
    fn what_nobody_holds_is_updated_in_place() {
        let mut slots = slots();
        (0..3).for_each(|x| slots.update(|p| set(p, x as f32)));
        assert_eq!((slots.slots(), slots.copies(), slots.current().version), (1, 0, 3));
        assert_eq!(norm(slots.current()), [2.0; 4]);
    }

    #[test]
    fn what_is_held_stays_and_slots_are_used_again() {
        let mut slots = slots();
        let embedding = slots.current().params.read("model.embed_tokens.weight").unwrap();
        let first = slots.hold();
        slots.update(|p| set(p, 7.0));
        assert_eq!((slots.slots(), slots.copies()), (2, 1));
        assert_eq!((first.version, norm(&first)), (0, vec![1.0; 4]));
        assert_eq!((slots.current().version, norm(slots.current())), (1, vec![7.0; 4]));
        assert_eq!(slots.current().params.read("model.embed_tokens.weight").unwrap(), embedding);
        // In place again, while the first is still held; then in the slot that it gave back.
        slots.update(|p| set(p, 8.0));
        let (second, copies) = (slots.hold(), slots.copies());
        drop(first);
        slots.update(|p| set(p, 9.0));
        assert_eq!((slots.slots(), slots.copies() - copies, second.version), (2, 1, 2));
        assert_eq!((norm(&second), norm(slots.current())), (vec![8.0; 4], vec![9.0; 4]));
    }
}
