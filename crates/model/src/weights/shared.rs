//! Weights in shared memory, which several processes read without copies. This module defines the layout of a shared
//! slot, the writer's side ([`Sharing`], [`WeightSlots::shared`](super::WeightSlots::shared)) and the readers' side
//! ([`SharedSlot`]).

use super::{Adapter, LoraConfig, Params, Weights};
use crate::{ModelConfig, Updates};
use kernels::memory::slot::{Contents, Pin, SlotOptions, SlotReader, SlotWriter};
use kernels::{Device, Memory, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings for creating slots of shared memory.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// Id of the training run to which the weights belong.
    pub run: [u8; 16],
    /// Directory for the slots' files, for processes that do not see each other's `/proc`; `None` makes slots memfds.
    pub dir: Option<PathBuf>,
}

/// The location at which other processes can read a published version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Number under which the version was published.
    pub number: u64,
    /// Path that readers open.
    pub path: PathBuf,
    /// Number that is stored in the slot. It is an earlier number if the weights have not changed since they were first
    /// published.
    pub stored_as: u64,
}

impl Sharing {
    pub(super) fn slot(&self, params: &Params, sealed_later: bool) -> Result<SlotWriter> {
        let (layout, bytes) = layout(params);
        SlotWriter::create(SlotOptions {
            run: self.run,
            layout: &layout,
            bytes,
            dir: self.dir.as_deref(),
            sealed_later,
        })
    }

    /// Shares the frozen base weights of trained adapters. `load` fills the shared memory that is passed to it; then
    /// the memory is sealed against writes. Returns the weights, read from the shared memory, and the path at which
    /// other processes read them.
    pub fn base(
        &self,
        memory: &Memory,
        config: &Arc<ModelConfig>,
        load: impl FnOnce(&Memory) -> crate::Result<Weights>,
    ) -> crate::Result<(Weights, PathBuf)> {
        let slot = self.slot(&Params::zeros(&Memory::new(Device::Meta), config), true)?;
        let version = load(&slot.memory(memory)?)?.version.0; // drops the tensors: see `seal`
        memory.check()?;
        let reader = slot.seal(Contents { version, ..Contents::default() }, true)?;
        let shared = SharedSlot { reader };
        let (weights, _) = shared.weights(memory, config)?.expect("a sealed slot is never being written");
        Ok((weights, shared.reader.path().to_owned()))
    }

    /// Gradients of zeros in a slot of shared memory, which this process accumulates and other processes read. The slot
    /// is locked for writing.
    pub fn gradients(
        &self,
        memory: &Memory,
        config: &ModelConfig,
        lora: Option<&LoraConfig>,
    ) -> Result<(Params, GradientSlot)> {
        let writer = self.slot(&Params::trained(&Memory::new(Device::Meta), config, lora), false)?;
        let params = Params::trained(&writer.memory(&memory.part("gradients"))?, config, lora);
        memory.check()?;
        Ok((params, GradientSlot { writer }))
    }
}

/// The slot of gradients that other processes read.
pub struct GradientSlot {
    writer: SlotWriter,
}

impl GradientSlot {
    /// Locks the slot for writing, unless another process reads it. Returns whether it is locked now.
    pub fn try_lock(&self) -> Result<bool> {
        self.writer.try_lock()
    }

    /// Lets other processes read the slot at the returned path, until it is locked again. `params` are the gradients in
    /// the slot.
    pub fn publish(&self, params: &mut Params) -> Result<&Path> {
        self.writer.publish(&mut params.tensors_mut(), Contents::default(), false)?;
        Ok(self.writer.path())
    }
}

/// A slot of shared memory that another process writes.
pub struct SharedSlot {
    reader: SlotReader,
}

impl SharedSlot {
    /// Opens and maps the slot at [`Published::path`].
    pub fn open(path: &Path) -> Result<SharedSlot> {
        Ok(SharedSlot { reader: SlotReader::open(path)? })
    }

    /// Id of the training run to which the slot belongs.
    pub fn run(&self) -> [u8; 16] {
        self.reader.run()
    }

    /// The weights that the slot contains now, in place, with their description; `None` while they are being written.
    /// They stay unchanged until the returned weights are dropped. If the slot contains another kind of model, the
    /// error names the first parameter that differs.
    pub fn weights(&self, memory: &Memory, config: &Arc<ModelConfig>) -> Result<Option<(Weights, Contents)>> {
        self.reader.expect_layout(&layout(&Params::zeros(&Memory::new(Device::Meta), config)).0)?;
        let Some(pin) = self.reader.pin()? else { return Ok(None) };
        let mut weights = Weights::zeros(&pin.memory(memory)?, config);
        memory.check()?;
        weights.version = Updates(pin.contents().version);
        Ok(Some((weights, pin.contents())))
    }

    /// The adapter that the slot contains now; otherwise like [`weights`](Self::weights).
    pub fn adapter(
        &self,
        memory: &Memory,
        config: &Arc<ModelConfig>,
        lora: &LoraConfig,
    ) -> Result<Option<(Adapter, Contents)>> {
        self.reader.expect_layout(&layout(&Params::adapter(&Memory::new(Device::Meta), config, lora)).0)?;
        let Some(pin) = self.reader.pin()? else { return Ok(None) };
        let params = Params::adapter(&pin.memory(memory)?, config, lora);
        memory.check()?;
        let version = Updates(pin.contents().version);
        Ok(Some((Adapter { lora: lora.clone(), params, version, config: config.clone() }, pin.contents())))
    }

    /// The gradients that the slot contains now; otherwise like [`weights`](Self::weights).
    pub fn gradients(
        &self,
        memory: &Memory,
        config: &ModelConfig,
        lora: Option<&LoraConfig>,
    ) -> Result<Option<Params>> {
        self.reader.expect_layout(&layout(&Params::trained(&Memory::new(Device::Meta), config, lora)).0)?;
        let Some(pin) = self.reader.pin()? else { return Ok(None) };
        let params = Params::trained(&pin.memory(memory)?, config, lora);
        memory.check()?;
        Ok(Some(params))
    }

    /// Verifies the checksum with which the slot's contents were published; fails if it does not match.
    pub fn audit(&self) -> Result<()> {
        self.reader.pin()?.as_ref().map_or(Ok(()), Pin::audit)
    }
}

/// The layout of a slot with these parameters, as text with a line for each tensor, and the slot's size in bytes.
/// Tensors are allocated in this order.
fn layout(params: &Params) -> (String, usize) {
    let (mut text, mut bytes) = ("tensors, each aligned to 64; matrices in panels of 32 rows\n".to_owned(), 0);
    for (spec, tensor) in params.specs().iter().zip(params.tensors()) {
        let names: Vec<&str> = spec.parts.iter().map(|part| part.name.as_str()).collect();
        text += &format!("{} {:?} {:?}\n", names.join("+"), tensor.dtype(), tensor.shape());
        bytes += tensor.bytes().next_multiple_of(64);
    }
    (text, bytes)
}
