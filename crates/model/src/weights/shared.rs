//! Weights in shared memory, which several processes read without copies. This module defines the layout of a shared
//! slot, the writer's side ([`Sharing`], [`WeightSlots::shared`](super::WeightSlots::shared)), the readers' side
//! ([`SharedSlot`]), and the side of processes that write a part of a slot ([`Lent`]).

use super::{Adapter, LoraConfig, Params, Weights};
use crate::{ModelConfig, Updates};
use kernels::memory::slot::{Contents, LentSlot, Pin, SlotOptions, SlotReader, SlotWriter};
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
    /// Whether the slots of trained parameters are lent to ranks, each of which writes a part of the next version.
    pub lent: bool,
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
            lent: self.lent && !sealed_later,
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

    /// Allocates a tree in a slot of shared memory that this process lends to others, with the shape of `like`, a tree
    /// on [`Device::Meta`]. Returns the tree, and the path for [`Lent::open`].
    pub fn lend(&self, memory: &Memory, like: Params) -> Result<(Params, PathBuf)> {
        let writer = Sharing { lent: true, ..self.clone() }.slot(&like, false)?;
        let params = like.in_memory(&writer.memory(memory)?);
        memory.check()?;
        Ok((params, writer.path().to_owned()))
    }
}

/// A slot that another process [lends](Sharing::lend) to this one.
pub struct Lent(LentSlot);

impl Lent {
    /// Opens the slot at `path`. Returns it with its tree, which has the shape of `like`, a tree on [`Device::Meta`],
    /// and can be accessed while the slot is [borrowed](Self::borrow).
    pub fn open(path: &Path, memory: &Memory, like: Params) -> Result<(Lent, Params)> {
        let slot = LentSlot::open(path, &layout(&like).0)?;
        let params = like.in_memory(&slot.memory(memory)?);
        memory.check()?;
        Ok((Lent(slot), params))
    }

    /// Begins to access the slot, whose writer must have locked it for writing, and asked for this.
    pub fn borrow(&self) -> Result<()> {
        self.0.borrow()
    }

    /// Ends the access to the slot.
    pub fn give_back(&self) {
        self.0.give_back();
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
