//! Slots for versions of weights: readers keep using one version while the optimizer writes the next one.

use super::shared::{Published, Sharing};
use super::{Adapter, LoraConfig, ModelView, NextParams, Params, Trainable, Weights};
use crate::{ModelConfig, Updates};
use kernels::Memory;
use kernels::memory::slot::{Contents, SlotWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Types with versions: [`Weights`] and [`Adapter`].
pub trait Versioned {
    /// Allocates another object of the same shape, with unspecified values.
    fn like(&self, memory: &Memory) -> Self;
    /// The parameters.
    fn params(&self) -> &Params;
    /// The parameters, writable.
    fn params_mut(&mut self) -> &mut Params;
    /// The version: the number of updates of the parameters.
    fn version(&self) -> Updates;
    /// Sets the version.
    fn set_version(&mut self, version: Updates);
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
    fn version(&self) -> Updates {
        self.version
    }
    fn set_version(&mut self, version: Updates) {
        self.version = version;
    }
}

impl Versioned for Adapter {
    fn like(&self, memory: &Memory) -> Adapter {
        let params = Params::adapter(&memory.part("adapter"), &self.config, &self.lora);
        Adapter { lora: self.lora.clone(), params, version: Updates(0), config: self.config.clone() }
    }
    fn params(&self) -> &Params {
        &self.params
    }
    fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }
    fn version(&self) -> Updates {
        self.version
    }
    fn set_version(&mut self, version: Updates) {
        self.version = version;
    }
}

/// The current version of weights or of an adapter, and slots with earlier versions. If no reader holds the current
/// version, an update overwrites it in place: a synchronous training run has one slot. Otherwise the update reads the
/// current version and writes a free slot, or a new one ([`slots`](Self::slots)). Neither case copies all weights; only
/// tensors that the optimizer did not write are copied, and [counted](Self::bytes_copied).
pub struct WeightSlots<T> {
    memory: Memory,
    current: Slot<T>,
    earlier: Vec<Slot<T>>,
    bytes_copied: u64,
    /// Settings for shared slots; `None` if no other process reads the slots.
    sharing: Option<Sharing>,
}

/// One version, and the shared memory that contains it, if any.
struct Slot<T> {
    numbers: Arc<T>,
    shared: Option<Shared>,
}

struct Shared {
    writer: SlotWriter,
    /// Description of the published contents, for other processes; `None` while the slot is being written.
    published: Option<Contents>,
}

impl<T: Versioned> Slot<T> {
    fn new(numbers: T) -> Slot<T> {
        Slot { numbers: Arc::new(numbers), shared: None }
    }

    /// Allocates a slot with the shape of `of`, in shared memory if `sharing` is given.
    fn like(of: &T, memory: &Memory, sharing: Option<&Sharing>) -> kernels::Result<Slot<T>> {
        let Some(sharing) = sharing else { return Ok(Slot::new(of.like(memory))) };
        let writer = sharing.slot(of.params(), false)?;
        let numbers = of.like(&writer.memory(memory)?);
        memory.check()?;
        Ok(Slot { numbers: Arc::new(numbers), shared: Some(Shared { writer, published: None }) })
    }

    /// The path at which other processes open the slot, if it is in shared memory.
    fn path(&self) -> Option<PathBuf> {
        self.shared.as_ref().map(|shared| shared.writer.path().to_owned())
    }

    /// The slot's contents, writable; `None` if this process reads them or another process has pinned them.
    fn writable(&mut self) -> kernels::Result<Option<&mut T>> {
        if Arc::get_mut(&mut self.numbers).is_none() {
            return Ok(None);
        }
        if let Some(shared) = &mut self.shared {
            if !shared.writer.try_lock()? {
                return Ok(None);
            }
            shared.published = None;
        }
        Ok(Arc::get_mut(&mut self.numbers))
    }
}

impl<T: Versioned> WeightSlots<T> {
    /// A single slot with `first` as the current version. More slots are allocated from `memory`.
    pub fn new(memory: &Memory, first: T) -> WeightSlots<T> {
        let current = Slot::new(first);
        WeightSlots { memory: memory.clone(), current, earlier: Vec::new(), bytes_copied: 0, sharing: None }
    }

    /// Slots in shared memory, which other processes also read. `first` is copied into the first slot. The bytes of
    /// slots are charged to `memory`.
    pub fn shared(memory: &Memory, first: T, sharing: Sharing) -> kernels::Result<WeightSlots<T>> {
        let mut current = Slot::like(&first, memory, Some(&sharing))?;
        if let Some(numbers) = current.writable()? {
            numbers.params_mut().copy_from(first.params());
            numbers.set_version(first.version());
        }
        let memory = memory.clone();
        Ok(WeightSlots { memory, current, earlier: Vec::new(), bytes_copied: 0, sharing: Some(sharing) })
    }

    /// Allocates slots now, until there are `slots`: a training run that samples with older versions needs
    /// `max_staleness` + 1. On a device without values the bytes are only counted (`lockstep plan`).
    pub fn reserve(&mut self, slots: usize) -> kernels::Result<()> {
        while self.slots() < slots {
            let slot = Slot::like(&*self.current.numbers, &self.memory, self.sharing.as_ref())?;
            self.earlier.push(slot);
        }
        self.memory.check()
    }

    /// Publishes the current version to other processes as number `number`, and returns its location. A version that
    /// was published before and has not changed since (after a skipped step) stays in place under its first number.
    pub fn publish(&mut self, number: u64, lineage: [u8; 16], checksum: bool) -> kernels::Result<Published> {
        let version = self.current.numbers.version().0;
        let refused = |why: &str| kernels::Error::Value { op: "WeightSlots::publish", message: why.into() };
        let Slot { numbers, shared } = &mut self.current;
        let Some(shared) = shared else { return Err(refused("these weights must be in shared memory")) };
        let contents = match shared.published {
            Some(contents) => contents,
            None => {
                let numbers = Arc::get_mut(numbers)
                    .ok_or_else(|| refused("a version must be published before readers hold it"))?;
                let contents = Contents { number, version, lineage, checksum: None };
                shared.writer.publish(&mut numbers.params_mut().tensors_mut(), contents, checksum)?;
                *shared.published.insert(contents)
            }
        };
        Ok(Published { number, path: shared.writer.path().to_owned(), stored_as: contents.number })
    }

    /// The path of the current version, if it is published.
    fn published_at(&self) -> Option<&Path> {
        self.current.shared.as_ref().filter(|shared| shared.published.is_some()).map(|shared| shared.writer.path())
    }

    /// The current version, read-only.
    pub fn current(&self) -> &T {
        &self.current.numbers
    }

    /// A shared pointer to the current version, which does not change until the pointer is dropped.
    pub fn hold(&self) -> Arc<T> {
        self.current.numbers.clone()
    }

    /// Number of slots allocated so far.
    pub fn slots(&self) -> usize {
        1 + self.earlier.len()
    }

    /// Total number of bytes copied between versions because the old version was held.
    pub fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    /// Changes the current weights without increasing the version. Used to load weights.
    pub fn overwrite<R>(&mut self, write: impl FnOnce(&mut T) -> R) -> R {
        write(self.writable().expect("a held version can only be overwritten if there is room for a copy"))
    }

    /// Lets `write` create the next version from the current one. After an error the current version stays current, but
    /// if it was being updated in place, it keeps whatever was already written.
    pub fn update<R, E: From<kernels::Error>>(
        &mut self,
        write: impl FnOnce(&mut NextParams<'_>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let version = self.current().version().next();
        let from = self.current.path();
        if let Some(numbers) = self.current.writable()? {
            let slots = from.clone().zip(from);
            let result = write(&mut NextParams::in_place(numbers.params_mut()).in_slots(slots))?;
            numbers.set_version(version);
            return Ok(result);
        }
        let mut slot = self.free()?;
        let to = slot.path();
        let next = Arc::get_mut(&mut slot.numbers).expect("a free slot has no readers");
        let slots = from.zip(to);
        let mut params = NextParams::apart(self.current.numbers.params(), next.params_mut()).in_slots(slots);
        let result = write(&mut params);
        if result.is_err() {
            self.earlier.push(slot);
            return result;
        }
        self.bytes_copied += params.copy_rest();
        next.set_version(version);
        self.earlier.push(std::mem::replace(&mut self.current, slot));
        result
    }

    /// Returns a free slot; allocates one if all slots are held.
    fn free(&mut self) -> kernels::Result<Slot<T>> {
        for index in 0..self.earlier.len() {
            if self.earlier[index].writable()?.is_some() {
                return Ok(self.earlier.swap_remove(index));
            }
        }
        Slot::like(&*self.current.numbers, &self.memory, self.sharing.as_ref())
    }

    /// The current version, writable. If a reader holds it, it is first copied to another slot, which becomes the
    /// current one.
    fn writable(&mut self) -> kernels::Result<&mut T> {
        if self.current.writable()?.is_none() {
            let mut slot = self.free()?;
            let other = Arc::get_mut(&mut slot.numbers).expect("a free slot has no readers");
            self.bytes_copied += NextParams::apart(self.current.numbers.params(), other.params_mut()).copy_rest();
            other.set_version(self.current.numbers.version());
            self.earlier.push(std::mem::replace(&mut self.current, slot));
        }
        Ok(Arc::get_mut(&mut self.current.numbers).expect("the current version has no readers"))
    }
}

/// A model in training: base weights and, if only an adapter is trained, that adapter, each with its slots.
pub struct AdaptedWeights {
    /// The base weights, which are frozen if there is an adapter.
    pub base: WeightSlots<Weights>,
    /// The LoRA adapter, if the model has one.
    pub adapter: Option<WeightSlots<Adapter>>,
    /// Path at which other processes read base weights that never change.
    pub shared_base: Option<PathBuf>,
}

/// One version of a model's weights. It stays unchanged as long as this value exists.
pub struct HeldWeights {
    /// The base weights.
    pub base: Arc<Weights>,
    /// The LoRA adapter, if the model has one.
    pub adapter: Option<Arc<Adapter>>,
}

impl HeldWeights {
    /// A view for a forward pass.
    pub fn view(&self) -> ModelView<'_> {
        ModelView::new(&self.base, self.adapter.as_deref())
    }
}

impl AdaptedWeights {
    /// Holds the current versions of base and adapter. They do not change until the returned value is dropped.
    pub fn hold(&self) -> HeldWeights {
        HeldWeights { base: self.base.hold(), adapter: self.adapter.as_ref().map(WeightSlots::hold) }
    }
    /// The first versions of base weights and adapter.
    pub fn new(memory: &Memory, weights: Weights, adapter: Option<Adapter>) -> AdaptedWeights {
        let adapter = adapter.map(|adapter| WeightSlots::new(memory, adapter));
        AdaptedWeights { base: WeightSlots::new(memory, weights), adapter, shared_base: None }
    }
    /// The first versions of base weights and adapter, readable by other processes. The trained parameters are in
    /// shared slots. The frozen base weights of an adapter are at `shared_base`, in memory from [`Sharing::base`].
    pub fn shared(
        memory: &Memory,
        weights: Weights,
        adapter: Option<Adapter>,
        sharing: &Sharing,
        shared_base: Option<PathBuf>,
    ) -> kernels::Result<AdaptedWeights> {
        let sharing = sharing.clone();
        Ok(match adapter {
            Some(adapter) => AdaptedWeights {
                base: WeightSlots::new(memory, weights),
                adapter: Some(WeightSlots::shared(memory, adapter, sharing)?),
                shared_base,
            },
            None => {
                let base = WeightSlots::shared(memory, weights, sharing)?;
                AdaptedWeights { base, adapter: None, shared_base }
            }
        })
    }
    /// Publishes the trained parameters (adapter or base weights) to other processes, as [`WeightSlots::publish`].
    pub fn publish(&mut self, number: u64, lineage: [u8; 16]) -> kernels::Result<Published> {
        match &mut self.adapter {
            Some(adapter) => adapter.publish(number, lineage, false),
            None => self.base.publish(number, lineage, false),
        }
    }
    /// The path at which other processes read the current version of the trained parameters; `None` if it is not
    /// published.
    pub fn published_at(&self) -> Option<&Path> {
        self.adapter.as_ref().map_or(self.base.published_at(), WeightSlots::published_at)
    }

    /// Allocates slots for the trained parameters, as [`WeightSlots::reserve`].
    pub fn reserve(&mut self, slots: usize) -> kernels::Result<()> {
        match &mut self.adapter {
            Some(adapter) => adapter.reserve(slots),
            None => self.base.reserve(slots),
        }
    }
    /// The model's configuration.
    pub fn config(&self) -> &Arc<ModelConfig> {
        &self.base.current().config
    }
    /// Settings of the adapter, if the model has one.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.adapter.as_ref().map(|a| &a.current().lora)
    }
    /// Total number of bytes copied between versions because the old version was held.
    pub fn bytes_copied(&self) -> u64 {
        self.base.bytes_copied() + self.adapter.as_ref().map_or(0, WeightSlots::bytes_copied)
    }
    /// The version of the trained parameters: the adapter's if there is one, else the base weights'.
    pub fn version(&self) -> Updates {
        self.view().version().trained()
    }
    /// Sets the version of the trained parameters.
    pub fn set_version(&mut self, version: Updates) {
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

    type Written = kernels::Result<()>;

    /// A test optimizer that writes only the final norm.
    fn set(params: &mut NextParams<'_>, x: f32) -> Written {
        params.write("model.norm.weight", &[x; 4]);
        Ok(())
    }

    /// A test optimizer that adds 1 to every tensor, except those with an index in `leaves`.
    fn add(params: &mut NextParams<'_>, leaves: &[usize]) -> Written {
        for (_, tensor) in params.tensors_mut().into_iter().enumerate().filter(|(i, _)| !leaves.contains(i)) {
            let (from, mut to) = tensor.overwrite();
            let sum: Vec<f32> = from.unwrap_or(to.view()).to_vec_f32().iter().map(|x| x + 1.0).collect();
            to.copy_from_f32(&sum);
        }
        Ok(())
    }

    fn norm(weights: &Weights) -> Vec<f32> {
        weights.params.read("model.norm.weight").unwrap()
    }

    #[test]
    fn an_update_without_readers_is_in_place() {
        let mut slots = slots();
        (0..3).for_each(|x| slots.update(|p| set(p, x as f32)).unwrap());
        assert_eq!((slots.slots(), slots.bytes_copied(), slots.current().version.0), (1, 0, 3));
        assert_eq!(norm(slots.current()), [2.0; 4]);
    }

    #[test]
    fn a_held_version_is_unchanged_and_slots_are_reused() {
        let mut slots = slots();
        let embedding = slots.current().params.read("model.embed_tokens.weight").unwrap();
        let first = slots.hold();
        let all: usize = slots.current().params.tensors().iter().map(|t| t.bytes()).sum();
        slots.update(|p| set(p, 7.0)).unwrap();
        // All elements except the four written ones were copied and counted.
        assert_eq!((slots.slots(), slots.bytes_copied()), (2, all as u64 - 16));
        assert_eq!((first.version.0, norm(&first)), (0, vec![1.0; 4]));
        assert_eq!((slots.current().version.0, norm(slots.current())), (1, vec![7.0; 4]));
        assert_eq!(slots.current().params.read("model.embed_tokens.weight").unwrap(), embedding);
        // The second version has no readers, so it is updated in place while the first is still held. The next update
        // goes to the released slot.
        slots.update(|p| set(p, 8.0)).unwrap();
        let second = slots.hold();
        drop(first);
        slots.update(|p| set(p, 9.0)).unwrap();
        assert_eq!((slots.slots(), second.version.0), (2, 2));
        assert_eq!((norm(&second), norm(slots.current())), (vec![8.0; 4], vec![9.0; 4]));
    }

    #[test]
    fn an_update_in_another_slot_copies_only_unwritten_tensors() {
        let mut slots = slots();
        let mut expected: Vec<Vec<f32>> = slots.current().params.tensors().iter().map(|t| t.to_vec_f32()).collect();
        let mut copied = 0;
        for leaves in [&[][..], &[0, 2], &[], &[1], &[3], &[]] {
            let held = slots.hold();
            let before: Vec<Vec<f32>> = held.params.tensors().iter().map(|t| t.to_vec_f32()).collect();
            slots.update(|p| add(p, leaves)).unwrap();
            for (_, tensor) in expected.iter_mut().enumerate().filter(|(i, _)| !leaves.contains(i)) {
                for x in tensor.iter_mut() {
                    *x += 1.0;
                }
            }
            copied += leaves.iter().map(|&i| held.params.tensors()[i].bytes() as u64).sum::<u64>();
            assert_eq!(slots.bytes_copied(), copied);
            for (i, expected) in expected.iter().enumerate() {
                assert_eq!(&slots.current().params.tensors()[i].to_vec_f32(), expected, "tensor {i}, {leaves:?}");
                assert_eq!(held.params.tensors()[i].to_vec_f32(), before[i], "a held version must not change");
            }
            assert_eq!(slots.slots(), 2);
        }
    }

    #[test]
    fn parts_of_a_tensor_that_were_not_written_are_copied() {
        let mut slots = slots();
        let _held = slots.hold();
        let name = |p: &str| format!("model.layers.0.self_attn.{p}_proj.weight");
        let before = ["q", "k", "v"].map(|p| slots.current().params.read(&name(p)).unwrap());
        slots
            .update(|p| -> Written {
                p.write(&name("k"), &[3.0; 16]);
                Ok(())
            })
            .unwrap();
        let after = ["q", "k", "v"].map(|p| slots.current().params.read(&name(p)).unwrap());
        assert_eq!(after, [before[0].clone(), vec![3.0; 16], before[2].clone()]);
        let rest: u64 = slots.current().params.tensors().iter().map(|t| t.bytes() as u64).sum();
        let qkv = slots.current().params.layers[0].qkv.matrix.data().bytes() as u64;
        assert_eq!(slots.bytes_copied(), rest - qkv + 2 * 16 * 4);
    }

    #[test]
    fn a_failed_update_keeps_the_current_version() {
        let mut slots = slots();
        let held = slots.hold();
        let failed: Written = slots.update(|p| {
            p.write("model.norm.weight", &[5.0; 4]);
            Err(kernels::Error::Device("full".into()))
        });
        assert!(failed.is_err());
        assert_eq!((slots.current().version.0, norm(slots.current()), norm(&held)), (0, vec![1.0; 4], vec![1.0; 4]));
        slots.update(|p| add(p, &[])).unwrap();
        assert_eq!((slots.slots(), slots.current().version.0, norm(slots.current())), (2, 1, vec![2.0; 4]));
    }
}
