//! Weights that several processes read where they lie: what a slot of shared memory holds, its writer's side
//! ([`Sharing`], [`WeightSlots::shared`](super::WeightSlots::shared)) and its readers' ([`SharedSlot`]).

use super::{Adapter, LoraConfig, Params, Weights};
use crate::ModelConfig;
use kernels::memory::slot::{Contents, Pin, SlotOptions, SlotReader, SlotWriter};
use kernels::{Device, Memory, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How slots are made that other processes read.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// The run that the weights belong to.
    pub run: [u8; 16],
    /// A directory for files, where processes do not see each other's `/proc`; none: memfds.
    pub dir: Option<PathBuf>,
}

/// Where a version can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The version's number.
    pub number: u64,
    /// What readers open.
    pub path: PathBuf,
    /// The number that the slot says: an earlier one, if the weights have not changed since.
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

    /// Base weights that never change: `load` makes them in the memory that it is given, then nobody can write them,
    /// and this process reads them as others do, at the path. Below adapters, which have the slots.
    pub fn base(
        &self,
        memory: &Memory,
        config: &Arc<ModelConfig>,
        load: impl FnOnce(&Memory) -> crate::Result<Weights>,
    ) -> crate::Result<(Weights, PathBuf)> {
        let slot = self.slot(&Params::zeros(&Memory::new(Device::Meta), config), true)?;
        let version = load(&slot.memory(memory)?)?.version; // its tensors end here
        memory.check()?;
        let reader = slot.seal(Contents { version, ..Contents::default() }, true)?;
        let shared = SharedSlot { reader };
        let (weights, _) = shared.weights(memory, config)?.expect("sealed, and never written again");
        Ok((weights, shared.reader.path().to_owned()))
    }
}

/// A slot of another process.
pub struct SharedSlot {
    reader: SlotReader,
}

impl SharedSlot {
    /// Opens and maps what is at [`Published::path`].
    pub fn open(path: &Path) -> Result<SharedSlot> {
        Ok(SharedSlot { reader: SlotReader::open(path)? })
    }

    /// The run that it belongs to.
    pub fn run(&self) -> [u8; 16] {
        self.reader.run()
    }

    /// The weights that it holds now, where they lie, and what they are. None while they are written. They stay as they
    /// are until what this gives is dropped. An error that names the first parameter which differs if they are not of
    /// such a model.
    pub fn weights(&self, memory: &Memory, config: &Arc<ModelConfig>) -> Result<Option<(Weights, Contents)>> {
        self.reader.expect_layout(&layout(&Params::zeros(&Memory::new(Device::Meta), config)).0)?;
        let Some(pin) = self.reader.pin()? else { return Ok(None) };
        let mut weights = Weights::zeros(&pin.memory(memory)?, config);
        memory.check()?;
        weights.version = pin.contents().version;
        Ok(Some((weights, pin.contents())))
    }

    /// The adapter that it holds now, as [`weights`](Self::weights).
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
        let version = pin.contents().version;
        Ok(Some((Adapter { lora: lora.clone(), params, version, config: config.clone() }, pin.contents())))
    }

    /// Whether what it holds now has the checksum that it was published with: an error if not.
    pub fn audit(&self) -> Result<()> {
        self.reader.pin()?.as_ref().map_or(Ok(()), Pin::audit)
    }
}

/// What lies in a slot of such parameters, a line for each tensor; and its bytes. Tensors are allocated in this order.
fn layout(params: &Params) -> (String, usize) {
    let (mut text, mut bytes) = ("tensors, each aligned to 64; matrices in panels of 32 rows\n".to_owned(), 0);
    for (spec, tensor) in params.specs().iter().zip(params.tensors()) {
        let names: Vec<&str> = spec.parts.iter().map(|part| part.name.as_str()).collect();
        text += &format!("{} {:?} {:?}\n", names.join("+"), tensor.dtype(), tensor.shape());
        bytes += tensor.bytes().next_multiple_of(64);
    }
    (text, bytes)
}
